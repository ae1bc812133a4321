// SPDX-License-Identifier: Apache-2.0
// The exact statistics against a sum over every mask of rows of up to 12 keys. The law of the masks
// is written here from the text of mask format 1 and shares no code with the library.
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/analytics.h"

#include "analytics/head_reader.h"

namespace attndrop {
namespace {

using Real = long double;

constexpr Real kTolerance = 1e-12L;
constexpr std::int64_t kDim = 3;
constexpr std::int64_t kDimV = 2;

// A small problem and its numbers.
struct Example {
  std::int64_t seqlen_q = 12;
  std::int64_t seqlen_k = 12;
  bool causal = true;
  std::int64_t shift = 0;
  std::vector<std::uint8_t> mask;  // (seqlen_q, seqlen_k), empty: none
  std::vector<double> query;
  std::vector<double> key;
  std::vector<double> value;
};

std::vector<double> Normal(std::mt19937_64& engine, std::int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (double& x : numbers) x = normal(engine);
  return numbers;
}

Example CausalExample(std::int64_t seqlen = 12) {
  std::mt19937_64 engine(20240607);
  Example example;
  example.seqlen_q = example.seqlen_k = seqlen;
  example.query = Normal(engine, seqlen * kDim);
  example.key = Normal(engine, seqlen * kDim);
  example.value = Normal(engine, seqlen * kDimV);
  return example;
}

// Causal from the bottom right, with holes, so that some rows see nothing or not the forced key.
Example MaskedExample(bool square) {
  std::mt19937_64 engine(77);
  Example example;
  example.seqlen_k = square ? 12 : 10;
  example.shift = example.seqlen_k - example.seqlen_q;
  example.query = Normal(engine, example.seqlen_q * kDim);
  example.key = Normal(engine, example.seqlen_k * kDim);
  example.value = Normal(engine, example.seqlen_k * kDimV);
  example.mask.resize(static_cast<std::size_t>(example.seqlen_q * example.seqlen_k));
  for (auto& x : example.mask) x = engine() % 4 != 0 ? 1 : 0;
  return example;
}

Result<Problem> MakeProblem(const Example& example, const DropoutConfig& dropout) {
  ProblemArgs args;
  args.shape = {.seqlen_q = example.seqlen_q,
                .seqlen_k = example.seqlen_k,
                .head_dim = kDim,
                .head_dim_v = kDimV};
  args.dtype = DType::kFloat64;
  args.is_causal = example.causal;
  args.causal_align = CausalAlign::kBottomRight;
  if (!example.mask.empty()) {
    args.attn_mask = {.kind = MaskKind::kBool, .per_query = true, .per_key = true};
  }
  args.dropout = dropout;
  return Problem::Make(args);
}

AnalyzeOptions MakeOptions(const Example& example) {
  AnalyzeOptions options;
  options.query = Dense<const void>(example.query.data(), 1, example.seqlen_q, kDim);
  options.key = Dense<const void>(example.key.data(), 1, example.seqlen_k, kDim);
  options.value = Dense<const void>(example.value.data(), 1, example.seqlen_k, kDimV);
  if (!example.mask.empty()) {
    options.mask.attn_mask =
        Dense<const void>(example.mask.data(), 1, example.seqlen_q, example.seqlen_k);
  }
  return options;
}

// Which draw a weight reads (section 4), for batch 0 and head 0.
std::pair<std::int64_t, std::int64_t> Point(const std::string& scheme, std::int64_t i,
                                            std::int64_t j) {
  if (scheme == "element" || scheme == "shared") return {i, j};
  if (scheme == "key" || scheme == "word") return {0, j};
  if (scheme == "query") return {i, 0};
  if (scheme == "head") return {0, 0};
  if (scheme == "block:block_q=2,block_k=3") return {i / 2, j / 3};
  if (scheme == "symmetric") return {std::max(i, j), std::min(i, j)};
  ADD_FAILURE() << "unknown scheme " << scheme;
  return {0, 0};
}

// One row: its visible keys, and for each the number of its site.
struct RowKeys {
  std::vector<std::int64_t> keys;
  std::vector<std::size_t> site;
  std::size_t num_sites = 0;
  std::size_t forced = SIZE_MAX;  // index of the key that is always kept
};

RowKeys FindRow(const Example& example, const DropoutConfig& dropout, std::int64_t i) {
  RowKeys row;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> sites;
  for (std::int64_t j = 0; j < example.seqlen_k; ++j) {
    if (example.causal && j > i + example.shift) continue;
    if (!example.mask.empty() &&
        example.mask[static_cast<std::size_t>(i * example.seqlen_k + j)] == 0) {
      continue;
    }
    const bool is_self = j == i + example.shift;
    if ((dropout.empty_row.kind == EmptyRow::kKeepSelf && is_self) ||
        (dropout.empty_row.kind == EmptyRow::kKeepFirst && j == 0)) {
      row.forced = row.keys.size();
    }
    row.keys.push_back(j);
    row.site.push_back(sites.emplace(Point(dropout.scheme, i, j), sites.size()).first->second);
  }
  row.num_sites = sites.size();
  return row;
}

struct Outcome {
  Real probability = 0;
  std::vector<bool> keep;
  std::vector<Real> factor;
};

Real Power(Real base, std::size_t exponent) {
  Real result = 1;
  for (std::size_t i = 0; i < exponent; ++i) result *= base;
  return result;
}

// Chances of the sets of kept sites.
std::vector<Outcome> Draws(const RowKeys& row, Real q) {
  std::vector<Outcome> outcomes;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << row.num_sites); ++bits) {
    Outcome outcome{1, {}, std::vector<Real>(row.keys.size(), 1)};
    for (std::size_t s = 0; s < row.num_sites; ++s) {
      outcome.probability *= ((bits >> s) & 1) != 0 ? q : 1 - q;
    }
    for (const std::size_t s : row.site) outcome.keep.push_back(((bits >> s) & 1) != 0);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

// at_least_one: attempt after attempt, then one key of the row (section 5).
std::vector<Outcome> AtLeastOne(const RowKeys& row, Real q, std::uint32_t attempts) {
  std::vector<Outcome> draws = Draws(row, q);
  std::vector<Outcome> outcomes(draws.begin() + 1, draws.end());
  Real reached = 1;  // chance that the attempt takes place
  std::vector<Real> chance(outcomes.size(), 0);
  for (std::uint32_t attempt = 0; attempt < attempts; ++attempt) {
    for (std::size_t o = 0; o < outcomes.size(); ++o) {
      chance[o] += reached * outcomes[o].probability;
    }
    reached *= draws.front().probability;
  }
  for (std::size_t o = 0; o < outcomes.size(); ++o) outcomes[o].probability = chance[o];
  for (std::size_t j = 0; j < row.keys.size(); ++j) {
    Outcome chosen{reached / static_cast<Real>(row.keys.size()),
                   std::vector<bool>(row.keys.size(), false),
                   std::vector<Real>(row.keys.size(), 1)};
    chosen.keep[j] = true;
    outcomes.push_back(std::move(chosen));
  }
  Real inclusion = 0;  // of key 0; by symmetry of every key
  for (const Outcome& outcome : outcomes) inclusion += outcome.keep[0] ? outcome.probability : 0;
  for (Outcome& outcome : outcomes) outcome.factor.assign(row.keys.size(), 1 / inclusion);
  return outcomes;
}

std::vector<Outcome> Outcomes(const RowKeys& row, const EmptyRowPolicy& policy, Real q) {
  if (row.keys.empty()) return {{1, {}, {}}};
  if (policy.kind == EmptyRow::kAtLeastOne) return AtLeastOne(row, q, policy.attempts);
  std::vector<Outcome> outcomes = Draws(row, q);
  const Real empty = Power(1 - q, row.num_sites);
  for (std::size_t o = 0; o < outcomes.size(); ++o) {
    Outcome& outcome = outcomes[o];
    outcome.factor.assign(row.keys.size(), 1 / q);
    if (row.forced != SIZE_MAX) {
      outcome.keep[row.forced] = true;
      outcome.factor[row.forced] = 1;
    }
    if (policy.kind == EmptyRow::kUndropped) {
      const bool is_empty = o == 0;
      if (is_empty) outcome.keep.assign(row.keys.size(), true);
      outcome.factor.assign(row.keys.size(), is_empty ? 1 / (1 + empty) : 1 / (q * (1 + empty)));
    }
  }
  return outcomes;
}

std::vector<Real> Logits(const Example& example, const RowKeys& row, std::int64_t i) {
  std::vector<Real> logits;
  for (const std::int64_t j : row.keys) {
    Real dot = 0;
    for (std::int64_t c = 0; c < kDim; ++c) {
      dot += static_cast<Real>(example.query[static_cast<std::size_t>(i * kDim + c)]) *
             static_cast<Real>(example.key[static_cast<std::size_t>(j * kDim + c)]);
    }
    logits.push_back(dot / std::sqrt(static_cast<Real>(kDim)));
  }
  return logits;
}

// Multipliers of the values in one outcome.
std::vector<Real> Multipliers(const Outcome& outcome, const std::vector<Real>& exps, Stage stage) {
  Real all = 0;
  Real kept = 0;
  for (std::size_t j = 0; j < exps.size(); ++j) {
    all += exps[j];
    if (outcome.keep[j]) kept += exps[j];
  }
  std::vector<Real> result(exps.size(), 0);
  for (std::size_t j = 0; j < exps.size(); ++j) {
    if (!outcome.keep[j]) continue;
    result[j] = stage == Stage::kWeights ? outcome.factor[j] * exps[j] / all : exps[j] / kept;
  }
  return result;
}

struct Expected {
  Real mean = 0;
  Real variance = 0;
  Real fourth = 0;
};

// Moments of f(outcome).
Expected Enumerate(const std::vector<Outcome>& outcomes,
                   const std::function<Real(std::size_t)>& f) {
  Expected expected;
  std::vector<Real> values;
  for (std::size_t o = 0; o < outcomes.size(); ++o) values.push_back(f(o));
  for (std::size_t o = 0; o < outcomes.size(); ++o) {
    expected.mean += outcomes[o].probability * values[o];
  }
  for (std::size_t o = 0; o < outcomes.size(); ++o) {
    const Real square = (values[o] - expected.mean) * (values[o] - expected.mean);
    expected.variance += outcomes[o].probability * square;
    expected.fourth += outcomes[o].probability * square * square;
  }
  return expected;
}

void ExpectNear(const Moments& got, const Expected& want, Real scale, const char* what) {
  const auto near = [&](double a, Real b, Real power, const char* figure) {
    EXPECT_LE(std::abs(static_cast<Real>(a) - b), kTolerance * power)
        << what << " " << figure << ": got " << a << ", want " << static_cast<double>(b);
  };
  near(got.mean, want.mean, scale, "mean");
  near(got.variance, want.variance, scale * scale, "variance");
  near(got.fourth, want.fourth, scale * scale * scale * scale, "fourth central moment");
}

void CheckRowOf(const Problem& problem, const Example& example, const HeadReader& reader,
                const RowStatistics& row) {
  const DropoutConfig& dropout = problem.dropout();
  const RowKeys keys = FindRow(example, dropout, row.row);
  ASSERT_EQ(row.visible, static_cast<std::int64_t>(keys.keys.size()));
  ASSERT_EQ(row.distinct_points, static_cast<std::int64_t>(keys.num_sites));
  const Real q = static_cast<Real>(problem.keep_prob());
  const std::vector<Outcome> outcomes = Outcomes(keys, dropout.empty_row, q);
  std::vector<Real> exps;
  for (const Real x : Logits(example, keys, row.row)) exps.push_back(std::exp(x));
  std::vector<std::vector<Real>> multipliers;
  for (const Outcome& outcome : outcomes) {
    multipliers.push_back(Multipliers(outcome, exps, dropout.stage));
  }

  const auto kept = [&](std::size_t o) {
    Real count = 0;
    for (const bool keep : outcomes[o].keep) count += keep ? 1 : 0;
    return count;
  };
  const Real n = std::max<Real>(1, static_cast<Real>(keys.keys.size()));
  const Expected empty =
      Enumerate(outcomes, [&](std::size_t o) -> Real { return kept(o) == 0 ? 1 : 0; });
  const Expected fraction = Enumerate(outcomes, [&](std::size_t o) { return kept(o) / n; });
  EXPECT_NEAR(row.p_zero, static_cast<double>(empty.mean), static_cast<double>(kTolerance));
  EXPECT_NEAR(row.inclusion, static_cast<double>(fraction.mean), static_cast<double>(kTolerance));

  RowContent content;
  reader.Read(row.row, content);
  std::vector<double> share(keys.keys.size(), 1.0 / static_cast<double>(n));
  std::vector<double> site_sum;
  EXPECT_NEAR(KeptFractionVariance(content.law, SumSites(content, share, site_sum)),
              static_cast<double>(fraction.variance), static_cast<double>(kTolerance));

  const Real factor_scale = 1 / q;
  const Expected sum = Enumerate(outcomes, [&](std::size_t o) {
    Real total = 0;
    for (const Real x : multipliers[o]) total += x;
    return total;
  });
  ExpectNear(RowSumMoments(problem, content), sum, factor_scale, "row sum");
  EXPECT_NEAR(row.mean_row_sum, static_cast<double>(sum.mean),
              static_cast<double>(kTolerance * factor_scale));
  EXPECT_NEAR(row.var_row_sum, static_cast<double>(sum.variance),
              static_cast<double>(kTolerance * factor_scale * factor_scale));

  const std::vector<Moments> outputs = OutputMoments(problem, content, reader);
  for (std::size_t c = 0; c < static_cast<std::size_t>(kDimV); ++c) {
    Real scale = 0;
    const auto value = [&](std::size_t j) {
      return static_cast<Real>(example.value[static_cast<std::size_t>(keys.keys[j]) * kDimV + c]);
    };
    for (std::size_t j = 0; j < exps.size(); ++j) scale = std::max(scale, std::abs(value(j)));
    const Expected out = Enumerate(outcomes, [&](std::size_t o) {
      Real total = 0;
      for (std::size_t j = 0; j < exps.size(); ++j) total += multipliers[o][j] * value(j);
      return total;
    });
    Moments got = outputs[c];
    if (std::isnan(got.variance) && keys.num_sites > 16) {
      // Beyond enumeration only the mean is exact.
      got.variance = static_cast<double>(out.variance);
      got.fourth = static_cast<double>(out.fourth);
    }
    ExpectNear(got, out, scale * factor_scale, "output");
  }
}

void CheckProblem(const Example& example, const DropoutConfig& dropout,
                  std::int64_t first_row = 0) {
  Result<Problem> problem = MakeProblem(example, dropout);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  SCOPED_TRACE(problem->ToString());
  const AnalyzeOptions options = MakeOptions(example);
  Result<HeadAnalysis> analysis = Analyze(*problem, options);
  ASSERT_TRUE(analysis.ok()) << analysis.status().message();
  Result<HeadReader> reader = HeadReader::Make(*problem, options);
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(analysis->rows.size(), static_cast<std::size_t>(example.seqlen_q));
  double zero_rows = 0;
  for (const RowStatistics& row : analysis->rows) {
    zero_rows += row.p_zero;
    if (row.row < first_row) continue;
    SCOPED_TRACE("row " + std::to_string(row.row));
    CheckRowOf(*problem, example, *reader, row);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_NEAR(analysis->expected_zero_rows, zero_rows, static_cast<double>(kTolerance));
}

struct PolicyCase {
  std::string text;
  bool needs_own_draws;
};

std::vector<PolicyCase> Policies() {
  return {{"zero", false},      {"keep_one", true},
          {"redraw", true},     {"at_least_one:attempts=3", true},
          {"keep_self", false}, {"keep_first", false},
          {"undropped", false}};
}

const std::vector<std::string> kSchemes = {
    "element", "shared", "key", "word", "query", "head", "block:block_q=2,block_k=3", "symmetric"};

class EnumerationTest : public ::testing::TestWithParam<std::tuple<std::string, Stage>> {};

TEST_P(EnumerationTest, EveryPolicyAndRate) {
  const auto& [scheme, stage] = GetParam();
  for (const PolicyCase& policy : Policies()) {
    if (policy.needs_own_draws && scheme != "element" && scheme != "shared") continue;
    Result<EmptyRowPolicy> empty_row = ParseEmptyRow(policy.text);
    ASSERT_TRUE(empty_row.ok());
    for (const double p : {0.1, 0.5, 0.9}) {
      const DropoutConfig dropout{
          .dropout_p = p, .scheme = scheme, .stage = stage, .empty_row = *empty_row};
      CheckProblem(CausalExample(), dropout);
      CheckProblem(MaskedExample(scheme == "symmetric"), dropout);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EverySchemeAndStage, EnumerationTest,
                         ::testing::Combine(::testing::ValuesIn(kSchemes),
                                            ::testing::Values(Stage::kWeights, Stage::kLogits)),
                         [](const auto& parameter) {
                           const std::string scheme = std::get<0>(parameter.param);
                           return scheme.substr(0, scheme.find(':')) + "_" +
                                  std::string(StageName(std::get<1>(parameter.param)));
                         });

// The mean comes from the integral there, the variance is refused.
TEST(LongLogitsRows, MeanIsExactAndVarianceIsRefused) {
  for (const PolicyCase& policy : Policies()) {
    const DropoutConfig dropout{
        .dropout_p = 0.4, .stage = Stage::kLogits, .empty_row = *ParseEmptyRow(policy.text)};
    CheckProblem(CausalExample(18), dropout, 16);
    Result<Problem> problem = MakeProblem(CausalExample(18), dropout);
    ASSERT_TRUE(problem.ok());
    const Example example = CausalExample(18);
    Result<HeadAnalysis> analysis = Analyze(*problem, MakeOptions(example));
    ASSERT_TRUE(analysis.ok());
    EXPECT_EQ(analysis->out_var_status.code(), StatusCode::kUnsupported);
    EXPECT_NE(analysis->out_var_status.message().find("--draws"), std::string::npos);
    EXPECT_FALSE(std::isnan(analysis->out_var[15 * kDimV]));
    EXPECT_TRUE(std::isnan(analysis->out_var[17 * kDimV]));
  }
}

}  // namespace
}  // namespace attndrop
