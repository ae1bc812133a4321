// SPDX-License-Identifier: Apache-2.0
// The Bernoulli stream of Intel's MKL (MCG31m1) with access by index.
#include <algorithm>

#include "attndrop/compat.h"

namespace attndrop::compat {

namespace {

constexpr std::uint32_t kModulus = 2147483647;  // 2^31 - 1, a prime
// A primitive root: its powers visit every state, so the period is kModulus - 1.
constexpr std::uint32_t kMultiplier = 1132489760;

constexpr std::uint32_t MultiplyModulo(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(std::uint64_t{a} * b % kModulus);
}

constexpr std::uint32_t PowerModulo(std::uint32_t base, std::uint64_t exponent) {
  std::uint32_t power = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power = MultiplyModulo(power, base);
    base = MultiplyModulo(base, base);
  }
  return power;
}

// The library's own comparison: the quotient is rounded to float32, and so is the probability.
bool KeepsState(std::uint32_t state, float keep_prob) {
  return static_cast<float>(static_cast<double>(state) / kModulus) < keep_prob;
}

// The smallest state that is dropped. One exists or is kModulus itself, as the rounded quotient
// grows with the state.
std::uint32_t FindThreshold(double keep_prob) {
  if (!(keep_prob > 0.0)) return 1;
  const auto rounded = static_cast<float>(std::min(keep_prob, 1.0));
  std::uint32_t first = 1;
  std::uint32_t last = kModulus;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (KeepsState(middle, rounded)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

}  // namespace

MklBernoulliStream::MklBernoulliStream(std::uint32_t seed32, double keep_prob) noexcept
    : first_state_(seed32 % kModulus), threshold_(FindThreshold(keep_prob)) {
  if (first_state_ == 0) first_state_ = 1;
}

std::uint32_t MklBernoulliStream::StateAt(std::uint64_t index) const noexcept {
  return MultiplyModulo(first_state_, PowerModulo(kMultiplier, index % kPeriod));
}

bool MklBernoulliStream::Keep(std::uint64_t index) const noexcept {
  return StateAt(index) < threshold_;
}

void MklBernoulliStream::Fill(std::uint64_t first_index,
                              std::span<std::uint8_t> keep) const noexcept {
  std::uint32_t state = StateAt(first_index);
  for (std::uint8_t& flag : keep) {
    flag = state < threshold_ ? 1 : 0;
    state = MultiplyModulo(state, kMultiplier);
  }
}

}  // namespace attndrop::compat
