// SPDX-License-Identifier: Apache-2.0
// The law of an output at stage logits: a softmax over the sites that are kept
// (docs/math/logits.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analytics/moments.h"

namespace attndrop {

// The sites of one row. A site weighs exp(log_weight), relative to any constant; `values` is the
// mean of the value rows of its keys under their weights, (sites, dims). log_weight is never NaN.
struct RatioSites {
  std::vector<double> log_weight;
  std::vector<double> values;
  std::int64_t dims = 0;
  std::int64_t forced = -1;  // index of the site that is always kept
  [[nodiscard]] std::int64_t size() const noexcept {
    return static_cast<std::int64_t>(log_weight.size());
  }
  // Sites left to chance.
  [[nodiscard]] std::int64_t num_draws() const noexcept { return size() - (forced >= 0 ? 1 : 0); }
};

// The softmax weight of every site when all are kept.
[[nodiscard]] std::vector<double> SiteSoftmax(std::span<const double> log_weight);

// E[weight of site s in the softmax over the kept sites; some site is kept], for independent draws
// with probability keep_prob in (0, 1): the integral (D4). Any number of sites; relative error near
// that of double arithmetic.
[[nodiscard]] std::vector<double> ExpectedWeights(const RatioSites& sites, double keep_prob);

// Raw moments of a variable about a fixed centre, summed over outcomes.
struct RawMoments {
  double m1 = 0.0;
  double m2 = 0.0;
  double m3 = 0.0;
  double m4 = 0.0;
  // An outcome of chance `probability` at distance `d` from the centre.
  void Add(double probability, double d) noexcept {
    const double first = probability * d;
    const double second = first * d;
    m1 += first;
    m2 += second;
    m3 += second * d;
    m4 += second * d * d;
  }
  void Scale(double factor) noexcept {
    m1 *= factor;
    m2 *= factor;
    m3 *= factor;
    m4 *= factor;
  }
};

// Raw moments about `centre` (dims) of the softmax-weighted mean of the kept sites, summed over all
// outcomes that keep a site, by enumeration (D3). At most 2^num_draws outcomes.
[[nodiscard]] std::vector<RawMoments> EnumerateRatio(const RatioSites& sites, double keep_prob,
                                                     std::span<const double> centre);

// Mean, variance and fourth central moment of every dimension of an output at stage logits. Beyond
// kMaxEnumeratedDraws draws variance and fourth are NaN.
[[nodiscard]] std::vector<Moments> LogitsMoments(const RowLaw& law, const RatioSites& sites);

}  // namespace attndrop
