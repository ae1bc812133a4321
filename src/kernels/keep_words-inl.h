// SPDX-License-Identifier: Apache-2.0
// Field bits of 64 rows by many columns, the scalar definition (rng/field.h) in vectors.
//
// One Philox call gives the eight 16-bit halves that decide 4 rows x 8 columns. With the counters
// of neighbouring row quads in the 64-bit lanes of a vector, words 0 and 1 side by side are one
// half for each of 4 * lanes rows and columns 0..3, words 2 and 3 the same for columns 4..7: no
// shuffle is needed. The alias table is a look-up of 16 entries. A half that meets its column's
// threshold exactly (one in 4096) is decided by the scalar definition afterwards.

// Per-target include guard
#if defined(ATTNDROP_KERNELS_KEEP_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNDROP_KERNELS_KEEP_WORDS_INL_H_
#undef ATTNDROP_KERNELS_KEEP_WORDS_INL_H_
#else
#define ATTNDROP_KERNELS_KEEP_WORDS_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/kernels.h"
#include "rng/field.h"
#include "rng/philox.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DU64 = hn::CappedTag<std::uint64_t, 8>;
using DU32 = hn::Repartition<std::uint32_t, DU64>;
using DU16 = hn::Repartition<std::uint16_t, DU64>;
using DU8 = hn::Repartition<std::uint8_t, DU64>;
using VU64 = hn::Vec<DU64>;
using VU16 = hn::Vec<DU16>;

inline constexpr std::size_t kQuadLanes = hn::MaxLanes(DU64());  // row quads of a vector
inline constexpr std::size_t kRowLanes = 4 * kQuadLanes;         // rows of a vector
inline constexpr std::size_t kVectorsPerWord = 64 / kRowLanes;   // 2 (512 bits) to 8 (128 bits)

// The four words of a counter or result, one in each 64-bit lane; high halves hold anything.
struct PhiloxVectors {
  VU64 w[4];
};

HWY_INLINE void PhiloxRound(std::uint32_t k0, std::uint32_t k1, PhiloxVectors& x) {
  const DU64 d64;
  const DU32 d32;
  const VU64 p0 = hn::MulEven(hn::BitCast(d32, x.w[0]), hn::Set(d32, kPhiloxMultiplier0));
  const VU64 p1 = hn::MulEven(hn::BitCast(d32, x.w[2]), hn::Set(d32, kPhiloxMultiplier1));
  x.w[0] = hn::Xor3(hn::ShiftRight<32>(p1), x.w[1], hn::Set(d64, k0));
  x.w[2] = hn::Xor3(hn::ShiftRight<32>(p0), x.w[3], hn::Set(d64, k1));
  x.w[1] = p1;
  x.w[3] = p0;
}

// The alias table as vectors.
class AliasLookup {
 public:
  explicit AliasLookup(const AliasTable& table) {
    for (std::size_t i = 0; i < 16; ++i) {
      // The 12 high bits of a threshold, where a half has its draw. A full column (4096) never
      // hands over to its alias, which is itself: any threshold serves.
      const std::uint64_t high = table.threshold[i] >> 32;
      const auto threshold = static_cast<std::uint16_t>(high > 0xFFF ? 0xFFF0 : high << 4);
      for (std::size_t copy = i; copy < 64; copy += 16) {
        low_[copy] = static_cast<std::uint8_t>(threshold);
        high_[copy] = static_cast<std::uint8_t>(threshold >> 8);
        alias_[copy] = table.alias[i];
      }
      for (std::size_t copy = i; copy < 32; copy += 16) {
        wide_threshold_[copy] = threshold;
        wide_alias_[copy] = table.alias[i];
      }
    }
  }

  // Outcomes in the low four bits of each lane; ties: lanes that the threshold leaves open.
  HWY_INLINE VU16 Outcomes(VU16 halves, hn::Mask<DU16>& ties) const {
    const DU16 d16;
    const VU16 draw = hn::And(halves, hn::Set(d16, 0xFFF0));
#if HWY_TARGET <= HWY_AVX3
    const VU16 threshold{_mm512_permutexvar_epi16(halves.raw, _mm512_load_si512(wide_threshold_))};
    const VU16 alias{_mm512_permutexvar_epi16(halves.raw, _mm512_load_si512(wide_alias_))};
#else
    const DU8 d8;
    const VU16 column = hn::And(halves, hn::Set(d16, 0x000F));
    const auto in_low = hn::BitCast(d8, hn::Or(column, hn::Set(d16, 0x8000)));
    const auto in_high = hn::BitCast(d8, hn::Or(hn::ShiftLeft<8>(column), hn::Set(d16, 0x0080)));
    const auto low = hn::TableLookupBytesOr0(hn::Load(d8, low_), in_low);
    const auto high = hn::TableLookupBytesOr0(hn::Load(d8, high_), in_high);
    const VU16 threshold = hn::BitCast(d16, hn::Or(low, high));
    const VU16 alias = hn::BitCast(d16, hn::TableLookupBytesOr0(hn::Load(d8, alias_), in_low));
#endif
    ties = hn::Eq(draw, threshold);
    return hn::IfThenElse(hn::Eq(hn::Max(draw, threshold), draw), alias, halves);
  }

