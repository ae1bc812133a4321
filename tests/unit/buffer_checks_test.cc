// SPDX-License-Identifier: Apache-2.0
// What Forward, Backward and KeepMask refuse about the arrays themselves.
#include "core/buffer_checks.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::RefusesArgument;

Problem Parse(std::string_view line) {
  Result<Problem> problem = Problem::Parse(line);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return *std::move(problem);
}

// Dense float32 arrays for b2 h4 kv2 q3 k5 d8, far enough apart.
class BufferChecksTest : public ::testing::Test {
 protected:
  static constexpr std::string_view kLine = "b2 h4 kv2 q3 k5 d8 f32";

  float* Take(std::size_t count) {
    used_ += count;
    return memory_.data() + used_ - count;
  }
  Strided<void> Output(std::int64_t heads, std::int64_t rows, std::int64_t cols) {
    return Dense<void>(Take(static_cast<std::size_t>(2 * heads * rows * cols)), heads, rows, cols);
  }
  Strided<const void> Input(std::int64_t heads, std::int64_t rows, std::int64_t cols) {
    const Strided<void> array = Output(heads, rows, cols);
    return {array.data, array.batch_stride, array.head_stride, array.row_stride, array.col_stride};
  }

  ForwardBuffers Forward() {
    ForwardBuffers buffers;
    buffers.query = Input(4, 3, 8);
    buffers.key = Input(2, 5, 8);
    buffers.value = Input(2, 5, 8);
    buffers.out = Output(4, 3, 8);
    buffers.logsumexp = Output(4, 3, 1);
    return buffers;
  }
  BackwardBuffers Backward() {
    BackwardBuffers buffers;
    buffers.query = Input(4, 3, 8);
    buffers.key = Input(2, 5, 8);
    buffers.value = Input(2, 5, 8);
    buffers.out = Input(4, 3, 8);
    buffers.logsumexp = Input(4, 3, 1);
    buffers.grad_out = Input(4, 3, 8);
    buffers.grad_logsumexp = Input(4, 3, 1);
    buffers.grad_query = Output(4, 3, 8);
    buffers.grad_key = Output(2, 5, 8);
    buffers.grad_value = Output(2, 5, 8);
    return buffers;
  }

  std::vector<float> memory_ = std::vector<float>(20000);
  std::size_t used_ = 0;
};

using F = ForwardBuffers;
using B = BackwardBuffers;

template <class T>
T* Moved(T* data, std::int64_t bytes) {
  return const_cast<char*>(static_cast<const char*>(data)) + bytes;
}

TEST_F(BufferChecksTest, GoodArraysPass) {
  EXPECT_TRUE(CheckForwardBuffers(Parse(kLine), Forward()).ok());
  EXPECT_TRUE(CheckBackwardBuffers(Parse(kLine), Backward()).ok());
}

TEST_F(BufferChecksTest, ForwardRefusals) {
  const struct {
    std::function<void(F&)> change;
    std::vector<std::string_view> pieces;
  } cases[] = {
      {[](F& f) { f.query.data = nullptr; },
       {"query of shape (2,4,3,8) is a null pointer; pass its data"}},
      {[](F& f) { f.key.data = nullptr; }, {"key of shape (2,2,5,8) is a null pointer"}},
      {[](F& f) { f.value.data = nullptr; }, {"value of shape (2,2,5,8) is a null pointer"}},
      {[](F& f) { f.out.data = nullptr; }, {"out of shape (2,4,3,8) is a null pointer"}},
      {[](F& f) { f.key.data = Moved(f.key.data, 2); },
       {"key must be aligned to its 4-byte elements, got address "}},
      {[](F& f) { f.logsumexp.data = Moved(f.logsumexp.data, 1); },
       {"logsumexp must be aligned to its 4-byte elements"}},
      {[](F& f) { f.value.row_stride = std::numeric_limits<std::int64_t>::max(); },
       {"value of shape (2,2,5,8) and strides (80,40,9223372036854775807,1) reaches beyond the "
        "address space",
        "strides, which count elements"}},
      {[](F& f) { f.out.row_stride = 0; },
       {"out of shape (2,4,3,8) has strides (96,24,0,1)", "an output needs an element for each"}},
      {[](F& f) { f.out.batch_stride = 95; }, {"out of shape", "some elements are the same"}},
      {[](F& f) {
         f.out = {.data = const_cast<void*>(f.query.data),
                  .batch_stride = 96,
                  .head_stride = 24,
                  .row_stride = 8};
       },
       {"out overlaps query: bytes ", " .. ", "outputs need memory of their own"}},
      {[](F& f) { f.out.data = Moved(const_cast<void*>(f.value.data), 4); },
       {"out overlaps value"}},
      {[](F& f) { f.logsumexp.data = Moved(f.out.data, 8); }, {"logsumexp overlaps out"}},
      {[](F& f) { f.mask.attn_mask.data = f.query.data; },
       {"attn_mask was passed but the problem has none", "ProblemArgs::attn_mask"}},
      {[](F& f) { f.mask.alibi_slopes = static_cast<const float*>(f.query.data); },
       {"alibi_slopes were passed but the problem has no ALiBi", "ProblemArgs::alibi"}},
  };
  for (const auto& c : cases) {
    used_ = 0;
    F buffers = Forward();
    c.change(buffers);
    EXPECT_TRUE(RefusesArgument(CheckForwardBuffers(Parse(kLine), buffers), c.pieces));
  }
}

