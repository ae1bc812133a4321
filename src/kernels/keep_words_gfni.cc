// SPDX-License-Identifier: Apache-2.0
// Keep words with instructions that Highway 1.0.3 does not have: byte permutations (VBMI) gather
// the outcomes of 64 rows, one Galois field product (GFNI) turns them into bits of columns. The
// same steps as keep_words-inl.h otherwise. The whole file is compiled for these instructions:
// FindGfniKeepWords (target.cc) gives the function only where the processor has them.
#include "kernels/keep_words.h"

#if defined(__GFNI__) && defined(__AVX512VBMI__)

#include <immintrin.h>

namespace attndrop {
namespace {

constexpr int kHalves = 2;  // vectors of 32 rows in 64

// Rows 0..31 or 32..63 of eight columns; the four Philox words in the 64-bit lanes.
struct PhiloxVectors {
  __m512i w[4];
};

__m512i Broadcast(std::uint64_t x) noexcept { return _mm512_set1_epi64(static_cast<long long>(x)); }

inline __attribute__((always_inline)) void PhiloxRound(std::uint64_t k0, std::uint64_t k1,
                                                       PhiloxVectors& x) noexcept {
  constexpr int kXor3 = 0x96;
  const __m512i p0 = _mm512_mul_epu32(x.w[0], Broadcast(kPhiloxMultiplier0));
  const __m512i p1 = _mm512_mul_epu32(x.w[2], Broadcast(kPhiloxMultiplier1));
  x.w[0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), x.w[1], Broadcast(k0), kXor3);
  x.w[2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), x.w[3], Broadcast(k1), kXor3);
  x.w[1] = p1;
  x.w[3] = p0;
}

// Words 2k and 2k+1 as the halves of a 64-bit lane: 16 bits a row.
__m512i Halves(__m512i even, __m512i odd) noexcept {
  constexpr __mmask16 kOddWords = 0xAAAA;
  return _mm512_mask_shuffle_epi32(even, kOddWords, odd, _MM_PERM_CCAA);
}

// Outcomes in the low four bits of each 16; ties: rows whose draw meets the threshold.
__m512i Outcomes(const KeepWordsTables& tables, __m512i halves, __mmask32& ties) noexcept {
  const __m512i draw = _mm512_and_si512(halves, _mm512_set1_epi16(static_cast<short>(0xFFF0)));
  const __m512i threshold = _mm512_permutexvar_epi16(halves, _mm512_load_si512(tables.threshold));
  const __m512i alias = _mm512_permutexvar_epi16(halves, _mm512_load_si512(tables.alias));
  ties = _mm512_cmpeq_epi16_mask(draw, threshold);
  return _mm512_mask_mov_epi16(halves, _mm512_cmpge_epu16_mask(draw, threshold), alias);
}

// Eight rows of 8 bits in each 64-bit lane, the last row lowest, turned into eight columns of 8:
// multiplying by the unit matrix reads the rows as a matrix, whose product is its transpose.
__m512i TransposeEights(__m512i rows) noexcept {
  return _mm512_gf2p8affine_epi64_epi8(Broadcast(0x8040201008040201), rows, 0);
}

// Byte 8 * i + j of the result is byte 8 * j + i.
__m512i GatherColumns(__m512i eights) noexcept {
  const __m512i from =
      _mm512_set_epi8(63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6,  //
                      61, 53, 45, 37, 29, 21, 13, 5, 60, 52, 44, 36, 28, 20, 12, 4,  //
                      59, 51, 43, 35, 27, 19, 11, 3, 58, 50, 42, 34, 26, 18, 10, 2,  //
                      57, 49, 41, 33, 25, 17, 9, 1, 56, 48, 40, 32, 24, 16, 8, 0);
  return _mm512_permutexvar_epi8(from, eights);
}

