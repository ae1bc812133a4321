// SPDX-License-Identifier: Apache-2.0
// Closed forms, limits and refusals of the exact statistics.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <boost/multiprecision/cpp_bin_float.hpp>
#include <gtest/gtest.h>

#include "attndrop/analytics.h"

#include "analytics/head_reader.h"
#include "analytics/moments.h"

namespace attndrop {
namespace {

using Wide = boost::multiprecision::cpp_bin_float_100;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Problem Parse(const std::string& line) {
  Result<Problem> problem = Problem::Parse(line);
  EXPECT_TRUE(problem.ok()) << line << ": " << problem.status().message();
  return *problem;
}

HeadAnalysis Figures(const std::string& line, const AnalyzeOptions& options = {}) {
  Result<HeadAnalysis> analysis = Analyze(Parse(line), options);
  EXPECT_TRUE(analysis.ok()) << line << ": " << analysis.status().message();
  return *analysis;
}

// (E4)
TEST(ExpectedZeroRows, CausalElement) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const HeadAnalysis analysis = Figures("b1 h1 q200 k200 d8 f32 causal p=" + std::to_string(p));
    const double q = Parse("b1 h1 q1 k1 d8 f32 p=" + std::to_string(p)).keep_prob();
    EXPECT_NEAR(analysis.expected_zero_rows, (1.0 - q) * (1.0 - std::pow(1.0 - q, 200.0)) / q,
                1e-11);
    EXPECT_DOUBLE_EQ(analysis.rows[2].p_zero, std::pow(1.0 - q, 3.0));
  }
  EXPECT_DOUBLE_EQ(ExpectedZeroRowsOfModel(0.25, 12, 4), 12.0);
}

TEST(ExpectedZeroRows, OneDrawARowLosesOneRowInTwo) {
  for (const char* scheme : {"query", "head"}) {
    const HeadAnalysis analysis =
        Figures(std::string("b1 h1 q64 k64 d8 f32 causal p=0.5 scheme=") + scheme);
    EXPECT_DOUBLE_EQ(analysis.expected_zero_rows, 32.0);
    EXPECT_EQ(analysis.rows[40].distinct_points, 1);
  }
}

// The rows 0 to 3 of a causal head at p = .5, uniform weights: numbers of the pages.
TEST(UniformRows, FirstFourRowsAtOneHalf) {
  const HeadAnalysis zero = Figures("b1 h1 q4 k4 d8 f32 causal p=0.5");
  const HeadAnalysis redraw = Figures("b1 h1 q4 k4 d8 f32 causal p=0.5 empty_row=redraw");
  const HeadAnalysis undropped = Figures("b1 h1 q4 k4 d8 f32 causal p=0.5 empty_row=undropped");
  for (std::size_t i = 0; i < 4; ++i) {
    const auto n = static_cast<double>(i + 1);
    const double empty = std::pow(0.5, n);
    EXPECT_DOUBLE_EQ(zero.rows[i].p_zero, empty);
    EXPECT_DOUBLE_EQ(zero.rows[i].var_row_sum, 1.0 / n);
    EXPECT_DOUBLE_EQ(zero.rows[i].effective_keys, n);
    EXPECT_DOUBLE_EQ(zero.rows[i].mean_row_sum, 1.0);
    EXPECT_EQ(redraw.rows[i].p_zero, 0.0);
    EXPECT_EQ(undropped.rows[i].p_zero, 0.0);
    EXPECT_DOUBLE_EQ(undropped.rows[i].inclusion, 0.5 + empty);
  }
  EXPECT_EQ(redraw.rows[0].var_row_sum, 0.0);
  EXPECT_NEAR(redraw.rows[1].inclusion, 2.0 / 3.0, 1e-15);
  EXPECT_NEAR(redraw.rows[3].inclusion, 8.0 / 15.0, 1e-15);
}

// What docs/math and docs/guide/choosing.md print, as they round it.
TEST(NumbersOfThePages, StandardDeviationsAtOneHalf) {
  struct Line {
    const char* policy;
    double deviations[4];
  };
  const Line lines[] = {
      {"zero", {1.0, 0.707, 0.577, 0.5}},       {"keep_one", {0.0, 0.346, 0.428, 0.436}},
      {"redraw", {0.0, 0.354, 0.408, 0.415}},   {"keep_self", {0.0, 0.5, 0.471, 0.433}},
      {"keep_first", {0.0, 0.5, 0.471, 0.433}}, {"undropped", {0.333, 0.346, 0.390, 0.403}}};
  for (const Line& line : lines) {
    const HeadAnalysis analysis =
        Figures(std::string("b1 h1 q4 k4 d8 f32 causal p=0.5 empty_row=") + line.policy);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(std::sqrt(analysis.rows[i].var_row_sum), line.deviations[i], 0.0005)
          << line.policy << " row " << i;
    }
  }
}

