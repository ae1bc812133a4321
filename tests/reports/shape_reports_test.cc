// SPDX-License-Identifier: Apache-2.0
// Bugs that users of other libraries reported, tried here: alignment, shapes, strides (B15 to B25).
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "reports/fixture.h"

namespace attndrop::testing {
namespace {

std::string Row(const ProblemArrays& arrays, std::int64_t row) {
  std::string bits;
  for (std::int64_t c = 0; c < arrays.out.shape().cols; ++c)
    bits += arrays.out.Get(0, 0, row, c) > 0.0 ? '1' : '0';
  return bits;
}

// head_dim_v = seqlen_k and value = identity: out shows which keys a row sees.
ProblemArrays Seen(ProblemArgs args) {
  args.shape.head_dim_v = args.shape.seqlen_k;
  ProblemArrays arrays = MakeArrays(args, 1);
  arrays.value.Fill(Identity);
  RunForward(args, arrays);
  return arrays;
}

TEST(Reports, B15_CausalTrianglesOfBothAlignments) {
  ProblemArgs wide = Args(2, 5, 1), tall = Args(5, 2, 1);
  wide.is_causal = tall.is_causal = true;
  EXPECT_EQ(Row(Seen(wide), 0), "10000");
  EXPECT_EQ(Row(Seen(wide), 1), "11000");
  EXPECT_EQ(Row(Seen(tall), 0), "10");
  EXPECT_EQ(Row(Seen(tall), 4), "11");
  wide.causal_align = tall.causal_align = CausalAlign::kBottomRight;
  EXPECT_EQ(Row(Seen(wide), 0), "11110");
  EXPECT_EQ(Row(Seen(wide), 1), "11111");
  EXPECT_EQ(Row(Seen(tall), 2), "00");
  EXPECT_EQ(Row(Seen(tall), 3), "10");
  EXPECT_EQ(Row(Seen(tall), 4), "11");
}

TEST(Reports, B16_CausalThreeQueriesManyKeys) {
  ProblemArgs args = Args(3, 128, 4);
  args.is_causal = true;
  args.causal_align = CausalAlign::kBottomRight;
  const ProblemArrays seen = Seen(args);
  for (std::int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(Row(seen, row), std::string(static_cast<std::size_t>(126 + row), '1') +
                                  std::string(static_cast<std::size_t>(2 - row), '0'));
  }
}

TEST(Reports, B17_WindowOfOneQuerySeesTheLastKeys) {
  ProblemArgs args = Args(1, 256, 4);
  args.is_causal = true;
  args.causal_align = CausalAlign::kBottomRight;
  args.window = {128, 0};
  EXPECT_EQ(Row(Seen(args), 0), std::string(127, '0') + std::string(129, '1'));
}

TEST(Reports, B18_NonContiguousInputs) {
  ProblemArgs args = Args(9, 11, 6);
  args.shape.batch = args.shape.num_heads = args.shape.num_kv_heads = 2;
  ProblemArrays dense = MakeArrays(args, 18);
  RunForward(args, dense);
  RunBackward(args, dense);
  for (std::uint64_t shuffle = 1; shuffle < 20; ++shuffle) {
    ProblemArrays strided = MakeArrays(args, 18, {.shuffle_seed = shuffle});
    RunForward(args, strided);
    RunBackward(args, strided);
    EXPECT_TRUE(SameBits(dense.out, strided.out));
    EXPECT_TRUE(SameBits(dense.grad_key, strided.grad_key));
    EXPECT_TRUE(strided.Intact());
  }
}

TEST(Reports, B19_NonContiguousInputsWithABias) {
  ProblemArgs args = Args(9, 11, 6);
  args.shape.batch = args.shape.num_heads = args.shape.num_kv_heads = 2;
  args.attn_mask = {MaskKind::kFloat, DType::kFloat32, true, true, true, true};
  args.layout = Layout::kBshd;
  for (std::uint64_t shuffle = 1; shuffle < 20; ++shuffle) {
    ProblemArrays arrays = MakeArrays(args, 19, {.shuffle_seed = shuffle});
    ExpectNaive(args, arrays);
  }
}

TEST(Reports, B20_ExpandedKeysOfOneMoreThanATile) {
  ProblemArgs args = Args(5, 33, 4);
  args.shape.batch = 3;
  args.layout = Layout::kExpanded;
  ProblemArrays expanded = MakeArrays(args, 20);
  RunForward(args, expanded);
  args.layout = Layout::kBhsd;
  ProblemArrays dense = Allocate(args, {});
  CopyElements(expanded.query, dense.query);
  CopyElements(expanded.key, dense.key);
  CopyElements(expanded.value, dense.value);
  RunForward(args, dense);
  EXPECT_TRUE(SameBits(expanded.out, dense.out));
}

TEST(Reports, B21_ZeroSizedTensors) {
  for (int axis = 0; axis < 6; ++axis) {
    ProblemArgs args = Args(3, 4, 5);
    args.shape.head_dim_v = 2;
    std::int64_t* sizes[] = {&args.shape.batch,    &args.shape.num_heads, &args.shape.seqlen_q,
                             &args.shape.seqlen_k, &args.shape.head_dim,  &args.shape.head_dim_v};
    *sizes[axis] = 0;
    if (axis == 1) args.shape.num_kv_heads = 0;
    for (const double p : {0.0, 0.5}) {
      args.dropout.dropout_p = p;
      ProblemArrays arrays = MakeArrays(args, 21);
      ExpectNaive(args, arrays);
      EXPECT_TRUE(arrays.Intact());
    }
  }
}

TEST(Reports, B22_HeadDimZeroIsTheUniformAverage) {
  ProblemArgs args = Args(16, 16, 0);
  args.shape.num_heads = args.shape.num_kv_heads = 16;
  args.shape.head_dim_v = 1;
  ProblemArrays arrays = MakeArrays(args, 22);
  ExpectNaive(args, arrays);
  double sum = 0.0;
  for (std::int64_t r = 0; r < 16; ++r) sum += arrays.value.Get(0, 3, r, 0);
  EXPECT_NEAR(arrays.out.Get(0, 3, 0, 0), sum / 16.0, 1e-6);
  double grad = 0.0;
  for (std::int64_t r = 0; r < 16; ++r) grad += arrays.grad_out.Get(0, 3, r, 0);
  EXPECT_NEAR(arrays.grad_value.Get(0, 3, 5, 0), grad / 16.0, 1e-6);
}

TEST(Reports, B23_NoKeysInTheWholeBatch) {
  ProblemArgs args = Args(0, 0, 4);
  args.ragged = RaggedLengths{{0, 3, 3, 7}, {0, 0, 0, 0}, {}, {}};
  ProblemArrays arrays = MakeArrays(args, 23);
  ExpectNaive(args, arrays);
  for (std::int64_t r = 0; r < 7; ++r) {
    EXPECT_EQ(arrays.out.Get(0, 0, r, 0), 0.0);
    EXPECT_EQ(arrays.logsumexp.Get(0, 0, r, 0), -kInfinity);
  }
}

TEST(Reports, B24_PackedSequencesWithGaps) {
  ProblemArgs args = Args(0, 0, 4);
  args.is_causal = true;
  args.dropout.dropout_p = 0.3;
  args.ragged = RaggedLengths{{0, 4, 8, 12}, {0, 4, 8, 12}, {3, 2, 4}, {3, 2, 4}};
  ProblemArrays arrays = MakeArrays(args, 24);
  // What lies in the gaps must not matter.
  for (const std::int64_t gap : {3, 6, 7}) {
    for (std::int64_t c = 0; c < 4; ++c) {
      for (Array* array : {&arrays.query, &arrays.key, &arrays.value, &arrays.grad_out})
        array->Set(0, 0, gap, c, kNaN);
    }
  }
  ExpectNaive(args, arrays);
  EXPECT_EQ(arrays.out.Get(0, 0, 3, 0), 0.0);
  EXPECT_EQ(arrays.grad_key.Get(0, 0, 7, 0), 0.0);
}

TEST(Reports, B25_KeysThatFillNoTile) {
  for (const std::int64_t keys : {38, 39, 70}) {
    ProblemArgs args = Args(17, keys, 8);
    args.dropout.dropout_p = 0.2;
    ProblemArrays arrays = MakeArrays(args, 25);
    ExpectNaive(args, arrays);
    EXPECT_TRUE(arrays.Intact());
  }
}

}  // namespace
}  // namespace attndrop::testing
