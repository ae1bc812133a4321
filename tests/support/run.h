// SPDX-License-Identifier: Apache-2.0
// Calls the library on the arrays of a problem and fails the test when it refuses.
#pragma once

#include <cstdint>
#include <vector>

#include "attndrop/attention.h"

#include "support/arrays.h"
#include "support/random_problem.h"

namespace attndrop::testing {

struct LibraryMask {
  std::vector<std::uint8_t> keep;  // (batch, num_heads, seqlen_q, seqlen_k)
  std::vector<double> factors;
};

void RunForward(const ProblemArgs& args, ProblemArrays& arrays, int threads = 1);
void RunBackward(const ProblemArgs& args, ProblemArrays& arrays, int threads = 1);
[[nodiscard]] LibraryMask RunKeepMask(const ProblemArgs& args, ProblemArrays& arrays,
                                      int threads = 1);
// The mask of a problem without attn_mask and ALiBi, which needs no arrays.
[[nodiscard]] LibraryMask RunKeepMask(const ProblemArgs& args);

// The same, on buffers made by hand.
void ExpectForward(const ProblemArgs& args, const ForwardBuffers& buffers, int threads = 1);
void ExpectBackward(const ProblemArgs& args, const BackwardBuffers& buffers, int threads = 1);

}  // namespace attndrop::testing
