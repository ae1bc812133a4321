// SPDX-License-Identifier: Apache-2.0
// The reference on cases whose answer is known in closed form, and its numeric hazards.
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/naive_attention.h"
#include "support/run.h"

namespace attndrop::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLowest = static_cast<double>(std::numeric_limits<float>::lowest());

ProblemArgs Args(std::int64_t queries, std::int64_t keys, std::int64_t dim, std::int64_t dim_v) {
  ProblemArgs args;
  args.shape = {.batch = 1,
                .num_heads = 1,
                .num_kv_heads = 1,
                .seqlen_q = queries,
                .seqlen_k = keys,
                .head_dim = dim,
                .head_dim_v = dim_v};
  args.dtype = DType::kFloat64;
  return args;
}

double Identity(std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
  return r == c ? 1.0 : 0.0;
}

// The weights (times factors) of a problem with head_dim_v = seqlen_k, read through value =
// identity.
ProblemArrays WeightsOf(const ProblemArgs& args, std::uint64_t seed = 1) {
  ProblemArrays arrays = MakeArrays(args, seed);
  arrays.value.Fill(Identity);
  RunForward(args, arrays);
  return arrays;
}

TEST(Reference, ScaleZeroIsTheMeanOfValue) {
  ProblemArgs args = Args(2, 5, 3, 1);
  args.scale = 0.0;
  ProblemArrays arrays = MakeArrays(args, 1);
  arrays.value.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
    return static_cast<double>(r);
  });
  RunForward(args, arrays);
  EXPECT_NEAR(arrays.out.Get(0, 0, 1, 0), 2.0, 1e-15);
  EXPECT_NEAR(arrays.logsumexp.Get(0, 0, 1, 0), std::log(5.0), 1e-15);
}

TEST(Reference, TwoKeysAreALogisticFunction) {
  for (const double scale : {0.7, -0.7}) {
    ProblemArgs args = Args(1, 2, 1, 2);
    args.scale = scale;
    ProblemArrays arrays = MakeArrays(args, 1);
    arrays.query.FillAll(1.5);
    arrays.key.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
      return r == 0 ? 2.0 : -1.0;
    });
    arrays.value.Fill(Identity);
    RunForward(args, arrays);
    const double first = 1.0 / (1.0 + std::exp(-scale * 4.5));
    EXPECT_NEAR(arrays.out.Get(0, 0, 0, 0), first, 1e-15);
    EXPECT_NEAR(arrays.out.Get(0, 0, 0, 1), 1.0 - first, 1e-15);
    EXPECT_NEAR(arrays.logsumexp.Get(0, 0, 0, 0),
                std::log(std::exp(3.0 * scale) + std::exp(-1.5 * scale)), 1e-15);
  }
}

TEST(Reference, DefaultScaleIsOneOverRootOfHeadDim) {
  const ProblemArgs args = Args(1, 2, 4, 2);
  ProblemArrays arrays = MakeArrays(args, 1);
  arrays.query.FillAll(1.0);
  arrays.key.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
    return static_cast<double>(r);
  });
  arrays.value.Fill(Identity);
  RunForward(args, arrays);
  EXPECT_NEAR(arrays.out.Get(0, 0, 0, 1), 1.0 / (1.0 + std::exp(-2.0)), 1e-15);
}

TEST(Reference, MaskIsAddedAfterScaling) {
  ProblemArgs args = Args(1, 2, 1, 2);
  args.scale = 0.0;
  args.attn_mask = {MaskKind::kFloat, DType::kFloat64, false, false, false, true};
  ProblemArrays arrays = MakeArrays(args, 1);
  arrays.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t, std::int64_t c) {
    return static_cast<double>(c);
  });
  arrays.value.Fill(Identity);
  RunForward(args, arrays);
  EXPECT_NEAR(arrays.out.Get(0, 0, 0, 1), 1.0 / (1.0 + std::exp(-1.0)), 1e-15);
}

TEST(Reference, OneKeyAtHalfIsZeroOrTwice) {
  ProblemArgs args = Args(1, 1, 1, 1);
  args.dropout.dropout_p = 0.5;
  int zeros = 0;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    args.dropout.seed = seed;
    ProblemArrays arrays = MakeArrays(args, 1);
    arrays.value.FillAll(1.25);
    RunForward(args, arrays);
    const double out = arrays.out.Get(0, 0, 0, 0);
    EXPECT_TRUE(out == 0.0 || out == 2.5) << out;
    zeros += out == 0.0 ? 1 : 0;
  }
  EXPECT_GT(zeros, 8);
  EXPECT_LT(zeros, 56);
}

