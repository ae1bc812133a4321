// SPDX-License-Identifier: Apache-2.0
// Logits, softmax and factors of one row (docs/math/attention.md, (A1) to (A5)).
#include "reference/reference_row.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace attndrop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

double Dot(const double* a, const double* b, std::int64_t n) noexcept {
  constexpr std::int64_t kLanes = 8;
  double sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double sum =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void AddScaled(double a, const double* x, double* y, std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

RowSoftmax::RowSoftmax(const Problem& problem, const MaskBuffers& mask, Arena& arena) noexcept
    : problem_(problem), mask_(problem, mask), field_(problem) {
  const std::int64_t seqlen_k = problem.shape().seqlen_k;
  numbers_.weights = arena.Take<double>(seqlen_k);
  numbers_.factors = arena.Take<double>(seqlen_k);
  numbers_.takes_part = arena.Take<std::uint8_t>(seqlen_k);
}

void RowSoftmax::Compute(const Row& row, const double* query, const double* key) {
  ComputeLogits(row, query, key);
  Normalise(row.local.size());
}

void RowSoftmax::ComputeLogits(const Row& row, const double* query, const double* key) {
  const std::int64_t head_dim = problem_.shape().head_dim;
  const RowState state = FindRowState(problem_, row, mask_, field_);
  const std::int64_t position = row.global_query() + row.sequence.shift;
  for (std::int64_t i = 0; i < row.local.size(); ++i) {
    LocalIndex at = row.at;
    at.key = row.local.begin + i;
    const std::int64_t global_key = at.key + row.sequence.origin_k;
    const bool visible = mask_.Visible(at);
    KeepCell cell;
    if (visible) cell = KeepOf(state, GlobalCoord(problem_, row, global_key), field_);
    const bool takes_part = visible && (problem_.stage() == Stage::kWeights || cell.keep);
    numbers_.factors[i] = cell.factor;
    numbers_.takes_part[i] = takes_part ? 1 : 0;
    numbers_.weights[i] = takes_part
                              ? problem_.scale() * Dot(query, key + at.key * head_dim, head_dim) +
                                    mask_.Bias(at, std::abs(position - global_key))
                              : -kInfinity;
  }
}

// Turns the logits in weights into weights.
void RowSoftmax::Normalise(std::int64_t count) noexcept {
  double* const weights = numbers_.weights;
  const std::uint8_t* const takes_part = numbers_.takes_part;
  double largest = -kInfinity;
  bool has_nan = false;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, weights[i]);
    has_nan = has_nan || std::isnan(weights[i]);
  }
  if (has_nan) largest = std::numeric_limits<double>::quiet_NaN();
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    // Logits at +inf share the row equally; the others are exp(-inf) = 0.
    const bool at_infinity = largest == kInfinity && weights[i] == kInfinity;
    weights[i] = takes_part[i] == 0 ? 0.0 : at_infinity ? 1.0 : std::exp(weights[i] - largest);
    sum += weights[i];
  }
  const bool nothing = std::none_of(takes_part, takes_part + count, [](auto t) { return t != 0; });
  numbers_.logsumexp = nothing ? -kInfinity : largest + std::log(sum);
  for (std::int64_t i = 0; i < count; ++i) {
    if (takes_part[i] != 0) weights[i] /= sum;
  }
}

}  // namespace attndrop
