// SPDX-License-Identifier: Apache-2.0
// The bound of docs/math/accuracy.md, and checks of Forward and Backward against it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "attndrop/attndrop.h"

#include "support/naive_attention.h"
#include "support/run.h"

namespace attndrop::testing {

inline constexpr double kEpsilon = 0x1p-24;  // of float32

// The largest logit of a problem, its terms added up by their absolute values.
inline double LargestLogit(const NaiveProblem& naive) {
  double largest = 0.0;
  for (const double bound : naive.bound.logsumexp.values) {
    if (bound < 1e30) largest = std::max(largest, bound);
  }
  return largest;
}

inline double Tolerance(const ProblemArgs& args, const NaiveProblem& naive, double constant) {
  const double terms =
      static_cast<double>(std::max({args.shape.seqlen_k, args.shape.seqlen_q, std::int64_t{2}}));
  return kEpsilon * (constant + 2.0 * std::log2(terms) + 4.0 * LargestLogit(naive));
}

// float64 problems become float32 ones: the fused path has no float64.
inline ProblemArgs ForFused(ProblemArgs args) {
  if (args.dtype == DType::kFloat64) args.dtype = DType::kFloat32;
  if (args.attn_mask.dtype == DType::kFloat64) args.attn_mask.dtype = DType::kFloat32;
  if (args.shape.head_dim == 0) args.shape.head_dim = 1;
  return args;
}

// Rows of lowest floats: the kernels hold biases above -3e38 in units of log2.
inline void ForgetLowest(Array& logsumexp, Dense4& want) {
  const ArrayShape shape = want.shape;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        double& number = want.at(b, h, r, 0);
        if (number < -2e38 && logsumexp.Get(b, h, r, 0) < -2e38) number = logsumexp.Get(b, h, r, 0);
      }
    }
  }
}

inline void CheckForward(const ProblemArgs& args, ProblemArrays& arrays, NaiveProblem& naive) {
  const double tolerance = Tolerance(args, naive, 8.0);
  // Kernels that multiply pairs of bfloat16 round the weights to it.
  const double weights = args.dtype == DType::kBFloat16 ? 0x1p-8 : 0.0;
  EXPECT_TRUE(Matches(arrays.out, naive.value.out, naive.bound.out, tolerance + weights));
  ForgetLowest(arrays.logsumexp, naive.value.logsumexp);
  EXPECT_TRUE(Matches(arrays.logsumexp, naive.value.logsumexp, naive.bound.logsumexp, tolerance));
}

inline double LargestNumber(const Array& array) {
  double largest = 0.0;
  for (const double x : array.ToDouble().values) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest;
}

// out comes in as float16: below 2^-14 its error is absolute, and through delta so is that of
// grad_query and grad_key.
inline void AddSubnormalError(const ProblemArgs& args, const ProblemArrays& arrays,
                              double tolerance, NaiveProblem& naive) {
  if (args.dtype != DType::kFloat16) return;
  const double delta =
      0x1p-25 * static_cast<double>(HeadDimV(args)) * LargestNumber(arrays.grad_out);
  const double rows = static_cast<double>(arrays.query.shape().heads * arrays.query.shape().rows);
  const double scale = std::abs(ScaleOf(args));
  const auto add = [tolerance](Dense4& bound, double error) {
    for (double& x : bound.values) x += error / tolerance;
  };
  add(naive.bound.grad_query, delta * scale * LargestNumber(arrays.key));
  add(naive.bound.grad_key, delta * scale * LargestNumber(arrays.query) * rows);
  add(naive.bound.grad_attn_mask, delta * rows * static_cast<double>(arrays.query.shape().batch));
}

inline void CheckBackward(const ProblemArgs& args, ProblemArrays& arrays, NaiveProblem& naive) {
  // out and logsumexp come in rounded to their own types.
  const double rounding = args.dtype == DType::kBFloat16  ? 0x1p-8 / kEpsilon
                          : args.dtype == DType::kFloat16 ? 0x1p-11 / kEpsilon
                                                          : 0.0;
  const double tolerance = Tolerance(args, naive, 16.0 + 2.0 * rounding);
  AddSubnormalError(args, arrays, tolerance, naive);
  EXPECT_TRUE(
      Matches(arrays.grad_query, naive.value.grad_query, naive.bound.grad_query, tolerance));
  EXPECT_TRUE(Matches(arrays.grad_key, naive.value.grad_key, naive.bound.grad_key, tolerance));
  EXPECT_TRUE(
      Matches(arrays.grad_value, naive.value.grad_value, naive.bound.grad_value, tolerance));
  if (!arrays.has_grad_attn_mask) return;
  EXPECT_TRUE(Matches(arrays.grad_attn_mask, naive.value.grad_attn_mask, naive.bound.grad_attn_mask,
                      tolerance));
}

// The fused path on one target.
inline RunOptions Fused(Target target, int threads = 1) {
  return {.threads = threads, .plan = {.path = Path::kFused, .target = target, .tiles = {}}};
}
inline RunOptions Fused(const TileShape& tiles, int threads = 1) {
  return {.threads = threads, .plan = {.path = Path::kFused, .target = {}, .tiles = tiles}};
}

// Runs both directions, leaves their results in arrays, and holds them against the bound.
inline void CheckBothDirections(const ProblemArgs& args, ProblemArrays& arrays,
                                const RunOptions& options) {
  RunForward(args, arrays, options);
  NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
  CheckForward(args, arrays, naive);
  RunBackward(args, arrays, options);
  CheckBackward(args, arrays, naive);
  EXPECT_TRUE(arrays.Intact());
}

}  // namespace attndrop::testing
