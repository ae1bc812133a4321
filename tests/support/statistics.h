// SPDX-License-Identifier: Apache-2.0
// Exact binomial limits, bit matrices and correlations for the statistical tests. Every test has a
// fixed seed and fails by chance once in a thousand million.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/normal.hpp>
#include <gtest/gtest.h>

namespace attndrop::testing {

// Two-sided, for one test; divided by the number of looks where a test looks many times.
inline constexpr double kAlpha = 1e-9;

// Clopper-Pearson: the interval of probabilities that `successes` of `trials` do not reject must
// hold `probability`.
[[nodiscard]] inline ::testing::AssertionResult Consistent(std::uint64_t successes,
                                                           std::uint64_t trials, double probability,
                                                           double alpha = kAlpha) {
  using Binomial = boost::math::binomial_distribution<double>;
  const auto n = static_cast<double>(trials), k = static_cast<double>(successes);
  const double low = Binomial::find_lower_bound_on_p(n, k, alpha / 2);
  const double high = Binomial::find_upper_bound_on_p(n, k, alpha / 2);
  if (low <= probability && probability <= high) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << successes << " of " << trials << " = " << k / n << " is not consistent with "
         << probability << ": [" << low << ", " << high << "]";
}

// The z score that the largest of `looks` normal numbers exceeds with probability kAlpha.
[[nodiscard]] inline double ZLimit(double looks) {
  return boost::math::quantile(
      boost::math::complement(boost::math::normal_distribution<double>(), kAlpha / 2 / looks));
}

// Too uneven and too even both fail.
[[nodiscard]] inline ::testing::AssertionResult ConsistentChiSquare(double value, double freedom) {
  const boost::math::chi_squared_distribution<double> law(freedom);
  const double low = boost::math::quantile(law, kAlpha / 2);
  const double high = boost::math::quantile(boost::math::complement(law, kAlpha / 2));
  if (low <= value && value <= high) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "chi-square " << value << " with " << freedom << " degrees of freedom is outside ["
         << low << ", " << high << "]";
}

// Rows of bits, 64 to a word; cols is a multiple of 64.
struct BitMatrix {
  std::size_t rows = 0, cols = 0;
  std::vector<std::uint64_t> words;
  BitMatrix(std::size_t r, std::size_t c) : rows(r), cols(c), words(r * c / 64, 0) {}
  [[nodiscard]] std::size_t words_per_row() const { return cols / 64; }
  [[nodiscard]] const std::uint64_t* row(std::size_t r) const {
    return words.data() + r * words_per_row();
  }
  void Set(std::size_t r, std::size_t c, bool bit) {
    words[(r * cols + c) / 64] |= std::uint64_t{bit} << (c % 64);
  }
  [[nodiscard]] bool Get(std::size_t r, std::size_t c) const {
    return ((words[(r * cols + c) / 64] >> (c % 64)) & 1U) != 0;
  }
  [[nodiscard]] std::uint64_t Count() const {
    std::uint64_t count = 0;
    for (const std::uint64_t word : words) count += static_cast<std::uint64_t>(std::popcount(word));
    return count;
  }
};

// The largest |z| of the correlations of a matrix with itself moved by (dr, dc), over
// 0 <= dr <= reach and |dc| <= reach, of 1 bits expected with probability q.
[[nodiscard]] double LargestLagZ(const BitMatrix& matrix, double q, int reach);

// Cells in which two matrices agree; independent ones with q agree with probability q^2 + (1-q)^2.
[[nodiscard]] inline std::uint64_t Agreement(const BitMatrix& a, const BitMatrix& b) {
  std::uint64_t count = 0;
  for (std::size_t k = 0; k < a.words.size(); ++k) {
    count += static_cast<std::uint64_t>(std::popcount(~(a.words[k] ^ b.words[k])));
  }
  return count;
}

}  // namespace attndrop::testing
