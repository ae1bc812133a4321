// SPDX-License-Identifier: Apache-2.0
// Exact statistics of dropout, without sampling: what a row loses, keeps and varies by.
#pragma once

#include <cstdint>
#include <vector>

#include "attndrop/attention.h"
#include "attndrop/export.h"
#include "attndrop/problem.h"
#include "attndrop/status.h"
#include "attndrop/strided.h"

namespace attndrop {

// One head of one batch entry, at local indices. Memory is linear in the sequence length.
struct AnalyzeOptions {
  std::int64_t batch = 0;
  std::int64_t head = 0;  // query head
  // Shapes as in ForwardBuffers. Null query and key: the weights are uniform over the visible keys.
  Strided<const void> query{};
  Strided<const void> key{};
  // Null: no statistics of the outputs.
  Strided<const void> value{};
  MaskBuffers mask{};
};

// The row sum is sum_j f_ij w_ij, the sum of the weights after dropout; w is the softmax without
// dropout. docs/math/README.md lists the formula of each figure.
struct RowStatistics {
  std::int64_t row = 0;              // local query
  std::int64_t visible = 0;          // n, visible keys
  std::int64_t distinct_points = 0;  // m, distinct draws among them
  double p_zero = 0.0;               // chance that no visible key is kept; 1 without visible keys
  double inclusion = 0.0;            // chance that a key is kept, averaged over the visible keys
  double mean_row_sum = 0.0;
  double var_row_sum = 0.0;
  double effective_keys = 0.0;  // 1 / sum_j w_ij^2
};

struct HeadAnalysis {
  std::vector<RowStatistics> rows;
  double expected_zero_rows = 0.0;  // sum of p_zero: of one head
  // (rows, head_dim_v), empty without value.
  std::vector<double> out_mean;
  std::vector<double> out_var;
  // Not ok: some rows have more than kMaxEnumeratedDraws draws at stage logits, where the variance
  // has no closed form; out_var of these rows is NaN. Everything else is exact.
  Status out_var_status;
};

// Rows of up to so many distinct draws are enumerated at stage logits.
inline constexpr std::int64_t kMaxEnumeratedDraws = 16;

// Errors: kInvalidArgument; kUnsupported for a problem that covers a part of the keys only.
[[nodiscard]] ATTNDROP_EXPORT Result<HeadAnalysis> Analyze(const Problem& problem,
                                                           const AnalyzeOptions& options);

// Expected zero rows of a model in which every layer has `heads` heads of this problem.
[[nodiscard]] constexpr double ExpectedZeroRowsOfModel(double per_head, std::int64_t heads,
                                                       std::int64_t layers) noexcept {
  return per_head * static_cast<double>(heads) * static_cast<double>(layers);
}

// A figure, what the draws gave for it, and their distance in standard errors. NaN figures have
// no score: z is NaN.
struct Check {
  double exact = 0.0;
  double estimate = 0.0;
  double z = 0.0;
};

struct RowChecks {
  std::int64_t row = 0;
  Check p_zero{};
  Check inclusion{};
  Check mean_row_sum{};
  Check var_row_sum{};
};

struct SimulationCheck {
  std::int64_t draws = 0;
  std::vector<RowChecks> rows;
  Check expected_zero_rows{};
  std::vector<Check> out_mean;  // (rows, head_dim_v), empty without value
  std::vector<Check> out_var;
  double max_abs_z = 0.0;  // over all figures that have a score
  std::int64_t num_checks = 0;
};

// Draws the real masks of offsets offset, offset + 1, ..., offset + draws - 1 and compares them
// with `exact`, the result of Analyze for the same options (docs/math/simulation.md). draws >= 2;
// where the exact variance is missing (out_var_status) the estimate takes its place.
[[nodiscard]] ATTNDROP_EXPORT Result<SimulationCheck> CheckBySimulation(
    const Problem& problem, const AnalyzeOptions& options, const HeadAnalysis& exact,
    std::int64_t draws);

}  // namespace attndrop
