// SPDX-License-Identifier: Apache-2.0
// Calls of the library with a number of threads.
#include "support/run.h"

#include <gtest/gtest.h>

namespace attndrop::testing {
namespace {

template <class F>
void WithExecutor(int threads, F&& call) {
  if (threads == 1) {
    SerialExecutor serial;
    const Status status = call(serial);
    EXPECT_TRUE(status.ok()) << status.message();
    return;
  }
  Result<ThreadExecutor> pool = ThreadExecutor::Make(threads);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  const Status status = call(*pool);
  EXPECT_TRUE(status.ok()) << status.message();
}

Plan MustPlan(const ProblemArgs& args, const PlanOptions& options) {
  Result<Plan> plan = Plan::Make(MustMake(args), options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *std::move(plan);
}

}  // namespace

void ExpectForward(const ProblemArgs& args, const ForwardBuffers& buffers,
                   const RunOptions& options) {
  const Plan plan = MustPlan(args, options.plan);
  Scratch scratch;
  WithExecutor(options.threads,
               [&](Executor& executor) { return Forward(plan, buffers, executor, scratch); });
}

void ExpectBackward(const ProblemArgs& args, const BackwardBuffers& buffers,
                    const RunOptions& options) {
  const Plan plan = MustPlan(args, options.plan);
  Scratch scratch;
  WithExecutor(options.threads,
               [&](Executor& executor) { return Backward(plan, buffers, executor, scratch); });
}

void RunForward(const ProblemArgs& args, ProblemArrays& arrays, const RunOptions& options) {
  ExpectForward(args, arrays.ForForward(), options);
}

void RunBackward(const ProblemArgs& args, ProblemArrays& arrays, const RunOptions& options) {
  ExpectBackward(args, arrays.ForBackward(), options);
}

LibraryMask RunKeepMask(const ProblemArgs& args, ProblemArrays& arrays, int threads) {
  const Problem problem = MustMake(args);
  const AttentionShape& shape = problem.shape();
  const auto cells =
      static_cast<std::size_t>(shape.batch * shape.num_heads * shape.seqlen_q * shape.seqlen_k);
  // Not zero, so that a cell that is never written shows.
  LibraryMask mask{std::vector<std::uint8_t>(cells + 1, 0xEE),
                   std::vector<double>(cells + 1, -7.0)};
  const KeepMaskBuffers buffers{
      .mask = arrays.Mask(), .keep = mask.keep.data(), .factors = mask.factors.data()};
  WithExecutor(threads, [&](Executor& executor) { return KeepMask(problem, buffers, executor); });
  EXPECT_EQ(mask.keep.back(), 0xEE) << "written behind the end";
  EXPECT_EQ(mask.factors.back(), -7.0) << "written behind the end";
  mask.keep.pop_back();
  mask.factors.pop_back();
  return mask;
}

LibraryMask RunKeepMask(const ProblemArgs& args) {
  ProblemArrays none;
  return RunKeepMask(args, none);
}

}  // namespace attndrop::testing
