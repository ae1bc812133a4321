// SPDX-License-Identifier: Apache-2.0
// The C++ examples of README.md and docs/guide/cpp.md; tests/tree/test_documents.py compares the
// text.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/attndrop.h"
#include "attndrop/compat.h"

namespace {

std::vector<float> Numbers(std::size_t count) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i % 17) / 17.0F - 0.5F;
  return numbers;
}

class GuideTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = 2 * 8 * 128 * 64;
  std::vector<float> query = Numbers(kSize);
  std::vector<float> key = Numbers(kSize);
  std::vector<float> value = Numbers(kSize);
  std::vector<float> grad_out = Numbers(kSize);
  std::vector<float> out = std::vector<float>(kSize);
};

std::string TenLines(const std::vector<float>& query, const std::vector<float>& key,
                     const std::vector<float>& value, std::vector<float>& out) {
  attndrop::ProblemArgs args;
  args.shape = {.batch = 2, .num_heads = 8, .seqlen_q = 128, .seqlen_k = 128, .head_dim = 64};
  args.is_causal = true;
  args.dropout = {.dropout_p = 0.1, .empty_row = {attndrop::EmptyRow::kAtLeastOne}, .seed = 7};
  const auto problem = attndrop::Problem::Make(args);
  if (!problem.ok()) return problem.status().message();
  const auto plan = attndrop::Plan::Make(*problem);
  if (!plan.ok()) return plan.status().message();

  attndrop::ForwardBuffers buffers;
  buffers.query = attndrop::Dense<const void>(query.data(), 8, 128, 64);
  buffers.key = attndrop::Dense<const void>(key.data(), 8, 128, 64);
  buffers.value = attndrop::Dense<const void>(value.data(), 8, 128, 64);
  buffers.out = attndrop::Dense<void>(out.data(), 8, 128, 64);
  attndrop::SerialExecutor executor;
  attndrop::Scratch scratch;
  const attndrop::Status status = attndrop::Forward(*plan, buffers, executor, scratch);
  return status.message();
}

attndrop::Plan PlanOf(std::string_view line) {
  auto problem = attndrop::Problem::Parse(line);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  auto plan = attndrop::Plan::Make(*problem);
  EXPECT_TRUE(plan.ok());
  return *std::move(plan);
}

TEST_F(GuideTest, TenLines) {
  EXPECT_EQ(TenLines(query, key, value, out), "");
  EXPECT_NE(out, std::vector<float>(kSize));
}

TEST_F(GuideTest, Backward) {
  const attndrop::Plan plan = PlanOf("b2 h8 q128 k128 d64 f32 causal p=0.1 seed=7");
  std::vector<float> grad_query(kSize), grad_key(kSize), grad_value(kSize);
  attndrop::SerialExecutor executor;
  attndrop::Scratch scratch;
  attndrop::BackwardBuffers buffers;
  buffers.query = attndrop::Dense<const void>(query.data(), 8, 128, 64);
  buffers.key = attndrop::Dense<const void>(key.data(), 8, 128, 64);
  buffers.value = attndrop::Dense<const void>(value.data(), 8, 128, 64);
  buffers.grad_out = attndrop::Dense<const void>(grad_out.data(), 8, 128, 64);
  buffers.grad_query = attndrop::Dense<void>(grad_query.data(), 8, 128, 64);
  buffers.grad_key = attndrop::Dense<void>(grad_key.data(), 8, 128, 64);
  buffers.grad_value = attndrop::Dense<void>(grad_value.data(), 8, 128, 64);
  const attndrop::Status status = attndrop::Backward(plan, buffers, executor, scratch);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_NE(grad_query, std::vector<float>(kSize));
}