TEST(Reference, RowsWithoutKeysAreZeroWhereverTheyStand) {
  ProblemArgs args = Args(70, 40, 4, 4);
  args.attn_mask = {MaskKind::kBool, DType::kFloat32, false, false, true, false};
  for (const double p : {0.0, 0.5}) {
    args.dropout.dropout_p = p;
    ProblemArrays arrays = MakeArrays(args, 2);
    const auto hidden = [](std::int64_t r) { return r < 3 || r == 17 || r == 35 || r > 66; };
    arrays.attn_mask.Fill([&](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
      return hidden(r) ? 0.0 : 1.0;
    });
    RunForward(args, arrays);
    RunBackward(args, arrays);
    for (std::int64_t r = 0; r < 70; ++r) {
      EXPECT_EQ(arrays.logsumexp.Get(0, 0, r, 0) == -kInfinity, hidden(r)) << r;
      for (std::int64_t c = 0; c < 4; ++c) {
        EXPECT_TRUE(std::isfinite(arrays.grad_query.Get(0, 0, r, c)));
        if (!hidden(r)) continue;
        EXPECT_EQ(arrays.out.Get(0, 0, r, c), 0.0);
        EXPECT_EQ(arrays.grad_query.Get(0, 0, r, c), 0.0);
      }
    }
  }
}

TEST(Reference, LowestFiniteMaskIsAnOrdinaryLogit) {
  ProblemArgs args = Args(2, 4, 3, 4);
  args.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, false, true, true};
  ProblemArrays arrays = MakeArrays(args, 3);
  arrays.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
    return r == 0 || c < 2 ? kLowest : 0.0;
  });
  arrays.value.Fill(Identity);
  RunForward(args, arrays);
  for (std::int64_t c = 0; c < 4; ++c) EXPECT_EQ(arrays.out.Get(0, 0, 0, c), 0.25);
  EXPECT_EQ(arrays.logsumexp.Get(0, 0, 0, 0), kLowest);
  EXPECT_EQ(arrays.out.Get(0, 0, 1, 0), 0.0);
  EXPECT_NEAR(arrays.out.Get(0, 0, 1, 2) + arrays.out.Get(0, 0, 1, 3), 1.0, 1e-15);
}

// Infinite logits come from infinite keys; attn_mask may hold no +inf.
TEST(Reference, InfiniteLogitsShareTheRow) {
  for (const std::int64_t infinite : {1, 2}) {
    ProblemArrays arrays = MakeArrays(Args(1, 4, 1, 4), 4);
    arrays.query.FillAll(1.0);
    for (std::int64_t key = 1; key <= infinite; ++key) arrays.key.Set(0, 0, key, 0, kInfinity);
    arrays.value.Fill(Identity);
    RunForward(Args(1, 4, 1, 4), arrays);
    for (std::int64_t c = 0; c < 4; ++c) {
      const bool shares = c >= 1 && c <= infinite;
      EXPECT_EQ(arrays.out.Get(0, 0, 0, c), shares ? 1.0 / static_cast<double>(infinite) : 0.0);
    }
    EXPECT_EQ(arrays.logsumexp.Get(0, 0, 0, 0), kInfinity);
  }
}

TEST(Reference, InfiniteOrNaNMaskIsRefusedBeforeWriting) {
  for (const double bad : {kInfinity, kNaN}) {
    ProblemArgs args = Args(2, 4, 1, 1);
    args.attn_mask = {MaskKind::kFloat, DType::kFloat64, false, false, true, true};
    ProblemArrays arrays = MakeArrays(args, 4);
    arrays.attn_mask.FillAll(0.0);
    arrays.attn_mask.Set(0, 0, 1, 2, bad);
    SerialExecutor executor;
    Scratch scratch;
    const Status status =
        Forward(*Plan::Make(MustMake(args)), arrays.ForForward(), executor, scratch);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("attn_mask"), std::string::npos) << status.message();
    for (const double x : arrays.out.ToDouble().values) EXPECT_TRUE(std::isnan(x)) << "written";
  }
}