TEST(NumbersOfThePages, ExpectedZeroRowsOfLongHeads) {
  const std::string line = "b1 h1 q1024 k1024 d8 f32 causal p=";
  EXPECT_NEAR(Figures(line + "0.1").expected_zero_rows, 0.111, 0.0005);
  EXPECT_NEAR(Figures(line + "0.5").expected_zero_rows, 1.0, 0.0005);
  EXPECT_NEAR(Figures(line + "0.1 scheme=query").expected_zero_rows, 102.4, 0.05);
  EXPECT_NEAR(Figures(line + "0.1 scheme=head").expected_zero_rows, 102.4, 0.05);
  const HeadAnalysis block = Figures(line + "0.1 scheme=block");
  EXPECT_NEAR(block.expected_zero_rows, 7.11, 0.005);
  EXPECT_NEAR(block.rows[1023].var_row_sum, 0.00694, 0.000005);
}

constexpr int kChoose[4][4] = {{1, 0, 0, 0}, {1, 1, 0, 0}, {1, 2, 1, 0}, {1, 3, 3, 1}};

// Variances of the row sum of n equal weights, where `kept` keys are kept by C(n, kept) masks.
struct EqualWeights {
  Wide undropped;
  Wide keep_one;
};
EqualWeights VariancesOfEqualWeights(double keep_prob, int n) {
  const Wide q = keep_prob;
  const Wide p = 1 - q;
  const Wide share = Wide(1.0 / n);
  const Wide empty = pow(p, n);
  const Wide pi = q + empty / n;
  const auto square = [](const Wide& x) -> Wide { return x * x; };
  EqualWeights result{empty * square(n * share / (1 + empty) - n * share),
                      empty * square(share / pi - n * share)};
  for (int kept = 1; kept <= n; ++kept) {
    const Wide chance = kChoose[n][kept] * pow(q, kept) * pow(p, n - kept);
    result.undropped += chance * square(kept * share / (q * (1 + empty)) - n * share);
    result.keep_one += chance * square(kept * share / pi - n * share);
  }
  return result;
}

// Small rates, where a formula that subtracts nearly equal numbers would lose its digits.
TEST(Moments, SmallRatesKeepTheirDigits) {
  for (const double dropout_p : {1e-3, 1e-6, 1e-9}) {
    const double q = 1.0 - std::round(dropout_p * 4294967296.0) / 4294967296.0;
    for (const int n : {1, 2, 3}) {
      SiteSums sums;
      for (int j = 0; j < n; ++j) sums.Add(1.0 / n);
      const EqualWeights want = VariancesOfEqualWeights(q, n);
      RowLaw law{
          .policy = {.kind = EmptyRow::kUndropped}, .keep_prob = q, .visible = n, .sites = n};
      EXPECT_NEAR(LinearMoments(law, sums).variance / static_cast<double>(want.undropped), 1.0,
                  1e-12)
          << n << " keys, p " << dropout_p;
      law.policy = {.kind = EmptyRow::kAtLeastOne, .attempts = 1};
      if (n == 1) {
        EXPECT_EQ(LinearMoments(law, sums).variance, 0.0);
        continue;
      }
      EXPECT_NEAR(LinearMoments(law, sums).variance / static_cast<double>(want.keep_one), 1.0,
                  1e-12)
          << n << " keys, p " << dropout_p;
    }
  }
}

TEST(Limits, NothingDropped) {
  for (const char* policy : {"zero", "redraw", "keep_self", "keep_first", "undropped"}) {
    for (const char* stage : {"weights", "logits"}) {
      for (const char* rate : {"p=0", "p=1e-16", ""}) {
        const HeadAnalysis analysis = Figures(std::string("b1 h1 q3 k3 d8 f32 causal stage=") +
                                              stage + " empty_row=" + policy + " " + rate);
        for (const RowStatistics& row : analysis.rows) {
          EXPECT_EQ(row.p_zero, 0.0);
          EXPECT_EQ(row.inclusion, 1.0);
          EXPECT_DOUBLE_EQ(row.mean_row_sum, 1.0);
          EXPECT_EQ(row.var_row_sum, 0.0);
        }
      }
    }
  }
}

