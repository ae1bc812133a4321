// SPDX-License-Identifier: Apache-2.0
// Bugs that users of other libraries reported, tried here: masks, NaN and infinity (B01 to B14).
// Elsewhere: B15 to B25 in shape_reports_test.cc, B26 to B43 in dropout_reports_test.cc.
#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>

#include "reports/fixture.h"

namespace attndrop::testing {
namespace {

TEST(Reports, B01_BooleanMaskWithEmptyRows) {
  ProblemArgs args = Args(8, 8, 4);
  args.attn_mask = kBoolMask;
  ProblemArrays arrays = MakeArrays(args, 1);
  arrays.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
    return r < 4 && c < 4 ? 1.0 : 0.0;
  });
  ExpectNaive(args, arrays);
  for (std::int64_t r = 0; r < 8; ++r) EXPECT_EQ(arrays.out.Get(0, 0, r, 1) == 0.0, r >= 4) << r;
}

TEST(Reports, B02_PaddingRowKeepsGradientsFinite) {
  ProblemArgs args = Args(6, 10, 4);
  args.attn_mask = kBoolMask;
  ProblemArrays arrays = MakeArrays(args, 2);
  arrays.attn_mask.Fill(
      [](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) { return r == 5 ? 0.0 : 1.0; });
  ExpectNaive(args, arrays);
  for (Array* array : {&arrays.out, &arrays.grad_query, &arrays.grad_key, &arrays.grad_value})
    EXPECT_TRUE(AllFinite(*array));
  EXPECT_EQ(arrays.out.Get(0, 0, 5, 0), 0.0);
  EXPECT_EQ(arrays.grad_query.Get(0, 0, 5, 0), 0.0);
}

TEST(Reports, B03_LeadingKeysAtTheLowestFloat) {
  ProblemArgs args = Args(441, 441, 8);
  args.attn_mask = kFloatMask;
  ProblemArrays biased = MakeArrays(args, 3);
  biased.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t, std::int64_t c) {
    return c < 128 ? kLowestFloat : 0.0;
  });
  RunForward(args, biased);
  EXPECT_TRUE(AllFinite(biased.out));
  ProblemArrays excluded = MakeArrays(args, 3);
  excluded.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t, std::int64_t c) {
    return c < 128 ? -kInfinity : 0.0;
  });
  RunForward(args, excluded);
  EXPECT_TRUE(SameBits(biased.out, excluded.out));
}

TEST(Reports, B04_RowOfLowestFloatsIsTheMean) {
  ProblemArgs args = Args(3, 4, 4, DType::kFloat64);
  args.attn_mask = kFloatMask;
  ProblemArrays arrays = MakeArrays(args, 4);
  arrays.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
    return r == 0 ? kLowestFloat : 0.0;
  });
  arrays.value.Fill(Identity);
  ExpectNaive(args, arrays);
  for (std::int64_t c = 0; c < 4; ++c) EXPECT_EQ(arrays.out.Get(0, 0, 0, c), 0.25);
}

TEST(Reports, B05_NaNInAMaskedKeyOrValue) {
  ProblemArgs args = Args(2, 2, 4);
  args.attn_mask = {MaskKind::kBool, DType::kFloat32, false, false, false, true};
  ProblemArrays clean = MakeArrays(args, 5), dirty = MakeArrays(args, 5);
  for (ProblemArrays* arrays : {&clean, &dirty}) {
    arrays->attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t, std::int64_t c) {
      return c == 0 ? 1.0 : 0.0;
    });
  }
  for (std::int64_t c = 0; c < 4; ++c) {
    dirty.key.Set(0, 0, 1, c, kNaN);
    dirty.value.Set(0, 0, 1, c, kNaN);
  }
  for (ProblemArrays* arrays : {&clean, &dirty}) {
    RunForward(args, *arrays);
    RunBackward(args, *arrays);
  }
  EXPECT_TRUE(SameBits(clean.out, dirty.out));
  EXPECT_TRUE(SameBits(clean.grad_query, dirty.grad_query));
  EXPECT_TRUE(SameBits(clean.grad_value, dirty.grad_value));
}

TEST(Reports, B06_BandOfMinusInfinityAndCausal) {
  ProblemArgs args = Args(640, 640, 2);
  args.is_causal = true;
  args.attn_mask = kFloatMask;
  ProblemArrays arrays = MakeArrays(args, 6);
  for (Array* array : {&arrays.query, &arrays.key, &arrays.value}) array->FillAll(1.0);
  arrays.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
    return std::abs(r - c) < 10 ? 0.0 : -kInfinity;
  });
  ExpectNaive(args, arrays);
  EXPECT_TRUE(AllFinite(arrays.out));
  EXPECT_EQ(arrays.out.Get(0, 0, 639, 0), 1.0);
}

TEST(Reports, B07_NaNQueriesStayNaN) {
  const ProblemArgs args = Args(3, 5, 4);
  ProblemArrays arrays = MakeArrays(args, 7);
  for (std::int64_t c = 0; c < 4; ++c) arrays.query.Set(0, 0, 1, c, kNaN);
  RunForward(args, arrays);
  for (std::int64_t r = 0; r < 3; ++r) EXPECT_EQ(std::isnan(arrays.out.Get(0, 0, r, 0)), r == 1);
}

