// SPDX-License-Identifier: Apache-2.0
// The fused path against the naive computation on random legal problems, on every target of this
// machine, within the bound of docs/math/accuracy.md.
#include <algorithm>
#include <cstdint>

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

std::int64_t LongLength(Random& random) {
  if (random.Chance(0.2)) return random.Between(1, 66);
  if (random.Chance(0.5)) {
    return random.Pick<std::int64_t>({127, 128, 129, 191, 193, 255, 256, 257, 320, 511, 513});
  }
  return random.Between(66, 600);
}

// The same problem with one or two heads, several blocks of queries and several tiles of keys, and
// sometimes a head_dim up to 512.
ProblemArgs Lengthened(ProblemArgs args, std::uint64_t seed) {
  Random random(seed);
  args.shape.batch = 1;
  args.shape.num_heads = 2;
  args.shape.num_kv_heads = random.Between(1, 2);
  args.shape.seqlen_q = LongLength(random);
  args.shape.seqlen_k = LongLength(random);
  if (args.dropout.scheme == "symmetric") args.shape.seqlen_k = args.shape.seqlen_q;
  if (random.Chance(0.1)) {
    args.shape.head_dim = random.Between(65, 512);
    args.shape.seqlen_k = args.shape.seqlen_q = random.Between(60, 130);
  }
  if (!args.total) return args;
  for (std::uint32_t* origin : {&args.origin.query, &args.origin.key}) {
    *origin = std::min(*origin, std::uint32_t{0xFFFFFFFF} - 1000);
  }
  args.total = TotalLengths{args.origin.query + args.shape.seqlen_q + 5,
                            args.origin.key + args.shape.seqlen_k + 70};
  if (args.dropout.scheme == "symmetric") {
    args.total->seqlen_q = args.total->seqlen_k =
        std::max(args.total->seqlen_q, args.total->seqlen_k);
  }
  return args;
}

TEST(FusedRandom, LongProblemsWithinTheBound) {
  GeneratorOptions options;
  options.ragged = false;
  options.empty = false;
  ForRandomProblems({.first_seed = 470001, .count = 100}, options,
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = Lengthened(ForFused(given), seed);
                      SCOPED_TRACE(MustMake(args).ToString());
                      for (const Target target : SupportedTargets())
                        CheckOnTarget(args, seed, target);
                    });
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