TEST(Reference, HugeLogitsStayFinite) {
  for (const double size : {1e2, 1e15}) {
    ProblemArgs args = Args(3, 3, 1, 3);
    args.dtype = DType::kFloat32;
    args.scale = 1.0;
    ProblemArrays arrays = MakeArrays(args, 5);
    arrays.query.FillAll(size);
    arrays.key.Fill([&](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
      return r == 2 ? size : -size;
    });
    arrays.value.Fill(Identity);
    RunForward(args, arrays);
    RunBackward(args, arrays);
    EXPECT_EQ(arrays.out.Get(0, 0, 0, 2), 1.0);
    EXPECT_EQ(arrays.out.Get(0, 0, 0, 0), 0.0);
    EXPECT_TRUE(std::isfinite(arrays.grad_query.Get(0, 0, 0, 0)));
  }
}

// A long sum, 5000 equal keys and one that differs, within what the reference promises: 1e-12 of
// the sum of the absolute terms.
TEST(Reference, LongRowsLoseNoAccuracy) {
  ProblemArgs args = Args(1, 5001, 1, 1);
  args.scale = 1.0;
  ProblemArrays arrays = MakeArrays(args, 6);
  arrays.query.FillAll(1.0);
  arrays.key.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
    return r == 4000 ? 3.0 : 0.1;
  });
  arrays.value.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
    return r == 4000 ? 2.0 : 0.3;
  });
  RunForward(args, arrays);
  const double sum = std::exp(3.0) + 5000.0 * std::exp(0.1);
  EXPECT_NEAR(arrays.out.Get(0, 0, 0, 0), (2.0 * std::exp(3.0) + 1500.0 * std::exp(0.1)) / sum,
              1e-12 * 0.31);
  EXPECT_NEAR(arrays.logsumexp.Get(0, 0, 0, 0), std::log(sum), 1e-12);
}

TEST(Reference, EverythingDroppedIsPositiveZero) {
  for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
    ProblemArgs args = Args(1, 4, 1, 1);
    args.dropout.dropout_p = 1.0;
    args.dropout.stage = stage;
    ProblemArrays arrays = MakeArrays(args, 7);
    arrays.value.FillAll(-0.0);
    RunForward(args, arrays);
    EXPECT_EQ(arrays.out.Get(0, 0, 0, 0), 0.0);
    EXPECT_FALSE(std::signbit(arrays.out.Get(0, 0, 0, 0)));
    EXPECT_EQ(std::isfinite(arrays.logsumexp.Get(0, 0, 0, 0)), stage == Stage::kWeights);
  }
}

// Rows as strings of visible keys: 1 seen, 0 not.
std::vector<std::string> VisibleOf(ProblemArgs args) {
  args.shape.head_dim = 0;
  args.shape.head_dim_v = args.shape.seqlen_k;
  const ProblemArrays arrays = WeightsOf(args);
  std::vector<std::string> rows;
  for (std::int64_t i = 0; i < args.shape.seqlen_q; ++i) {
    std::string& row = rows.emplace_back();
    for (std::int64_t j = 0; j < args.shape.seqlen_k; ++j)
      row += arrays.out.Get(0, 0, i, j) > 0.0 ? '1' : '0';
  }
  return rows;
}

TEST(Reference, CausalTriangles) {
  using Rows = std::vector<std::string>;
  ProblemArgs wide = Args(2, 5, 1, 1), tall = Args(5, 2, 1, 1);
  wide.is_causal = tall.is_causal = true;
  EXPECT_EQ(VisibleOf(wide), (Rows{"10000", "11000"}));
  EXPECT_EQ(VisibleOf(tall), (Rows{"10", "11", "11", "11", "11"}));
  wide.causal_align = tall.causal_align = CausalAlign::kBottomRight;
  EXPECT_EQ(VisibleOf(wide), (Rows{"11110", "11111"}));
  EXPECT_EQ(VisibleOf(tall), (Rows{"00", "00", "00", "10", "11"}));
}

TEST(Reference, Windows) {
  using Rows = std::vector<std::string>;
  ProblemArgs args = Args(4, 5, 1, 1);
  args.window = {1, 0};
  EXPECT_EQ(VisibleOf(args), (Rows{"10000", "11000", "01100", "00110"}));
  args.window = {0, 2};
  EXPECT_EQ(VisibleOf(args), (Rows{"11100", "01110", "00111", "00011"}));
  args.window = {-1, 1};
  args.causal_align = CausalAlign::kBottomRight;
  EXPECT_EQ(VisibleOf(args), (Rows{"11100", "11110", "11111", "11111"}));
  args.window = {1, -1};
  args.is_causal = true;
  EXPECT_EQ(VisibleOf(args), (Rows{"11000", "01100", "00110", "00011"}));
}

