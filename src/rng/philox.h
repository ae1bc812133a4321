// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10: four random words as a function of a key and a counter (Salmon et al., 2011).
#pragma once

#include <array>
#include <cstdint>

namespace attndrop {

using PhiloxWords = std::array<std::uint32_t, 4>;  // counter or result, word 0 first

struct PhiloxKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
  friend bool operator==(const PhiloxKey&, const PhiloxKey&) = default;
};

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxIncrement0 = 0x9E3779B9;
inline constexpr std::uint32_t kPhiloxIncrement1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

[[nodiscard]] constexpr PhiloxWords Philox(PhiloxKey key, PhiloxWords x) noexcept {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{kPhiloxMultiplier0} * x[0];
    const std::uint64_t p1 = std::uint64_t{kPhiloxMultiplier1} * x[2];
    x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ key.k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ key.k1, static_cast<std::uint32_t>(p0)};
    key.k0 += kPhiloxIncrement0;
    key.k1 += kPhiloxIncrement1;
  }
  return x;
}

}  // namespace attndrop