TEST_F(GuideTest, PackedViews) {
  const std::vector<float> packed = Numbers(2 * 128 * 3 * 8 * 64);
  // One projection wrote (batch, seqlen, 3, heads, head_dim).
  constexpr std::int64_t kRow = 3 * 8 * 64;
  const auto slice = [&](std::int64_t index) {
    return attndrop::Strided<const void>{.data = packed.data() + index * 8 * 64,
                                         .batch_stride = 128 * kRow,
                                         .head_stride = 64,
                                         .row_stride = kRow,
                                         .col_stride = 1};
  };
  attndrop::ForwardBuffers buffers;
  buffers.query = slice(0);
  buffers.key = slice(1);
  buffers.value = slice(2);
  buffers.out = attndrop::Dense<void>(out.data(), 8, 128, 64);
  attndrop::SerialExecutor executor;
  attndrop::Scratch scratch;
  const attndrop::Plan plan = PlanOf("b2 h8 q128 k128 d64 p=0.1");
  EXPECT_TRUE(attndrop::Forward(plan, buffers, executor, scratch).ok());
}

TEST_F(GuideTest, Errors) {
  attndrop::ProblemArgs args;
  args.shape = {.batch = 2, .num_heads = 8, .seqlen_q = 128, .seqlen_k = 128, .head_dim = 64};
  args.dropout.dropout_p = 1.5;
  const auto problem = attndrop::Problem::Make(args);
  if (!problem.ok()) {
    std::puts(problem.status().message().c_str());
    // dropout_p must be a finite number in [0, 1], got 1.5; 0.5 drops half of the weights
  }
  EXPECT_FALSE(problem.ok());
}

TEST_F(GuideTest, ThreadsAndScratch) {
  const attndrop::Plan plan = PlanOf("b2 h8 q128 k128 d64 f32 causal p=0.1 seed=7");
  attndrop::ForwardBuffers buffers;
  buffers.query = attndrop::Dense<const void>(query.data(), 8, 128, 64);
  buffers.key = attndrop::Dense<const void>(key.data(), 8, 128, 64);
  buffers.value = attndrop::Dense<const void>(value.data(), 8, 128, 64);
  buffers.out = attndrop::Dense<void>(out.data(), 8, 128, 64);
  auto executor = attndrop::ThreadExecutor::Make(4);  // 0: one per hardware thread
  if (!executor.ok()) FAIL() << executor.status().message();
  attndrop::Scratch scratch;  // keeps its memory from call to call
  for (int step = 0; step < 3; ++step) {
    const attndrop::Status status = attndrop::Forward(plan, buffers, *executor, scratch);
    if (!status.ok()) FAIL() << status.message();
  }
}

TEST_F(GuideTest, Shards) {
  attndrop::ProblemArgs whole;
  whole.shape = {.batch = 2, .num_heads = 8, .seqlen_q = 64, .seqlen_k = 64, .head_dim = 16};
  whole.is_causal = true;
  whole.dropout = {.dropout_p = 0.1, .seed = 7};

  attndrop::ProblemArgs shard = whole;  // heads 4 .. 7, queries 32 .. 63, all keys
  shard.shape.num_heads = 4;
  shard.shape.seqlen_q = 32;
  shard.origin = {.head = 4, .query = 32};
  shard.total = attndrop::TotalLengths{.seqlen_q = 64, .seqlen_k = 64};
  const auto all = attndrop::Problem::Make(whole);
  const auto part = attndrop::Problem::Make(shard);
  ASSERT_TRUE(all.ok() && part.ok());
  for (std::int64_t key_index = 0; key_index < 64; ++key_index) {
    EXPECT_EQ(attndrop::KeepAt(*part, {}, {1, 2, 5, key_index})->keep,
              attndrop::KeepAt(*all, {}, {1, 6, 37, key_index})->keep);
  }
}

