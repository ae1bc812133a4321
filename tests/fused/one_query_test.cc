// SPDX-License-Identifier: Apache-2.0
// Generation: one query, grouped heads, nothing dropped. Its heads are computed together, whatever
// masks, windows, shards and layouts say; with dropout or masks that tell heads apart they are not.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "fused/bound.h"
#include "support/random_problem.h"

namespace attndrop::testing {
namespace {

ProblemArgs OneQuery(ProblemArgs args, std::uint64_t seed) {
  Random random(seed);
  args.shape.num_kv_heads = random.Between(1, 3);
  args.shape.num_heads = args.shape.num_kv_heads * random.Pick<std::int64_t>({2, 3, 4, 17, 21});
  args.shape.seqlen_q = 1;
  args.shape.seqlen_k = random.Pick<std::int64_t>({0, 1, 2, 63, 64, 65, 129, 300});
  args.shape.batch = random.Between(1, 2);
  if (random.Chance(0.8)) {
    args.dropout.dropout_p = 0.0;
    if (args.dropout.scheme == "symmetric") args.dropout.scheme = "element";
  }
  if (args.dropout.scheme == "symmetric") args.shape.seqlen_k = 1;
  if (random.Chance(0.7)) args.attn_mask.per_head = false;
  if (random.Chance(0.7)) args.alibi = false;
  if (!args.total) return args;
  // The query stands at key `query`, in the middle of those of this shard.
  args.origin.query = static_cast<std::uint32_t>(random.Below(400));
  args.origin.key = static_cast<std::uint32_t>(random.Below(200));
  args.total = TotalLengths{600, 600};
  return args;
}

TEST(FusedOneQuery, WithinTheBound) {
  GeneratorOptions options;
  options.ragged = false;
  ForRandomProblems({.first_seed = 480001, .count = 300}, options,
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = OneQuery(ForFused(given), seed);
                      SCOPED_TRACE(MustMake(args).ToString());
                      for (const Target target : SupportedTargets()) {
                        SCOPED_TRACE(TargetName(target));
                        ProblemArrays arrays = MakeArrays(args, seed);
                        CheckBothDirections(args, arrays, Fused(target));
                      }
                    });
}

TEST(FusedOneQuery, ThreadsChangeNoBit) {
  ProblemArgs args;
  args.shape = {.batch = 2,
                .num_heads = 8,
                .num_kv_heads = 2,
                .seqlen_q = 1,
                .seqlen_k = 4096,
                .head_dim = 64};
  args.is_causal = true;
  args.causal_align = CausalAlign::kBottomRight;
  ProblemArrays one = MakeArrays(args, 1);
  RunForward(args, one, {.threads = 1, .plan = {.path = Path::kFused}});
  for (const int threads : {2, 3, 4}) {
    ProblemArrays many = MakeArrays(args, 1);
    RunForward(args, many, {.threads = threads, .plan = {.path = Path::kFused}});
    EXPECT_TRUE(SameBits(one.out, many.out)) << threads;
    EXPECT_TRUE(SameBits(one.logsumexp, many.logsumexp)) << threads;
  }
  NaiveProblem naive = RunNaive(args, one, ComputeOracleMask(args, one));
  CheckForward(args, one, naive);
}

}  // namespace
}  // namespace attndrop::testing
