// SPDX-License-Identifier: Apache-2.0
// Random legal problems, one for each seed, and the loop that runs a check over many of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "attndrop/problem.h"

#include "support/arrays.h"
#include "support/random.h"

namespace attndrop::testing {

// Edge cases of every kind on purpose: lengths around multiples of 16 and 0, grouped heads, masks
// that hide whole rows, shards, ragged batches, far coordinates, every layout, legal scheme, stage
// and policy. About max_work multiply-adds at most.
struct GeneratorOptions {
  std::int64_t max_work = 400000;
  bool ragged = true;
  bool shards = true;  // origin and total lengths
  bool far = true;     // coordinates near 2^31 and 2^32
  bool empty = true;   // axes of length 0
  bool batch_index = false;
};
[[nodiscard]] ProblemArgs RandomProblemArgs(Random& random, const GeneratorOptions& options = {});

// One of the schemes, stages and policies that may go together.
[[nodiscard]] DropoutConfig RandomDropout(Random& random);

// Problem::Make, which must accept; throws what it said otherwise.
[[nodiscard]] Problem MustMake(const ProblemArgs& args);

// Runs check(args, seed) on `count` random problems with consecutive seeds and stops at the first
// failure, printing the seed and the problem's line. ATTNDROP_TEST_SEED=S runs the one with seed S;
// ATTNDROP_TEST_CASES=F multiplies count.
using ProblemCheck = std::function<void(const ProblemArgs& args, std::uint64_t seed)>;
struct CaseRange {
  std::uint64_t first_seed = 0;
  std::int64_t count = 0;
};
void ForRandomProblems(const CaseRange& range, const GeneratorOptions& options,
                       const ProblemCheck& check);

}  // namespace attndrop::testing
