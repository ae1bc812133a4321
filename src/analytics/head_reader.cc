// SPDX-License-Identifier: Apache-2.0
// Reads a row of one head, and groups its visible keys by the draw that they share.
#include "analytics/head_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "core/element.h"
#include "core/head_rows.h"
#include "core/text.h"

namespace attndrop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Below the largest finite logit beside a +inf one: no double weight is left of it.
constexpr double kBelowInfinity = 1e6;

std::size_t Index(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

std::int64_t ArrayOffset(const Problem& problem, const Strided<const void>& array,
                         const LocalIndex& at, std::int64_t row) noexcept {
  return ArrayBatch(problem, at.batch) * array.batch_stride + at.head * array.head_stride +
         row * array.row_stride;
}

// The rows [first, first + count) of one head as doubles, (count, cols).
std::vector<double> LoadRows(const Problem& problem, const Strided<const void>& array,
                             const LocalIndex& at, std::int64_t count, std::int64_t cols) {
  std::vector<double> rows(Index(count * cols));
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t offset = ArrayOffset(problem, array, at, at.key + r);
    for (std::int64_t c = 0; c < cols; ++c) {
      rows[Index(r * cols + c)] =
          LoadElement(problem.dtype(), array.data, offset + c * array.col_stride);
    }
  }
  return rows;
}

std::string OutOfRange(std::string_view name, std::int64_t given, std::int64_t count) {
  return std::string(name) + " must be in [0, " + FormatNumber(count - 1) + "], got " +
         FormatNumber(given) + "; the problem has " + FormatNumber(count);
}

Status CheckOptions(const Problem& problem, const AnalyzeOptions& options) {
  const AttentionShape& shape = problem.shape();
  if (options.batch < 0 || options.batch >= shape.batch) {
    return Status::InvalidArgument(OutOfRange("batch", options.batch, shape.batch));
  }
  if (options.head < 0 || options.head >= shape.num_heads) {
    return Status::InvalidArgument(OutOfRange("head", options.head, shape.num_heads));
  }
  const bool has_query = options.query.data != nullptr;
  if (has_query != (options.key.data != nullptr)) {
    return Status::InvalidArgument(
        std::string("statistics need query and key together, got only ") +
        (has_query ? "query" : "key") + "; give both, or neither for uniform weights");
  }
  if (problem.attn_mask().kind != MaskKind::kNone && options.mask.attn_mask.data == nullptr) {
    return Status::InvalidArgument(
        "the problem has an attn_mask, but no attn_mask was given; give its array, or leave it out "
        "of the problem");
  }
  if (problem.alibi() && has_query && options.mask.alibi_slopes == nullptr) {
    return Status::InvalidArgument(
        "the problem has ALiBi, but no alibi_slopes were given; give one slope per query head");
  }
  if (problem.covers_part_of_keys()) {
    return Status::Unsupported(
        "statistics of a problem that covers a part of the keys are not defined: chances refer to "
        "the whole row; analyze the whole problem, without origin and total for the keys");
  }
  return Status::Ok();
}

bool HasDeclaredAxes(const Scheme& scheme) noexcept {
  return scheme.info.query_axis != AxisMap::kUndeclared &&
         scheme.info.key_axis != AxisMap::kUndeclared;
}

auto AsTuple(const FieldPoint& point) noexcept {
  return std::tuple(point.r, point.c, point.h, point.b);
}

// Numbers equal points alike, by sorting; returns how many there are.
std::int64_t NumberPoints(std::span<const FieldPoint> points, std::span<std::size_t> site) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return AsTuple(points[a]) < AsTuple(points[b]); });
  std::int64_t count = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || !(points[order[i]] == points[order[i - 1]])) ++count;
    site[order[i]] = Index(count - 1);
  }
  return count;
}

// log sum exp of the logits of a site, and the mean of its values under their softmax.
void AddRatioSite(const RowContent& content, const HeadReader& reader,
                  std::span<const std::size_t> members, RatioSites& sites) {
  std::vector<double> logits;
  for (const std::size_t j : members) logits.push_back(content.logits[j]);
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  std::vector<double> mean(Index(reader.dims()), 0.0);
  for (std::size_t k = 0; k < members.size(); ++k) {
    const double weight = logits[k] == top ? 1.0 : std::exp(logits[k] - top);
    if (weight == 0.0) continue;
    total += weight;
    const std::span<const double> value = reader.Value(content.keys[members[k]]);
    for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += weight * value[c];
  }
  for (const double x : mean) sites.values.push_back(x / total);
  // A site with keys at +inf weighs as many as it has; MakeRatioSites moves the others far below.
  sites.log_weight.push_back(top == kInfinity ? kInfinity : top + std::log(total));
}

