// SPDX-License-Identifier: Apache-2.0
// Distances between exact figures and estimates, in standard errors (docs/math/simulation.md).
#pragma once

#include <cstdint>

#include "attndrop/analytics.h"

#include "analytics/moments.h"

namespace attndrop {

// The standard normal quantile of a tail: x with P(X > x) = tail, tail in (0, 0.5].
[[nodiscard]] double NormalQuantile(double tail) noexcept;

// Score of `count` successes in `draws` of chance `probability` (C1): the normal one where the
// expected counts are large, else the normal quantile of the exact binomial tail.
[[nodiscard]] double BinomialScore(std::int64_t count, std::int64_t draws,
                                   double probability) noexcept;

// (estimate - exact) / standard error, softened by the rounding of sums of magnitude `scale`. NaN
// when exact is.
[[nodiscard]] Check MakeCheck(double exact, double estimate, double standard_error,
                              double scale) noexcept;

// Mean and variance of draws, accumulated about a centre.
class Sample {
 public:
  void Add(double distance) noexcept {
    ++count_;
    sum_ += distance;
    squares_ += distance * distance;
  }
  // About the centre.
  [[nodiscard]] double mean() const noexcept { return sum_ / static_cast<double>(count_); }
  // Unbiased; needs two draws.
  [[nodiscard]] double variance() const noexcept {
    const auto n = static_cast<double>(count_);
    return NonNegative((squares_ - sum_ * sum_ / n) / (n - 1.0));
  }
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  std::int64_t count_ = 0;
  double sum_ = 0.0;
  double squares_ = 0.0;
};

// Score of a sample's mean (C2) and of its variance (C3); `law` gives the standard errors, `exact`
// the figures that are checked. A NaN variance in `law` is replaced by the sample's.
[[nodiscard]] Check CheckMean(double exact_mean, const Moments& law, double centre,
                              const Sample& sample, double scale) noexcept;
[[nodiscard]] Check CheckVariance(double exact_variance, const Moments& law, const Sample& sample,
                                  double scale) noexcept;

}  // namespace attndrop