TEST(Limits, EverythingDropped) {
  for (const char* stage : {"weights", "logits"}) {
    const HeadAnalysis analysis =
        Figures(std::string("b1 h1 q3 k3 d8 f32 causal p=1 stage=") + stage);
    EXPECT_EQ(analysis.expected_zero_rows, 3.0);
    for (const RowStatistics& row : analysis.rows) {
      EXPECT_EQ(row.p_zero, 1.0);
      EXPECT_EQ(row.inclusion, 0.0);
      EXPECT_EQ(row.mean_row_sum, 0.0);
      EXPECT_EQ(row.var_row_sum, 0.0);
    }
  }
}

TEST(Limits, RowsWithoutVisibleKeys) {
  for (const char* policy : {"zero", "redraw", "keep_self", "keep_first", "undropped"}) {
    const std::vector<double> ones(12, 1.0);
    AnalyzeOptions options;
    options.value = Dense<const void>(ones.data(), 1, 2, 3);
    const HeadAnalysis analysis = Figures(
        std::string("b1 h1 q4 k2 d3 f64 causal align=bottom-right p=0.5 empty_row=") + policy,
        options);
    for (std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      EXPECT_EQ(analysis.rows[i].visible, 0);
      EXPECT_EQ(analysis.rows[i].distinct_points, 0);
      EXPECT_EQ(analysis.rows[i].p_zero, 1.0);
      EXPECT_EQ(analysis.rows[i].inclusion, 0.0);
      EXPECT_EQ(analysis.rows[i].mean_row_sum, 0.0);
      EXPECT_EQ(analysis.rows[i].var_row_sum, 0.0);
      EXPECT_EQ(analysis.rows[i].effective_keys, 0.0);
      EXPECT_EQ(analysis.out_mean[i * 3], 0.0);
    }
    EXPECT_NEAR(analysis.out_mean[3 * 3], 1.0, 1e-14);
  }
}

// Two keys at +inf share the row; without one of them the other takes all; without both the rest.
TEST(Infinity, KeysAtInfinityShareTheRow) {
  const std::vector<double> query = {1.0};
  const std::vector<double> key = {kInfinity, 0.0, kInfinity};
  const std::vector<double> value = {1.0, 10.0, 100.0};
  AnalyzeOptions options;
  options.query = Dense<const void>(query.data(), 1, 1, 1);
  options.key = Dense<const void>(key.data(), 1, 3, 1);
  options.value = Dense<const void>(value.data(), 1, 3, 1);
  const HeadAnalysis weights = Figures("b1 h1 q1 k3 d1 f64 p=0.5", options);
  EXPECT_DOUBLE_EQ(weights.out_mean[0], 50.5);
  EXPECT_DOUBLE_EQ(weights.out_var[0], 0.25 + 2500.0);
  EXPECT_DOUBLE_EQ(weights.rows[0].effective_keys, 2.0);
  const HeadAnalysis logits = Figures("b1 h1 q1 k3 d1 f64 p=0.5 stage=logits", options);
  EXPECT_NEAR(logits.out_mean[0], 0.25 * 50.5 + 0.25 * 1.0 + 0.25 * 100.0 + 0.125 * 10.0, 1e-12);
}

TEST(Infinity, NaNStaysInItsRow) {
  const std::vector<double> query = {1.0, std::nan("")};
  const std::vector<double> key = {1.0, 2.0};
  AnalyzeOptions options;
  options.query = Dense<const void>(query.data(), 1, 2, 1);
  options.key = Dense<const void>(key.data(), 1, 2, 1);
  options.value = Dense<const void>(key.data(), 1, 2, 1);
  for (const char* stage : {"weights", "logits"}) {
    const HeadAnalysis analysis =
        Figures(std::string("b1 h1 q2 k2 d1 f64 p=0.5 stage=") + stage, options);
    EXPECT_FALSE(std::isnan(analysis.out_mean[0]));
    EXPECT_FALSE(std::isnan(analysis.out_var[0]));
    EXPECT_TRUE(std::isnan(analysis.out_mean[1]));
    EXPECT_TRUE(std::isnan(analysis.out_var[1]));
    EXPECT_TRUE(std::isnan(analysis.rows[1].mean_row_sum));
    EXPECT_EQ(analysis.rows[1].p_zero, 0.25);
  }
}

