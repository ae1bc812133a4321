// SPDX-License-Identifier: Apache-2.0
// Copies between the caller's arrays and dense float32 rows.
#include "kernels/float_rows.h"

#include <algorithm>

#include "core/element.h"

namespace attndrop {
namespace {

// One row; the common cases are loops that compilers turn into vectors.
void ReadRow(DType dtype, const void* data, std::int64_t first, std::int64_t stride,
             std::size_t cols, float* row) noexcept {
  if (stride == 1 && dtype == DType::kFloat32) {
    std::copy_n(static_cast<const float*>(data) + first, cols, row);
  } else if (stride == 1 && dtype == DType::kBFloat16) {
    const std::uint16_t* const bits = static_cast<const std::uint16_t*>(data) + first;
    for (std::size_t col = 0; col < cols; ++col) row[col] = BFloat16ToFloat(bits[col]);
  } else {
    for (std::size_t col = 0; col < cols; ++col, first += stride) {
      row[col] = static_cast<float>(LoadElement(dtype, data, first));
    }
  }
}

}  // namespace

TileRows HeadReader::Rows(std::int64_t row, std::size_t count, std::size_t cols,
                          float* buffer) const noexcept {
  // A negative stride reads as a huge unsigned one, which wraps to the right address.
  if (in_place()) {
    return {static_cast<const float*>(data_) + first_ + row * row_stride_,
            static_cast<std::size_t>(row_stride_)};
  }
  CopyPadded(row, count, cols, cols, buffer);
  return {buffer, cols};
}

void HeadReader::CopyPadded(std::int64_t row, std::size_t count, std::size_t cols,
                            std::size_t padded, float* buffer) const noexcept {
  for (std::size_t r = 0; r < count; ++r, buffer += padded) {
    ReadRow(dtype_, data_, first_ + (row + static_cast<std::int64_t>(r)) * row_stride_, col_stride_,
            cols, buffer);
    std::fill(buffer + cols, buffer + padded, 0.0F);
  }
}

void HeadWriter::Write(std::int64_t row, std::size_t count, std::size_t cols, const float* rows,
                       std::size_t stride) const noexcept {
  for (std::size_t r = 0; r < count; ++r, rows += stride) {
    std::int64_t place = first_ + (row + static_cast<std::int64_t>(r)) * row_stride_;
    for (std::size_t col = 0; col < cols; ++col, place += col_stride_) {
      StoreElement(dtype_, data_, place, static_cast<double>(rows[col]));
    }
  }
}

float* HeadWriter::InPlace(std::int64_t row) const noexcept {
  if (dtype_ != DType::kFloat32 || col_stride_ != 1) return nullptr;
  return static_cast<float*>(data_) + first_ + row * row_stride_;
}

}  // namespace attndrop