TEST(Reports, B08_WholeHeadsMaskedWithWeightsAsked) {
  ProblemArgs args = Args(4, 4, 4);
  args.shape.num_heads = args.shape.num_kv_heads = 3;
  args.attn_mask = {MaskKind::kBool, DType::kFloat32, false, true, false, false};
  ProblemArrays arrays = MakeArrays(args, 8);
  arrays.attn_mask.Fill(
      [](std::int64_t, std::int64_t h, std::int64_t, std::int64_t) { return h == 2 ? 1.0 : 0.0; });
  arrays.value.Fill(Identity);  // out is the weights
  ExpectNaive(args, arrays);
  EXPECT_TRUE(AllFinite(arrays.out));
  for (std::int64_t h = 0; h < 3; ++h) EXPECT_EQ(arrays.out.Get(0, h, 1, 2) > 0.0, h == 2);
}

TEST(Reports, B09_LargeEqualInputsHaveFiniteGradients) {
  for (const double size : {1e3, 1e4}) {
    const ProblemArgs args = Args(4, 4, 64);
    ProblemArrays arrays = MakeArrays(args, 9);
    for (Array* array : {&arrays.query, &arrays.key, &arrays.value, &arrays.grad_out})
      array->FillAll(size);
    RunForward(args, arrays);
    RunBackward(args, arrays);
    EXPECT_EQ(arrays.out.Get(0, 0, 0, 0), size);
    for (Array* array : {&arrays.grad_query, &arrays.grad_key, &arrays.grad_value})
      EXPECT_TRUE(AllFinite(*array));
  }
}

TEST(Reports, B10_HalfPrecisionLogitsDoNotOverflow) {
  ProblemArgs args = Args(2, 3, 1, DType::kFloat16);
  args.scale = 0.001;
  ProblemArrays arrays = MakeArrays(args, 10);
  arrays.query.FillAll(576.0);
  arrays.key.FillAll(383.0);
  ExpectNaive(args, arrays);
  EXPECT_TRUE(AllFinite(arrays.out));
  EXPECT_TRUE(AllFinite(arrays.logsumexp));
}

TEST(Reports, B11_OneKeyAgainstManyQueries) {
  ProblemArgs args = Args(0, 0, 8);
  args.is_causal = true;
  args.causal_align = CausalAlign::kBottomRight;
  args.ragged = RaggedLengths{{0, 76, 110, 256}, {0, 1, 2, 3}, {}, {}};
  ProblemArrays arrays = MakeArrays(args, 11);
  for (Array* array : {&arrays.query, &arrays.key, &arrays.value}) {
    array->Fill([&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
      return 3.0 * array->Get(b, h, r, c);
    });
  }
  ExpectNaive(args, arrays);
  EXPECT_TRUE(AllFinite(arrays.grad_query));
}

TEST(Reports, B12_MaskedRowsThatComeFirst) {
  ProblemArgs args = Args(32, 32, 4);
  args.attn_mask = kFloatMask;
  ProblemArrays arrays = MakeArrays(args, 12);
  arrays.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
    return r < 14 ? -kInfinity : 0.0;
  });
  ExpectNaive(args, arrays);
  for (std::int64_t r = 0; r < 32; ++r) EXPECT_EQ(arrays.out.Get(0, 0, r, 0) == 0.0, r < 14);
}

TEST(Reports, B13_MaskThatLeavesNothingOfTheCausalTriangle) {
  ProblemArgs args = Args(4, 6, 4);
  args.is_causal = true;
  args.attn_mask = kBoolMask;
  for (const CausalAlign align : {CausalAlign::kTopLeft, CausalAlign::kBottomRight}) {
    args.causal_align = align;
    ProblemArrays arrays = MakeArrays(args, 13);
    arrays.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t, std::int64_t c) {
      return c >= 2 ? 1.0 : 0.0;
    });
    ExpectNaive(args, arrays);
    // Top-left: rows 0 and 1 see keys 0 and 1 alone, which the mask hides.
    EXPECT_EQ(arrays.out.Get(0, 0, 0, 0) == 0.0, align == CausalAlign::kTopLeft);
    EXPECT_EQ(arrays.out.Get(0, 0, 1, 0) == 0.0, align == CausalAlign::kTopLeft);
    EXPECT_NE(arrays.out.Get(0, 0, 2, 0), 0.0);
  }
}

// The comparison of these tests itself: NaN where a number is expected fails, and the reverse.
TEST(Reports, B14_TheComparisonSeesNaN) {
  Array got(Element::kFloat32, {1, 1, 1, 2}, {});
  Dense4 want({1, 1, 1, 2}), bound({1, 1, 1, 2}, 1.0);
  got.FillAll(0.0);
  EXPECT_TRUE(Matches(got, want, bound, 1e-12));
  got.Set(0, 0, 0, 1, kNaN);
  EXPECT_FALSE(Matches(got, want, bound, 1e-12));
  got.FillAll(0.0);
  want.at(0, 0, 0, 1) = kNaN;
  EXPECT_FALSE(Matches(got, want, bound, 1e-12));
  want.at(0, 0, 0, 1) = kInfinity;
  EXPECT_FALSE(Matches(got, want, bound, 1e-12));
  want.at(0, 0, 0, 1) = 0.0;
  bound.at(0, 0, 0, 1) = kNaN;
  EXPECT_TRUE(Matches(got, want, bound, 1e-12));
  got.Set(0, 0, 0, 1, 1e-3);
  EXPECT_FALSE(Matches(got, want, bound, 1e-12));
}

}  // namespace
}  // namespace attndrop::testing
