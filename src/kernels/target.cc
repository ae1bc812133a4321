// SPDX-License-Identifier: Apache-2.0
// Names of targets, and which of them run here.
#include "attndrop/target.h"

#include <array>
#include <cstddef>
#include <string>

#include "core/text.h"
#include "kernels/bf16_kernels.h"
#include "kernels/kernels.h"

namespace attndrop {
namespace {

constexpr std::array<std::string_view, 4> kTargetNames{"neon", "sse4", "avx2", "avx512"};

}  // namespace

#if defined(__x86_64__)
extern const Bf16Kernels kPairInstructionKernels;  // bf16_kernels.cc
extern const KeepWordsFunction kGfniKeepWords;     // keep_words_gfni.cc

const Bf16Kernels* FindBf16Kernels() noexcept {
  return __builtin_cpu_supports("avx512bf16") ? &kPairInstructionKernels : nullptr;
}

KeepWordsFunction FindGfniKeepWords() noexcept {
  const bool has_all = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi") &&
                       __builtin_cpu_supports("gfni");
  return has_all ? kGfniKeepWords : nullptr;
}
#else
const Bf16Kernels* FindBf16Kernels() noexcept { return nullptr; }
KeepWordsFunction FindGfniKeepWords() noexcept { return nullptr; }
#endif

std::string_view TargetName(Target target) noexcept {
  return kTargetNames[static_cast<std::size_t>(target)];
}

Result<Target> ParseTarget(std::string_view name) {
  for (std::size_t i = 0; i < kTargetNames.size(); ++i) {
    if (kTargetNames[i] == name) return static_cast<Target>(i);
  }
  return Status::InvalidArgument("target \"" + std::string(name) + "\" is unknown" +
                                 Suggestion(name, kTargetNames));
}

const Kernels* WidestKernels() noexcept {
  const Kernels* widest = nullptr;
  for (std::size_t i = 0; i < kTargetNames.size(); ++i) {
    const Kernels* const kernels = KernelsFor(static_cast<Target>(i));
    if (kernels != nullptr) widest = kernels;
  }
  return widest;
}

std::vector<Target> SupportedTargets() {
  std::vector<Target> targets;
  for (std::size_t i = 0; i < kTargetNames.size(); ++i) {
    const auto target = static_cast<Target>(i);
    if (KernelsFor(target) != nullptr) targets.push_back(target);
  }
  return targets;
}

}  // namespace attndrop
