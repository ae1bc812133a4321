// SPDX-License-Identifier: Apache-2.0
// Backward against differences of Forward in double precision, for every legal scheme, stage and
// policy, and every input that has a gradient.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/run.h"

namespace attndrop::testing {
namespace {

// sum of grad_out * out + grad_logsumexp * logsumexp; rows whose logsumexp is -inf add nothing.
double Loss(const ProblemArgs& args, ProblemArrays& arrays) {
  RunForward(args, arrays);
  const Dense4 out = arrays.out.ToDouble(), grad_out = arrays.grad_out.ToDouble();
  const Dense4 lse = arrays.logsumexp.ToDouble(), grad_lse = arrays.grad_logsumexp.ToDouble();
  double loss = 0.0;
  for (std::size_t k = 0; k < out.values.size(); ++k) loss += out.values[k] * grad_out.values[k];
  for (std::size_t k = 0; k < lse.values.size(); ++k) {
    if (std::isfinite(lse.values[k])) loss += lse.values[k] * grad_lse.values[k];
  }
  return loss;
}

// Five points: the error is a few 1e-13 for these smooth, small problems.
constexpr double kStep = 1e-3;
constexpr double kTolerance = 1e-9;

void ExpectDerivatives(const ProblemArgs& args, ProblemArrays& arrays, Array& input,
                       const Array& gradient, const char* name) {
  const ArrayShape& shape = input.shape();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        for (std::int64_t c = 0; c < shape.cols; ++c) {
          const double at = input.Get(b, h, r, c);
          if (std::isinf(at)) {
            EXPECT_EQ(gradient.Get(b, h, r, c), 0.0) << name << " at a masked weight";
            continue;
          }
          const auto loss_at = [&](double steps) {
            input.Set(b, h, r, c, at + steps * kStep);
            return Loss(args, arrays);
          };
          const double difference =
              (8.0 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12.0 * kStep);
          input.Set(b, h, r, c, at);
          ASSERT_NEAR(gradient.Get(b, h, r, c), difference,
                      kTolerance * (1.0 + std::fabs(difference)))
              << name << " (" << b << ", " << h << ", " << r << ", " << c << ")";
        }
      }
    }
  }
}

void CheckProblem(const ProblemArgs& args, std::uint64_t seed) {
  SCOPED_TRACE(MustMake(args).ToString());
  ProblemArrays arrays = MakeArrays(args, seed);
  Random random(seed);
  if (args.attn_mask.kind == MaskKind::kFloat) {
    arrays.attn_mask.Fill([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
      return random.Chance(0.15) ? -std::numeric_limits<double>::infinity() : random.Normal();
    });
  }
  RunForward(args, arrays);
  RunBackward(args, arrays);
  ExpectDerivatives(args, arrays, arrays.query, arrays.grad_query, "grad_query");
  ExpectDerivatives(args, arrays, arrays.key, arrays.grad_key, "grad_key");
  ExpectDerivatives(args, arrays, arrays.value, arrays.grad_value, "grad_value");
  if (arrays.has_grad_attn_mask) {
    ExpectDerivatives(args, arrays, arrays.attn_mask, arrays.grad_attn_mask, "grad_attn_mask");
  }
}

ProblemArgs SmallProblem() {
  ProblemArgs args;
  args.shape = {.batch = 2,
                .num_heads = 2,
                .num_kv_heads = 1,
                .seqlen_q = 4,
                .seqlen_k = 4,
                .head_dim = 3,
                .head_dim_v = 2};
  args.dtype = DType::kFloat64;
  args.is_causal = true;
  args.attn_mask = {MaskKind::kFloat, DType::kFloat64, false, true, true, true};
  args.dropout.dropout_p = 0.5;
  args.dropout.seed = 11;
  return args;
}

struct Combination {
  std::string scheme;
  Stage stage;
  std::string empty_row;
};

std::vector<Combination> LegalCombinations() {
  std::vector<Combination> all;
  for (const Scheme& scheme : Schemes()) {
    for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
      for (const char* policy : {"zero", "keep_one", "redraw", "at_least_one:attempts=2",
                                 "keep_self", "keep_first", "undropped"}) {
        std::string name(scheme.info.name);
        if (name == "block") name += ":block_q=2,block_k=2";
        ProblemArgs args = SmallProblem();
        args.dropout.scheme = name;
        args.dropout.stage = stage;
        args.dropout.empty_row = *ParseEmptyRow(policy);
        if (Problem::Make(args).ok()) all.push_back({name, stage, policy});
      }
    }
  }
  return all;
}

TEST(Gradients, EveryLegalCombination) {
  const std::vector<Combination> all = LegalCombinations();
  // Eight schemes, two stages, four policies, and three more for the two schemes that can redraw.
  EXPECT_GE(all.size(), 8U * 2 * 4 + 2 * 2 * 3);
  for (const Combination& combination : all) {
    ProblemArgs args = SmallProblem();
    args.dropout.scheme = combination.scheme;
    args.dropout.stage = combination.stage;
    args.dropout.empty_row = *ParseEmptyRow(combination.empty_row);
    for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{2}}) {
      args.dropout.seed = seed;
      CheckProblem(args, seed);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Gradients, RandomProblems) {
  ForRandomProblems({500001, 120}, {.max_work = 1500},
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      ProblemArgs args = given;
                      args.dtype = DType::kFloat64;
                      args.attn_mask.dtype = DType::kFloat64;
                      if (args.layout == Layout::kExpanded)
                        args.layout = Layout::kPadded;  // else inputs are shared
                      if (args.dropout.dropout_p < 1.0)
                        args.dropout.dropout_p = std::fmin(args.dropout.dropout_p, 0.9);
                      CheckProblem(args, seed);
                    });
}

TEST(Gradients, WithoutDropout) {
  ProblemArgs args = SmallProblem();
  args.dropout = {};
  CheckProblem(args, 3);
  args.attn_mask = {};
  args.is_causal = false;
  CheckProblem(args, 4);
}

}  // namespace
}  // namespace attndrop::testing