// Replaces +inf: each such site gets the logarithm of its number of keys at +inf.
void ResolveInfinity(const RowContent& content, std::span<const std::vector<std::size_t>> members,
                     RatioSites& sites) {
  double top = -kInfinity;
  bool any = false;
  for (const double x : sites.log_weight) {
    any = any || x == kInfinity;
    if (x != kInfinity) top = std::max(top, x);
  }
  if (!any) return;
  for (std::size_t s = 0; s < sites.log_weight.size(); ++s) {
    double& x = sites.log_weight[s];
    if (x != kInfinity) {
      x = x == top ? -kBelowInfinity : x - top - kBelowInfinity;
      continue;
    }
    const auto count = std::count_if(members[s].begin(), members[s].end(),
                                     [&](std::size_t j) { return content.logits[j] == kInfinity; });
    x = std::log(static_cast<double>(count));
  }
}

bool AnyNaN(std::span<const double> values) noexcept {
  return std::any_of(values.begin(), values.end(), [](double x) { return std::isnan(x); });
}

// Some masks give a NaN at stage logits: a logit is NaN, or all that is kept may be at -inf.
bool MayBeNaN(const RowContent& content) noexcept {
  if (AnyNaN(content.logits)) return true;
  if (content.forced >= 0 && content.logits[Index(content.forced)] != -kInfinity) return false;
  return std::find(content.logits.begin(), content.logits.end(), -kInfinity) !=
         content.logits.end();
}

// Positions of the keys, those of one site behind one another.
std::vector<std::size_t> OrderBySite(const RowContent& content) {
  std::vector<std::size_t> order(content.keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (std::is_sorted(content.site.begin(), content.site.end())) return order;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(content.site[a], a) < std::pair(content.site[b], b);
  });
  return order;
}

// One pass over the values for all columns: a_j = w_j value_jc.
std::vector<Moments> WeightsStageMoments(const RowContent& content, const HeadReader& reader) {
  std::vector<SiteSums> sums(Index(reader.dims()));
  std::vector<double> site_sum(sums.size(), 0.0);
  const std::vector<std::size_t> order = OrderBySite(content);
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::size_t j = order[k];
    const double weight = content.weights[j];
    const std::span<const double> value = reader.Value(content.keys[j]);
    const bool is_forced = static_cast<std::int64_t>(j) == content.forced;
    for (std::size_t c = 0; c < sums.size(); ++c) {
      (is_forced ? sums[c].forced : site_sum[c]) += weight * value[c];
    }
    const bool is_last = k + 1 == order.size() || content.site[order[k + 1]] != content.site[j];
    if (!is_last) continue;
    for (std::size_t c = 0; c < sums.size(); ++c) {
      sums[c].Add(site_sum[c]);
      site_sum[c] = 0.0;
    }
  }
  std::vector<Moments> result;
  for (const SiteSums& sum : sums) result.push_back(LinearMoments(content.law, sum));
  return result;
}

}  // namespace

