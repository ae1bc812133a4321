// SPDX-License-Identifier: Apache-2.0
// Scores of simulated figures.
#include "analytics/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attndrop {
namespace {

// Above this variance of a count the binomial law is close to the normal one.
constexpr double kNormalCountVariance = 1000.0;
// Rounding of long sums, relative to their terms.
constexpr double kRounding = 1e-12;

double LogBinomial(double n, double k) noexcept {
  return std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0);
}

// P(count in [first, last]) for probability in (0, 1); stops where the terms no longer count.
double BinomialSum(double draws, double probability, double first, double last) noexcept {
  const double odds = probability / (1.0 - probability);
  // From the end that is nearer to the mean, away from it.
  const bool upwards = first >= draws * probability;
  double k = upwards ? first : last;
  double term = std::exp(LogBinomial(draws, k) + k * std::log(probability) +
                         (draws - k) * std::log1p(-probability));
  double sum = 0.0;
  for (; k >= first && k <= last && term > sum * 1e-17; k += upwards ? 1.0 : -1.0) {
    sum += term;
    term *= upwards ? (draws - k) / (k + 1.0) * odds : k / ((draws - k + 1.0) * odds);
  }
  return sum;
}

}  // namespace

double NormalQuantile(double tail) noexcept {
  double low = 0.0;
  double high = 40.0;
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    const bool above = 0.5 * std::erfc(middle / std::sqrt(2.0)) > tail;
    (above ? low : high) = middle;
  }
  return low;
}

double BinomialScore(std::int64_t count, std::int64_t draws, double probability) noexcept {
  const auto n = static_cast<double>(draws);
  const auto k = static_cast<double>(count);
  if (std::isnan(probability)) return probability;
  const double difference = k - n * probability;
  const double variance = n * probability * (1.0 - probability);
  if (variance == 0.0) {
    if (difference == 0.0) return 0.0;
    return std::copysign(std::numeric_limits<double>::infinity(), difference);
  }
  if (variance >= kNormalCountVariance) return difference / std::sqrt(variance);
  // Half of the chance of the count itself goes to either tail.
  const double here = BinomialSum(n, probability, k, k);
  const bool high = difference > 0.0;
  const double beyond =
      high ? BinomialSum(n, probability, k + 1.0, n) : BinomialSum(n, probability, 0.0, k - 1.0);
  const double score = NormalQuantile(std::min(0.5, beyond + 0.5 * here));
  return high ? score : -score;
}

Check MakeCheck(double exact, double estimate, double standard_error, double scale) noexcept {
  const double difference = estimate - exact;
  const double error = std::hypot(standard_error, kRounding * scale);
  const double z = difference == 0.0 ? 0.0 : difference / error;
  return {.exact = exact, .estimate = estimate, .z = z};
}

Check CheckMean(double exact_mean, const Moments& law, double centre, const Sample& sample,
                double scale) noexcept {
  const double variance = std::isnan(law.variance) ? sample.variance() : law.variance;
  const double error = std::sqrt(variance / static_cast<double>(sample.count()));
  return MakeCheck(exact_mean, centre + sample.mean(), error, scale);
}

Check CheckVariance(double exact_variance, const Moments& law, const Sample& sample,
                    double scale) noexcept {
  const auto n = static_cast<double>(sample.count());
  const double of_variance = (law.fourth - law.variance * law.variance * (n - 3.0) / (n - 1.0)) / n;
  return MakeCheck(exact_variance, sample.variance(), std::sqrt(NonNegative(of_variance)),
                   scale * scale);
}

}  // namespace attndrop