// The low byte of each of 64 rows; in each eight of them the last comes first.
__m512i LowBytesReversed(__m512i rows_0, __m512i rows_32) noexcept {
  const __m512i from = _mm512_set_epi8(
      112, 114, 116, 118, 120, 122, 124, 126, 96, 98, 100, 102, 104, 106, 108, 110,  //
      80, 82, 84, 86, 88, 90, 92, 94, 64, 66, 68, 70, 72, 74, 76, 78,                //
      48, 50, 52, 54, 56, 58, 60, 62, 32, 34, 36, 38, 40, 42, 44, 46,                //
      16, 18, 20, 22, 24, 26, 28, 30, 0, 2, 4, 6, 8, 10, 12, 14);
  return _mm512_permutex2var_epi8(rows_0, from, rows_32);
}

// Rows of columns 0..3 and 4..7 that met their threshold.
struct Ties {
  __mmask32 low[kHalves];
  __mmask32 high[kHalves];

  [[nodiscard]] __mmask32 Any() const noexcept { return low[0] | low[1] | high[0] | high[1]; }
};

// The draws of 64 rows by eight columns, as words.
inline __attribute__((always_inline)) Ties Finish(const KeepWordsTables& tables,
                                                  const PhiloxVectors (&x)[kHalves],
                                                  std::uint64_t* words) noexcept {
  constexpr int kSelect = 0xCA;  // of the second and third operand, by the first
  Ties ties;
  __m512i rows[kHalves];
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
    const PhiloxVectors& from = x[half];
    const __m512i low = Outcomes(tables, Halves(from.w[0], from.w[1]), ties.low[half]);
    const __m512i high = Outcomes(tables, Halves(from.w[2], from.w[3]), ties.high[half]);
    rows[half] = _mm512_ternarylogic_epi64(_mm512_set1_epi16(0x000F), low,
                                           _mm512_slli_epi16(high, 4), kSelect);
  }
  const __m512i columns = GatherColumns(TransposeEights(LowBytesReversed(rows[0], rows[1])));
  _mm512_storeu_si512(words, columns);
  return ties;
}

std::uint64_t Join(const __mmask32 (&rows)[kHalves]) noexcept {
  return rows[0] | std::uint64_t{rows[1]} << 32;
}

// 8 * G columns from column `first` of the call on: G groups hide the latency of the
// multiplications.
template <int G>
inline __attribute__((always_inline)) void DrawGroups(const KeepWordsArgs& args,
                                                      std::size_t first) noexcept {
  const KeepWordsTables& tables = *args.tables;
  const __m512i quads = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  PhiloxVectors x[G][kHalves];
#pragma GCC unroll 4
  for (std::size_t g = 0; g < G; ++g) {
#pragma GCC unroll 2
    for (std::uint32_t half = 0; half < kHalves; ++half) {
      x[g][half].w[0] = _mm512_add_epi64(quads, Broadcast(args.row / 4 + 8 * half));
      x[g][half].w[1] = Broadcast(args.column / 8 + first / 8 + g);
      x[g][half].w[2] = Broadcast(args.h);
      x[g][half].w[3] = Broadcast(args.b);
    }
  }
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      PhiloxRound(tables.k0[round], tables.k1[round], x[g][0]);
      PhiloxRound(tables.k0[round], tables.k1[round], x[g][1]);
    }
  }
  Ties ties[G];
  __mmask32 any = 0;
  std::uint64_t* const words = args.words + first;
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    ties[g] = Finish(tables, x[g], words + 8 * g);
    any |= ties[g].Any();
  }
  if (__builtin_expect(any == 0, 1)) return;
  for (std::size_t g = 0; g < G; ++g) {
    const std::size_t column = first + 8 * g;
    DecideTies(args, Join(ties[g].low), column, args.words + column);
    DecideTies(args, Join(ties[g].high), column + 4, args.words + column + 4);
  }
}

void KeepWords(const KeepWordsArgs& args) noexcept {
  std::size_t column = 0;
  for (; column + 32 <= args.count; column += 32) DrawGroups<4>(args, column);
  for (; column < args.count; column += 8) DrawGroups<1>(args, column);
}

}  // namespace

extern const KeepWordsFunction kGfniKeepWords;
const KeepWordsFunction kGfniKeepWords = &KeepWords;

}  // namespace attndrop

#endif