TEST_F(BufferChecksTest, BackwardRefusals) {
  const struct {
    std::function<void(B&)> change;
    std::vector<std::string_view> pieces;
  } cases[] = {
      {[](B& b) { b.grad_out.data = nullptr; }, {"grad_out of shape (2,4,3,8) is a null pointer"}},
      {[](B& b) { b.grad_logsumexp.data = Moved(b.grad_logsumexp.data, 1); },
       {"grad_logsumexp must be aligned"}},
      {[](B& b) { b.out.data = Moved(b.out.data, 1); }, {"out must be aligned"}},
      {[](B& b) { b.logsumexp.data = Moved(b.logsumexp.data, 1); }, {"logsumexp must be aligned"}},
      {[](B& b) { b.grad_key.row_stride = 0; }, {"grad_key of shape (2,2,5,8) has strides"}},
      {[](B& b) { b.grad_query.data = const_cast<void*>(b.grad_out.data); },
       {"grad_query overlaps grad_out"}},
      {[](B& b) { b.grad_value.data = b.grad_key.data; }, {"grad_value overlaps grad_key"}},
      {[](B& b) { b.grad_key.data = const_cast<void*>(b.logsumexp.data); },
       {"grad_key overlaps ", "outputs need memory of their own"}},
      {[](B& b) { b.grad_attn_mask.data = b.grad_query.data; },
       {"grad_attn_mask needs a float attn_mask, and this problem has none; leave it null"}},
  };
  for (const auto& c : cases) {
    used_ = 0;
    B buffers = Backward();
    c.change(buffers);
    EXPECT_TRUE(RefusesArgument(CheckBackwardBuffers(Parse(kLine), buffers), c.pieces));
  }
}

TEST_F(BufferChecksTest, OptionalArraysMayBeNull) {
  F forward = Forward();
  forward.logsumexp = {};
  EXPECT_TRUE(CheckForwardBuffers(Parse(kLine), forward).ok());
  B backward = Backward();
  backward.out = backward.logsumexp = backward.grad_logsumexp = {};
  backward.grad_query = backward.grad_key = backward.grad_value = {};
  EXPECT_TRUE(CheckBackwardBuffers(Parse(kLine), backward).ok());
}

TEST_F(BufferChecksTest, InputsMayRepeatAndShareMemory) {
  F buffers = Forward();
  buffers.value = buffers.key;
  buffers.query = {.data = buffers.query.data, .col_stride = 0};
  EXPECT_TRUE(CheckForwardBuffers(Parse(kLine), buffers).ok());
}

TEST_F(BufferChecksTest, EmptyArraysMayBeNullAndHaveAnyStrides) {
  const Strided<const void> odd{nullptr, 1, -7, std::numeric_limits<std::int64_t>::max(), 0};
  F buffers;
  buffers.query = buffers.key = buffers.value = odd;
  buffers.out = {nullptr, 0, 0, 0, 0};
  EXPECT_TRUE(CheckForwardBuffers(Parse("b0 h4 q3 k5 d8"), buffers).ok());
  EXPECT_TRUE(CheckForwardBuffers(Parse("b2 h4 q0 k0 d8"), buffers).ok());
}

