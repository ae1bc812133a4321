// SPDX-License-Identifier: Apache-2.0
// The bfloat16 products with AVX-512's pair instruction (vdpbf16ps), which Highway 1.0.3 does not
// have. The whole file is compiled for that instruction set: the kernels are called only where the
// processor has it, FindBf16Kernels only where it has AVX-512.
#include "kernels/bf16_kernels.h"

#if defined(__AVX512BF16__)

#include <cstring>

#include <immintrin.h>

namespace attndrop {
namespace {

constexpr std::size_t kLanes = 16;

// Of this file alone: a function of the standard library compiled here could be the copy that the
// linker keeps for the whole program.
constexpr std::size_t Min(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

__m512i LoadPairs(const Bf16Pair* from) noexcept { return _mm512_loadu_si512(from); }

__m512 MultiplyAddPairs(__m512 sum, __m512i a, __m512i b) noexcept {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// sum[r][c] += over k of pairs a[k * a_stride + c * 16 ..] with the pair at b[r] + k * b_step.
template <int R, int C>
void PairProduct(const Bf16Pair* a, std::size_t a_stride, const char* const (&b)[R],
                 std::size_t b_step, std::size_t count, __m512 (&sum)[R][C]) noexcept {
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sum[r][c] = _mm512_setzero_ps();
  }
#pragma GCC unroll 4
  for (std::size_t k = 0; k < count; ++k) {
    __m512i va[C];
    for (int c = 0; c < C; ++c)
      va[c] = LoadPairs(a + k * a_stride + static_cast<std::size_t>(c) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int pair = 0;
      std::memcpy(&pair, b[r] + k * b_step, sizeof pair);
      const __m512i vb = _mm512_set1_epi32(pair);
      for (int c = 0; c < C; ++c) sum[r][c] = MultiplyAddPairs(sum[r][c], va[c], vb);
    }
  }
}

constexpr int kRows = 4;

// Four keys of the list from `first` on; a group beyond its end repeats the last.
template <int C>
void LogitsGroup(const Bf16LogitsArgs& args, std::size_t first, std::size_t lane,
                 __m512 (&largest)[C]) noexcept {
  std::size_t rows[kRows];
  const char* key[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = Min(first + static_cast<std::size_t>(r), args.list.count - 1);
    key[r] = reinterpret_cast<const char*>(args.key.Row(args.list.keys[rows[r]]));
  }
  __m512 sum[kRows][std::size_t{C}];
  PairProduct<kRows, C>(args.query + lane, args.width, key, sizeof(Bf16Pair), args.head_dim / 2,
                        sum);
  const __m512 scale = _mm512_set1_ps(args.scale);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < C; ++c) {
      const __m512 logits = _mm512_mul_ps(sum[r][c], scale);
      _mm512_storeu_ps(
          args.logits + rows[r] * args.width + lane + static_cast<std::size_t>(c) * kLanes, logits);
      largest[c] = _mm512_max_ps(largest[c], logits);
    }
  }
}

template <int C>
void LogitsPanel(const Bf16LogitsArgs& args, std::size_t lane) noexcept {
  __m512 largest[std::size_t{C}];
  for (int c = 0; c < C; ++c)
    largest[c] = _mm512_loadu_ps(args.largest + lane + static_cast<std::size_t>(c) * kLanes);
  for (std::size_t first = 0; first < args.list.count; first += kRows) {
    LogitsGroup<C>(args, first, lane, largest);
  }
  for (int c = 0; c < C; ++c)
    _mm512_storeu_ps(args.largest + lane + static_cast<std::size_t>(c) * kLanes, largest[c]);
}

// Rows 2k and 2k+1 of weights as pairs; an odd last row is paired with zeros.
void PackWeights(const Bf16AccumulateArgs& args) noexcept {
  // Puts the 16 numbers of each of two rows, which the conversion leaves side by side, in turn.
  alignas(64) static constexpr std::uint16_t kInTurn[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i in_turn = _mm512_load_si512(kInTurn);
  for (std::size_t row = 0; row < args.list.count; row += 2) {
    for (std::size_t lane = args.lanes.begin; lane < args.lanes.end; lane += kLanes) {
      const float* const first = args.weights + row * args.width + lane;
      const __m512 low = _mm512_loadu_ps(first);
      const __m512 high =
          row + 1 < args.list.count ? _mm512_loadu_ps(first + args.width) : _mm512_setzero_ps();
      const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      _mm512_storeu_si512(args.weight_pairs + row / 2 * args.width + lane,
                          _mm512_permutexvar_epi16(in_turn, both));
    }
  }
}

// Values of two keys as pairs, a pair for each dim.
void PackValues(const Bf16AccumulateArgs& args) noexcept {
  for (std::size_t row = 0; row < args.list.count; row += 2) {
    const std::uint16_t* const low = args.value.Row(args.list.keys[row]);
    const bool has_high = row + 1 < args.list.count;
    const std::uint16_t* const high = has_high ? args.value.Row(args.list.keys[row + 1]) : low;
    Bf16Pair* const pairs = args.value_pairs + row / 2 * args.head_dim;
    const Bf16Pair high_mask = has_high ? 0xFFFF0000U : 0U;
    for (std::size_t dim = 0; dim < args.head_dim; ++dim) {
      pairs[dim] =
          static_cast<Bf16Pair>(low[dim]) | ((static_cast<Bf16Pair>(high[dim]) << 16) & high_mask);
    }
  }
}

template <int C>
void AccumulatePanel(const Bf16AccumulateArgs& args, std::size_t lane) noexcept {
  const std::size_t pairs = (args.list.count + 1) / 2;
  for (std::size_t dim = 0; dim < args.head_dim; dim += kRows) {
    const std::size_t valid = Min(kRows, args.head_dim - dim);
    const char* value[kRows];
    for (int r = 0; r < kRows; ++r) {
      value[r] = reinterpret_cast<const char*>(args.value_pairs + dim +
                                               Min(static_cast<std::size_t>(r), valid - 1));
    }
    __m512 sum[kRows][std::size_t{C}];
    PairProduct<kRows, C>(args.weight_pairs + lane, args.width, value,
                          args.head_dim * sizeof(Bf16Pair), pairs, sum);
    for (int c = 0; c < C; ++c) {
      const std::size_t offset = lane + static_cast<std::size_t>(c) * kLanes;
      const __m512 fold = _mm512_loadu_ps(args.fold + offset);
      for (std::size_t r = 0; r < valid; ++r) {
        float* const place = args.out + (dim + r) * args.width + offset;
        _mm512_storeu_ps(place, _mm512_fmadd_ps(_mm512_loadu_ps(place), fold, sum[r][c]));
      }
    }
  }
}

// Panels of up to four vectors that cover the lanes.
template <class F>
void ForEachPanel(const LaneRange& lanes, const F& f) noexcept {
  std::size_t lane = lanes.begin;
  for (; lane + 4 * kLanes <= lanes.end; lane += 4 * kLanes) f.template operator()<4>(lane);
  for (; lane + 2 * kLanes <= lanes.end; lane += 2 * kLanes) f.template operator()<2>(lane);
  if (lane < lanes.end) f.template operator()<1>(lane);
}

void Logits(const Bf16LogitsArgs& args) {
  if (args.list.count == 0) return;
  ForEachPanel(args.lanes, [&args]<int C>(std::size_t lane) { LogitsPanel<C>(args, lane); });
}

void Accumulate(const Bf16AccumulateArgs& args) {
  PackWeights(args);
  PackValues(args);
  ForEachPanel(args.lanes, [&args]<int C>(std::size_t lane) { AccumulatePanel<C>(args, lane); });
}

}  // namespace

extern const Bf16Kernels kPairInstructionKernels;
const Bf16Kernels kPairInstructionKernels{.logits = &Logits, .accumulate = &Accumulate};

}  // namespace attndrop

#endif
