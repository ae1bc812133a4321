// SPDX-License-Identifier: Apache-2.0
// Names of the element types, and conversions of the 16-bit ones by integer arithmetic.
#include "attndrop/dtype.h"

#include <cmath>

namespace attndrop {
namespace {

struct Format {
  int mantissa_bits;  // stored ones
  int exponent_bits;
};
constexpr Format kBFloat16Format{7, 8};
constexpr Format kFloat16Format{10, 5};

// Rounds a double once to a 16-bit format: nearest, ties to even.
std::uint16_t RoundTo(Format format, double value) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 48) & 0x8000);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const auto infinity =
      static_cast<std::uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
  const std::uint64_t fraction = bits & 0x000FFFFFFFFFFFFF;
  const int exponent = static_cast<int>((bits >> 52) & 0x7FF);
  if (exponent == 0x7FF) {
    const auto quiet = static_cast<std::uint16_t>(1 << (format.mantissa_bits - 1));
    return static_cast<std::uint16_t>(sign | infinity | (fraction != 0 ? quiet : 0));
  }
  if (exponent == 0) return sign;  // a subnormal double is far below half of the smallest number
  // The value is significand * 2^(exponent - 1075); numbers of the format are multiples of
  // 2^(max(unbiased, 1 - bias) - mantissa_bits).
  const std::uint64_t significand = fraction | 0x0010000000000000;
  const int unbiased = exponent - 1023;
  const bool normal = unbiased >= 1 - bias;
  const int shift = 52 - format.mantissa_bits + (normal ? 0 : 1 - bias - unbiased);
  if (shift > 54) return sign;
  std::uint64_t rounded = significand >> shift;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  // A normal number carries its leading one into the exponent field; so does a subnormal that
  // rounded up to the smallest normal number.
  const std::uint64_t exponent_field =
      normal ? static_cast<std::uint64_t>(unbiased + bias - 1) << format.mantissa_bits : 0;
  const std::uint64_t result = rounded + exponent_field;
  if (result >= infinity) return static_cast<std::uint16_t>(sign | infinity);
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace

std::string_view DTypeName(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      return "f64";
    case DType::kFloat32:
      return "f32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "f16";
  }
  return "unknown";
}

std::optional<DType> ParseDType(std::string_view name) noexcept {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

float Float16ToFloat(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1F;
  const std::uint32_t fraction = bits & 0x3FF;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

std::uint16_t DoubleToBFloat16(double value) noexcept { return RoundTo(kBFloat16Format, value); }

std::uint16_t DoubleToFloat16(double value) noexcept { return RoundTo(kFloat16Format, value); }

}  // namespace attndrop
