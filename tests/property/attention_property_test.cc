// SPDX-License-Identifier: Apache-2.0
// Forward and Backward on random problems against the naive attention fed with the oracle's mask.
#include <cstdint>

#include <gtest/gtest.h>

#include "support/naive_attention.h"
#include "support/run.h"

namespace attndrop::testing {
namespace {

// Of the sum of the absolute terms; the computation is in double and rounds its results once.
constexpr double kTolerance = 1e-12;

void ExpectForwardMatches(const ProblemArrays& arrays, const NaiveProblem& naive) {
  EXPECT_TRUE(Matches(arrays.out, naive.value.out, naive.bound.out, kTolerance)) << "out";
  EXPECT_TRUE(Matches(arrays.logsumexp, naive.value.logsumexp, naive.bound.logsumexp, kTolerance))
      << "logsumexp";
}

void ExpectBackwardMatches(const ProblemArrays& arrays, const NaiveProblem& naive) {
  const NaiveResult &value = naive.value, &bound = naive.bound;
  EXPECT_TRUE(Matches(arrays.grad_query, value.grad_query, bound.grad_query, kTolerance))
      << "grad_query";
  EXPECT_TRUE(Matches(arrays.grad_key, value.grad_key, bound.grad_key, kTolerance)) << "grad_key";
  EXPECT_TRUE(Matches(arrays.grad_value, value.grad_value, bound.grad_value, kTolerance))
      << "grad_value";
  if (!arrays.has_grad_attn_mask) return;
  EXPECT_TRUE(
      Matches(arrays.grad_attn_mask, value.grad_attn_mask, bound.grad_attn_mask, kTolerance))
      << "grad_attn_mask";
}

ArrayOptions RandomOptions(std::uint64_t seed) {
  Random random(seed ^ 0x5EED);
  ArrayOptions options;
  if (random.Chance(0.5)) options.shuffle_seed = seed;
  options.grad_logsumexp = random.Chance(0.6);
  options.grad_attn_mask = random.Chance(0.8);
  return options;
}

TEST(AttentionProperty, EqualsNaive) {
  ForRandomProblems({100001, 8000}, {}, [](const ProblemArgs& args, std::uint64_t seed) {
    ProblemArrays arrays = MakeArrays(args, seed, RandomOptions(seed));
    const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
    RunForward(args, arrays);
    ExpectForwardMatches(arrays, naive);
    RunBackward(args, arrays);
    ExpectBackwardMatches(arrays, naive);
    EXPECT_TRUE(arrays.Intact());
  });
}

TEST(AttentionProperty, ThreadsAndRepetitionChangeNoBit) {
  ForRandomProblems(
      {110001, 150}, {.max_work = 150000}, [](const ProblemArgs& args, std::uint64_t seed) {
        const ArrayOptions options = RandomOptions(seed);
        ProblemArrays once = MakeArrays(args, seed, options);
        RunForward(args, once);
        RunBackward(args, once);
        for (const int threads : {1, 2, 3, 4}) {
          ProblemArrays again = MakeArrays(args, seed, options);
          RunForward(args, again, {.threads = threads});
          RunBackward(args, again, {.threads = threads});
          for (std::size_t k = 0; k < 2; ++k) {
            EXPECT_TRUE(SameBits(*once.Outputs()[k], *again.Outputs()[k])) << threads << " threads";
          }
          for (std::size_t k = 0; k < 4; ++k) {
            EXPECT_TRUE(SameBits(*once.Gradients()[k], *again.Gradients()[k]))
                << threads << " threads";
          }
          EXPECT_TRUE(again.Intact());
        }
      });
}

TEST(AttentionProperty, LayoutChangesNoBit) {
  ForRandomProblems({120001, 200}, {.max_work = 150000},
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      ProblemArgs args = given;
                      args.layout = Layout::kBhsd;
                      ProblemArrays dense = MakeArrays(args, seed);
                      ProblemArrays shuffled = MakeArrays(args, seed, {.shuffle_seed = seed});
                      RunForward(args, dense);
                      RunForward(args, shuffled);
                      RunBackward(args, dense);
                      RunBackward(args, shuffled);
                      EXPECT_TRUE(SameBits(dense.out, shuffled.out));
                      EXPECT_TRUE(SameBits(dense.logsumexp, shuffled.logsumexp));
                      for (std::size_t k = 0; k < 4; ++k) {
                        EXPECT_TRUE(SameBits(*dense.Gradients()[k], *shuffled.Gradients()[k]));
                      }
                      EXPECT_TRUE(shuffled.Intact());
                    });
}

// Outputs that are not wanted may be null, and the others stay what they are.
TEST(AttentionProperty, UnwantedOutputsMayBeNull) {
  ForRandomProblems(
      {130001, 150}, {.max_work = 60000}, [](const ProblemArgs& args, std::uint64_t seed) {
        ProblemArrays all = MakeArrays(args, seed);
        RunForward(args, all);
        RunBackward(args, all);
        ProblemArrays some = MakeArrays(args, seed);
        ForwardBuffers forward = some.ForForward();
        forward.logsumexp = {};
        ExpectForward(args, forward);
        EXPECT_TRUE(SameBits(all.out, some.out));
        Random random(seed);
        BackwardBuffers backward = some.ForBackward();
        backward.out = {};
        backward.logsumexp = {};
        const bool query = random.Chance(0.5), key = random.Chance(0.5), value = random.Chance(0.5);
        if (!query) backward.grad_query = {};
        if (!key) backward.grad_key = {};
        if (!value) backward.grad_value = {};
        backward.grad_attn_mask = {};
        ExpectBackward(args, backward);
        if (query) EXPECT_TRUE(SameBits(all.grad_query, some.grad_query));
        if (key) EXPECT_TRUE(SameBits(all.grad_key, some.grad_key));
        if (value) EXPECT_TRUE(SameBits(all.grad_value, some.grad_value));
        EXPECT_TRUE(some.Intact());
      });
}

// With value = identity, out is f w: its pattern is the mask that Forward used. With grad_out =
// identity, grad_value is the transpose of f w: the mask that Backward used.
TEST(AttentionProperty, ForwardAndBackwardUseTheMask) {
  GeneratorOptions options{.max_work = 60000, .ragged = false};
  ForRandomProblems({140001, 500}, options, [](const ProblemArgs& given, std::uint64_t seed) {
    ProblemArgs args = given;
    args.dtype = DType::kFloat64;
    args.shape.num_kv_heads = args.shape.num_heads;
    if (args.attn_mask.kind == MaskKind::kFloat) args.attn_mask.kind = MaskKind::kBool;
    args.shape.head_dim_v = args.shape.seqlen_k;
    ProblemArrays forward = MakeArrays(args, seed);
    const auto identity = [](std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
      return r == c ? 1.0 : 0.0;
    };
    forward.value.Fill(identity);
    RunForward(args, forward);
    ProblemArgs wide = args;
    wide.shape.head_dim_v = args.shape.seqlen_q;
    ProblemArrays backward = MakeArrays(wide, seed);
    CopyElements(forward.query, backward.query);
    CopyElements(forward.key, backward.key);
    CopyElements(forward.attn_mask, backward.attn_mask);
    backward.slopes = forward.slopes;
    backward.grad_out.Fill(identity);
    RunBackward(wide, backward);
    const LibraryMask mask = RunKeepMask(args, forward);
    const OracleMask index = ComputeOracleMask(args, forward);
    for (std::int64_t b = 0; b < index.batch; ++b) {
      for (std::int64_t h = 0; h < index.heads; ++h) {
        for (std::int64_t i = 0; i < index.seqlen_q; ++i) {
          for (std::int64_t j = 0; j < index.seqlen_k; ++j) {
            const bool kept = mask.keep[index.Index(b, h, i, j)] != 0;
            ASSERT_EQ(forward.out.Get(b, h, i, j) != 0.0, kept) << b << h << i << j;
            ASSERT_EQ(backward.grad_value.Get(b, h, j, i) != 0.0, kept) << b << h << i << j;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace attndrop::testing
