// SPDX-License-Identifier: Apache-2.0
// The fused path against the naive computation on random legal problems, on every target of this
// machine, within the bound of docs/math/accuracy.md.
#include <gtest/gtest.h>

#include "fused/bound.h"
#include "support/random_problem.h"

namespace attndrop::testing {
namespace {

void CheckOnTarget(const ProblemArgs& args, std::uint64_t seed, Target target) {
  SCOPED_TRACE(TargetName(target));
  ProblemArrays arrays = MakeArrays(args, seed);
  CheckBothDirections(args, arrays, Fused(target));
}

TEST(FusedRandom, WithinTheBound) {
  ForRandomProblems({.first_seed = 1, .count = 2000}, {},
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = ForFused(given);
                      for (const Target target : SupportedTargets())
                        CheckOnTarget(args, seed, target);
                    });
}

}  // namespace
}  // namespace attndrop::testing
