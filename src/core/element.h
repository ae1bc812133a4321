// SPDX-License-Identifier: Apache-2.0
// One element of an array of any dtype, read and written as double.
#pragma once

#include <cstdint>

#include "attndrop/dtype.h"

namespace attndrop {

[[nodiscard]] inline double LoadElement(DType dtype, const void* data,
                                        std::int64_t index) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      return static_cast<const double*>(data)[index];
    case DType::kFloat32:
      return static_cast<double>(static_cast<const float*>(data)[index]);
    case DType::kBFloat16:
      return static_cast<double>(BFloat16ToFloat(static_cast<const std::uint16_t*>(data)[index]));
    case DType::kFloat16:
      return static_cast<double>(Float16ToFloat(static_cast<const std::uint16_t*>(data)[index]));
  }
  return 0.0;
}

// Rounds once, to nearest even.
inline void StoreElement(DType dtype, void* data, std::int64_t index, double value) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      static_cast<double*>(data)[index] = value;
      break;
    case DType::kFloat32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      break;
    case DType::kBFloat16:
      static_cast<std::uint16_t*>(data)[index] = DoubleToBFloat16(value);
      break;
    case DType::kFloat16:
      static_cast<std::uint16_t*>(data)[index] = DoubleToFloat16(value);
      break;
  }
}

}  // namespace attndrop
