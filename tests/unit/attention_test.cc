// SPDX-License-Identifier: Apache-2.0
// The entry points: order of checks, memory that fails, sizes that no memory holds, optional and
// empty arrays, packed arrays, single cells of the keep mask.
#include "attndrop/attention.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.h"
#include "unit/counting_allocator.h"
#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::CountingAllocator;
using testing::Refuses;
using testing::RefusesArgument;

constexpr double kSentinel = -12345.0;

Plan MakePlan(std::string_view line) {
  const Result<Problem> problem = Problem::Parse(line);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  Result<Plan> plan = Plan::Make(*problem);
  EXPECT_TRUE(plan.ok());
  return *std::move(plan);
}

Strided<const void> Const(const Strided<void>& s) {
  return {s.data, s.batch_stride, s.head_stride, s.row_stride, s.col_stride};
}

// float64 arrays of a problem with as many key heads as query heads and head_dim_v = head_dim.
class Call {
 public:
  explicit Call(std::string_view line) : plan(MakePlan(line)) {
    const AttentionShape& shape = plan.problem().shape();
    const auto count = [&](std::int64_t rows, std::int64_t cols) {
      return static_cast<std::size_t>(shape.batch * shape.num_heads * rows * cols);
    };
    testing::Random random(21);
    for (std::vector<double>* input : {&query, &grad_out}) {
      input->resize(count(shape.seqlen_q, shape.head_dim));
    }
    for (std::vector<double>* input : {&key, &value}) {
      input->resize(count(shape.seqlen_k, shape.head_dim));
    }
    for (std::vector<double>* input : {&query, &key, &value, &grad_out}) {
      for (double& number : *input) number = random.Normal();
    }
    out.assign(query.size(), kSentinel);
    logsumexp.assign(count(shape.seqlen_q, 1), kSentinel);
    grad_query.assign(query.size(), kSentinel);
    grad_key.assign(key.size(), kSentinel);
    grad_value.assign(value.size(), kSentinel);
  }

  ForwardBuffers Forward() {
    ForwardBuffers buffers;
    buffers.query = Const(View(query, Rows().first));
    buffers.key = Const(View(key, Rows().second));
    buffers.value = Const(View(value, Rows().second));
    buffers.out = View(out, Rows().first);
    buffers.logsumexp = Dense<void>(logsumexp.data(), Heads(), Rows().first, 1);
    return buffers;
  }
  BackwardBuffers Backward() {
    const ForwardBuffers forward = Forward();
    BackwardBuffers buffers;
    buffers.query = forward.query;
    buffers.key = forward.key;
    buffers.value = forward.value;
    buffers.grad_out = Const(View(grad_out, Rows().first));
    buffers.grad_query = View(grad_query, Rows().first);
    buffers.grad_key = View(grad_key, Rows().second);
    buffers.grad_value = View(grad_value, Rows().second);
    return buffers;
  }
  [[nodiscard]] bool OutputsUntouched() const {
    const auto untouched = [](const std::vector<double>& numbers) {
      return std::all_of(numbers.begin(), numbers.end(), [](double x) { return x == kSentinel; });
    };
    return untouched(out) && untouched(logsumexp) && untouched(grad_query) && untouched(grad_key) &&
           untouched(grad_value);
  }
  [[nodiscard]] bool OutputsWritten() const {
    for (const std::vector<double>* output :
         {&out, &logsumexp, &grad_query, &grad_key, &grad_value}) {
      if (std::count(output->begin(), output->end(), kSentinel) != 0) return false;
    }
    return true;
  }

  Plan plan;
  std::vector<double> query, key, value, out, logsumexp;
  std::vector<double> grad_out, grad_query, grad_key, grad_value;

 private:
  [[nodiscard]] std::int64_t Heads() const { return plan.problem().shape().num_heads; }
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> Rows() const {
    return {plan.problem().shape().seqlen_q, plan.problem().shape().seqlen_k};
  }
  Strided<void> View(std::vector<double>& numbers, std::int64_t rows) {
    return Dense<void>(numbers.data(), Heads(), rows, plan.problem().shape().head_dim);
  }
};

constexpr std::string_view kLine = "b2 h3 q6 k9 d4 f64 causal p=0.3 seed=5";

// ---- Errors leave the outputs alone
// --------------------------------------------------------------