// Every logit -inf: a kept set has no softmax. A finite forced key gives it one.
TEST(Infinity, LogitsAtMinusInfinity) {
  const std::vector<double> query = {1.0};
  const std::vector<double> key = {3.0, -kInfinity};
  const std::vector<double> value = {5.0, 7.0};
  AnalyzeOptions options;
  options.query = Dense<const void>(query.data(), 1, 1, 1);
  options.key = Dense<const void>(key.data(), 1, 2, 1);
  options.value = Dense<const void>(value.data(), 1, 2, 1);
  EXPECT_DOUBLE_EQ(Figures("b1 h1 q1 k2 d1 f64 p=0.5", options).out_mean[0], 5.0);
  EXPECT_TRUE(std::isnan(Figures("b1 h1 q1 k2 d1 f64 p=0.5 stage=logits", options).out_mean[0]));
  const HeadAnalysis forced =
      Figures("b1 h1 q1 k2 d1 f64 p=0.5 stage=logits empty_row=keep_first", options);
  EXPECT_DOUBLE_EQ(forced.out_mean[0], 5.0);
  EXPECT_EQ(forced.out_var[0], 0.0);
}

// Heads that share a key head read the same keys; ALiBi and a float mask enter the logits.
TEST(Inputs, GroupedHeadsStridesAndBias) {
  const std::vector<float> query = {0.0F, 0.0F, 1.0F, 1.0F};     // (1, 2 heads, 2 rows, 1)
  const std::vector<float> key = {std::log(3.0F), -9.0F, 0.0F};  // read with column stride 2
  const std::vector<float> slopes = {0.0F, std::log(2.0F)};
  AnalyzeOptions options;
  options.head = 1;
  options.query = Dense<const void>(query.data(), 2, 2, 1);
  options.key = {.data = key.data(), .row_stride = 2};
  options.mask.alibi_slopes = slopes.data();
  const HeadAnalysis analysis = Figures("b1 h2 kv1 q2 k2 d1 f32 alibi scale=1 p=0.5", options);
  // Row 1: logits log 3 - log 2 and 0, weights 3/5 and 2/5.
  EXPECT_NEAR(analysis.rows[1].effective_keys, 25.0 / 13.0, 1e-6);
  EXPECT_NEAR(analysis.rows[1].var_row_sum, 13.0 / 25.0, 1e-6);
}

TEST(Inputs, RaggedBatchReadsItsOwnSequence) {
  ProblemArgs args;
  args.shape = {.head_dim = 1};
  args.dtype = DType::kFloat64;
  args.ragged.emplace();
  args.ragged->cu_seqlens_q = {0, 1, 3};
  args.ragged->cu_seqlens_k = {0, 2, 5};
  args.dropout.dropout_p = 0.5;
  Result<Problem> problem = Problem::Make(args);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const std::vector<double> value = {1.0, 2.0, 3.0, 6.0, 9.0};
  AnalyzeOptions options;
  options.batch = 1;
  options.value = Dense<const void>(value.data(), 1, 5, 1);
  Result<HeadAnalysis> analysis = Analyze(*problem, options);
  ASSERT_TRUE(analysis.ok());
  ASSERT_EQ(analysis->rows.size(), 2U);
  EXPECT_EQ(analysis->rows[0].visible, 3);
  EXPECT_DOUBLE_EQ(analysis->out_mean[1], 6.0);
  EXPECT_DOUBLE_EQ(analysis->out_var[1], (9.0 + 36.0 + 81.0) / 9.0);
}

void ExpectRefused(const std::string& line, const AnalyzeOptions& options, StatusCode code,
                   const std::string& part) {
  Result<HeadAnalysis> analysis = Analyze(Parse(line), options);
  ASSERT_FALSE(analysis.ok()) << line;
  EXPECT_EQ(analysis.status().code(), code);
  EXPECT_NE(analysis.status().message().find(part), std::string::npos)
      << analysis.status().message();
}

TEST(Refusals, SayWhatIsAllowed) {
  const std::string line = "b2 h3 q4 k4 d1 f32 p=0.5";
  const std::vector<float> numbers(64, 0.0F);
  const auto view = Dense<const void>(numbers.data(), 3, 4, 1);
  const auto bad = StatusCode::kInvalidArgument;
  ExpectRefused(line, {.batch = 2}, bad, "batch must be in [0, 1], got 2");
  ExpectRefused(line, {.batch = -1}, bad, "batch must be in [0, 1], got -1");
  ExpectRefused(line, {.head = 3}, bad, "head must be in [0, 2], got 3");
  ExpectRefused(line, {.query = view}, bad, "got only query");
  ExpectRefused(line, {.key = view}, bad, "got only key");
  ExpectRefused(line + " alibi", {.query = view, .key = view}, bad, "no alibi_slopes");
  ExpectRefused("b1 h1 q4 k4 d1 f32 mask=bool:qk p=0.5", {}, bad, "no attn_mask was given");
  ExpectRefused("b1 h1 q4 k4 d1 f32 p=0.5 total=4,8", {}, StatusCode::kUnsupported,
                "part of the keys");
}

}  // namespace
}  // namespace attndrop
