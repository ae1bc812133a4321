// SPDX-License-Identifier: Apache-2.0
// Gradients of the fused path beside directional derivatives of the exact forward, for every legal
// scheme, stage and policy; and backward that computes its forward again.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"
#include "support/random_problem.h"

namespace attndrop::testing {
namespace {

constexpr double kStep = 1e-3;

// sum of grad_out * out + grad_logsumexp * logsumexp, all in double, by the naive computation; rows
// whose logsumexp is -inf add nothing.
double Loss(const ProblemArgs& args, const ProblemArrays& arrays, const OracleMask& mask) {
  const NaiveResult result = RunNaive(args, arrays, mask).value;
  const Dense4 grad_out = arrays.grad_out.ToDouble(), grad_lse = arrays.grad_logsumexp.ToDouble();
  double loss = 0.0;
  for (std::size_t k = 0; k < result.out.values.size(); ++k) {
    loss += result.out.values[k] * grad_out.values[k];
  }
  for (std::size_t k = 0; k < result.logsumexp.values.size(); ++k) {
    if (!std::isfinite(result.logsumexp.values[k])) continue;
    loss += result.logsumexp.values[k] * grad_lse.values[k];
  }
  return loss;
}

// The derivative along a random direction of one input, in double from the very numbers that the
// fused path read, and the gradient times that direction.
void ExpectDirection(const ProblemArgs& args, ProblemArrays& arrays, Array ProblemArrays::* input,
                     Array ProblemArrays::* gradient, const char* name) {
  const OracleMask mask = ComputeOracleMask(args, arrays);
  Random random(17);
  const Dense4 at = (arrays.*input).ToDouble(), grad = (arrays.*gradient).ToDouble();
  Dense4 direction(at.shape);
  double slope = 0.0, size = 0.0;
  for (std::size_t k = 0; k < at.values.size(); ++k) {
    // -1 or 1; masked weights do not move.
    direction.values[k] = std::isfinite(at.values[k]) ? random.Pick({-1.0, 1.0}) : 0.0;
    if (direction.values[k] == 0.0) continue;
    slope += grad.values[k] * direction.values[k];
    size += std::fabs(grad.values[k]);
  }
  const auto loss_at = [&](double step) {
    ProblemArgs wide = args;
    wide.dtype = DType::kFloat64;
    wide.attn_mask.dtype = DType::kFloat64;
    ProblemArrays moved = MakeArrays(wide, 1);
    for (Array ProblemArrays::* each :
         {&ProblemArrays::query, &ProblemArrays::key, &ProblemArrays::value,
          &ProblemArrays::attn_mask, &ProblemArrays::grad_out, &ProblemArrays::grad_logsumexp}) {
      if ((arrays.*each).shape().size() > 0) CopyElements(arrays.*each, moved.*each);
    }
    (moved.*input).Fill([&](auto b, auto h, auto r, auto c) {
      return at.at(b, h, r, c) +
             (direction.at(b, h, r, c) == 0.0 ? 0.0 : step * kStep * direction.at(b, h, r, c));
    });
    return Loss(wide, moved, mask);
  };
  const double derivative =
      (8.0 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12.0 * kStep);
  EXPECT_NEAR(slope, derivative, 1e-6 * (1.0 + size)) << name;
}

ProblemArgs SmallProblem() {
  ProblemArgs args;
  args.shape = {.batch = 1,
                .num_heads = 2,
                .num_kv_heads = 1,
                .seqlen_q = 20,
                .seqlen_k = 20,
                .head_dim = 5,
                .head_dim_v = 4};
  args.is_causal = true;
  args.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, true, true, true};
  args.dropout.dropout_p = 0.6;
  return args;
}

void CheckProblem(const ProblemArgs& args) {
  SCOPED_TRACE(MustMake(args).ToString());
  ProblemArrays arrays = MakeArrays(args, 3);
  Random random(5);
  arrays.attn_mask.Fill(
      [&](auto, auto, auto, auto) { return random.Chance(0.1) ? -INFINITY : random.Normal(); });
  const RunOptions fused{.threads = 1, .plan = {.path = Path::kFused}};
  RunForward(args, arrays, fused);
  RunBackward(args, arrays, fused);
  using A = ProblemArrays;
  ExpectDirection(args, arrays, &A::query, &A::grad_query, "grad_query");
  ExpectDirection(args, arrays, &A::key, &A::grad_key, "grad_key");
  ExpectDirection(args, arrays, &A::value, &A::grad_value, "grad_value");
  ExpectDirection(args, arrays, &A::attn_mask, &A::grad_attn_mask, "grad_attn_mask");
}

TEST(FusedGradients, EveryLegalCombination) {
  int checked = 0;
  for (const Scheme& scheme : Schemes()) {
    for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
      for (const char* policy :
           {"zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped"}) {
        ProblemArgs args = SmallProblem();
        args.dropout.scheme = scheme.info.name;
        if (args.dropout.scheme == "block") args.dropout.scheme += ":block_q=3,block_k=2";
        args.dropout.stage = stage;
        args.dropout.empty_row = *ParseEmptyRow(policy);
        args.dropout.seed = 7;
        if (!Problem::Make(args).ok()) continue;
        CheckProblem(args);
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 8 * 2 * 4 + 2 * 2 * 2);
}

// Without out and logsumexp backward computes them again: the same bits.
TEST(FusedGradients, ForwardIsComputedAgainWhereItIsMissing) {
  ForRandomProblems({.first_seed = 450001, .count = 300}, {.max_work = 100000},
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = ForFused(given);
                      const RunOptions fused{.threads = 1 + static_cast<int>(seed % 2),
                                             .plan = {.path = Path::kFused}};
                      ProblemArrays kept = MakeArrays(args, seed);
                      RunForward(args, kept, fused);
                      RunBackward(args, kept, fused);
                      for (int missing = 1; missing <= 3; ++missing) {
                        ProblemArrays arrays = MakeArrays(args, seed);
                        RunForward(args, arrays, fused);
                        BackwardBuffers buffers = arrays.ForBackward();
                        if ((missing & 1) != 0) buffers.out = {};
                        if ((missing & 2) != 0) buffers.logsumexp = {};
                        ExpectBackward(args, buffers, fused);
                        EXPECT_TRUE(SameBits(kept.grad_query, arrays.grad_query));
                        EXPECT_TRUE(SameBits(kept.grad_key, arrays.grad_key));
                        EXPECT_TRUE(SameBits(kept.grad_value, arrays.grad_value));
                        if (kept.has_grad_attn_mask) {
                          EXPECT_TRUE(SameBits(kept.grad_attn_mask, arrays.grad_attn_mask));
                        }
                      }
                    });
}

// Any of the gradients may be unwanted: the others keep their bits.
TEST(FusedGradients, AnyMayBeUnwanted) {
  ForRandomProblems({.first_seed = 460001, .count = 100}, {.max_work = 50000},
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = ForFused(given);
                      const RunOptions fused{.threads = 1, .plan = {.path = Path::kFused}};
                      ProblemArrays all = MakeArrays(args, seed);
                      RunForward(args, all, fused);
                      RunBackward(args, all, fused);
                      for (int wanted = 1; wanted < 8; wanted *= 2) {
                        ProblemArrays one = MakeArrays(args, seed);
                        RunForward(args, one, fused);
                        BackwardBuffers buffers = one.ForBackward();
                        if (wanted != 1) buffers.grad_query = {};
                        if (wanted != 2) buffers.grad_key = {};
                        if (wanted != 4) buffers.grad_value = {};
                        buffers.grad_attn_mask = {};
                        ExpectBackward(args, buffers, fused);
                        Array ProblemArrays::* const which =
                            wanted == 1   ? &ProblemArrays::grad_query
                            : wanted == 2 ? &ProblemArrays::grad_key
                                          : &ProblemArrays::grad_value;
                        EXPECT_TRUE(SameBits(all.*which, one.*which)) << wanted;
                      }
                    });
}

}  // namespace
}  // namespace attndrop::testing
