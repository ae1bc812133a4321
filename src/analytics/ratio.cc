// SPDX-License-Identifier: Apache-2.0
// Enumeration and the integral for softmax rows whose keys are dropped before the softmax.
#include "analytics/ratio.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attndrop/analytics.h"

namespace attndrop {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Step of the trapezoid rule in u = log t. Its error falls as exp(-pi^2 / step), to 4e-22 here.
constexpr double kStep = 0.2;
// A site counts from z = exp(-kLeft) / sites to z = kRight; what lies outside is below 1e-17.
constexpr double kLeft = 44.0;
constexpr double kRight = 44.0;

std::size_t Index(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

// Sites by falling weight.
std::vector<std::int64_t> Order(const RatioSites& sites) {
  std::vector<std::int64_t> order(Index(sites.size()));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const double of_a = sites.log_weight[Index(a)];
    const double of_b = sites.log_weight[Index(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  return order;
}

// Adds one node of (D4): z holds t Y_s; weights += the integrand of every site.
void AddNode(const RatioSites& sites, double keep_prob, std::span<const double> z,
             std::span<double> weights) noexcept {
  const double p = 1.0 - keep_prob;
  double product = 1.0;
  for (std::size_t s = 0; s < z.size(); ++s) {
    const bool forced = static_cast<std::int64_t>(s) == sites.forced;
    product *= forced ? std::exp(-z[s]) : p + keep_prob * std::exp(-z[s]);
  }
  if (product == 0.0) return;
  for (std::size_t s = 0; s < z.size(); ++s) {
    if (static_cast<std::int64_t>(s) == sites.forced) {
      weights[s] += kStep * z[s] * product;
      continue;
    }
    const double kept = keep_prob * std::exp(-z[s]);
    if (kept > 0.0) weights[s] += kStep * z[s] * kept * (product / (p + kept));
  }
}

// Walks over the kept subsets: sites in falling order of weight, so that the first kept one is the
// largest and every weight is relative to it. Sums only grow: nothing cancels, nothing overflows.
class SubsetWalk {
 public:
  SubsetWalk(const RatioSites& sites, double keep_prob, std::span<const double> centre)
      : sites_(sites),
        keep_prob_(keep_prob),
        order_(Order(sites)),
        dims_(Index(sites.dims)),
        shifted_(sites.values),
        sums_((order_.size() + 1) * dims_),
        moments_(dims_) {
    for (std::size_t i = 0; i < shifted_.size(); ++i) shifted_[i] -= centre[i % dims_];
  }

  std::vector<RawMoments> Run() {
    double probability = 1.0;  // that all sites before `first` are dropped
    for (std::size_t first = 0; first < order_.size() && probability > 0.0; ++first) {
      top_ = sites_.log_weight[Index(order_[first])];
      std::fill_n(sums_.begin(), dims_, 0.0);
      Keep(first, 0, 0.0, probability * KeepChance(first));
      probability *= 1.0 - KeepChance(first);
    }
    return std::move(moments_);
  }

 private:
  [[nodiscard]] double KeepChance(std::size_t i) const noexcept {
    return order_[i] == sites_.forced ? 1.0 : keep_prob_;
  }

  // Site i is kept; `level` sites are kept before it, with weight sum `total`.
  void Keep(std::size_t i, std::size_t level, double total, double probability) {
    const double log_weight = sites_.log_weight[Index(order_[i])];
    const double weight = log_weight == top_ ? 1.0 : std::exp(log_weight - top_);
    const double* value = &shifted_[Index(order_[i]) * dims_];
    const double* before = &sums_[level * dims_];
    double* after = &sums_[(level + 1) * dims_];
    for (std::size_t c = 0; c < dims_; ++c) after[c] = before[c] + weight * value[c];
    Continue(i + 1, level + 1, total + weight, probability);
  }

  void Continue(std::size_t i, std::size_t level, double total, double probability) {
    for (; i < order_.size(); ++i) {
      Keep(i, level, total, probability * KeepChance(i));
      probability *= 1.0 - KeepChance(i);
      if (probability == 0.0) return;
    }
    const double* sum = &sums_[level * dims_];
    for (std::size_t c = 0; c < dims_; ++c) moments_[c].Add(probability, sum[c] / total);
  }

  const RatioSites& sites_;
  double keep_prob_;
  std::vector<std::int64_t> order_;
  std::size_t dims_;
  std::vector<double> shifted_;  // values about the centre
  std::vector<double> sums_;     // (level, dims): weighted sums of the kept sites so far
  std::vector<RawMoments> moments_;
  double top_ = 0.0;
};

std::vector<double> WeightedValues(const RatioSites& sites, std::span<const double> weights) {
  std::vector<double> result(Index(sites.dims), 0.0);
  for (std::size_t s = 0; s < weights.size(); ++s) {
    for (std::size_t c = 0; c < result.size(); ++c) {
      result[c] += weights[s] * sites.values[s * result.size() + c];
    }
  }
  return result;
}

Moments Central(double centre, const RawMoments& raw) noexcept {
  const double m = raw.m1;
  Moments result;
  result.mean = centre + m;
  result.variance = NonNegative(raw.m2 - m * m);
  result.fourth =
      NonNegative(raw.m4 - 4.0 * m * raw.m3 + 6.0 * m * m * raw.m2 - 3.0 * m * m * m * m);
  return result;
}

bool CanBeEmpty(const RowLaw& law, const RatioSites& sites) noexcept {
  return sites.forced < 0 && law.sites > 0;
}

// (D5): what the policy does with an outcome that keeps nothing, added to the other outcomes.
std::vector<Moments> FromEnumeration(const RowLaw& law, const RatioSites& sites,
                                     std::span<const double> centre) {
  std::vector<RawMoments> raw = EnumerateRatio(sites, law.keep_prob, centre);
  const double empty = std::pow(1.0 - law.keep_prob, static_cast<double>(law.sites));
  const auto dims = raw.size();
  std::vector<Moments> result(dims);
  const bool at_least_one = law.policy.kind == EmptyRow::kAtLeastOne;
  const AtLeastOneLaw chosen = at_least_one ? MakeAtLeastOneLaw(law) : AtLeastOneLaw{};
  for (std::size_t c = 0; c < dims; ++c) {
    if (at_least_one) {
      raw[c].Scale(chosen.any_over_single);
      for (std::size_t s = 0; s < sites.log_weight.size(); ++s) {
        raw[c].Add(chosen.chosen / static_cast<double>(law.visible),
                   sites.values[s * dims + c] - centre[c]);
      }
    } else if (law.policy.kind != EmptyRow::kUndropped && CanBeEmpty(law, sites)) {
      raw[c].Add(empty, -centre[c]);
    }
    result[c] = Central(centre[c], raw[c]);
  }
  return result;
}

std::vector<Moments> FromIntegral(const RowLaw& law, const RatioSites& sites,
                                  std::span<const double> softmax) {
  std::vector<double> weights = ExpectedWeights(sites, law.keep_prob);
  const AtLeastOneLaw chosen = MakeAtLeastOneLaw(law);
  const double empty = std::pow(1.0 - law.keep_prob, static_cast<double>(law.sites));
  for (std::size_t s = 0; s < weights.size(); ++s) {
    if (law.policy.kind == EmptyRow::kAtLeastOne) {
      weights[s] =
          chosen.any_over_single * weights[s] + chosen.chosen / static_cast<double>(law.visible);
    } else if (law.policy.kind == EmptyRow::kUndropped) {
      weights[s] += empty * softmax[s];
    }
  }
  const std::vector<double> mean = WeightedValues(sites, weights);
  std::vector<Moments> result(mean.size());
  for (std::size_t c = 0; c < mean.size(); ++c) {
    result[c] = {.mean = mean[c], .variance = kNaN, .fourth = kNaN};
  }
  return result;
}

}  // namespace

std::vector<double> SiteSoftmax(std::span<const double> log_weight) {
  std::vector<double> weights(log_weight.begin(), log_weight.end());
  if (weights.empty()) return weights;
  const double top = *std::max_element(weights.begin(), weights.end());
  double total = 0.0;
  for (double& weight : weights) {
    weight = weight == top ? 1.0 : std::exp(weight - top);
    total += weight;
  }
  for (double& weight : weights) weight /= total;
  return weights;
}

std::vector<double> ExpectedWeights(const RatioSites& sites, double keep_prob) {
  const std::vector<std::int64_t> order = Order(sites);
  const double left =
      kLeft + std::log(static_cast<double>(std::max<std::int64_t>(1, sites.size())));
  const double right = std::log(kRight);
  std::vector<double> weights(order.size(), 0.0);
  std::vector<double> z(order.size());
  // Sites whose ranges of u overlap share nodes; between groups the integrand is nil.
  for (std::size_t begin = 0; begin < order.size();) {
    const double base = sites.log_weight[Index(order[begin])];
    std::size_t end = begin + 1;
    const auto log_ratio = [&](std::size_t i) { return sites.log_weight[Index(order[i])] - base; };
    while (end < order.size() && log_ratio(end - 1) - log_ratio(end) <= left + right) ++end;
    const double length = left + right - log_ratio(end - 1);
    const auto num_nodes = static_cast<std::int64_t>(std::ceil(length / kStep)) + 1;
    for (std::int64_t node = 0; node < num_nodes; ++node) {
      const double u = -left + kStep * static_cast<double>(node);
      for (std::size_t i = 0; i < order.size(); ++i) {
        z[Index(order[i])] = std::min(1e300, std::exp(u + log_ratio(i)));
      }
      AddNode(sites, keep_prob, z, weights);
    }
    begin = end;
  }
  return weights;
}

std::vector<RawMoments> EnumerateRatio(const RatioSites& sites, double keep_prob,
                                       std::span<const double> centre) {
  return SubsetWalk(sites, keep_prob, centre).Run();
}

std::vector<Moments> LogitsMoments(const RowLaw& law, const RatioSites& sites) {
  const auto dims = Index(sites.dims);
  if (law.visible == 0 || law.keep_prob == 0.0) return std::vector<Moments>(dims);
  const std::vector<double> softmax = SiteSoftmax(sites.log_weight);
  const std::vector<double> centre = WeightedValues(sites, softmax);
  if (law.keep_prob == 1.0) {
    std::vector<Moments> result(dims);
    for (std::size_t c = 0; c < dims; ++c) result[c].mean = centre[c];
    return result;
  }
  if (sites.num_draws() > kMaxEnumeratedDraws) return FromIntegral(law, sites, softmax);
  return FromEnumeration(law, sites, centre);
}

}  // namespace attndrop
