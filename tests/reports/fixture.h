// SPDX-License-Identifier: Apache-2.0
// What the tests of public reports share.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "support/naive_attention.h"
#include "support/run.h"

namespace attndrop::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kLowestFloat = static_cast<double>(std::numeric_limits<float>::lowest());

inline ProblemArgs Args(std::int64_t queries, std::int64_t keys, std::int64_t dim,
                        DType dtype = DType::kFloat32) {
  ProblemArgs args;
  args.shape = {.batch = 1,
                .num_heads = 1,
                .num_kv_heads = 1,
                .seqlen_q = queries,
                .seqlen_k = keys,
                .head_dim = dim,
                .head_dim_v = -1};
  args.dtype = dtype;
  return args;
}

inline double Identity(std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
  return r == c ? 1.0 : 0.0;
}

inline bool AllFinite(const Array& array) {
  for (const double x : array.ToDouble().values) {
    if (!std::isfinite(x)) return false;
  }
  return true;
}

// Runs both directions and compares every result with the naive computation.
inline void ExpectNaive(const ProblemArgs& args, ProblemArrays& arrays) {
  RunForward(args, arrays);
  RunBackward(args, arrays);
  const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
  const NaiveResult &value = naive.value, &bound = naive.bound;
  EXPECT_TRUE(Matches(arrays.out, value.out, bound.out, 1e-12)) << "out";
  EXPECT_TRUE(Matches(arrays.logsumexp, value.logsumexp, bound.logsumexp, 1e-12)) << "logsumexp";
  EXPECT_TRUE(Matches(arrays.grad_query, value.grad_query, bound.grad_query, 1e-12))
      << "grad_query";
  EXPECT_TRUE(Matches(arrays.grad_key, value.grad_key, bound.grad_key, 1e-12)) << "grad_key";
  EXPECT_TRUE(Matches(arrays.grad_value, value.grad_value, bound.grad_value, 1e-12))
      << "grad_value";
}

inline constexpr MaskForm kBoolMask{MaskKind::kBool, DType::kFloat32, false, false, true, true};
inline constexpr MaskForm kFloatMask{MaskKind::kFloat, DType::kFloat32, false, false, true, true};

}  // namespace attndrop::testing
