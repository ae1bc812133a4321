// SPDX-License-Identifier: Apache-2.0
// Over many masks the mean of the output is attention without dropout under every policy at stage
// weights, and its variance is the one that enumerating all masks of a row gives.
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/run.h"
#include "support/statistics.h"

namespace attndrop::testing {
namespace {

constexpr std::int64_t kLength = 6, kDim = 2;
constexpr double kDraws = 4096 * 16;

ProblemArgs Args(const char* policy, Stage stage) {
  ProblemArgs args;
  args.shape = {.batch = 4096,
                .num_heads = 1,
                .num_kv_heads = 1,
                .seqlen_q = kLength,
                .seqlen_k = kLength,
                .head_dim = kDim,
                .head_dim_v = kDim};
  args.dtype = DType::kFloat64;
  args.is_causal = true;
  args.dropout.dropout_p = 0.6;
  args.dropout.stage = stage;
  args.dropout.empty_row = *ParseEmptyRow(policy);
  return args;
}

struct Moments {
  double mean = 0.0, variance = 0.0;
};

// What the draws of one row can be: a set of kept keys (a bit each), its probability, and whether
// the policy had to step in.
class RowLaw {
 public:
  RowLaw(const ProblemArgs& args, int row) : args_(args), keys_(row + 1), row_(row) {
    keep_ = MustMake(args).keep_prob();
  }

  // E and Var of sum of f_j w_j v_j (or of the renormalised average at stage logits).
  Moments Of(const std::vector<double>& weights, const std::vector<double>& values) const {
    double first = 0.0, second = 0.0;
    for (unsigned set = 0; set < (1U << keys_); ++set) {
      const double x = Output(set, weights, values);
      first += Probability(set) * x;
      second += Probability(set) * x * x;
    }
    return {first, second - first * first};
  }

 private:
  double Empty() const { return std::pow(1.0 - keep_, keys_); }

  // Of the set of keys that are kept in the end.
  double Probability(unsigned set) const {
    const int kept = std::popcount(set);
    const unsigned forced = ForcedKey();
    double chance = std::pow(keep_, kept) * std::pow(1.0 - keep_, keys_ - kept);
    switch (args_.dropout.empty_row.kind) {
      case EmptyRow::kZero:
        return chance;
      case EmptyRow::kKeepSelf:
      case EmptyRow::kKeepFirst:
        return (set & forced) != 0 ? chance / keep_ : 0.0;
      case EmptyRow::kUndropped:
        if (set == 0) return 0.0;
        return set + 1 == 1U << keys_ ? chance + Empty() : chance;
      case EmptyRow::kAtLeastOne:
        break;
    }
    if (set == 0) return 0.0;
    const double all_empty = std::pow(Empty(), args_.dropout.empty_row.attempts);
    chance *= (1.0 - all_empty) / (1.0 - Empty());
    return kept == 1 ? chance + all_empty / keys_ : chance;
  }

  unsigned ForcedKey() const {
    return args_.dropout.empty_row.kind == EmptyRow::kKeepSelf ? 1U << row_ : 1U;
  }

  double Output(unsigned set, const std::vector<double>& weights,
                const std::vector<double>& values) const {
    double sum = 0.0, mass = 0.0;
    for (int j = 0; j < keys_; ++j) {
      if (((set >> j) & 1U) == 0) continue;
      const auto k = static_cast<std::size_t>(j);
      mass += weights[k];
      sum += weights[k] * values[k] * Factor(1U << j);
    }
    if (args_.dropout.stage == Stage::kWeights) return sum;
    return mass > 0.0 ? sum / mass : 0.0;
  }

  // undropped is left to its own test: there the factor depends on what was drawn.
  double Factor(unsigned key) const {
    if (args_.dropout.stage == Stage::kLogits) return 1.0;
    switch (args_.dropout.empty_row.kind) {
      case EmptyRow::kKeepSelf:
      case EmptyRow::kKeepFirst:
        return key == ForcedKey() ? 1.0 : 1.0 / keep_;
      case EmptyRow::kAtLeastOne: {
        const double all_empty = std::pow(Empty(), args_.dropout.empty_row.attempts);
        return 1.0 / (keep_ * (1.0 - all_empty) / (1.0 - Empty()) + all_empty / keys_);
      }
      case EmptyRow::kZero:
      case EmptyRow::kUndropped:
        break;
    }
    return 1.0 / keep_;
  }