// The sequence forward, backward, forward with three threads asks for memory a few times; each time
// once must be the one that fails, and the calls that succeed must be complete.
TEST(AttentionTest, EveryAllocationMayFailWithoutATrace) {
  for (int failing = 0; failing < 10; ++failing) {
    Call call(kLine);
    CountingAllocator allocator;
    allocator.FailFromNow(failing);
    Scratch scratch(&allocator);
    SerialExecutor serial;
    Result<ThreadExecutor> threads = ThreadExecutor::Make(3);
    const bool forward = Forward(call.plan, call.Forward(), serial, scratch).ok();
    EXPECT_TRUE(forward || call.OutputsUntouched()) << failing;
    const Status backward = Backward(call.plan, call.Backward(), *threads, scratch);
    if (forward && !backward.ok()) {
      EXPECT_NE(call.out.front(), kSentinel);
      EXPECT_EQ(call.grad_query.front(), kSentinel);
      EXPECT_EQ(call.grad_key.front(), kSentinel);
      EXPECT_EQ(call.grad_value.front(), kSentinel);
    }
    if (!backward.ok()) {
      EXPECT_TRUE(Refuses(backward, StatusCode::kOutOfMemory, {"no memory for", "of scratch"}));
      continue;
    }
    EXPECT_EQ(failing, allocator.calls()) << "as many allocations as were allowed";
    EXPECT_TRUE(call.OutputsWritten());
    return;
  }
  FAIL() << "never enough memory";
}

TEST(AttentionTest, ARefusedCallAllocatesAndWritesNothing) {
  Call call(kLine);
  CountingAllocator allocator;
  Scratch scratch(&allocator);
  SerialExecutor executor;
  ForwardBuffers forward = call.Forward();
  forward.key.data = nullptr;
  EXPECT_TRUE(RefusesArgument(Forward(call.plan, forward, executor, scratch), {"key of shape"}));
  BackwardBuffers backward = call.Backward();
  backward.grad_value.data = backward.grad_query.data;
  EXPECT_TRUE(RefusesArgument(Backward(call.plan, backward, executor, scratch),
                              {"grad_value overlaps grad_query"}));
  EXPECT_EQ(allocator.calls(), 0);
  EXPECT_TRUE(call.OutputsUntouched());
}

// Inputs of stride 0 make sizes legal that no memory holds. Heads and batches are 1 here.
struct GiantCall {
  explicit GiantCall(std::string_view line) : plan(MakePlan(line)) {
    const Strided<const void> one{.data = &number, .col_stride = 0};
    forward.query = forward.key = forward.value = one;
    forward.out.data = &out;
    backward.query = backward.key = backward.value = backward.grad_out = one;
    backward.grad_query.data = grad_query.data();
  }
  Plan plan;
  double number = 1.0;
  double out = kSentinel;
  std::array<double, 8> grad_query{kSentinel};
  ForwardBuffers forward;
  BackwardBuffers backward;
};

