// SPDX-License-Identifier: Apache-2.0
// The rows of one head as the statistics need them: visible keys, weights, and the sites they form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attndrop/analytics.h"

#include "analytics/moments.h"
#include "analytics/ratio.h"
#include "core/row_state.h"
#include "core/visibility.h"

namespace attndrop {

struct RowContent {
  Row row;
  std::vector<std::int64_t> keys;  // visible, local, ascending
  std::vector<double> logits;      // zeros when the weights are uniform
  std::vector<double> weights;     // softmax without dropout
  std::vector<std::size_t> site;   // of each key, numbered from 0
  std::int64_t num_sites = 0;
  std::int64_t forced = -1;  // position in `keys` of the key that is always kept
  RowLaw law;
};

class HeadReader {
 public:
  // problem and options must outlive it.
  [[nodiscard]] static Result<HeadReader> Make(const Problem& problem,
                                               const AnalyzeOptions& options);

  [[nodiscard]] std::int64_t num_rows() const noexcept { return num_rows_; }
  // Columns of the outputs; 0 without value.
  [[nodiscard]] std::int64_t dims() const noexcept { return dims_; }
  [[nodiscard]] const MaskReader& mask() const noexcept { return mask_; }

  // Reuses the memory of `content`.
  void Read(std::int64_t query, RowContent& content) const;

  // The value row of a local key, dims() numbers.
  [[nodiscard]] std::span<const double> Value(std::int64_t key) const noexcept {
    return std::span(value_).subspan(static_cast<std::size_t>(key * dims_),
                                     static_cast<std::size_t>(dims_));
  }

 private:
  HeadReader(const Problem& problem, const AnalyzeOptions& options);

  void FindKeys(RowContent& content) const;
  void FindLogits(RowContent& content) const;
  void FindSites(RowContent& content) const;

  const Problem* problem_;
  const AnalyzeOptions* options_;
  MaskReader mask_;
  std::int64_t num_rows_ = 0;
  std::int64_t dims_ = 0;
  std::vector<double> key_;    // (seqlen_k, head_dim)
  std::vector<double> value_;  // (seqlen_k, dims)
};

// Softmax; the largest logit +inf: split equally among the keys at +inf; NaN among the logits, or
// nothing above -inf: all NaN.
void Softmax(std::span<const double> logits, std::vector<double>& weights);

// Sums of a_j over the sites of the row, the forced key apart.
[[nodiscard]] SiteSums SumSites(const RowContent& content, std::span<const double> a,
                                std::vector<double>& site_sum);

// The sites of the row for stage logits; the forced key is a site of its own. No NaN among
// the logits.
[[nodiscard]] RatioSites MakeRatioSites(const RowContent& content, const HeadReader& reader);

// Moments of every output of the row, dims() of them.
[[nodiscard]] std::vector<Moments> OutputMoments(const Problem& problem, const RowContent& content,
                                                 const HeadReader& reader);

// Moments of the row sum.
[[nodiscard]] Moments RowSumMoments(const Problem& problem, const RowContent& content);

}  // namespace attndrop
