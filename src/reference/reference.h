// SPDX-License-Identifier: Apache-2.0
// The reference: attention row by row in double precision, in memory linear in the sequence length.
// It is the oracle of the fast kernels, so it stays simple.
#pragma once

#include <cstddef>

#include "attndrop/attention.h"

namespace attndrop {

[[nodiscard]] std::size_t ReferenceForwardScratchBytes(const Problem& problem,
                                                       int num_workers) noexcept;
[[nodiscard]] std::size_t ReferenceBackwardScratchBytes(const Problem& problem, int num_workers,
                                                        bool grad_attn_mask) noexcept;

// Buffers are checked; scratch holds the bytes named above. Results do not depend on the executor.
void ReferenceForward(const Problem& problem, const ForwardBuffers& buffers, Executor& executor,
                      std::byte* scratch);
void ReferenceBackward(const Problem& problem, const BackwardBuffers& buffers, Executor& executor,
                       std::byte* scratch);

}  // namespace attndrop