// query, key and value, and their gradients, as slices of one (batch, seqlen, 3, heads, head_dim).
TEST_F(BufferChecksTest, SlicesOfOnePackedArrayAreOutputsOfTheirOwn) {
  for (const std::string_view line : {"b2 h4 q5 k5 d8 f32", "b2 h1 q5 k5 d8", "b1 h4 q5 k5 d8"}) {
    const Problem problem = Parse(line);
    const std::int64_t heads = problem.shape().num_heads;
    const auto slice = [heads](float* data, std::int64_t index) {
      return Strided<void>{data + index * heads * 8, 5 * 3 * heads * 8, 8, 3 * heads * 8, 1};
    };
    const auto input = [](const Strided<void>& s) {
      return Strided<const void>{s.data, s.batch_stride, s.head_stride, s.row_stride, s.col_stride};
    };
    used_ = 0;
    float* const inputs = Take(2000);
    float* const gradients = Take(2000);
    B buffers;
    buffers.query = input(slice(inputs, 0));
    buffers.key = input(slice(inputs, 1));
    buffers.value = input(slice(inputs, 2));
    buffers.grad_out = Input(heads, 5, 8);
    buffers.grad_query = slice(gradients, 0);
    buffers.grad_key = slice(gradients, 1);
    buffers.grad_value = slice(gradients, 2);
    EXPECT_TRUE(CheckBackwardBuffers(problem, buffers).ok()) << line;
    buffers.grad_value = slice(gradients, 1);
    EXPECT_TRUE(
        RefusesArgument(CheckBackwardBuffers(problem, buffers), {"grad_value overlaps grad_key"}));
  }
}

// One key/value head behind four query heads: its head stride is not used and may be anything.
TEST_F(BufferChecksTest, SlicesWithOneKeyHead) {
  const Problem problem = Parse("b2 h4 kv1 q5 k5 d8");
  float* const gradients = Take(2000);
  B buffers;
  buffers.query = Input(4, 5, 8);
  buffers.key = buffers.value = Input(1, 5, 8);
  buffers.grad_out = Input(4, 5, 8);
  buffers.grad_query = {gradients, 5 * 48, 8, 48, 1};
  buffers.grad_key = {gradients + 32, 5 * 48, 999, 48, 1};
  buffers.grad_value = {gradients + 40, 5 * 48, 0, 48, 1};
  const Status status = CheckBackwardBuffers(problem, buffers);
  EXPECT_TRUE(status.ok()) << status.message();
}

// ---- attn_mask and ALiBi
// -------------------------------------------------------------------------

