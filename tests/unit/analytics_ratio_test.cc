// SPDX-License-Identifier: Apache-2.0
// The integral for softmax rows against enumeration and against closed forms.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "analytics/ratio.h"

namespace attndrop {
namespace {

// E[weight of each site; some site kept], by a loop over all subsets that shares no code with src.
std::vector<long double> BruteWeights(const RatioSites& sites, double keep_prob) {
  const auto m = static_cast<std::size_t>(sites.size());
  std::vector<long double> result(m, 0.0L);
  for (std::uint64_t bits = 1; bits < (std::uint64_t{1} << m); ++bits) {
    long double probability = 1.0L;
    long double top = -1e300L;
    for (std::size_t s = 0; s < m; ++s) {
      const bool kept = ((bits >> s) & 1) != 0;
      const long double q =
          static_cast<std::int64_t>(s) == sites.forced ? 1.0L : static_cast<long double>(keep_prob);
      probability *= kept ? q : 1.0L - q;
      if (kept) top = std::max(top, static_cast<long double>(sites.log_weight[s]));
    }
    if (probability == 0.0L) continue;
    long double total = 0.0L;
    for (std::size_t s = 0; s < m; ++s) {
      if (((bits >> s) & 1) != 0)
        total += std::exp(static_cast<long double>(sites.log_weight[s]) - top);
    }
    for (std::size_t s = 0; s < m; ++s) {
      if (((bits >> s) & 1) != 0) {
        result[s] +=
            probability * std::exp(static_cast<long double>(sites.log_weight[s]) - top) / total;
      }
    }
  }
  return result;
}

RatioSites RandomSites(std::int64_t count, double spread, std::int64_t forced) {
  std::mt19937_64 engine(static_cast<std::uint64_t>(count) * 31 + 5);
  std::normal_distribution<double> normal;
  RatioSites sites;
  sites.forced = forced;
  for (std::int64_t s = 0; s < count; ++s) sites.log_weight.push_back(spread * normal(engine));
  return sites;
}

TEST(RatioIntegral, AgreesWithEnumeration) {
  for (const std::int64_t count : {1, 2, 10, 13, 16}) {
    for (const double spread : {0.0, 1.0, 12.0, 400.0}) {
      for (const double q : {0.01, 0.5, 0.9, 1.0 - 1e-7}) {
        for (const std::int64_t forced : {std::int64_t{-1}, count / 2}) {
          const RatioSites sites = RandomSites(count, spread, forced);
          const std::vector<double> got = ExpectedWeights(sites, q);
          const std::vector<long double> want = BruteWeights(sites, q);
          long double any = 0.0L;
          for (const long double x : want) any += x;
          for (std::size_t s = 0; s < got.size(); ++s) {
            ASSERT_LE(std::abs(static_cast<long double>(got[s]) - want[s]), 1e-12L * any)
                << count << " sites, spread " << spread << ", q " << q << ", site " << s << ": got "
                << got[s] << ", want " << static_cast<double>(want[s]);
          }
        }
      }
    }
  }
}

TEST(RatioIntegral, EqualSitesShareTheChanceOfAnyKept) {
  for (const std::int64_t count : {17, 100, 5000}) {
    for (const double q : {1e-4, 0.3, 0.9}) {
      const RatioSites sites = RandomSites(count, 0.0, -1);
      const double any = -std::expm1(static_cast<double>(count) * std::log1p(-q));
      for (const double x : ExpectedWeights(sites, q)) {
        ASSERT_NEAR(x * static_cast<double>(count) / any, 1.0, 1e-12);
      }
    }
  }
}

// Weights of any spread: the sum is the chance that something is kept.
TEST(RatioIntegral, WeightsSumToTheChanceOfAnyKept) {
  for (const double spread : {1.0, 30.0, 1e6, 1e30}) {
    const RatioSites sites = RandomSites(40, spread, -1);
    double sum = 0.0;
    for (const double x : ExpectedWeights(sites, 0.2)) sum += x;
    EXPECT_NEAR(sum, 1.0 - std::pow(0.8, 40.0), 1e-12) << spread;
  }
}

// The largest kept site decides; the smaller ones have no double weight beside it.
TEST(RatioEnumeration, FarApartSites) {
  RatioSites sites;
  sites.log_weight = {0.0, -5000.0, 5000.0};
  sites.values = {1.0, 10.0, 100.0};
  sites.dims = 1;
  const double q = 0.25;
  const double p = 0.75;
  const std::vector<double> centre = {0.0};
  const std::vector<RawMoments> raw = EnumerateRatio(sites, q, centre);
  EXPECT_NEAR(raw[0].m1, q * 100.0 + p * q * 1.0 + p * p * q * 10.0, 1e-12);
  EXPECT_NEAR(raw[0].m2, q * 1e4 + p * q * 1.0 + p * p * q * 100.0, 1e-9);
}

}  // namespace
}  // namespace attndrop
