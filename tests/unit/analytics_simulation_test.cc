// SPDX-License-Identifier: Apache-2.0
// Real masks against the exact figures with a fixed seed, the scores themselves, and controls that
// must fail.
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/normal.hpp>
#include <gtest/gtest.h>

#include "attndrop/analytics.h"

#include "analytics/scores.h"

namespace attndrop {
namespace {

constexpr std::int64_t kSeqlen = 9;
constexpr std::int64_t kDim = 2;
constexpr std::int64_t kDraws = 4000;

std::vector<double> Normal(std::uint64_t seed, std::int64_t count) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (double& x : numbers) x = normal(engine);
  return numbers;
}

struct Arrays {
  std::vector<double> query = Normal(1, kSeqlen* kDim);
  std::vector<double> key = Normal(2, kSeqlen* kDim);
  std::vector<double> value = Normal(3, kSeqlen* kDim);

  [[nodiscard]] AnalyzeOptions Options() const {
    AnalyzeOptions options;
    options.query = Dense<const void>(query.data(), 1, kSeqlen, kDim);
    options.key = Dense<const void>(key.data(), 1, kSeqlen, kDim);
    options.value = Dense<const void>(value.data(), 1, kSeqlen, kDim);
    return options;
  }
};

Problem MakeProblem(const DropoutConfig& dropout) {
  ProblemArgs args;
  args.shape = {.seqlen_q = kSeqlen, .seqlen_k = kSeqlen, .head_dim = kDim};
  args.dtype = DType::kFloat64;
  args.is_causal = true;
  args.dropout = dropout;
  Result<Problem> problem = Problem::Make(args);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return *problem;
}

SimulationCheck Simulate(const DropoutConfig& drawn, const DropoutConfig& assumed,
                         std::int64_t draws = kDraws) {
  const Arrays arrays;
  const AnalyzeOptions options = arrays.Options();
  Result<HeadAnalysis> exact = Analyze(MakeProblem(assumed), options);
  EXPECT_TRUE(exact.ok()) << exact.status().message();
  Result<SimulationCheck> check = CheckBySimulation(MakeProblem(drawn), options, *exact, draws);
  EXPECT_TRUE(check.ok()) << check.status().message();
  return *check;
}

class SimulationTest : public ::testing::TestWithParam<std::tuple<std::string, Stage>> {};

TEST_P(SimulationTest, EveryFigureIsWithinFiveStandardErrors) {
  const auto& [scheme, stage] = GetParam();
  const bool own_draws = FindScheme(scheme.substr(0, scheme.find(':')))->info.row_redraw;
  for (const char* policy :
       {"zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped"}) {
    Result<EmptyRowPolicy> empty_row = ParseEmptyRow(policy);
    ASSERT_TRUE(empty_row.ok());
    if (empty_row->kind == EmptyRow::kAtLeastOne && !own_draws) continue;
    for (const double p : {0.2, 0.6}) {
      const DropoutConfig dropout{.dropout_p = p,
                                  .scheme = scheme,
                                  .stage = stage,
                                  .empty_row = *empty_row,
                                  .seed = 20240607};
      const SimulationCheck check = Simulate(dropout, dropout);
      EXPECT_LT(check.max_abs_z, 5.0) << MakeProblem(dropout).ToString();
      EXPECT_EQ(check.rows.size(), static_cast<std::size_t>(kSeqlen));
      EXPECT_EQ(check.num_checks, kSeqlen * 4 + 1 + 2 * kSeqlen * kDim);
    }
  }
}

// Every registered scheme, and small patches: the default ones are larger than these rows.
std::vector<std::string> SchemeTexts() {
  std::vector<std::string> texts = {"block:block_q=2,block_k=3"};
  for (const Scheme& scheme : Schemes()) texts.emplace_back(scheme.info.name);
  return texts;
}

INSTANTIATE_TEST_SUITE_P(EverySchemeAndStage, SimulationTest,
                         ::testing::Combine(::testing::ValuesIn(SchemeTexts()),
                                            ::testing::Values(Stage::kWeights, Stage::kLogits)),
                         [](const auto& parameter) {
                           const std::string scheme = std::get<0>(parameter.param);
                           const std::size_t colon = scheme.find(':');
                           return scheme.substr(0, colon) +
                                  (colon == std::string::npos ? "_" : "_small_") +
                                  std::string(StageName(std::get<1>(parameter.param)));
                         });

// Figures of something else than what is drawn must not pass.
TEST(SimulationControl, WrongRateFails) {
  for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
    const DropoutConfig drawn{.dropout_p = 0.33, .stage = stage, .empty_row = {}, .seed = 5};
    DropoutConfig assumed = drawn;
    assumed.dropout_p = 0.30;
    EXPECT_GT(Simulate(drawn, assumed, 20000).max_abs_z, 5.0);
    EXPECT_LT(Simulate(drawn, drawn, 20000).max_abs_z, 5.0);
  }
}

