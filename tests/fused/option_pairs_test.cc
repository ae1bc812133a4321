// SPDX-License-Identifier: Apache-2.0
// Every legal pair of options is tried: what the random problems leave out is added to them.
#include "fused/option_pairs.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace attndrop::testing {
namespace {

constexpr std::uint64_t kFirstSeed = 1;  // those of fused_random_test.cc
constexpr std::uint64_t kNumRandom = 2000;
constexpr std::uint64_t kFirstRareSeed = 600001;
constexpr std::uint64_t kNumRare = 20000;

struct SeededProblem {
  ProblemArgs args;
  std::uint64_t seed = 0;
};

// Problems with pairs that the random ones lack; cover ends up holding all of both.
std::vector<SeededProblem> ProblemsOfRarePairs(PairCover& cover) {
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kNumRandom; ++seed) {
    Random random(seed);
    cover.Add(ForFused(RandomProblemArgs(random)));
  }
  std::vector<SeededProblem> problems;
  for (std::uint64_t seed = kFirstRareSeed; seed < kFirstRareSeed + kNumRare; ++seed) {
    Random random(seed);
    const ProblemArgs args = RareProblemArgs(random);
    if (Problem::Make(args).ok() && cover.Add(args)) problems.push_back({args, seed});
  }
  return problems;
}

TEST(FusedPairs, EveryPairOfOptionsWithinTheBound) {
  PairCover cover;
  const std::vector<SeededProblem> problems = ProblemsOfRarePairs(cover);
  EXPECT_EQ(cover.values(0).size(), Schemes().size());
  const std::vector<std::string> missing = cover.Missing();
  EXPECT_TRUE(missing.empty()) << missing.size() << " of " << cover.NumLegal()
                               << " pairs are never tried, such as: " << missing.front();
  for (const SeededProblem& problem : problems) {
    SCOPED_TRACE("seed " + std::to_string(problem.seed) +
                 ", problem: " + MustMake(problem.args).ToString());
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(TargetName(target));
      ProblemArrays arrays = MakeArrays(problem.args, problem.seed);
      CheckBothDirections(problem.args, arrays, Fused(target));
    }
    if (HasFailure()) return;
  }
  std::printf("%d pairs, %zu problems beside the random ones\n", cover.NumLegal(), problems.size());
}

}  // namespace
}  // namespace attndrop::testing
