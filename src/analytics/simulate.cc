// SPDX-License-Identifier: Apache-2.0
// CheckBySimulation: real masks of many offsets against the exact figures, one row after another.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "attndrop/analytics.h"

#include "analytics/head_reader.h"
#include "analytics/scores.h"
#include "core/row_state.h"
#include "core/text.h"

namespace attndrop {
namespace {

constexpr std::int64_t kMaxDraws = 1'000'000'000;

std::size_t Index(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

// What one mask makes of one row.
struct DrawnRow {
  std::int64_t kept = 0;
  double sum = 0.0;                // of the dropped weights
  std::vector<double> multiplier;  // f_ij w_ij, or the softmax over the kept keys
};

class RowSimulator {
 public:
  RowSimulator(const Problem& problem, const HeadReader& reader, const RowContent& content)
      : problem_(problem), reader_(reader), content_(content) {
    drawn_.multiplier.resize(content.keys.size());
  }

  const DrawnRow& Draw(std::uint64_t offset) {
    KeepField field(problem_, offset);
    const RowState state = FindRowState(problem_, content_.row, reader_.mask(), field);
    drawn_.kept = 0;
    for (std::size_t j = 0; j < content_.keys.size(); ++j) {
      const std::int64_t key = content_.keys[j] + content_.row.sequence.origin_k;
      const KeepCell cell = KeepOf(state, GlobalCoord(problem_, content_.row, key), field);
      drawn_.kept += cell.keep ? 1 : 0;
      drawn_.multiplier[j] = cell.keep ? cell.factor : 0.0;
    }
    if (problem_.stage() == Stage::kLogits) {
      ToSoftmax();
    } else {
      for (std::size_t j = 0; j < drawn_.multiplier.size(); ++j) {
        if (drawn_.multiplier[j] != 0.0) drawn_.multiplier[j] *= content_.weights[j];
      }
    }
    drawn_.sum = 0.0;
    for (const double x : drawn_.multiplier) drawn_.sum += x;
    return drawn_;
  }

 private:
  // Non-zero multipliers mark the kept keys; they become the softmax over these (A5).
  void ToSoftmax() {
    kept_logits_.clear();
    for (std::size_t j = 0; j < drawn_.multiplier.size(); ++j) {
      if (drawn_.multiplier[j] != 0.0) kept_logits_.push_back(content_.logits[j]);
    }
    Softmax(kept_logits_, kept_weights_);
    std::size_t next = 0;
    for (double& x : drawn_.multiplier) {
      if (x != 0.0) x = kept_weights_[next++];
    }
  }

  const Problem& problem_;
  const HeadReader& reader_;
  const RowContent& content_;
  DrawnRow drawn_;
  std::vector<double> kept_logits_;
  std::vector<double> kept_weights_;
};

// The samples of one row.
struct RowSamples {
  std::int64_t zero_rows = 0;
  Sample kept_fraction;
  Sample row_sum;
  std::vector<Sample> out;
};

RowChecks CheckRow(const Problem& problem, const RowStatistics& exact, const RowContent& content,
                   const RowSamples& samples, const Moments& row_sum) {
  const std::int64_t draws = samples.row_sum.count();
  const double zero_fraction = static_cast<double>(samples.zero_rows) / static_cast<double>(draws);
  RowChecks checks;
  checks.row = exact.row;
  checks.p_zero = {.exact = exact.p_zero,
                   .estimate = zero_fraction,
                   .z = BinomialScore(samples.zero_rows, draws, exact.p_zero)};
  const std::vector<double> share(content.keys.size(),
                                  1.0 / static_cast<double>(content.keys.size()));
  std::vector<double> site_sum;
  const Moments fraction{.variance =
                             KeptFractionVariance(content.law, SumSites(content, share, site_sum))};
  const double inclusion = InclusionChance(content.law);
  checks.inclusion = CheckMean(exact.inclusion, fraction, inclusion, samples.kept_fraction, 1.0);
  checks.mean_row_sum = CheckMean(exact.mean_row_sum, row_sum, row_sum.mean, samples.row_sum, 1.0);
  checks.var_row_sum = CheckVariance(exact.var_row_sum, row_sum, samples.row_sum, 1.0);
  if (problem.stage() == Stage::kLogits && !std::isnan(exact.mean_row_sum)) {
    // The row sum is 1 or 0: these figures are p_zero in another form (C4).
    checks.mean_row_sum.z = -checks.p_zero.z;
    checks.var_row_sum.estimate = zero_fraction * (1.0 - zero_fraction);
    checks.var_row_sum.z = exact.p_zero <= 0.5 ? checks.p_zero.z : -checks.p_zero.z;
  }
  return checks;
}

// The largest |v_jc| of every column: the size of an output's terms, for its rounding.
std::vector<double> TermSizes(const RowContent& content, const HeadReader& reader) {
  std::vector<double> sizes(Index(reader.dims()), 0.0);
  for (std::size_t j = 0; j < content.keys.size(); ++j) {
    const std::span<const double> value = reader.Value(content.keys[j]);
    for (std::size_t c = 0; c < sizes.size(); ++c) {
      sizes[c] = std::max(sizes[c], std::abs(value[c]));
    }
  }
  return sizes;
}

class HeadSimulator {
 public:
  HeadSimulator(const Problem& problem, const HeadReader& reader, const HeadAnalysis& exact,
                std::int64_t draws)
      : problem_(problem), reader_(reader), exact_(exact), zero_rows_(Index(draws), 0) {
    check_.draws = draws;
  }

  SimulationCheck Run() {
    RowContent content;
    for (std::int64_t query = 0; query < reader_.num_rows(); ++query) {
      reader_.Read(query, content);
      RunRow(query, content);
    }
    CheckZeroRows();
    Summarize();
    return std::move(check_);
  }

 private:
  void RunRow(std::int64_t query, const RowContent& content) {
    const RowStatistics& exact = exact_.rows[Index(query)];
    const Moments row_sum = RowSumMoments(problem_, content);
    const std::vector<Moments> outputs =
        reader_.dims() > 0 ? OutputMoments(problem_, content, reader_) : std::vector<Moments>();
    const RowSamples samples = SampleRow(content, row_sum, outputs);
    check_.rows.push_back(CheckRow(problem_, exact, content, samples, row_sum));
    const std::vector<double> sizes = TermSizes(content, reader_);
    for (std::size_t c = 0; c < outputs.size(); ++c) {
      const std::size_t at = Index(query) * outputs.size() + c;
      check_.out_mean.push_back(
          CheckMean(exact_.out_mean[at], outputs[c], outputs[c].mean, samples.out[c], sizes[c]));
      check_.out_var.push_back(
          CheckVariance(exact_.out_var[at], outputs[c], samples.out[c], sizes[c]));
    }
  }

  RowSamples SampleRow(const RowContent& content, const Moments& row_sum,
                       const std::vector<Moments>& outputs) {
    RowSamples samples;
    samples.out.resize(outputs.size());
    RowSimulator simulator(problem_, reader_, content);
    const auto n = static_cast<double>(content.keys.size());
    const double inclusion = InclusionChance(content.law);
    std::vector<double> out(outputs.size());
    for (std::int64_t draw = 0; draw < check_.draws; ++draw) {
      const DrawnRow& drawn =
          simulator.Draw(problem_.dropout().offset + static_cast<std::uint64_t>(draw));
      if (drawn.kept == 0) {
        ++samples.zero_rows;
        ++zero_rows_[Index(draw)];
      }
      const double fraction = n > 0.0 ? static_cast<double>(drawn.kept) / n : 0.0;
      samples.kept_fraction.Add(fraction - inclusion);
      samples.row_sum.Add(drawn.sum - row_sum.mean);
      if (outputs.empty()) continue;
      std::fill(out.begin(), out.end(), 0.0);
      for (std::size_t j = 0; j < drawn.multiplier.size(); ++j) {
        if (drawn.multiplier[j] == 0.0) continue;
        const std::span<const double> value = reader_.Value(content.keys[j]);
        for (std::size_t c = 0; c < out.size(); ++c) out[c] += drawn.multiplier[j] * value[c];
      }
      for (std::size_t c = 0; c < out.size(); ++c) samples.out[c].Add(out[c] - outputs[c].mean);
    }
    return samples;
  }

  // (C5): rows may share draws, so the standard error is the sample's, but no smaller than that of
  // independent rows, since sharing can only add to it.
  void CheckZeroRows() {
    Sample sample;
    double independent = 0.0;
    for (const RowStatistics& row : exact_.rows) independent += row.p_zero * (1.0 - row.p_zero);
    for (const std::int32_t count : zero_rows_) {
      sample.Add(static_cast<double>(count) - exact_.expected_zero_rows);
    }
    const Moments law{.variance = std::max(independent, sample.variance())};
    check_.expected_zero_rows = CheckMean(exact_.expected_zero_rows, law, exact_.expected_zero_rows,
                                          sample, static_cast<double>(exact_.rows.size()));
  }

  void Count(const Check& check) {
    if (std::isnan(check.z)) return;
    ++check_.num_checks;
    check_.max_abs_z = std::max(check_.max_abs_z, std::abs(check.z));
  }

  void Summarize() {
    for (const RowChecks& row : check_.rows) {
      for (const Check* check :
           {&row.p_zero, &row.inclusion, &row.mean_row_sum, &row.var_row_sum}) {
        Count(*check);
      }
    }
    Count(check_.expected_zero_rows);
    for (const Check& check : check_.out_mean) Count(check);
    for (const Check& check : check_.out_var) Count(check);
  }

  const Problem& problem_;
  const HeadReader& reader_;
  const HeadAnalysis& exact_;
  std::vector<std::int32_t> zero_rows_;  // per draw
  SimulationCheck check_;
};

}  // namespace

Result<SimulationCheck> CheckBySimulation(const Problem& problem, const AnalyzeOptions& options,
                                          const HeadAnalysis& exact, std::int64_t draws) {
  if (draws < 2 || draws > kMaxDraws) {
    return Status::InvalidArgument("draws must be in [2, " + FormatNumber(kMaxDraws) + "], got " +
                                   FormatNumber(draws) +
                                   "; 10000 shows errors of about one percent");
  }
  Result<HeadReader> reader = HeadReader::Make(problem, options);
  if (!reader.ok()) return reader.status();
  const auto rows = Index(reader->num_rows());
  const auto outputs = rows * Index(reader->dims());
  if (exact.rows.size() != rows || exact.out_mean.size() != outputs ||
      exact.out_var.size() != outputs) {
    return Status::InvalidArgument(
        "the exact figures are of another problem: " + FormatNumber(exact.rows.size()) +
        " rows, expected " + FormatNumber(rows) + "; pass the result of Analyze for these options");
  }
  return HeadSimulator(problem, *reader, exact, draws).Run();
}

}  // namespace attndrop