 private:
  alignas(64) std::uint8_t low_[64];
  alignas(64) std::uint8_t high_[64];
  alignas(64) std::uint8_t alias_[64];
  alignas(64) std::uint16_t wide_threshold_[32];
  alignas(64) std::uint16_t wide_alias_[32];
};

HWY_INLINE std::uint64_t RowBits(hn::Mask<DU16> mask) {
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(DU16(), mask, bits);
  std::uint64_t word = 0;
  std::memcpy(&word, bits, sizeof word);
  return word;
}

// Four columns of kRowLanes rows: ORs their bits into words[0..3] at first_row; returns the ties.
HWY_INLINE std::uint64_t AddColumns(const AliasLookup& lookup, VU64 even, VU64 odd,
                                    std::size_t first_row, std::uint64_t* words) {
  const DU16 d16;
  const DU32 d32;
  // Word 0 of each lane stays in its low half, word 1 goes into the high one.
  const VU16 halves = hn::BitCast(
      d16, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even)));
  hn::Mask<DU16> ties;
  const VU16 outcomes = lookup.Outcomes(halves, ties);
  words[0] |= RowBits(hn::TestBit(outcomes, hn::Set(d16, 1))) << first_row;
  words[1] |= RowBits(hn::TestBit(outcomes, hn::Set(d16, 2))) << first_row;
  words[2] |= RowBits(hn::TestBit(outcomes, hn::Set(d16, 4))) << first_row;
  words[3] |= RowBits(hn::TestBit(outcomes, hn::Set(d16, 8))) << first_row;
  return RowBits(ties) << first_row;
}

// Rows of four columns whose draw met the threshold: the scalar definition decides.
HWY_NOINLINE inline void DecideTies(const KeepWordsArgs& args, std::uint64_t ties,
                                    std::size_t first_column, std::uint64_t* words) {
  for (; ties != 0; ties &= ties - 1) {
    const auto row = static_cast<std::uint32_t>(std::countr_zero(ties));
    const unsigned nibble =
        FieldNibble(args.table, args.key,
                    {.r = args.row + row,
                     .c = args.column + static_cast<std::uint32_t>(first_column),
                     .h = args.h,
                     .b = args.b});
    for (unsigned bit = 0; bit < 4; ++bit) {
      const std::uint64_t keep = (nibble >> bit) & 1U;
      words[bit] = (words[bit] & ~(std::uint64_t{1} << row)) | (keep << row);
    }
  }
}

// Eight columns at a time: kStates Philox states side by side hide the latency of the products.
inline void KeepWords(const KeepWordsArgs& args) {
  constexpr std::size_t kStates = 2;
  const DU64 d64;
  const AliasLookup lookup(args.table);
  for (std::size_t column = 0; column < args.count; column += 8) {
    std::uint64_t* const words = args.words + column;
    std::memset(words, 0, 8 * sizeof *words);
    std::uint64_t ties[2] = {0, 0};
    const std::uint64_t c1 = (args.column + column) / 8;
    for (std::size_t vector = 0; vector < kVectorsPerWord; vector += kStates) {
      PhiloxVectors x[kStates];
      HWY_UNROLL(2)
      for (std::size_t s = 0; s < kStates; ++s) {
        x[s].w[0] = hn::Iota(d64, args.row / 4 + (vector + s) * kQuadLanes);
        x[s].w[1] = hn::Set(d64, c1);
        x[s].w[2] = hn::Set(d64, args.h);
        x[s].w[3] = hn::Set(d64, args.b);
      }
      std::uint32_t k0 = args.key.k0;
      std::uint32_t k1 = args.key.k1;
      HWY_UNROLL(10)
      for (int round = 0; round < kPhiloxRounds; ++round) {
        HWY_UNROLL(2)
        for (std::size_t s = 0; s < kStates; ++s) PhiloxRound(k0, k1, x[s]);
        k0 += kPhiloxIncrement0;
        k1 += kPhiloxIncrement1;
      }
      HWY_UNROLL(2)
      for (std::size_t s = 0; s < kStates; ++s) {
        const std::size_t row = (vector + s) * kRowLanes;
        ties[0] |= AddColumns(lookup, x[s].w[0], x[s].w[1], row, words);
        ties[1] |= AddColumns(lookup, x[s].w[2], x[s].w[3], row, words + 4);
      }
    }
    if (HWY_UNLIKELY((ties[0] | ties[1]) != 0)) {
      DecideTies(args, ties[0], column, words);
      DecideTies(args, ties[1], column + 4, words + 4);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