TEST_F(GuideTest, StridedBatch) {
  attndrop::ProblemArgs whole;
  whole.shape = {.batch = 6, .num_heads = 8, .seqlen_q = 64, .seqlen_k = 64, .head_dim = 16};
  whole.dropout = {.dropout_p = 0.1, .seed = 7};
  attndrop::ProblemArgs part = whole;
  part.shape.batch = 3;
  part.batch_index = {1, 3, 5};  // where each entry stands in the whole batch
  const auto all = attndrop::Problem::Make(whole);
  const auto odd = attndrop::Problem::Make(part);
  ASSERT_TRUE(all.ok() && odd.ok());
  for (std::int64_t key_index = 0; key_index < 64; ++key_index) {
    EXPECT_EQ(attndrop::KeepAt(*odd, {}, {2, 1, 5, key_index})->keep,
              attndrop::KeepAt(*all, {}, {5, 1, 5, key_index})->keep);
  }
}

TEST_F(GuideTest, Ragged) {
  attndrop::ProblemArgs args;
  args.shape = {.num_heads = 8, .head_dim = 64};  // batch and lengths follow from the lists
  args.is_causal = true;
  args.ragged = attndrop::RaggedLengths{.cu_seqlens_q = {0, 100, 228},   // 100 and 128 queries
                                        .cu_seqlens_k = {0, 100, 228}};  // likewise keys
  args.dropout = {.dropout_p = 0.1, .seed = 7};
  const auto problem = attndrop::Problem::Make(args);
  // query is (1, 8, 228, 64): all sequences behind one another along the rows
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->rows_q(), 228);
  EXPECT_EQ(problem->array_batch(), 1);
}

TEST_F(GuideTest, KeepMask) {
  const auto problem = attndrop::Problem::Parse("b1 h1 q4 k4 d1 causal p=0.5 seed=3");
  std::vector<std::uint8_t> keep(1 * 1 * 4 * 4);
  attndrop::SerialExecutor executor;
  const attndrop::KeepMaskBuffers buffers{.keep = keep.data()};
  const attndrop::Status status = attndrop::KeepMask(*problem, buffers, executor);
  const auto cell = attndrop::KeepAt(*problem, {}, {.query = 3, .key = 2});
  ASSERT_TRUE(status.ok() && cell.ok());
  EXPECT_EQ(keep[3 * 4 + 2], cell->keep ? 1 : 0);
}

TEST_F(GuideTest, FloatMask) {
  attndrop::ProblemArgs args;
  args.shape = {.batch = 2, .num_heads = 8, .seqlen_q = 128, .seqlen_k = 128, .head_dim = 64};
  // A number for each (batch, key), added to the logits; -inf hides the key.
  args.attn_mask = {.kind = attndrop::MaskKind::kFloat,
                    .dtype = attndrop::DType::kFloat32,
                    .per_batch = true,
                    .per_key = true};
  std::vector<float> bias(2 * 128);
  attndrop::ForwardBuffers buffers;
  buffers.mask.attn_mask = attndrop::Dense<const void>(bias.data(), 1, 1, 128);
  buffers.query = attndrop::Dense<const void>(query.data(), 8, 128, 64);
  buffers.key = attndrop::Dense<const void>(key.data(), 8, 128, 64);
  buffers.value = attndrop::Dense<const void>(value.data(), 8, 128, 64);
  buffers.out = attndrop::Dense<void>(out.data(), 8, 128, 64);
  const auto problem = attndrop::Problem::Make(args);
  const auto plan = attndrop::Plan::Make(*problem);
  attndrop::SerialExecutor executor;
  attndrop::Scratch scratch;
  EXPECT_TRUE(attndrop::Forward(*plan, buffers, executor, scratch).ok());
}

TEST(TorchGuideTest, DropoutOfTheForumPost) {
  using namespace attndrop::compat;

  TorchCpuGenerator generator(1367149);  // torch.manual_seed(1367149)
  std::vector<float> weights(16);
  Rand(generator, weights);  // torch.rand(4, 4)
  std::vector<std::uint8_t> keep(16);
  attndrop::Status status =  // F.dropout(weights, 0.5)
      DropoutKeep(generator, TorchBuild::kMkl, 0.5, keep);
  // keep: 0001 0000 1000 0111
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(keep, (std::vector<std::uint8_t>{0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1}));
}

}  // namespace
