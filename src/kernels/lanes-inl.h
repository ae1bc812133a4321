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
// Narrow panels, for blocks or remainders of less than kPanelVectors vectors.
inline constexpr int kNarrowRows = 6;

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

// 2^x for x <= 0 (NaN stays NaN; x of -126 and below gives a result below 2^-126, 0 where the
// target has no scaling instruction). Relative error below 2.2e-7 (2 ULP).
// Round to nearest, then a degree-5 minimax polynomial on [-0.5, 0.5].
HWY_INLINE VF Exp2(DF d, VF x) {
#if HWY_TARGET > HWY_AVX3
  const auto in_range = hn::Ge(x, hn::Set(d, -126.0F));
#endif
  const VF whole = hn::Round(x);
  const VF part = hn::Sub(x, whole);
  VF p = hn::Set(d, 0.0013276472454890609F);
  p = hn::MulAdd(p, part, hn::Set(d, 0.009675540961325169F));
  p = hn::MulAdd(p, part, hn::Set(d, 0.05550713092088699F));
  p = hn::MulAdd(p, part, hn::Set(d, 0.24022120237350464F));
  p = hn::MulAdd(p, part, hn::Set(d, 0.6931469440460205F));
  p = hn::MulAdd(p, part, hn::Set(d, 1.0000001192092896F));
#if HWY_TARGET <= HWY_AVX3
  return VF{_mm512_scalef_ps(p.raw, whole.raw)};
#else
  const DI di;
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const VF scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  // A NaN fails the comparison and must come back as itself.
  const VF small = hn::IfThenElseZero(hn::IsNaN(x), x);
  return hn::IfThenElse(in_range, scaled, small);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
