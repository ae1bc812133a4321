// SPDX-License-Identifier: Apache-2.0
// Lag correlations of bit matrices by counting bits.
#include "support/statistics.h"

#include <algorithm>
#include <cstdlib>

namespace attndrop::testing {
namespace {

// Bits first .. first + count - 1 of a row.
struct Span {
  std::size_t first = 0;
  std::size_t count = 0;
};

// 64 bits from position `at` on; bits beyond the row are zero.
std::uint64_t BitsFrom(const std::uint64_t* row, std::size_t words, std::size_t at) {
  const std::size_t word = at / 64, shift = at % 64;
  if (word >= words) return 0;
  std::uint64_t bits = row[word] >> shift;
  if (shift != 0 && word + 1 < words) bits |= row[word + 1] << (64 - shift);
  return bits;
}

std::uint64_t Mask(std::size_t count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

struct PairCounts {
  double both = 0.0, first = 0.0, second = 0.0, cells = 0.0;
};

void CountPairs(const BitMatrix& matrix, std::size_t row, std::size_t row2, const Span& span,
                std::size_t first2, PairCounts& counts) {
  const std::size_t words = matrix.words_per_row();
  for (std::size_t done = 0; done < span.count; done += 64) {
    const std::uint64_t mask = Mask(span.count - done);
    const std::uint64_t a = BitsFrom(matrix.row(row), words, span.first + done) & mask;
    const std::uint64_t b = BitsFrom(matrix.row(row2), words, first2 + done) & mask;
    counts.both += std::popcount(a & b);
    counts.first += std::popcount(a);
    counts.second += std::popcount(b);
  }
  counts.cells += static_cast<double>(span.count);
}

}  // namespace

double LargestLagZ(const BitMatrix& matrix, double q, int reach) {
  double largest = 0.0;
  for (int dr = 0; dr <= reach; ++dr) {
    for (int dc = dr == 0 ? 1 : -reach; dc <= reach; ++dc) {
      const auto move = static_cast<std::size_t>(std::abs(dc));
      const Span span{dc < 0 ? move : 0, matrix.cols - move};
      PairCounts counts;
      for (std::size_t r = 0; r + static_cast<std::size_t>(dr) < matrix.rows; ++r) {
        CountPairs(matrix, r, r + static_cast<std::size_t>(dr), span, dc < 0 ? 0 : move, counts);
      }
      // sum of (x - q)(y - q) over the pairs; its variance is cells (q (1 - q))^2.
      const double sum = counts.both - q * (counts.first + counts.second) + q * q * counts.cells;
      largest = std::max(largest, std::fabs(sum) / (q * (1.0 - q) * std::sqrt(counts.cells)));
    }
  }
  return largest;
}

}  // namespace attndrop::testing
