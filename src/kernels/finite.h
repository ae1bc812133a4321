// SPDX-License-Identifier: Apache-2.0
// Whether numbers are neither NaN nor infinite, from their bits: no flag of the compiler changes
// it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace attndrop {

[[nodiscard]] inline bool IsFinite(float x) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000;
  return (std::bit_cast<std::uint32_t>(x) & kExponent) != kExponent;
}

// Written so that it becomes vectors.
[[nodiscard]] inline bool AllFinite(const float* x, std::size_t count) noexcept {
  std::uint32_t others = 0;
  for (std::size_t i = 0; i < count; ++i) others |= IsFinite(x[i]) ? 0U : 1U;
  return others == 0;
}

}  // namespace attndrop