TEST(Reference, AlibiFollowsTheDistanceFromTheQuery) {
  ProblemArgs args = Args(3, 5, 0, 5);
  args.shape.num_heads = 2;
  args.alibi = true;
  args.causal_align = CausalAlign::kBottomRight;
  ProblemArrays arrays = MakeArrays(args, 8);
  arrays.slopes = {0.5F, 0.125F};
  arrays.value.Fill(Identity);
  RunForward(args, arrays);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto term = [&](std::int64_t j) {
        return std::exp(-static_cast<double>(arrays.slopes[static_cast<std::size_t>(h)]) *
                        std::fabs(static_cast<double>(i + 2 - j)));
      };
      double sum = 0.0;
      for (std::int64_t j = 0; j < 5; ++j) sum += term(j);
      for (std::int64_t j = 0; j < 5; ++j)
        EXPECT_NEAR(arrays.out.Get(0, h, i, j), term(j) / sum, 1e-15);
    }
  }
}

TEST(Reference, GroupedHeadsReadTheirKeyHead) {
  ProblemArgs args = Args(1, 1, 1, 1);
  args.shape.num_heads = 6;
  args.shape.num_kv_heads = 2;
  ProblemArrays arrays = MakeArrays(args, 9);
  arrays.value.Fill([](std::int64_t, std::int64_t h, std::int64_t, std::int64_t) {
    return static_cast<double>(h + 1);
  });
  arrays.grad_out.Fill([](std::int64_t, std::int64_t h, std::int64_t, std::int64_t) {
    return std::ldexp(1.0, static_cast<int>(h));
  });
  RunForward(args, arrays);
  RunBackward(args, arrays);
  for (std::int64_t h = 0; h < 6; ++h) EXPECT_EQ(arrays.out.Get(0, h, 0, 0), h < 3 ? 1.0 : 2.0);
  EXPECT_EQ(arrays.grad_value.Get(0, 0, 0, 0), 1.0 + 2.0 + 4.0);
  EXPECT_EQ(arrays.grad_value.Get(0, 1, 0, 0), 8.0 + 16.0 + 32.0);
}

TEST(Reference, NoKeysAtAll) {
  const ProblemArgs args = Args(3, 0, 2, 2);
  ProblemArrays arrays = MakeArrays(args, 10);
  RunForward(args, arrays);
  RunBackward(args, arrays);
  for (std::int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(arrays.out.Get(0, 0, r, 1), 0.0);
    EXPECT_EQ(arrays.logsumexp.Get(0, 0, r, 0), -kInfinity);
    EXPECT_EQ(arrays.grad_query.Get(0, 0, r, 1), 0.0);
  }
}

// A NaN key of a dropped, visible weight enters the row at stage weights, not at stage logits.
TEST(Reference, NaNInTheKeyOfADroppedWeight) {
  for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
    ProblemArgs args = Args(1, 16, 2, 2);
    args.dropout.dropout_p = 0.5;
    args.dropout.stage = stage;
    ProblemArrays arrays = MakeArrays(args, 11);
    const LibraryMask mask = RunKeepMask(args, arrays);
    std::int64_t dropped = 0;
    while (mask.keep[static_cast<std::size_t>(dropped)] != 0) ++dropped;
    arrays.key.Set(0, 0, dropped, 0, kNaN);
    RunForward(args, arrays);
    EXPECT_EQ(std::isnan(arrays.out.Get(0, 0, 0, 0)), stage == Stage::kWeights);
  }
}

TEST(Reference, GradientOfLogsumexpAloneIsTheSoftmax) {
  ProblemArgs args = Args(1, 3, 1, 3);
  args.scale = 2.0;
  args.dropout.dropout_p = 0.5;
  ProblemArrays arrays = MakeArrays(args, 12);
  arrays.grad_out.FillAll(0.0);
  arrays.grad_logsumexp.FillAll(1.0);
  RunBackward(args, arrays);
  double sum = 0.0, weighted = 0.0;
  for (std::int64_t j = 0; j < 3; ++j) {
    const double key = arrays.key.Get(0, 0, j, 0);
    sum += std::exp(2.0 * arrays.query.Get(0, 0, 0, 0) * key);
    weighted += key * std::exp(2.0 * arrays.query.Get(0, 0, 0, 0) * key);
  }
  EXPECT_NEAR(arrays.grad_query.Get(0, 0, 0, 0), 2.0 * weighted / sum, 1e-13);
}

