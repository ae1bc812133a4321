// SPDX-License-Identifier: Apache-2.0
// Fused attention: drivers that cut a problem into tiles and run the tile kernels over them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attndrop/attention.h"

#include "kernels/bf16_kernels.h"
#include "kernels/kernels.h"

namespace attndrop {

// What the Plan decided for the fused path.
struct Tiling {
  const Kernels* kernels = nullptr;
  TileShape tiles;
  const Bf16Kernels* bf16 = nullptr;  // forward's products, where plan.native_bf16()
};
[[nodiscard]] inline Tiling MakeTiling(const Plan& plan) noexcept {
  return {.kernels = KernelsFor(plan.target()),
          .tiles = plan.tiles(),
          .bf16 = plan.native_bf16() ? FindBf16Kernels() : nullptr};
}

inline constexpr std::int64_t kMaxBlocksPerTask = 8;

[[nodiscard]] std::size_t FusedForwardScratchBytes(const Problem& problem, const Tiling& tiling,
                                                   int num_workers) noexcept;
void FusedForward(const Problem& problem, const Tiling& tiling, const ForwardBuffers& buffers,
                  Executor& executor, std::byte* scratch);

[[nodiscard]] std::size_t FusedBackwardScratchBytes(const Problem& problem, const Tiling& tiling,
                                                    const BackwardWork& work,
                                                    int num_workers) noexcept;
// False, with nothing written, when some logsumexp is so large that its float32 form does not give
// the weights again; then the reference path serves.
[[nodiscard]] bool FusedBackward(const Problem& problem, const Tiling& tiling,
                                 const BackwardBuffers& buffers, Executor& executor,
                                 std::byte* scratch);

}  // namespace attndrop