  ProblemArgs args_;
  int keys_;
  int row_;
  double keep_;
};

// Inputs shared by all draws, sums of out and its square over the draws.
struct Sample {
  ProblemArrays arrays;
  std::vector<double> sum, square;
};

Sample Draw(ProblemArgs args) {
  Sample sample;
  sample.arrays = MakeArrays(args, 5);
  for (Array* array : {&sample.arrays.query, &sample.arrays.key, &sample.arrays.value}) {
    array->Fill([&](std::int64_t, std::int64_t, std::int64_t r, std::int64_t c) {
      const auto position = static_cast<std::uint64_t>(r * kDim + c);
      return Random(position + (array == &sample.arrays.key     ? 100
                                : array == &sample.arrays.value ? 200
                                                                : 0))
          .Normal();
    });
  }
  sample.sum.assign(kLength * kDim, 0.0);
  sample.square = sample.sum;
  for (args.dropout.seed = 0; args.dropout.seed < 16; ++args.dropout.seed) {
    RunForward(args, sample.arrays);
    for (std::int64_t b = 0; b < args.shape.batch; ++b) {
      for (std::size_t k = 0; k < sample.sum.size(); ++k) {
        const auto at = static_cast<std::int64_t>(k);
        const double out = sample.arrays.out.Get(b, 0, at / kDim, at % kDim);
        sample.sum[k] += out;
        sample.square[k] += out * out;
      }
    }
  }
  return sample;
}

std::vector<double> WeightsOfRow(const Sample& sample, int row) {
  std::vector<double> weights;
  double sum = 0.0;
  for (std::int64_t j = 0; j <= row; ++j) {
    double dot = 0.0;
    for (std::int64_t c = 0; c < kDim; ++c) {
      dot += sample.arrays.query.Get(0, 0, row, c) * sample.arrays.key.Get(0, 0, j, c);
    }
    weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(kDim))));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> ValuesOf(const Sample& sample, int row, std::int64_t c) {
  std::vector<double> values;
  for (std::int64_t j = 0; j <= row; ++j) values.push_back(sample.arrays.value.Get(0, 0, j, c));
  return values;
}

double Undropped(const std::vector<double>& weights, const std::vector<double>& values) {
  double sum = 0.0;
  for (std::size_t j = 0; j < weights.size(); ++j) sum += weights[j] * values[j];
  return sum;
}

void ExpectMoments(const char* policy, Stage stage) {
  SCOPED_TRACE(policy);
  const ProblemArgs args = Args(policy, stage);
  const Sample sample = Draw(args);
  const double limit = ZLimit(kLength * kDim);
  for (int row = 0; row < kLength; ++row) {
    const std::vector<double> weights = WeightsOfRow(sample, row);
    for (std::int64_t c = 0; c < kDim; ++c) {
      const std::vector<double> values = ValuesOf(sample, row, c);
      const Moments want = RowLaw(args, row).Of(weights, values);
      if (stage == Stage::kWeights) {
        EXPECT_NEAR(want.mean, Undropped(weights, values), 1e-12) << "exact mean, row " << row;
      }
      const auto k = static_cast<std::size_t>(row * kDim + c);
      const double mean = sample.sum[k] / kDraws;
      const double variance = sample.square[k] / kDraws - mean * mean;
      EXPECT_LE(std::fabs(mean - want.mean),
                limit * std::sqrt(std::fmax(want.variance, 0.0) / kDraws) + 1e-12)
          << "mean of row " << row;
      // Outputs are bounded, so the sample variance is within a few percent.
      EXPECT_NEAR(variance, want.variance, 0.1 * want.variance + 1e-9) << "variance of row " << row;
    }
  }
}

TEST(Unbiased, EveryPolicyAtStageWeights) {
  for (const char* policy :
       {"zero", "keep_one", "at_least_one:attempts=2", "redraw", "keep_self", "keep_first"}) {
    ExpectMoments(policy, Stage::kWeights);
  }
}

// Stage logits is biased; its mean is the enumerated one.
TEST(Unbiased, StageLogitsHasTheEnumeratedMoments) {
  for (const char* policy :
       {"zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped"}) {
    ExpectMoments(policy, Stage::kLogits);
  }
}

// undropped: mean and a variance by hand, as its factor depends on whether the row was empty.
TEST(Unbiased, UndroppedAtStageWeights) {
  const ProblemArgs args = Args("undropped", Stage::kWeights);
  const Sample sample = Draw(args);
  const double q = MustMake(args).keep_prob();
  for (int row = 0; row < kLength; ++row) {
    const std::vector<double> weights = WeightsOfRow(sample, row);
    const double empty = std::pow(1.0 - q, row + 1);
    for (std::int64_t c = 0; c < kDim; ++c) {
      const std::vector<double> values = ValuesOf(sample, row, c);
      const double whole = Undropped(weights, values);
      // With S = sum of bit_j w_j v_j: out = S / (q (1 + empty)), or whole / (1 + empty).
      double variance_sum = 0.0;
      for (std::size_t j = 0; j < weights.size(); ++j) {
        variance_sum += q * (1.0 - q) * weights[j] * weights[j] * values[j] * values[j];
      }
      const double second =
          ((variance_sum + q * q * whole * whole) / (q * q) + empty * whole * whole) /
          ((1.0 + empty) * (1.0 + empty));
      const double variance = second - whole * whole;
      const auto k = static_cast<std::size_t>(row * kDim + c);
      EXPECT_LE(std::fabs(sample.sum[k] / kDraws - whole),
                ZLimit(kLength * kDim) * std::sqrt(std::fmax(variance, 0.0) / kDraws) + 1e-12)
          << "row " << row;
    }
  }
}

// The control: with 1 / pi of the other policy the same test sees the bias.
TEST(Unbiased, AWrongScaleIsCaught) {
  const ProblemArgs args = Args("keep_one", Stage::kWeights);
  const Sample sample = Draw(args);
  const double q = MustMake(args).keep_prob();
  const std::vector<double> weights = WeightsOfRow(sample, 1), values = ValuesOf(sample, 1, 0);
  const double pi = q + (1.0 - q) * (1.0 - q) / 2.0;
  const Moments want = RowLaw(args, 1).Of(weights, values);
  const double mean_with_plain_scale = sample.sum[kDim] / kDraws * pi / q;
  EXPECT_GT(std::fabs(mean_with_plain_scale - want.mean),
            ZLimit(1.0) * std::sqrt(want.variance / kDraws));
}

}  // namespace
}  // namespace attndrop::testing
