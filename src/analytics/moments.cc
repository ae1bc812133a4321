// SPDX-License-Identifier: Apache-2.0
// Closed forms for the policies at stage weights (docs/math: zero, at_least_one, keep_self,
// keep_first, undropped).
#include "analytics/moments.h"

#include <cmath>

namespace attndrop {
namespace {

// p^count for count draws that all fail.
double AllDropped(const RowLaw& law, std::int64_t count) noexcept {
  return std::pow(1.0 - law.keep_prob, static_cast<double>(count));
}

// 1 - p^count without cancellation.
double AnyKept(double keep_prob, double count) noexcept {
  return -std::expm1(count * std::log1p(-keep_prob));
}

bool IsForced(const RowLaw& law) noexcept {
  return law.forced_visible &&
         (law.policy.kind == EmptyRow::kKeepSelf || law.policy.kind == EmptyRow::kKeepFirst);
}

// Central moments of Y = sum_s (keep_s / q) A_s with independent keep_s: (Z4), (Z5).
struct CentralMoments {
  double second = 0.0;
  double third = 0.0;
  double fourth = 0.0;
};

CentralMoments IndependentSites(double q, const SiteSums& sums) noexcept {
  const double p = 1.0 - q;
  CentralMoments y;
  y.second = p / q * sums.s2;
  y.third = p * (1.0 - 2.0 * q) / (q * q) * sums.s3;
  y.fourth = p * (1.0 - 6.0 * p * q) / (q * q * q) * sums.s4 + 3.0 * y.second * y.second;
  return y;
}

double FourthPower(double x) noexcept { return x * x * x * x; }

// E[(g Y - A)^4], where A is the mean of Y.
double ScaledFourth(double g, double mean, const CentralMoments& y) noexcept {
  const double shift = (g - 1.0) * mean;
  return FourthPower(g) * y.fourth + 4.0 * g * g * g * y.third * shift +
         6.0 * g * g * y.second * shift * shift + FourthPower(shift);
}

// (L4): split into the spread of the a_j and their mean, so that nothing cancels for small p.
double AtLeastOneVariance(const RowLaw& law, const AtLeastOneLaw& chosen,
                          const SiteSums& sums) noexcept {
  if (law.visible == 1) return 0.0;
  const auto n = static_cast<double>(law.visible);
  const double q = law.keep_prob;
  const double p = 1.0 - q;
  const double z = chosen.any_over_single;
  const double t = chosen.chosen;
  const double pi = chosen.inclusion;
  const double excess = (AllDropped(law, law.visible) - t) / AnyKept(q, n);  // Z - 1
  const double spread = NonNegative(sums.s2 - sums.s1 * sums.s1 / n);
  const double of_spread = (p * q * z + t / n) / (pi * pi);
  const double of_mean = (q * z * (p - n * q * excess - 2.0 * t) + t * (1.0 - t) / n) / (pi * pi);
  return of_spread * spread + NonNegative(of_mean) * sums.s1 * sums.s1 / n;
}

// E[(X - A)^4] = Z (E[(q/pi Y - A)^4] - p^n A^4) + p^(nA)/n sum_j (a_j/pi - A)^4 (L5).
double AtLeastOneFourth(const RowLaw& law, const AtLeastOneLaw& chosen,
                        const SiteSums& sums) noexcept {
  if (law.visible == 1) return 0.0;
  const auto n = static_cast<double>(law.visible);
  const double mean = sums.s1;
  const double pi = chosen.inclusion;
  const CentralMoments y = IndependentSites(law.keep_prob, sums);
  const double drawn =
      ScaledFourth(law.keep_prob / pi, mean, y) - AllDropped(law, law.visible) * FourthPower(mean);
  const double one_key = sums.s4 / FourthPower(pi) - 4.0 * mean * sums.s3 / (pi * pi * pi) +
                         6.0 * mean * mean * sums.s2 / (pi * pi) -
                         4.0 * mean * mean * mean * sums.s1 / pi + n * FourthPower(mean);
  return chosen.any_over_single * drawn + chosen.chosen / n * one_key;
}

// (U5); with one site the two terms nearly cancel and their difference has a form of its own.
double UndroppedVariance(const RowLaw& law, const SiteSums& sums) noexcept {
  const double q = law.keep_prob;
  const double p = 1.0 - q;
  const double empty = AllDropped(law, law.sites);
  const double g = 1.0 / (1.0 + empty);
  if (law.sites == 1) return g * g * p * p * p / q * sums.s2;
  return g * g * (p / q * sums.s2 - empty * (1.0 + empty) * sums.s1 * sums.s1);
}

double UndroppedFourth(const RowLaw& law, const SiteSums& sums) noexcept {
  const double empty = AllDropped(law, law.sites);
  const double g = 1.0 / (1.0 + empty);
  const double mean = sums.s1;
  return ScaledFourth(g, mean, IndependentSites(law.keep_prob, sums)) - empty * FourthPower(mean) +
         empty * FourthPower((g - 1.0) * mean);
}

}  // namespace

AtLeastOneLaw MakeAtLeastOneLaw(const RowLaw& law) noexcept {
  if (law.visible == 0) return {};
  const auto n = static_cast<double>(law.visible);
  const double all_draws = n * static_cast<double>(law.policy.attempts);
  AtLeastOneLaw result;
  result.chosen = std::pow(1.0 - law.keep_prob, all_draws);
  result.any_over_single = AnyKept(law.keep_prob, all_draws) / AnyKept(law.keep_prob, n);
  result.inclusion = law.keep_prob * result.any_over_single + result.chosen / n;
  return result;
}

double ZeroRowChance(const RowLaw& law) noexcept {
  if (law.visible == 0) return 1.0;
  switch (law.policy.kind) {
    case EmptyRow::kZero:
      return AllDropped(law, law.sites);
    case EmptyRow::kAtLeastOne:
    case EmptyRow::kUndropped:
      return 0.0;
    case EmptyRow::kKeepSelf:
    case EmptyRow::kKeepFirst:
      return law.forced_visible ? 0.0 : AllDropped(law, law.sites);
  }
  return 0.0;
}

double InclusionChance(const RowLaw& law) noexcept {
  if (law.visible == 0) return 0.0;
  const auto n = static_cast<double>(law.visible);
  if (IsForced(law)) return (law.keep_prob * (n - 1.0) + 1.0) / n;
  switch (law.policy.kind) {
    case EmptyRow::kAtLeastOne:
      return MakeAtLeastOneLaw(law).inclusion;
    case EmptyRow::kUndropped:
      return law.keep_prob + AllDropped(law, law.sites);
    case EmptyRow::kZero:
    case EmptyRow::kKeepSelf:
    case EmptyRow::kKeepFirst:
      return law.keep_prob;
  }
  return law.keep_prob;
}

double KeptFractionVariance(const RowLaw& law, const SiteSums& shares) noexcept {
  if (law.visible == 0) return 0.0;
  const double q = law.keep_prob;
  const double independent = q * (1.0 - q) * shares.s2;
  if (law.policy.kind == EmptyRow::kAtLeastOne) {
    const AtLeastOneLaw chosen = MakeAtLeastOneLaw(law);
    return chosen.inclusion * chosen.inclusion * AtLeastOneVariance(law, chosen, shares);
  }
  if (law.policy.kind == EmptyRow::kUndropped) {
    const double empty = AllDropped(law, law.sites);
    return NonNegative(independent + empty * (1.0 - 2.0 * q - empty));
  }
  return independent;
}

Moments LinearMoments(const RowLaw& law, const SiteSums& sums) noexcept {
  if (law.visible == 0 || law.keep_prob == 0.0) return {};
  Moments result{.mean = sums.total()};
  if (law.keep_prob == 1.0) return result;
  switch (law.policy.kind) {
    case EmptyRow::kZero:
    case EmptyRow::kKeepSelf:
    case EmptyRow::kKeepFirst: {
      const CentralMoments y = IndependentSites(law.keep_prob, sums);
      result.variance = y.second;
      result.fourth = y.fourth;
      break;
    }
    case EmptyRow::kAtLeastOne: {
      const AtLeastOneLaw chosen = MakeAtLeastOneLaw(law);
      result.variance = AtLeastOneVariance(law, chosen, sums);
      result.fourth = AtLeastOneFourth(law, chosen, sums);
      break;
    }
    case EmptyRow::kUndropped:
      result.variance = UndroppedVariance(law, sums);
      result.fourth = UndroppedFourth(law, sums);
      break;
  }
  return result;
}

Moments IndicatorMoments(double p_zero) noexcept {
  const double variance = p_zero * (1.0 - p_zero);
  return {.mean = 1.0 - p_zero, .variance = variance, .fourth = variance * (1.0 - 3.0 * variance)};
}

}  // namespace attndrop
