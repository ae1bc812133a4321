// SPDX-License-Identifier: Apache-2.0
// The fused path against the naive computation on random legal problems, on every target of this
// machine, within the bound of docs/math/accuracy.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attndrop/attndrop.h"
#include "support/naive_attention.h"
#include "support/random_problem.h"

namespace attndrop::testing {
namespace {

constexpr double kEpsilon = 0x1p-24;  // of float32

// The largest logit of a problem, its terms added up by their absolute values.
double LargestLogit(const NaiveProblem& naive) {
  double largest = 0.0;
  for (const double bound : naive.bound.logsumexp.values) {
    if (bound < 1e30) largest = std::max(largest, bound);
  }
  return largest;
}

double Tolerance(const ProblemArgs& args, const NaiveProblem& naive, double constant) {
  const double terms =
      static_cast<double>(std::max({args.shape.seqlen_k, args.shape.seqlen_q, std::int64_t{2}}));
  return kEpsilon * (constant + 2.0 * std::log2(terms) + 4.0 * LargestLogit(naive));
}

// float64 problems become float32 ones: the fused path has no float64.
ProblemArgs ForFused(ProblemArgs args) {
  if (args.dtype == DType::kFloat64) args.dtype = DType::kFloat32;
  return args;
}

// Rows of lowest floats: the kernels hold biases above -3e38 in units of log2.
void ForgetLowest(Array& logsumexp, Dense4& want) {
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

void CheckForward(const ProblemArgs& args, ProblemArrays& arrays, NaiveProblem& naive) {
  const double tolerance = Tolerance(args, naive, 8.0);
  EXPECT_TRUE(Matches(arrays.out, naive.value.out, naive.bound.out, tolerance));
  ForgetLowest(arrays.logsumexp, naive.value.logsumexp);
  EXPECT_TRUE(Matches(arrays.logsumexp, naive.value.logsumexp, naive.bound.logsumexp, tolerance));
}

void CheckBackward(const ProblemArgs& args, ProblemArrays& arrays, const NaiveProblem& naive) {
  // out and logsumexp come in rounded to their own types.
  const double rounding = args.dtype == DType::kBFloat16  ? 0x1p-8 / kEpsilon
                          : args.dtype == DType::kFloat16 ? 0x1p-11 / kEpsilon
                                                          : 0.0;
  const double tolerance = Tolerance(args, naive, 16.0 + 2.0 * rounding);
  EXPECT_TRUE(Matches(arrays.grad_query, naive.value.grad_query, naive.bound.grad_query, tolerance));
  EXPECT_TRUE(Matches(arrays.grad_key, naive.value.grad_key, naive.bound.grad_key, tolerance));
  EXPECT_TRUE(Matches(arrays.grad_value, naive.value.grad_value, naive.bound.grad_value, tolerance));
}

void CheckOnTarget(const ProblemArgs& args, std::uint64_t seed, Target target) {
  SCOPED_TRACE(TargetName(target));
  const Result<Plan> plan =
      Plan::Make(MustMake(args), {.path = Path::kFused, .target = target});
  if (!plan.ok()) {
    EXPECT_EQ(args.shape.head_dim, 0) << plan.status().message();
    return;
  }
  ProblemArrays arrays = MakeArrays(args, seed);
  arrays.Freeze();
  SerialExecutor serial;
  Scratch scratch;
  const Status forward = Forward(*plan, arrays.ForForward(), serial, scratch);
  ASSERT_TRUE(forward.ok()) << forward.message();
  NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
  CheckForward(args, arrays, naive);
  const Status backward = Backward(*plan, arrays.ForBackward(), serial, scratch);
  ASSERT_TRUE(backward.ok()) << backward.message();
  CheckBackward(args, arrays, naive);
  EXPECT_TRUE(arrays.Intact());
}

TEST(FusedRandom, WithinTheBound) {
  ForRandomProblems({.first_seed = 1, .count = 2000}, {}, [](const ProblemArgs& given,
                                                             std::uint64_t seed) {
    const ProblemArgs args = ForFused(given);
    for (const Target target : SupportedTargets()) CheckOnTarget(args, seed, target);
  });
}

}  // namespace
}  // namespace attndrop::testing
