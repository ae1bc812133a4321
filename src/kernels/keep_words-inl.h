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
#include "kernels/keep_words.h"
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

// Outcomes in the low four bits of each lane; ties: lanes that the threshold leaves open.
HWY_INLINE VU16 Outcomes(const KeepWordsTables& tables, VU16 halves, hn::Mask<DU16>& ties) {
  const DU16 d16;
  const VU16 draw = hn::And(halves, hn::Set(d16, 0xFFF0));
#if HWY_TARGET <= HWY_AVX3
  const VU16 threshold{_mm512_permutexvar_epi16(halves.raw, _mm512_load_si512(tables.threshold))};
  const VU16 alias{_mm512_permutexvar_epi16(halves.raw, _mm512_load_si512(tables.alias))};
  ties = hn::Eq(draw, threshold);
  return hn::IfThenElse(hn::Gt(threshold, draw), halves, alias);
#else
  const DU8 d8;
  const VU16 column = hn::And(halves, hn::Set(d16, 0x000F));
  const auto in_low = hn::BitCast(d8, hn::Or(column, hn::Set(d16, 0x8000)));
  const auto in_high = hn::BitCast(d8, hn::Or(hn::ShiftLeft<8>(column), hn::Set(d16, 0x0080)));
  const auto low = hn::TableLookupBytesOr0(hn::Load(d8, tables.threshold_low), in_low);
  const auto high = hn::TableLookupBytesOr0(hn::Load(d8, tables.threshold_high), in_high);
  const VU16 threshold = hn::BitCast(d16, hn::Or(low, high));
  const VU16 alias =
      hn::BitCast(d16, hn::TableLookupBytesOr0(hn::Load(d8, tables.alias_bytes), in_low));
  ties = hn::Eq(draw, threshold);
  return hn::IfThenElse(hn::Eq(hn::Max(draw, threshold), draw), alias, halves);
#endif
}

// Words 2k and 2k+1 of a result as the halves of a 64-bit lane: 16 bits a row.
HWY_INLINE VU16 Halves(VU64 even, VU64 odd) {
  const DU32 d32;
  return hn::BitCast(DU16(),
                     hn::OddEven(hn::DupEven(hn::BitCast(d32, odd)), hn::BitCast(d32, even)));
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

// Rows of columns 0..3 and 4..7 that met their threshold.
struct Ties {
  std::uint64_t rows[2] = {0, 0};
};

// Draws of 2 * kRowLanes rows by eight columns, from two Philox results, as words.
HWY_INLINE Ties FinishPair(const KeepWordsArgs& args, const PhiloxVectors (&x)[2],
                           const Place& place) {
  const DU16 d16;
  VU16 rows[2];
  Ties ties;
  HWY_UNROLL(2)
  for (std::size_t half = 0; half < 2; ++half) {
    hn::Mask<DU16> ties_low;
    hn::Mask<DU16> ties_high;
    const VU16 low = Outcomes(*args.tables, Halves(x[half].w[0], x[half].w[1]), ties_low);
    const VU16 high = Outcomes(*args.tables, Halves(x[half].w[2], x[half].w[3]), ties_high);
    rows[half] = hn::Or(hn::And(low, hn::Set(d16, 0x000F)), hn::ShiftLeft<4>(high));
    ties.rows[0] |= RowBits(d16, ties_low) << (place.row + half * kRowLanes);
    ties.rows[1] |= RowBits(d16, ties_high) << (place.row + half * kRowLanes);
  }
  AddWords(rows[0], rows[1], place.row, args.words + place.column);
  return ties;
}

// P pairs from pair number `first` on; a pair is 2 * kRowLanes rows by eight columns.
template <std::size_t P>
HWY_INLINE void KeepWordPairs(const KeepWordsArgs& args, std::size_t first) {
  constexpr std::size_t kPairsPerColumn = kVectorsPerWord / 2;
  const DU64 d;
  Place places[P];
  PhiloxVectors x[P][2];
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < P; ++p) {
    const std::size_t pair = first + p;
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
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < P; ++p) {
      PhiloxRound(args.tables->k0[round], args.tables->k1[round], x[p][0]);
      PhiloxRound(args.tables->k0[round], args.tables->k1[round], x[p][1]);
    }
  }
  Ties ties[P];
  std::uint64_t any = 0;
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < P; ++p) {
    ties[p] = FinishPair(args, x[p], places[p]);
    any |= ties[p].rows[0] | ties[p].rows[1];
  }
  if (HWY_LIKELY(any == 0)) return;
  for (std::size_t p = 0; p < P; ++p) {
    const std::size_t column = places[p].column;
    DecideTies(args, ties[p].rows[0], column, args.words + column);
    DecideTies(args, ties[p].rows[1], column + 4, args.words + column + 4);
  }
}

inline void KeepWords(const KeepWordsArgs& args) {
  const std::size_t pairs = args.count / 8 * (kVectorsPerWord / 2);
  std::size_t first = 0;
  for (; first + kPairs <= pairs; first += kPairs) KeepWordPairs<kPairs>(args, first);
  for (; first < pairs; ++first) KeepWordPairs<1>(args, first);
}

// One row: a vector of Philox calls gives eight columns a lane, of which the other three rows go to
// waste. For schemes whose queries share their draws.
inline void KeepRow(const KeepRowArgs& args) {
  const DU64 d;
  const DU16 d16;
  const std::size_t place = args.row % 4;  // of the row among the four halves of a lane
  alignas(64) std::uint16_t nibbles[2][kRowLanes];
  for (std::size_t first = 0; first < args.count; first += kQuadLanes) {
    PhiloxVectors x;
    x.w[0] = hn::Set(d, args.row / 4);
    x.w[1] = hn::Iota(d, args.column / 8 + first);
    x.w[2] = hn::Set(d, args.h);
    x.w[3] = hn::Set(d, args.b);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      PhiloxRound(args.tables->k0[round], args.tables->k1[round], x);
    }
    std::uint64_t ties[2];
    for (std::size_t half = 0; half < 2; ++half) {
      hn::Mask<DU16> found;
      hn::Store(Outcomes(*args.tables, Halves(x.w[2 * half], x.w[2 * half + 1]), found), d16,
                nibbles[half]);
      ties[half] = RowBits(d16, found);
    }
    const std::size_t valid = std::min(kQuadLanes, args.count - first);
    for (std::size_t lane = 0; lane < valid; ++lane) {
      const std::size_t at = 4 * lane + place;
      unsigned octet = 0;
      for (std::size_t half = 0; half < 2; ++half) {
        unsigned nibble = nibbles[half][at] & 0xFU;
        if (((ties[half] >> at) & 1U) != 0) {
          const std::size_t column = 8 * (first + lane) + 4 * half;
          nibble = FieldNibble(args.tables->table, args.tables->key,
                               {.r = args.row,
                                .c = args.column + static_cast<std::uint32_t>(column),
                                .h = args.h,
                                .b = args.b});
        }
        octet |= nibble << (4 * half);
      }
      args.octets[first + lane] = static_cast<std::uint8_t>(octet);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
