// SPDX-License-Identifier: Apache-2.0
// Accuracy of the fused path: within the bound of docs/math/accuracy.md on long and structured
// problems on every target, and the check itself notices a tile that is off by 2^-10.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"

namespace attndrop::testing {
namespace {

struct Case {
  const char* name;
  ProblemArgs args;
};

ProblemArgs Plain(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim,
                  double dropout_p = 0.1) {
  ProblemArgs args;
  args.shape = {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = head_dim};
  args.dropout.dropout_p = dropout_p;
  args.dropout.seed = 5;
  return args;
}

std::vector<Case> LengthCases() {
  std::vector<Case> cases = {{"square", Plain(256, 256, 64)},
                             {"odd lengths", Plain(129, 601, 40)},
                             {"more queries than keys", Plain(600, 65, 24)},
                             {"one query", Plain(1, 513, 64, 0.5)},
                             {"one key", Plain(257, 1, 33, 0.5)},
                             {"widest head_dim", Plain(40, 70, 512)},
                             {"odd head_dim", Plain(70, 40, 257)},
                             {"head_dim 1", Plain(130, 130, 1)}};
  Case wide_value{"narrow keys, wide values", Plain(33, 127, 3)};
  wide_value.args.shape.head_dim_v = 511;
  Case narrow_value{"wide keys, narrow values", Plain(127, 33, 509)};
  narrow_value.args.shape.head_dim_v = 1;
  cases.push_back(wide_value);
  cases.push_back(narrow_value);
  return cases;
}

std::vector<Case> MaskCases() {
  Case causal{"causal, symmetric", Plain(300, 300, 32, 0.5)};
  causal.args.is_causal = true;
  causal.args.dropout.scheme = "symmetric";
  Case bottom{"bottom-right, at_least_one", Plain(100, 400, 16, 0.9)};
  bottom.args.is_causal = true;
  bottom.args.causal_align = CausalAlign::kBottomRight;
  bottom.args.dropout.empty_row = {EmptyRow::kAtLeastOne, 64};
  Case window{"window, keep_self", Plain(500, 500, 16, 0.9)};
  window.args.window = {.left = 10, .right = 3};
  window.args.dropout.empty_row.kind = EmptyRow::kKeepSelf;
  Case bias{"float attn_mask of one head, stage logits", Plain(140, 270, 16, 0.5)};
  bias.args.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, false, true, true};
  bias.args.dropout.stage = Stage::kLogits;
  Case grouped{"grouped heads, bfloat16", Plain(200, 200, 64, 0.3)};
  grouped.args.shape.num_heads = 4;
  grouped.args.shape.num_kv_heads = 2;
  grouped.args.dtype = DType::kBFloat16;
  Case half{"blocks of keys, float16", Plain(200, 330, 64, 0.5)};
  half.args.dtype = DType::kFloat16;
  half.args.dropout.scheme = "block:block_q=64,block_k=32";
  Case alibi{"ALiBi, words, undropped", Plain(260, 260, 8, 0.9)};
  alibi.args.alibi = true;
  alibi.args.dropout.scheme = "word";
  alibi.args.dropout.empty_row.kind = EmptyRow::kUndropped;
  return {causal, bottom, window, bias, grouped, half, alibi};
}

void CheckCases(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(std::string(one.name) + " on " + std::string(TargetName(target)));
      ProblemArrays arrays = MakeArrays(one.args, 77);
      CheckBothDirections(one.args, arrays, Fused(target));
    }
  }
}

TEST(FusedAccuracy, EveryLengthAndHeadDim) { CheckCases(LengthCases()); }
TEST(FusedAccuracy, MasksSchemesAndTypes) { CheckCases(MaskCases()); }

// ---- the check can fail ----

constexpr double kDisturbance = 0x1p-10;

// What the keys of one tile contribute to out: out of the whole without them taken away.
Dense4 OutWithoutKeys(const ProblemArgs& args, const ProblemArrays& arrays, std::int64_t first,
                      std::int64_t count) {
  OracleMask mask = ComputeOracleMask(args, arrays);
  for (std::int64_t i = 0; i < args.shape.seqlen_q; ++i) {
    for (std::int64_t j = first; j < first + count; ++j) mask.keep[mask.Index(0, 0, i, j)] = 0;
  }
  return RunNaive(args, arrays, mask).value.out;
}

bool OutIsWithinBound(const ProblemArgs& args, const ProblemArrays& arrays,
                      const NaiveProblem& naive) {
  return static_cast<bool>(
      Matches(arrays.out, naive.value.out, naive.bound.out, Tolerance(args, naive, 8.0)));
}

// Queries first .. first + 63 against 128 keys: one tile of one block.
TEST(FusedAccuracy, ATileOffByTwoToTheMinusTenIsNoticed) {
  const ProblemArgs args = Plain(256, 1024, 64);
  ProblemArrays arrays = MakeArrays(args, 8);
  RunForward(args, arrays, {.threads = 1, .plan = {.path = Path::kFused}});
  const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
  ASSERT_TRUE(OutIsWithinBound(args, arrays, naive));
  const Dense4 right = arrays.out.ToDouble();
  for (std::int64_t key = 0; key < 1024; key += 384) {
    const Dense4 without = OutWithoutKeys(args, arrays, key, 128);
    for (std::int64_t query = 0; query < 256; query += 64) {
      arrays.out.Fill([&](std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
        const double x = right.at(0, 0, r, c);
        const bool disturbed = query <= r && r < query + 64;
        const double tile = naive.value.out.at(0, 0, r, c) - without.at(0, 0, r, c);
        return disturbed ? x + kDisturbance * tile : x;
      });
      EXPECT_FALSE(OutIsWithinBound(args, arrays, naive)) << "query " << query << " key " << key;
    }
  }
}

// The rows of one tile of keys, 2^-10 too large, in either of their gradients.
TEST(FusedAccuracy, AGradientTileOffByTwoToTheMinusTenIsNoticed) {
  const ProblemArgs args = Plain(256, 512, 64);
  ProblemArrays arrays = MakeArrays(args, 9);
  const RunOptions fused{.threads = 1, .plan = {.path = Path::kFused}};
  RunForward(args, arrays, fused);
  RunBackward(args, arrays, fused);
  const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
  const double tolerance = Tolerance(args, naive, 16.0);
  const auto check = [&](Array& array, const Dense4& want, const Dense4& bound) {
    ASSERT_TRUE(Matches(array, want, bound, tolerance));
    for (std::int64_t r = 128; r < 256; ++r) {
      for (std::int64_t c = 0; c < array.shape().cols; ++c) {
        array.Set(0, 0, r, c, array.Get(0, 0, r, c) * (1.0 + kDisturbance));
      }
    }
    EXPECT_FALSE(Matches(array, want, bound, tolerance));
  };
  check(arrays.grad_query, naive.value.grad_query, naive.bound.grad_query);
  check(arrays.grad_key, naive.value.grad_key, naive.bound.grad_key);
  check(arrays.grad_value, naive.value.grad_value, naive.bound.grad_value);
}

}  // namespace
}  // namespace attndrop::testing
