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

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

// The keys of all rounds, where a broadcast can load them.
struct PhiloxSchedule {
  std::uint64_t k0[kPhiloxRounds];
  std::uint64_t k1[kPhiloxRounds];

  explicit PhiloxSchedule(PhiloxKey key) {
    for (int round = 0; round < kPhiloxRounds; ++round) {
      k0[round] = key.k0;
      k1[round] = key.k1;
      key.k0 += kPhiloxIncrement0;
      key.k1 += kPhiloxIncrement1;
    }
  }
};

HWY_INLINE void PhiloxRound(std::uint64_t k0, std::uint64_t k1, PhiloxVectors& x) {
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

// Words 2k and 2k+1 of a result as the halves of a 64-bit lane: 16 bits a row.
HWY_INLINE VU16 Halves(VU64 even, VU64 odd) {
  const DU32 d32;
  const auto high = hn::BitCast(d32, hn::ShiftLeft<32>(odd));
  return hn::BitCast(DU16(), hn::OddEven(high, hn::BitCast(d32, even)));
}

// Bit i of the result is row i of a mask over rows.
template <class D>
HWY_INLINE std::uint64_t RowBits(D d, hn::Mask<D> mask) {
#if HWY_TARGET <= HWY_AVX3
  (void)d;
  return mask.raw;
#else
  // Written and read back in one width, so that the load can take the store over.
  constexpr std::size_t kBits = hn::MaxLanes(D());
  using Bits = std::conditional_t<kBits == 32, std::uint32_t,
                                  std::conditional_t<kBits == 16, std::uint16_t, std::uint8_t>>;
  std::uint8_t bytes[8];
  hn::StoreMaskBits(d, mask, bytes);
  Bits bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
#endif
}

// The eight columns of two vectors of rows, as words: bit (first_row + i) of words[c].
HWY_INLINE void AddWords(VU16 rows_low, VU16 rows_high, std::size_t first_row,
                         std::uint64_t* words) {
  const DU8 d8;
  const auto bytes = hn::ConcatEven(d8, hn::BitCast(d8, rows_high), hn::BitCast(d8, rows_low));
  HWY_UNROLL(8)
  for (int column = 0; column < 8; ++column) {
    const auto bit = hn::Set(d8, static_cast<std::uint8_t>(1U << column));
    const std::uint64_t rows = RowBits(d8, hn::TestBit(bytes, bit)) << first_row;
    words[column] = first_row == 0 ? rows : words[column] | rows;
  }
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

// Pairs of vectors of rows that are computed side by side, to hide the latency of the
// multiplications: as many as the registers hold.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr std::size_t kPairs = 2;
#else
inline constexpr std::size_t kPairs = 1;
#endif

struct Place {
  std::size_t row = 0;     // of the 64, a multiple of 2 * kRowLanes
  std::size_t column = 0;  // a multiple of 8
};

// Draws of 2 * kRowLanes rows by eight columns, from two Philox results, as words.
HWY_INLINE void FinishPair(const KeepWordsArgs& args, const AliasLookup& lookup,
                           const PhiloxVectors (&x)[2], const Place& place) {
  const DU16 d16;
  VU16 rows[2];
  std::uint64_t ties[2] = {0, 0};  // columns 0..3 and 4..7
  HWY_UNROLL(2)
  for (std::size_t half = 0; half < 2; ++half) {
    hn::Mask<DU16> ties_low;
    hn::Mask<DU16> ties_high;
    const VU16 low = lookup.Outcomes(Halves(x[half].w[0], x[half].w[1]), ties_low);
    const VU16 high = lookup.Outcomes(Halves(x[half].w[2], x[half].w[3]), ties_high);
    rows[half] = hn::Or(hn::And(low, hn::Set(d16, 0x000F)), hn::ShiftLeft<4>(high));
    ties[0] |= RowBits(d16, ties_low) << (half * kRowLanes);
    ties[1] |= RowBits(d16, ties_high) << (half * kRowLanes);
  }
  std::uint64_t* const words = args.words + place.column;
  AddWords(rows[0], rows[1], place.row, words);
  if (HWY_UNLIKELY((ties[0] | ties[1]) != 0)) {
    DecideTies(args, ties[0] << place.row, place.column, words);
    DecideTies(args, ties[1] << place.row, place.column + 4, words + 4);
  }
}

inline void KeepWords(const KeepWordsArgs& args) {
  constexpr std::size_t kPairsPerColumn = kVectorsPerWord / 2;
  const DU64 d;
  const AliasLookup lookup(args.table);
  const PhiloxSchedule schedule(args.key);
  const std::size_t pairs = args.count / 8 * kPairsPerColumn;
  for (std::size_t first = 0; first < pairs; first += kPairs) {
    Place places[kPairs];
    PhiloxVectors x[kPairs][2];
    HWY_UNROLL(2)
    for (std::size_t p = 0; p < kPairs; ++p) {
      // The last pair may be computed twice.
      const std::size_t pair = std::min(first + p, pairs - 1);
      places[p] = {pair % kPairsPerColumn * 2 * kRowLanes, pair / kPairsPerColumn * 8};
      HWY_UNROLL(2)
      for (std::size_t half = 0; half < 2; ++half) {
        x[p][half].w[0] = hn::Iota(d, (args.row + places[p].row + half * kRowLanes) / 4);
        x[p][half].w[1] = hn::Set(d, (args.column + places[p].column) / 8);
        x[p][half].w[2] = hn::Set(d, args.h);
        x[p][half].w[3] = hn::Set(d, args.b);
      }
    }
    HWY_UNROLL(10)
    for (int round = 0; round < kPhiloxRounds; ++round) {
      HWY_UNROLL(2)
      for (std::size_t p = 0; p < kPairs; ++p) {
        PhiloxRound(schedule.k0[round], schedule.k1[round], x[p][0]);
        PhiloxRound(schedule.k0[round], schedule.k1[round], x[p][1]);
      }
    }
    HWY_UNROLL(2)
    for (std::size_t p = 0; p < kPairs; ++p) FinishPair(args, lookup, x[p], places[p]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