TEST(Reference, SixteenBitTypesAreRoundedOnce) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    ProblemArgs args = Args(1, 3, 0, 1);
    args.dtype = dtype;
    ProblemArrays arrays = MakeArrays(args, 13);
    arrays.value.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
      return r == 0 ? 1.0 : 0.0;
    });
    RunForward(args, arrays);
    EXPECT_EQ(arrays.out.Get(0, 0, 0, 0), RoundTo(ElementOf(dtype), 1.0 / 3.0));
    EXPECT_EQ(arrays.logsumexp.element(), Element::kFloat32);
    EXPECT_EQ(arrays.logsumexp.Get(0, 0, 0, 0), RoundTo(Element::kFloat32, std::log(3.0)));
  }
}

// The conversions of the library against those of the tests: every 16-bit number, and rounding.
TEST(Reference, SixteenBitConversions) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto word = static_cast<std::uint16_t>(bits);
    const double half = static_cast<double>(Float16ToFloat(word));
    const double brain = static_cast<double>(BFloat16ToFloat(word));
    if (!std::isnan(half)) EXPECT_EQ(DoubleToFloat16(half), word);
    if (!std::isnan(brain)) EXPECT_EQ(DoubleToBFloat16(brain), word);
    EXPECT_EQ(std::isnan(half), (bits & 0x7FFF) > 0x7C00);
  }
  Random random(14);
  for (int k = 0; k < 20000; ++k) {
    const double x = std::ldexp(random.Normal(), static_cast<int>(random.Between(-30, 20)));
    EXPECT_EQ(static_cast<double>(Float16ToFloat(DoubleToFloat16(x))),
              RoundTo(Element::kFloat16, x))
        << x;
    EXPECT_EQ(static_cast<double>(BFloat16ToFloat(DoubleToBFloat16(x))),
              RoundTo(Element::kBFloat16, x))
        << x;
  }
  EXPECT_TRUE(std::isnan(Float16ToFloat(DoubleToFloat16(kNaN))));
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(DoubleToBFloat16(kNaN))));
}

// The naive attention itself against long double, where exponents are large and keys nearly equal.
TEST(Reference, NaiveAttentionAgreesWithLongDouble) {
  Random random(15);
  for (int draw = 0; draw < 200; ++draw) {
    const std::int64_t keys = random.Between(1, 20);
    NaiveHead head;
    head.rows_q = 1;
    head.rows_k = keys;
    head.dim_v = 1;
    head.grad_out = {1.0};
    head.grad_logsumexp = {0.0};
    const double size = random.Pick({1.0, 100.0, 1e4});
    long double top = -1e30L;
    for (std::int64_t j = 0; j < keys; ++j) {
      head.bias.push_back(size + random.Pick({0.0, 1e-9, 1.0, 40.0}) * random.Normal());
      head.value.push_back(random.Normal());
      head.visible.push_back(1);
      head.keep.push_back(random.Chance(0.7) ? 1 : 0);
      head.factor.push_back(1.5);
      top = std::fmax(top, static_cast<long double>(head.bias.back()));
    }
    const NaiveOutput output = RunNaiveHead(head);
    long double sum = 0.0L, weighted = 0.0L, absolute = 0.0L;
    for (std::size_t j = 0; j < head.bias.size(); ++j) {
      const long double term = std::exp(static_cast<long double>(head.bias[j]) - top);
      sum += term;
      if (head.keep[j] == 0) continue;
      weighted += 1.5L * term * static_cast<long double>(head.value[j]);
      absolute += 1.5L * term * std::fabs(static_cast<long double>(head.value[j]));
    }
    EXPECT_NEAR(output.out.value[0], static_cast<double>(weighted / sum),
                1e-14 * static_cast<double>(absolute / sum) + 1e-300);
    EXPECT_NEAR(output.logsumexp.value[0], static_cast<double>(top + std::log(sum)), 1e-14 * size);
  }
}

}  // namespace
}  // namespace attndrop::testing
