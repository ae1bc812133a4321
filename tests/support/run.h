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

// The reference path unless the plan says otherwise.
struct RunOptions {
  int threads = 1;
  PlanOptions plan{.path = Path::kReference, .target = {}};
};

void RunForward(const ProblemArgs& args, ProblemArrays& arrays, const RunOptions& options = {});
void RunBackward(const ProblemArgs& args, ProblemArrays& arrays, const RunOptions& options = {});
[[nodiscard]] LibraryMask RunKeepMask(const ProblemArgs& args, ProblemArrays& arrays,
                                      int threads = 1);
// The mask of a problem without attn_mask and ALiBi, which needs no arrays.
[[nodiscard]] LibraryMask RunKeepMask(const ProblemArgs& args);

// The same, on buffers made by hand.
void ExpectForward(const ProblemArgs& args, const ForwardBuffers& buffers,
                   const RunOptions& options = {});
void ExpectBackward(const ProblemArgs& args, const BackwardBuffers& buffers,
                    const RunOptions& options = {});

}  // namespace attndrop::testing