TEST(AttentionTest, SizesThatTheAllocatorRefusesAreOutOfMemory) {
  for (const std::string_view line : {"q1 k4294967296 d8 dv1 f64", "q1 k4294967296 d1 dv1 f64"}) {
    GiantCall call(line);
    CountingAllocator allocator;
    allocator.FailFromNow(0);
    Scratch scratch(&allocator);
    SerialExecutor executor;
    EXPECT_EQ(Forward(call.plan, call.forward, executor, scratch).code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(Backward(call.plan, call.backward, executor, scratch).code(),
              StatusCode::kOutOfMemory);
    EXPECT_EQ(allocator.calls(), 2);
    EXPECT_EQ(call.out, kSentinel);
    EXPECT_EQ(call.grad_query[0], kSentinel);
  }
}

TEST(AttentionTest, SizesBeyondTheAddressSpaceAreOutOfMemory) {
  GiantCall call("q1 k4294967296 d4294967296 dv1 f64");
  CountingAllocator allocator;
  Scratch scratch(&allocator);
  SerialExecutor executor;
  EXPECT_TRUE(Refuses(Forward(call.plan, call.forward, executor, scratch), StatusCode::kOutOfMemory,
                      {"no memory for", "of scratch"}));
  double grad_value = kSentinel;
  GiantCall one_key("q1 k1 d4294967296 dv1 f64");
  one_key.backward.grad_query = {};
  one_key.backward.grad_value = {.data = &grad_value};
  allocator.FailFromNow(0);
  EXPECT_EQ(Backward(one_key.plan, one_key.backward, executor, scratch).code(),
            StatusCode::kOutOfMemory);
  EXPECT_EQ(allocator.calls(), 1) << "2^32 columns are possible, 2^64 are not";
  EXPECT_EQ(call.out, kSentinel);
  EXPECT_EQ(grad_value, kSentinel);
}

TEST(AttentionTest, ScratchSizesSaturate) {
  constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max();
  const Plan plan = MakePlan("q1 k4294967296 d4294967296 f64 mask=f32:bhqk");
  EXPECT_EQ(plan.ForwardScratchBytes(1), kLargest);
  EXPECT_EQ(plan.ForwardScratchBytes(4096), kLargest);
  EXPECT_EQ(plan.BackwardScratchBytes(2, {.grad_attn_mask = true}), kLargest);
  EXPECT_EQ(PathName(plan.path()), "reference");
  EXPECT_FALSE(plan.reason().empty());
}

// More heads than 2^63, and a batch that is too long to be walked over.
TEST(AttentionTest, ScratchSizesOfHugeBatches) {
  constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max();
  const Plan plan = MakePlan("b4294967296 h4294967296 q1 k1 d1 f32");
  EXPECT_EQ(plan.BackwardScratchBytes(1, {.recompute_forward = true}), kLargest);
  const Plan longer = MakePlan("b4294967296 h4294967296 q4294967296 k4294967296 d512 f32");
  EXPECT_EQ(longer.BackwardScratchBytes(1, {.recompute_forward = true}), kLargest);
  EXPECT_EQ(plan.BackwardScratchBytes(1), MakePlan("b1 h1 q1 k1 d1 f32").BackwardScratchBytes(1));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(MakePlan("b4294967296 h8 kv2 q1024 k8 d62 f32").BackwardScratchBytes(1),
            MakePlan("b1 h8 kv2 q1024 k8 d62 f32").BackwardScratchBytes(1));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

// ---- Optional and empty arrays
// -------------------------------------------------------------------

TEST(AttentionTest, WhatIsNotWantedChangesNothingElse) {
  Call all(kLine);
  Call some(kLine);
  Scratch scratch;
  SerialExecutor executor;
  ASSERT_TRUE(Forward(all.plan, all.Forward(), executor, scratch).ok());
  ASSERT_TRUE(Backward(all.plan, all.Backward(), executor, scratch).ok());
  ForwardBuffers forward = some.Forward();
  forward.logsumexp = {};
  ASSERT_TRUE(Forward(some.plan, forward, executor, scratch).ok());
  EXPECT_EQ(some.out, all.out);
  EXPECT_EQ(some.logsumexp.front(), kSentinel);
  for (int wanted = 0; wanted < 3; ++wanted) {
    BackwardBuffers backward = some.Backward();
    if (wanted != 0) backward.grad_query = {};
    if (wanted != 1) backward.grad_key = {};
    if (wanted != 2) backward.grad_value = {};
    ASSERT_TRUE(Backward(some.plan, backward, executor, scratch).ok());
  }
  EXPECT_EQ(some.grad_query, all.grad_query);
  EXPECT_EQ(some.grad_key, all.grad_key);
  EXPECT_EQ(some.grad_value, all.grad_value);
}

TEST(AttentionTest, EmptyProblemsSucceedAtOnce) {
  const double number = 1.0;
  const Strided<const void> one{.data = &number, .col_stride = 0};
  Scratch scratch;
  SerialExecutor executor;
  for (const std::string_view line :
       {"b0 h3 q6 k9 d4", "b2 h0 q6 k9 d4", "b2 h3 q0 k9 d4", "b4294967296 h4294967296 q0 k0 d0",
        "b4294967296 h4294967296 q0 k4294967296 d8", "b2 h3 q6 k9 d4 dv0"}) {
    const Plan plan = MakePlan(line);
    ForwardBuffers forward;
    forward.query = forward.key = forward.value = one;
    EXPECT_TRUE(Forward(plan, forward, executor, scratch).ok()) << line;
    BackwardBuffers backward;
    backward.query = backward.key = backward.value = backward.grad_out = one;
    EXPECT_TRUE(Backward(plan, backward, executor, scratch).ok()) << line;
  }
  EXPECT_EQ(scratch.size(), 0U);
}

TEST(AttentionTest, NoKeysGiveZeroAndMinusInfinity) {
  Call call("b2 h3 q6 k0 d4 f64 p=0.3 empty_row=redraw");
  Scratch scratch;
  SerialExecutor executor;
  ASSERT_TRUE(Forward(call.plan, call.Forward(), executor, scratch).ok());
  for (const double number : call.out) EXPECT_EQ(number, 0.0);
  for (const double number : call.logsumexp) {
    EXPECT_EQ(number, -std::numeric_limits<double>::infinity());
  }
  ASSERT_TRUE(Backward(call.plan, call.Backward(), executor, scratch).ok());
  for (const double number : call.grad_query) EXPECT_EQ(number, 0.0);
}

TEST(AttentionTest, NoQueriesGiveZeroGradients) {
  Call call("b2 h3 q0 k9 d4 f64 p=0.3");
  Scratch scratch;
  SerialExecutor executor;
  ASSERT_TRUE(Backward(call.plan, call.Backward(), executor, scratch).ok());
  for (const double number : call.grad_key) EXPECT_EQ(number, 0.0);
  for (const double number : call.grad_value) EXPECT_EQ(number, 0.0);
}

TEST(AttentionTest, HeadDimZeroIsTheMeanOfTheValues) {
  const Plan plan = MakePlan("q2 k4 d0 dv1 f64");
  const std::array<double, 4> value{1.0, 2.0, 3.0, 6.0};
  std::array<double, 2> out{};
  ForwardBuffers buffers;
  buffers.value = Dense<const void>(value.data(), 1, 4, 1);
  buffers.out = Dense<void>(out.data(), 1, 2, 1);
  Scratch scratch;
  SerialExecutor executor;
  ASSERT_TRUE(Forward(plan, buffers, executor, scratch).ok());
  EXPECT_EQ(out[0], 3.0);
  EXPECT_EQ(out[1], 3.0);
}

// ---- Packed arrays
// -------------------------------------------------------------------------------

TEST(AttentionTest, PackedArraysGiveTheSameNumbersAsSeparateOnes) {
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kRows = 7;
  constexpr std::int64_t kDim = 4;
  Call separate("b2 h3 q7 k7 d4 f64 causal p=0.3 seed=5");
  const auto slice = [](std::vector<double>& packed, std::int64_t index) {
    return Strided<void>{packed.data() + index * kHeads * kDim, kRows * 3 * kHeads * kDim, kDim,
                         3 * kHeads * kDim, 1};
  };
  const auto for_each = [](auto visit) {
    for (std::int64_t i = 0; i < kBatch * kHeads * kRows * kDim; ++i) {
      const std::int64_t d = i % kDim;
      const std::int64_t r = i / kDim % kRows;
      const std::int64_t h = i / (kDim * kRows) % kHeads;
      const std::int64_t b = i / (kDim * kRows * kHeads);
      visit(static_cast<std::size_t>(i), ((b * kRows + r) * 3 * kHeads + h) * kDim + d);
    }
  };
  std::vector<double> inputs(kBatch * kRows * 3 * kHeads * kDim);
  std::vector<double> gradients(inputs.size(), kSentinel);
  const std::vector<double>* sources[] = {&separate.query, &separate.key, &separate.value};
  for (std::int64_t index = 0; index < 3; ++index) {
    for_each([&](std::size_t dense, std::int64_t packed) {
      static_cast<double*>(slice(inputs, index).data)[packed] = (*sources[index])[dense];
    });
  }
  BackwardBuffers buffers = separate.Backward();
  buffers.query = Const(slice(inputs, 0));
  buffers.key = Const(slice(inputs, 1));
  buffers.value = Const(slice(inputs, 2));
  buffers.grad_query = slice(gradients, 0);
  buffers.grad_key = slice(gradients, 1);
  buffers.grad_value = slice(gradients, 2);
  Scratch scratch;
  SerialExecutor executor;
  const Status status = Backward(separate.plan, buffers, executor, scratch);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(Backward(separate.plan, separate.Backward(), executor, scratch).ok());
  const std::vector<double>* wanted[] = {&separate.grad_query, &separate.grad_key,
                                         &separate.grad_value};
  for (std::int64_t index = 0; index < 3; ++index) {
    for_each([&](std::size_t dense, std::int64_t packed) {
      ASSERT_EQ(static_cast<const double*>(slice(gradients, index).data)[packed],
                (*wanted[index])[dense]);
    });
  }
}

// ---- Keep masks
// ----------------------------------------------------------------------------------

TEST(KeepMaskTest, CellsAndArrayAgreeForEveryScheme) {
  SerialExecutor executor;
  for (const Scheme& scheme : Schemes()) {
    const Result<Problem> problem =
        Problem::Parse("b2 h2 q6 k6 d1 causal p=0.4 seed=9 empty_row=undropped scheme=" +
                       std::string(scheme.info.name));
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    std::vector<std::uint8_t> keep(2 * 2 * 6 * 6, 9);
    std::vector<double> factors(keep.size(), -1.0);
    const KeepMaskBuffers buffers{.mask = {}, .keep = keep.data(), .factors = factors.data()};
    ASSERT_TRUE(KeepMask(*problem, buffers, executor).ok());
    for (std::int64_t i = 0; i < 2 * 2 * 6 * 6; ++i) {
      const LocalIndex at{i / 72, i / 36 % 2, i / 6 % 6, i % 6};
      const Result<KeepCell> cell = KeepAt(*problem, {}, at);
      ASSERT_TRUE(cell.ok());
      const auto index = static_cast<std::size_t>(i);
      EXPECT_EQ(keep[index], cell->keep ? 1 : 0) << scheme.info.name;
      EXPECT_EQ(factors[index], cell->factor) << scheme.info.name;
      EXPECT_FALSE(cell->keep && at.key > at.query);
    }
  }
}

TEST(KeepMaskTest, IndicesOutsideTheProblemAreRefused) {
  const Result<Problem> problem = Problem::Parse("b2 h3 q4 k5 d1 p=0.5 origin=7,0,0,0");
  ASSERT_TRUE(problem.ok());
  EXPECT_TRUE(KeepAt(*problem, {}, {1, 2, 3, 4}).ok());
  const struct {
    LocalIndex at;
    std::string_view piece;
  } cases[] = {
      {{2, 0, 0, 0}, "batch index must be in 0 .. 1"},
      {{7, 0, 0, 0}, "(indices count inside this problem), got batch index 7"},
      {{0, -1, 0, 0}, "head index must be in 0 .. 2 (indices count inside this problem), got head"},
      {{0, 0, 4, 0}, "query index must be in 0 .. 3"},
      {{0, 0, 0, 5},
       "key index must be in 0 .. 4 (indices count inside this problem), got key "
       "index 5"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(RefusesArgument(KeepAt(*problem, {}, c.at).status(), {c.piece}));
  }
  const Result<Problem> empty = Problem::Parse("b2 h3 q4 k0 d1 p=0.5");
  EXPECT_TRUE(RefusesArgument(KeepAt(*empty, {}, {0, 0, 0, 0}).status(),
                              {"a problem of size 0 has no weights, got key index 0"}));
  const MaskBuffers mask{.attn_mask = {.data = &empty}};
  EXPECT_TRUE(RefusesArgument(KeepAt(*problem, mask, {0, 0, 0, 0}).status(),
                              {"attn_mask was passed but the problem has none"}));
}

TEST(KeepMaskTest, OneCellOfAProblemThatCouldNeverBeAllocated) {
  const Result<Problem> problem =
      Problem::Parse("b4294967296 h4294967296 q4294967296 k4294967296 d1 p=0.1 seed=42 offset=7");
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  constexpr std::int64_t kLast = 0xFFFFFFFF;
  // Known answers of docs/mask-format.md.
  EXPECT_TRUE(KeepAt(*problem, {}, {0, 0, 0x7FFFFFFF, 0x80000000})->keep);
  EXPECT_FALSE(KeepAt(*problem, {}, {kLast, kLast, kLast, kLast})->keep);
  EXPECT_TRUE(KeepAt(*problem, {}, {3, 31, 69999, 69999})->keep);
}

TEST(KeepMaskTest, EmptyMaskNeedsNoMemory) {
  SerialExecutor executor;
  const Result<Problem> problem = Problem::Parse("b0 h1 q4 k5 d1 p=0.5");
  EXPECT_TRUE(KeepMask(*problem, {}, executor).ok());
  const Result<Problem> no_keys = Problem::Parse("b4294967296 h4294967296 q4 k0 d1 p=0.5");
  EXPECT_TRUE(KeepMask(*no_keys, {}, executor).ok());
}

}  // namespace
}  // namespace attndrop
