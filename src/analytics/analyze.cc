// SPDX-License-Identifier: Apache-2.0
// Analyze: the exact figures of every row of one head.
#include <numeric>
#include <string>
#include <utility>

#include "attndrop/analytics.h"

#include "analytics/head_reader.h"
#include "analytics/moments.h"
#include "core/text.h"

namespace attndrop {
namespace {

RowStatistics RowFigures(const Problem& problem, const RowContent& content) {
  const Moments sum = RowSumMoments(problem, content);
  const double squares = std::transform_reduce(content.weights.begin(), content.weights.end(),
                                               content.weights.begin(), 0.0);
  return {.row = content.row.at.query,
          .visible = content.law.visible,
          .distinct_points = content.law.sites,
          .p_zero = ZeroRowChance(content.law),
          .inclusion = InclusionChance(content.law),
          .mean_row_sum = sum.mean,
          .var_row_sum = sum.variance,
          .effective_keys = content.keys.empty() ? 0.0 : 1.0 / squares};
}

// Draws of the row that are left to chance; the forced key may share its draw with others.
bool BeyondEnumeration(const Problem& problem, const RowContent& content) {
  if (problem.stage() == Stage::kWeights || problem.drops_nothing() || problem.drops_everything()) {
    return false;
  }
  std::int64_t draws = content.num_sites;
  if (content.forced >= 0) {
    const std::size_t site = content.site[static_cast<std::size_t>(content.forced)];
    std::int64_t sharing = 0;
    for (const std::size_t other : content.site) sharing += other == site ? 1 : 0;
    if (sharing == 1) --draws;
  }
  return draws > kMaxEnumeratedDraws;
}

std::string VarianceRefusal(std::int64_t row, std::int64_t points) {
  return "the variance of an output at stage logits is exact for rows of up to " +
         FormatNumber(kMaxEnumeratedDraws) + " distinct draws, row " + FormatNumber(row) + " has " +
         FormatNumber(points) +
         "; estimate it with --draws N, or use stage weights, where it is exact for any length";
}

}  // namespace

Result<HeadAnalysis> Analyze(const Problem& problem, const AnalyzeOptions& options) {
  Result<HeadReader> reader = HeadReader::Make(problem, options);
  if (!reader.ok()) return reader.status();
  HeadAnalysis analysis;
  RowContent content;
  for (std::int64_t query = 0; query < reader->num_rows(); ++query) {
    reader->Read(query, content);
    analysis.rows.push_back(RowFigures(problem, content));
    analysis.expected_zero_rows += analysis.rows.back().p_zero;
    if (reader->dims() == 0) continue;
    if (BeyondEnumeration(problem, content) && analysis.out_var_status.ok()) {
      analysis.out_var_status = Status::Unsupported(VarianceRefusal(query, content.num_sites));
    }
    for (const Moments& moments : OutputMoments(problem, content, *reader)) {
      analysis.out_mean.push_back(moments.mean);
      analysis.out_var.push_back(moments.variance);
    }
  }
  return analysis;
}

}  // namespace attndrop
