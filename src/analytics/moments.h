// SPDX-License-Identifier: Apache-2.0
// The exact law of a row: chance of a zero row, inclusion, and moments of sum_j f_j a_j.
#pragma once

#include <cstdint>

#include "attndrop/dropout.h"

namespace attndrop {

// What the figures of a row depend on. A site is the set of visible keys that share one draw.
struct RowLaw {
  EmptyRowPolicy policy;
  double keep_prob = 1.0;       // q, realised
  std::int64_t visible = 0;     // n
  std::int64_t sites = 0;       // m
  bool forced_visible = false;  // keep_self, keep_first: the key that is always kept is visible
};

// Power sums over the sites of A_s, the sum of a_j over the keys of site s that are left to chance.
// The forced key of keep_self and keep_first is not among them; its a_j stands in `forced`.
struct SiteSums {
  double s1 = 0.0;
  double s2 = 0.0;
  double s3 = 0.0;
  double s4 = 0.0;
  double forced = 0.0;

  void Add(double site_sum) noexcept {
    const double square = site_sum * site_sum;
    s1 += site_sum;
    s2 += square;
    s3 += square * site_sum;
    s4 += square * square;
  }
  // A, the sum over all visible keys.
  [[nodiscard]] double total() const noexcept { return s1 + forced; }
};

// Removes what rounding leaves below zero; a NaN stays.
[[nodiscard]] constexpr double NonNegative(double x) noexcept { return x < 0.0 ? 0.0 : x; }

struct Moments {
  double mean = 0.0;
  double variance = 0.0;
  double fourth = 0.0;  // fourth central moment
};

// (Z1), (L3), (P1), (F1), (U2). 1 for a row without visible keys.
[[nodiscard]] double ZeroRowChance(const RowLaw& law) noexcept;

// Chance that a visible key is kept, averaged over the keys: (Z2), (L1), (P2), (U3).
[[nodiscard]] double InclusionChance(const RowLaw& law) noexcept;

// Variance of the kept fraction of the visible keys. `shares` are the sums of a_j = 1/n (C2).
[[nodiscard]] double KeptFractionVariance(const RowLaw& law, const SiteSums& shares) noexcept;

// Mean, variance and fourth central moment of sum_j f_j a_j at stage weights.
[[nodiscard]] Moments LinearMoments(const RowLaw& law, const SiteSums& sums) noexcept;

// Row sum at stage logits: 1, or 0 in an empty row (D1).
[[nodiscard]] Moments IndicatorMoments(double p_zero) noexcept;

// How at_least_one chooses, (L1) and (L2): with chance `any` one of the attempts keeps a key, else
// one key is chosen. Attempts are drawn until one is not empty, so the law given this is that of
// one attempt times any / (1 - p^n) = any_over_single.
struct AtLeastOneLaw {
  double any_over_single = 1.0;  // Z
  double chosen = 0.0;           // p^(nA)
  double inclusion = 1.0;        // pi
};
[[nodiscard]] AtLeastOneLaw MakeAtLeastOneLaw(const RowLaw& law) noexcept;

}  // namespace attndrop