void Softmax(std::span<const double> logits, std::vector<double>& weights) {
  weights.assign(logits.begin(), logits.end());
  if (weights.empty()) return;
  if (AnyNaN(logits)) {
    std::fill(weights.begin(), weights.end(), kNaN);
    return;
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double total = 0.0;
  for (double& weight : weights) {
    const bool at_infinity = top == kInfinity && weight == kInfinity;
    weight = at_infinity ? 1.0 : std::exp(weight - top);
    total += weight;
  }
  for (double& weight : weights) weight /= total;
}

Result<HeadReader> HeadReader::Make(const Problem& problem, const AnalyzeOptions& options) {
  Status status = CheckOptions(problem, options);
  if (!status.ok()) return status;
  return HeadReader(problem, options);
}

HeadReader::HeadReader(const Problem& problem, const AnalyzeOptions& options)
    : problem_(&problem), options_(&options), mask_(problem, options.mask) {
  const Sequence sequence = problem.sequence(options.batch);
  const AttentionShape& shape = problem.shape();
  num_rows_ = sequence.seqlen_q;
  const std::int64_t kv_head = options.head / (shape.num_heads / shape.num_kv_heads);
  const LocalIndex at{options.batch, kv_head, 0, sequence.first_row_k};
  if (options.key.data != nullptr) {
    key_ = LoadRows(problem, options.key, at, sequence.seqlen_k, shape.head_dim);
  }
  if (options.value.data != nullptr) {
    dims_ = shape.head_dim_v;
    value_ = LoadRows(problem, options.value, at, sequence.seqlen_k, shape.head_dim_v);
  }
}

void HeadReader::Read(std::int64_t query, RowContent& content) const {
  content.row = MakeRow(*problem_, options_->batch, options_->head, query);
  FindKeys(content);
  FindLogits(content);
  FindSites(content);
  content.law = {.policy = problem_->empty_row(),
                 .keep_prob = problem_->keep_prob(),
                 .visible = static_cast<std::int64_t>(content.keys.size()),
                 .sites = content.num_sites,
                 .forced_visible = content.forced >= 0};
}

void HeadReader::FindKeys(RowContent& content) const {
  const Row& row = content.row;
  std::int64_t forced_key = -1;  // local
  if (problem_->empty_row().kind == EmptyRow::kKeepSelf) {
    forced_key = row.global_query() + row.sequence.shift - row.sequence.origin_k;
  } else if (problem_->empty_row().kind == EmptyRow::kKeepFirst) {
    forced_key = -row.sequence.origin_k;
  }
  content.keys.clear();
  content.forced = -1;
  for (std::int64_t key = row.local.begin; key < row.local.end; ++key) {
    if (!mask_.Visible({row.at.batch, row.at.head, row.at.query, key})) continue;
    if (key == forced_key) content.forced = static_cast<std::int64_t>(content.keys.size());
    content.keys.push_back(key);
  }
}

void HeadReader::FindLogits(RowContent& content) const {
  content.logits.assign(content.keys.size(), 0.0);
  if (options_->query.data != nullptr) {
    const Row& row = content.row;
    const std::int64_t dim = problem_->shape().head_dim;
    const LocalIndex at{row.at.batch, row.at.head, 0, row.sequence.first_row_q + row.at.query};
    const std::vector<double> query = LoadRows(*problem_, options_->query, at, 1, dim);
    const std::int64_t position = row.global_query() + row.sequence.shift;
    for (std::size_t j = 0; j < content.keys.size(); ++j) {
      const std::int64_t key = content.keys[j];
      double dot = 0.0;
      for (std::int64_t c = 0; c < dim; ++c) dot += query[Index(c)] * key_[Index(key * dim + c)];
      const std::int64_t distance = std::abs(position - row.sequence.origin_k - key);
      content.logits[j] =
          problem_->scale() * dot +
          mask_.Bias({row.at.batch, row.at.head, row.at.query, key}, distance);  // (A1)
    }
  }
  Softmax(content.logits, content.weights);
}

void HeadReader::FindSites(RowContent& content) const {
  content.site.resize(content.keys.size());
  std::vector<FieldPoint> points(content.keys.size());
  for (std::size_t j = 0; j < points.size(); ++j) {
    const std::int64_t global_key = content.keys[j] + content.row.sequence.origin_k;
    points[j] = problem_->scheme().point_of(problem_->scheme_params(),
                                            GlobalCoord(*problem_, content.row, global_key));
  }
  if (!HasDeclaredAxes(problem_->scheme())) {
    content.num_sites = NumberPoints(points, content.site);
    return;
  }
  // Every declared map is monotone along the row: equal points are neighbours.
  content.num_sites = 0;
  for (std::size_t j = 0; j < points.size(); ++j) {
    if (j == 0 || !(points[j] == points[j - 1])) ++content.num_sites;
    content.site[j] = Index(content.num_sites - 1);
  }
}

SiteSums SumSites(const RowContent& content, std::span<const double> a,
                  std::vector<double>& site_sum) {
  site_sum.assign(Index(content.num_sites), 0.0);
  SiteSums sums;
  for (std::size_t j = 0; j < a.size(); ++j) {
    if (static_cast<std::int64_t>(j) == content.forced) {
      sums.forced = a[j];
    } else {
      site_sum[content.site[j]] += a[j];
    }
  }
  for (const double sum : site_sum) sums.Add(sum);
  return sums;
}

RatioSites MakeRatioSites(const RowContent& content, const HeadReader& reader) {
  std::vector<std::vector<std::size_t>> members(Index(content.num_sites));
  for (std::size_t j = 0; j < content.keys.size(); ++j) {
    // A key at -inf has no weight beside the forced one; other rows with such keys are NaN.
    if (content.logits[j] == -kInfinity) continue;
    if (static_cast<std::int64_t>(j) != content.forced) members[content.site[j]].push_back(j);
  }
  RatioSites sites;
  sites.dims = reader.dims();
  std::erase_if(members, [](const auto& keys) { return keys.empty(); });
  if (content.forced >= 0) {
    sites.forced = static_cast<std::int64_t>(members.size());
    members.push_back({Index(content.forced)});
  }
  for (const auto& keys : members) AddRatioSite(content, reader, keys, sites);
  ResolveInfinity(content, members, sites);
  return sites;
}

std::vector<Moments> OutputMoments(const Problem& problem, const RowContent& content,
                                   const HeadReader& reader) {
  if (problem.stage() == Stage::kWeights) return WeightsStageMoments(content, reader);
  if (MayBeNaN(content)) {
    return std::vector<Moments>(Index(reader.dims()),
                                {.mean = kNaN, .variance = kNaN, .fourth = kNaN});
  }
  return LogitsMoments(content.law, MakeRatioSites(content, reader));
}

Moments RowSumMoments(const Problem& problem, const RowContent& content) {
  if (problem.stage() == Stage::kLogits) {
    if (MayBeNaN(content)) return {.mean = kNaN, .variance = kNaN, .fourth = kNaN};
    return IndicatorMoments(ZeroRowChance(content.law));
  }
  std::vector<double> site_sum;
  return LinearMoments(content.law, SumSites(content, content.weights, site_sum));
}

}  // namespace attndrop
