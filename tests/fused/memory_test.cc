// SPDX-License-Identifier: Apache-2.0
// Memory beyond inputs and outputs: what the plan says is what a call takes, and it is linear in
// the sequence length.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"
#include "unit/counting_allocator.h"

namespace attndrop::testing {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

Plan MustPlan(const ProblemArgs& args) {
  Result<Plan> plan = Plan::Make(MustMake(args), {.path = Path::kFused});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *std::move(plan);
}

ProblemArgs Long(std::int64_t heads) {
  ProblemArgs args;
  args.shape = {.num_heads = heads, .seqlen_q = 65536, .seqlen_k = 65536, .head_dim = 64};
  args.dropout.dropout_p = 0.1;
  return args;
}

// A head in flight: 4 N d + 4 N floats; a thread: 1 MB. At most one head a thread is in flight.
TEST(FusedMemory, OneLongHead) {
  const std::size_t n = 65536, d = 64;
  const std::size_t head = (4 * n * d + 4 * n) * sizeof(float);
  for (const int workers : {1, 2, 4}) {
    for (const std::int64_t heads : {1, 2, 16}) {
      const auto threads = static_cast<std::size_t>(workers);
      const std::size_t in_flight = std::min(threads, static_cast<std::size_t>(heads));
      const Plan plan = MustPlan(Long(heads));
      const std::size_t forward = plan.ForwardScratchBytes(workers);
      const std::size_t backward = plan.BackwardScratchBytes(workers);
      std::printf("%d threads, %2d heads: forward %.2f, backward %.2f MiB of %.2f\n", workers,
                  static_cast<int>(heads), static_cast<double>(forward) / kMebibyte,
                  static_cast<double>(backward) / kMebibyte,
                  static_cast<double>(head * in_flight + threads * kMebibyte) / kMebibyte);
      EXPECT_LE(forward, threads * kMebibyte);
      EXPECT_LE(backward, in_flight * head + threads * kMebibyte);
    }
  }
}

// Twice the length, at most twice the memory, in every option that could hold a matrix.
TEST(FusedMemory, GrowsLinearly) {
  for (const char* scheme : {"element", "symmetric", "block"}) {
    for (const char* policy : {"zero", "undropped"}) {
      ProblemArgs args;
      args.dropout = {.dropout_p = 0.5, .scheme = scheme, .empty_row = *ParseEmptyRow(policy)};
      args.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, false, false, true};
      const auto bytes = [&args](std::int64_t seqlen) {
        args.shape = {.seqlen_q = seqlen, .seqlen_k = seqlen, .head_dim = 32};
        return MustPlan(args).BackwardScratchBytes(
            1, {.grad_attn_mask = true, .recompute_forward = true});
      };
      EXPECT_LE(bytes(1 << 17), 2 * bytes(1 << 16)) << scheme << " " << policy;
    }
  }
}

// The allocator sees what the plan announced, and nothing more on a second call.
TEST(FusedMemory, CallsTakeWhatThePlanSays) {
  ProblemArgs args;
  args.shape = {
      .num_heads = 4, .num_kv_heads = 2, .seqlen_q = 500, .seqlen_k = 700, .head_dim = 40};
  args.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, false, true, true};
  args.dropout.dropout_p = 0.1;
  const Plan plan = MustPlan(args);
  for (const int workers : {1, 3}) {
    for (const bool recompute : {false, true}) {
      CountingAllocator allocator;
      ProblemArrays arrays = MakeArrays(args, 3);
      Result<ThreadExecutor> executor = ThreadExecutor::Make(workers);
      ASSERT_TRUE(executor.ok());
      {
        Scratch scratch(&allocator);
        ASSERT_TRUE(Forward(plan, arrays.ForForward(), *executor, scratch).ok());
        EXPECT_EQ(allocator.peak_bytes(), plan.ForwardScratchBytes(workers));
      }
      EXPECT_EQ(allocator.live_bytes(), 0U);
      CountingAllocator second;
      Scratch scratch(&second);
      BackwardBuffers buffers = arrays.ForBackward();
      if (recompute) buffers.out = buffers.logsumexp = {};
      for (int call = 0; call < 2; ++call) {
        ASSERT_TRUE(Backward(plan, buffers, *executor, scratch).ok());
        EXPECT_EQ(second.peak_bytes(), plan.BackwardScratchBytes(workers, WorkOf(buffers)));
        EXPECT_EQ(second.calls(), 1);
      }
    }
  }
}

// No memory: the status says so, and no output has been touched.
TEST(FusedMemory, FailureWritesNothing) {
  ProblemArgs args;
  args.shape = {.seqlen_q = 70, .seqlen_k = 70, .head_dim = 8};
  const Plan plan = MustPlan(args);
  ProblemArrays arrays = MakeArrays(args, 3), untouched = MakeArrays(args, 3);
  CountingAllocator allocator;
  allocator.FailFromNow(0);
  Scratch scratch(&allocator);
  SerialExecutor serial;
  EXPECT_EQ(Forward(plan, arrays.ForForward(), serial, scratch).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(Backward(plan, arrays.ForBackward(), serial, scratch).code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(SameBits(arrays.out, untouched.out));
  EXPECT_TRUE(SameBits(arrays.grad_query, untouched.grad_query));
  EXPECT_TRUE(SameBits(arrays.grad_key, untouched.grad_key));
}

}  // namespace
}  // namespace attndrop::testing
