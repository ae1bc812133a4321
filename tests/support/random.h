// SPDX-License-Identifier: Apache-2.0
// Random numbers for tests: the same on every machine and every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace attndrop::testing {

// SplitMix64 (Steele, Lea, Flood, 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // In [0, n); the bias of the remainder does not matter here.
  std::int64_t Below(std::int64_t n) {
    return static_cast<std::int64_t>(Next() % static_cast<std::uint64_t>(n));
  }
  // In [low, high].
  std::int64_t Between(std::int64_t low, std::int64_t high) { return low + Below(high - low + 1); }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Uniform() < probability; }
  template <class T>
  T Pick(std::initializer_list<T> choices) {
    return choices.begin()[Below(static_cast<std::int64_t>(choices.size()))];
  }
  // Mean 0, variance 1, in about [-6, 6]: a sum of twelve uniform numbers.
  double Normal() {
    double sum = -6.0;
    for (int k = 0; k < 12; ++k) sum += Uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

}  // namespace attndrop::testing
