// SPDX-License-Identifier: Apache-2.0
// Compiles the tile kernels once for each instruction set and tabulates them.
// SSE4, AVX2 and AVX-512 on x86-64, NEON on arm64. SSSE3 alone is not worth its code; the vectors
// of SVE have no size that the compiler knows, so a kernel cannot hold arrays of them.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kernels.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/backward-inl.h"
#include "kernels/few_queries-inl.h"
#include "kernels/forward-inl.h"
#include "kernels/keep_words-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {

constexpr Kernels MakeKernels(Target target) noexcept {
  return {.target = target,
          .logits = &Logits,
          .mask_logits = &MaskLogits,
          .weights = &Weights,
          .fold = &Fold,
          .accumulate = &Accumulate,
          .few_logits = &FewLogits,
          .few_accumulate = &FewAccumulate,
          .weights_again = &WeightsAgain,
          .grad_logits = &GradLogits,
          .accumulate_rows = &AccumulateRows,
          .transpose = &Transpose,
          .scale_lanes = &ScaleLanes,
          .keep_words = &KeepWords,
          .keep_row = &KeepRow};
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attndrop {
namespace {

struct CompiledTarget {
  Target target;
  std::int64_t hwy_target;
  Kernels kernels;
};

constexpr CompiledTarget kCompiled[] = {
#if HWY_TARGETS & HWY_NEON
    {Target::kNeon, HWY_NEON, N_NEON::MakeKernels(Target::kNeon)},
#endif
#if HWY_TARGETS & HWY_SSE4
    {Target::kSse4, HWY_SSE4, N_SSE4::MakeKernels(Target::kSse4)},
#endif
#if HWY_TARGETS & HWY_AVX2
    {Target::kAvx2, HWY_AVX2, N_AVX2::MakeKernels(Target::kAvx2)},
#endif
#if HWY_TARGETS & HWY_AVX3
    {Target::kAvx512, HWY_AVX3, N_AVX3::MakeKernels(Target::kAvx512)},
#endif
};

// What the processor has beyond the instruction set of a target, where it has it.
Kernels WithExtensions(Kernels kernels) noexcept {
  const KeepWordsFunction gfni = FindGfniKeepWords();
  if (gfni != nullptr) kernels.keep_words = gfni;
  return kernels;
}

}  // namespace

const Kernels* PlainKernelsFor(Target target) noexcept {
  // Asked once: Highway asks the processor each time, which takes 10 us inside a virtual machine.
  static const std::int64_t supported = hwy::SupportedTargets();
  for (const CompiledTarget& compiled : kCompiled) {
    if (compiled.target != target) continue;
    return (supported & compiled.hwy_target) != 0 ? &compiled.kernels : nullptr;
  }
  return nullptr;
}

const Kernels* KernelsFor(Target target) noexcept {
  const Kernels* const plain = PlainKernelsFor(target);
  if (plain == nullptr || target != Target::kAvx512) return plain;
  static const Kernels extended = WithExtensions(*plain);
  return &extended;
}

}  // namespace attndrop
#endif  // HWY_ONCE