TEST_F(BufferChecksTest, FloatMaskHoldsNumbersOrMinusInfinity) {
  const Problem problem = Parse("b2 h4 kv2 q3 k5 d8 f32 mask=f32:bqk");
  F buffers = Forward();
  EXPECT_TRUE(RefusesArgument(CheckForwardBuffers(problem, buffers),
                              {"attn_mask of shape (2,1,3,5) is a null pointer"}));
  float* const mask = Take(30);
  buffers.mask.attn_mask = Dense<const void>(mask, 1, 3, 5);
  EXPECT_TRUE(CheckForwardBuffers(problem, buffers).ok());
  mask[3] = -std::numeric_limits<float>::infinity();
  mask[4] = std::numeric_limits<float>::lowest();
  EXPECT_TRUE(CheckForwardBuffers(problem, buffers).ok());
  mask[15 + 1 * 5 + 2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(RefusesArgument(
      CheckForwardBuffers(problem, buffers),
      {"attn_mask must hold finite numbers or -inf (which hides a key)", "got nan at [1,0,1,2]"}));
  mask[15 + 1 * 5 + 2] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(RefusesArgument(CheckForwardBuffers(problem, buffers), {"got inf at [1,0,1,2]"}));
}

// Walking over all indices would take centuries.
TEST_F(BufferChecksTest, MaskThatRepeatsOneNumberIsReadOnce) {
  const Problem problem = Parse("b4294967296 h4294967296 q0 k0 d0 mask=f32:bh");
  float number = 0.0F;
  const MaskBuffers mask{.attn_mask = {.data = &number, .col_stride = 0}};
  EXPECT_TRUE(CheckMaskBuffers(problem, mask).ok());
  number = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(RefusesArgument(CheckMaskBuffers(problem, mask), {"got nan at [0,0,0,0]"}));
  const Problem alibi = Parse("b4294967296 h4 q0 k0 d0 alibi");
  EXPECT_TRUE(CheckMaskBuffers(alibi, {.alibi_slopes = memory_.data()}).ok());
}

TEST_F(BufferChecksTest, BooleanMaskHoldsAnyByte) {
  const Problem problem = Parse("b2 h4 kv2 q3 k5 d8 f32 mask=bool:k");
  F buffers = Forward();
  const std::uint8_t bytes[5] = {0, 1, 2, 127, 255};
  buffers.mask.attn_mask = {.data = bytes};
  EXPECT_TRUE(CheckForwardBuffers(problem, buffers).ok());
  B backward = Backward();
  backward.mask = buffers.mask;
  backward.grad_attn_mask.data = Take(5);
  EXPECT_TRUE(RefusesArgument(CheckBackwardBuffers(problem, backward),
                              {"grad_attn_mask needs a float attn_mask"}));
}

TEST_F(BufferChecksTest, GradientOfABroadcastMaskNeedsOnlyItsOwnElements) {
  const Problem problem = Parse("b2 h4 kv2 q3 k5 d8 f32 mask=f32:k");
  B buffers = Backward();
  buffers.mask.attn_mask = {.data = Take(5)};
  buffers.grad_attn_mask = {.data = Take(5)};
  EXPECT_TRUE(CheckBackwardBuffers(problem, buffers).ok());
  buffers.grad_attn_mask.data = const_cast<void*>(buffers.mask.attn_mask.data);
  EXPECT_TRUE(RefusesArgument(CheckBackwardBuffers(problem, buffers),
                              {"grad_attn_mask overlaps attn_mask"}));
  buffers.grad_attn_mask = {.data = Take(5), .col_stride = 0};
  EXPECT_TRUE(RefusesArgument(CheckBackwardBuffers(problem, buffers),
                              {"grad_attn_mask of shape (1,1,1,5) has strides"}));
}

TEST_F(BufferChecksTest, AlibiSlopes) {
  const Problem problem = Parse("b2 h4 kv2 q3 k5 d8 f32 alibi");
  F buffers = Forward();
  EXPECT_TRUE(RefusesArgument(CheckForwardBuffers(problem, buffers),
                              {"alibi_slopes of shape (2,4,1,1) is a null pointer"}));
  float* const slopes = Take(8);
  buffers.mask.alibi_slopes = slopes;
  EXPECT_TRUE(CheckForwardBuffers(problem, buffers).ok()) << "the same slopes for all batches";
  slopes[7] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(CheckForwardBuffers(problem, buffers).ok()) << "not read";
  buffers.mask.alibi_batch_stride = 4;
  EXPECT_TRUE(
      RefusesArgument(CheckForwardBuffers(problem, buffers),
                      {"alibi_slopes must be finite numbers, got inf for batch 1, head 3"}));
  slopes[7] = 0.5F;
  buffers.logsumexp.data = slopes;
  EXPECT_TRUE(
      RefusesArgument(CheckForwardBuffers(problem, buffers), {"logsumexp overlaps alibi_slopes"}));
}

// ---- Keep masks
// ----------------------------------------------------------------------------------

TEST_F(BufferChecksTest, KeepMaskRefusals) {
  const Problem problem = Parse("b2 h4 q3 k5 d8");
  std::vector<std::uint8_t> keep(2 * 4 * 3 * 5);
  std::vector<double> factors(keep.size());
  KeepMaskBuffers buffers{.mask = {}, .keep = keep.data(), .factors = factors.data()};
  EXPECT_TRUE(CheckKeepMaskBuffers(problem, buffers).ok());
  buffers.factors = nullptr;
  EXPECT_TRUE(CheckKeepMaskBuffers(problem, buffers).ok());
  buffers.factors = reinterpret_cast<double*>(keep.data());
  EXPECT_FALSE(CheckKeepMaskBuffers(problem, buffers).ok());
  buffers.factors = factors.data();
  buffers.keep = reinterpret_cast<std::uint8_t*>(factors.data()) + 900;
  EXPECT_TRUE(RefusesArgument(CheckKeepMaskBuffers(problem, buffers), {"factors overlaps keep"}));
  buffers.keep = nullptr;
  EXPECT_TRUE(RefusesArgument(CheckKeepMaskBuffers(problem, buffers),
                              {"keep of shape (2,4,3,5) is a null pointer"}));
  buffers = {.mask = {.attn_mask = {.data = memory_.data()}, .alibi_slopes = nullptr},
             .keep = keep.data()};
  EXPECT_TRUE(RefusesArgument(CheckKeepMaskBuffers(problem, buffers),
                              {"attn_mask was passed but the problem has none"}));
}

TEST_F(BufferChecksTest, KeepMaskTooLargeToAddress) {
  std::uint8_t byte = 0;
  const KeepMaskBuffers buffers{.mask = {}, .keep = &byte};
  EXPECT_TRUE(
      RefusesArgument(CheckKeepMaskBuffers(Parse("b1 h1 q4294967296 k4294967296 d8"), buffers),
                      {"keep of shape (1,1,4294967296,4294967296) has more than 2^63 elements",
                       "ask for single weights instead"}));
  EXPECT_TRUE(RefusesArgument(
      CheckKeepMaskBuffers(Parse("b1 h4294967296 q4294967296 k1 d8"), buffers), {"2^63 elements"}));
  EXPECT_TRUE(
      RefusesArgument(CheckKeepMaskBuffers(Parse("b4294967296 h1 q4294967296 k1 d8"), buffers),
                      {"reaches beyond the address space"}));
  EXPECT_TRUE(CheckKeepMaskBuffers(Parse("b0 h1 q4294967296 k4294967296 d8"), {}).ok());
}

}  // namespace
}  // namespace attndrop
