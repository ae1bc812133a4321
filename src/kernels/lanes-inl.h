// SPDX-License-Identifier: Apache-2.0
// Vectors of queries: panels, masks from keep words, exp2. One query block is at most 64 queries,
// which stand in the lanes; bit i of a 64-bit word speaks of query i of the block.

// Per-target include guard
#if defined(ATTNDROP_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNDROP_KERNELS_LANES_INL_H_
#undef ATTNDROP_KERNELS_LANES_INL_H_
#else
#define ATTNDROP_KERNELS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most 16 floats: a block of 16 queries fills at least one on every target.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
using MF = hn::Mask<DF>;
using DI = hn::RebindToSigned<DF>;
inline constexpr std::size_t kLanes = hn::MaxLanes(DF());

// A micro-kernel keeps kPanelVectors x kPanelRows accumulators in registers: 16 of the 32 registers
// of AVX-512 and NEON, 12 of the 16 of AVX2 and SSE4.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kPanelVectors = 4;
inline constexpr int kPanelRows = 4;
#else
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanelRows = 6;
#endif
// Lanes [first, first + kLanes) of a word as a mask.
HWY_INLINE MF LaneMask(DF d, std::uint64_t word, std::size_t first) {
  word >>= first;
#if HWY_TARGET <= HWY_AVX3
  (void)d;
  return MF{static_cast<decltype(MF().raw)>(word)};
#else
  std::uint8_t bits[8];
  std::memcpy(bits, &word, sizeof bits);
  return hn::LoadMaskBits(d, bits);
#endif
}

// The inverse: bit i of the result is lane i.
HWY_INLINE std::uint64_t LaneBits(DF d, MF mask) {
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(d, mask, bits);
  std::uint64_t word = 0;
  std::memcpy(&word, bits, sizeof word);
  return word;
}

// p * 2^whole for p in [0.7, 1.5] and whole an integer of at most 1: 0 where the result would be
// below 2^-126 and the target has no scaling instruction.
HWY_INLINE VF ScaleByPowerOf2(DF d, VF p, VF whole) {
#if HWY_TARGET <= HWY_AVX3
  (void)d;
  return VF{_mm512_scalef_ps(p.raw, whole.raw)};
#else
  const DI di;
  const auto in_range = hn::Ge(whole, hn::Set(d, -126.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const VF scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  // A NaN fails the comparison and must come back as itself.
  return hn::IfThenElse(in_range, scaled, hn::IfThenElseZero(hn::IsNaN(whole), whole));
#endif
}

// 2^x for x <= 1 by rounding to nearest and a minimax polynomial on [-0.5, 0.5], highest power
// first. NaN stays NaN.
template <int N>
HWY_INLINE VF Exp2By(DF d, VF x, const float (&coefficients)[N]) {
  const VF whole = hn::Round(x);
  const VF part = hn::Sub(x, whole);
  VF p = hn::Set(d, coefficients[0]);
  HWY_UNROLL(8)
  for (int i = 1; i < N; ++i) p = hn::MulAdd(p, part, hn::Set(d, coefficients[i]));
  return ScaleByPowerOf2(d, p, whole);
}

// Relative error below 2.2e-7 (2 ULP), which a softmax divides out again for the most part: its
// largest term, bias included, is also in the sum.
HWY_INLINE VF Exp2(DF d, VF x) {
  constexpr float kDegree5[] = {0.0013276472454890609F, 0.009675540961325169F, 0.05550713092088699F,
                                0.24022120237350464F,   0.6931469440460205F,   1.0000001192092896F};
  return Exp2By(d, x, kDegree5);
}

// To 0.7 ULP: for weights that no later division corrects (backward).
HWY_INLINE VF PreciseExp2(DF d, VF x) {
  constexpr float kDegree6[] = {0.0001534581242594868F,
                                0.0013399930903688073F,
                                0.009618489071726799F,
                                0.05550328642129898F,
                                0.24022646248340607F,
                                0.6931471824645996F,
                                1.0F};
  return Exp2By(d, x, kDegree6);
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
