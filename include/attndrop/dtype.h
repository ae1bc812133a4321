// SPDX-License-Identifier: Apache-2.0
// Element types of the arrays, and the exact conversions of the two 16-bit ones.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "attndrop/export.h"

namespace attndrop {

enum class DType : std::uint8_t { kFloat64, kFloat32, kBFloat16, kFloat16 };

// Bytes of one element.
[[nodiscard]] constexpr std::size_t SizeOf(DType dtype) noexcept {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// "f64", "f32", "bf16", "f16": the words of Problem's text form.
[[nodiscard]] ATTNDROP_EXPORT std::string_view DTypeName(DType dtype) noexcept;
[[nodiscard]] ATTNDROP_EXPORT std::optional<DType> ParseDType(std::string_view name) noexcept;

// A float holds every bfloat16 and float16 exactly.
[[nodiscard]] constexpr float BFloat16ToFloat(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
[[nodiscard]] ATTNDROP_EXPORT float Float16ToFloat(std::uint16_t bits) noexcept;

// Rounds once, to nearest, ties to even; overflow gives infinity; a NaN stays a (quiet) NaN.
[[nodiscard]] ATTNDROP_EXPORT std::uint16_t DoubleToBFloat16(double value) noexcept;
[[nodiscard]] ATTNDROP_EXPORT std::uint16_t DoubleToFloat16(double value) noexcept;

}  // namespace attndrop