TEST(SimulationControl, WrongSchemeFails) {
  const DropoutConfig drawn{
      .dropout_p = 0.3, .scheme = "block:block_q=2,block_k=2", .empty_row = {}, .seed = 5};
  DropoutConfig assumed = drawn;
  assumed.scheme = "element";
  EXPECT_GT(Simulate(drawn, assumed).max_abs_z, 5.0);
}

TEST(SimulationControl, WrongPolicyFails) {
  const DropoutConfig drawn{.dropout_p = 0.5, .empty_row = {.kind = EmptyRow::kUndropped}};
  DropoutConfig assumed = drawn;
  assumed.empty_row = {.kind = EmptyRow::kAtLeastOne, .attempts = 1};
  EXPECT_GT(Simulate(drawn, assumed).max_abs_z, 5.0);
}

TEST(Simulation, NothingOrEverythingDroppedMatchesExactly) {
  for (const double p : {0.0, 1.0}) {
    for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
      const DropoutConfig dropout{.dropout_p = p, .stage = stage, .empty_row = {}};
      EXPECT_LT(Simulate(dropout, dropout, 10).max_abs_z, 1.0) << p;
    }
  }
}

TEST(Simulation, RefusesBadArguments) {
  const Arrays arrays;
  const Problem problem = MakeProblem({.dropout_p = 0.5, .empty_row = {}});
  Result<HeadAnalysis> exact = Analyze(problem, arrays.Options());
  ASSERT_TRUE(exact.ok());
  Result<SimulationCheck> few = CheckBySimulation(problem, arrays.Options(), *exact, 1);
  EXPECT_EQ(few.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(few.status().message().find("draws must be in [2, 1000000000], got 1"),
            std::string::npos);
  Result<SimulationCheck> other = CheckBySimulation(problem, {}, *exact, 10);
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
  exact->rows.pop_back();
  Result<SimulationCheck> short_one = CheckBySimulation(problem, arrays.Options(), *exact, 10);
  EXPECT_EQ(short_one.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(short_one.status().message().find("8 rows, expected 9"), std::string::npos);
}

TEST(Scores, NormalQuantileIsTheInverseOfTheTail) {
  const boost::math::normal normal;
  for (const double tail : {0.5, 0.3, 0.05, 1e-3, 1e-9, 1e-100}) {
    EXPECT_NEAR(NormalQuantile(tail), boost::math::quantile(boost::math::complement(normal, tail)),
                1e-9)
        << tail;
  }
}

TEST(Scores, BinomialScoreOfSmallCountsIsTheQuantileOfTheTail) {
  const boost::math::normal normal;
  for (const std::int64_t draws : {20, 1000, 100000}) {
    for (const double p : {1e-5, 0.002, 0.4, 0.9995}) {
      const boost::math::binomial binomial(static_cast<double>(draws), p);
      if (boost::math::variance(binomial) >= 1000.0) continue;
      for (const double spread : {-3.0, -1.0, 0.5, 2.0, 6.0}) {
        const double count = std::round(boost::math::mean(binomial) +
                                        spread * boost::math::standard_deviation(binomial));
        if (count < 0.0 || count > static_cast<double>(draws)) continue;
        const double half = 0.5 * boost::math::pdf(binomial, count);
        const bool high = count > boost::math::mean(binomial);
        const double tail =
            half + (high ? boost::math::cdf(boost::math::complement(binomial, count))
                         : boost::math::cdf(binomial, count) - 2.0 * half);
        if (tail > 0.5 || tail < 1e-12) continue;
        const double size = boost::math::quantile(boost::math::complement(normal, tail));
        EXPECT_NEAR(BinomialScore(static_cast<std::int64_t>(count), draws, p), high ? size : -size,
                    1e-6)
            << draws << " draws, p " << p << ", count " << count;
      }
    }
  }
}

TEST(Scores, LargeCountsUseTheNormalLaw) {
  EXPECT_NEAR(BinomialScore(50500, 100000, 0.5), 500.0 / std::sqrt(25000.0), 1e-12);
  EXPECT_EQ(BinomialScore(0, 100, 0.0), 0.0);
  EXPECT_EQ(BinomialScore(100, 100, 1.0), 0.0);
  EXPECT_EQ(BinomialScore(1, 100, 0.0), HUGE_VAL);
  EXPECT_EQ(BinomialScore(99, 100, 1.0), -HUGE_VAL);
  EXPECT_TRUE(std::isnan(BinomialScore(1, 2, std::nan(""))));
}

}  // namespace
}  // namespace attndrop
