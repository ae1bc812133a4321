// SPDX-License-Identifier: Apache-2.0
// Copies between the caller's arrays and dense float32 rows.
#include "kernels/float_rows.h"

#include <algorithm>
#include <bit>

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

// To nearest, ties to even; a NaN becomes a quiet one. Integer arithmetic alone, so that a loop
// over it becomes vectors.
std::uint16_t RoundToBFloat16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x0040U;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
}

void WriteRow(DType dtype, void* data, std::int64_t first, std::int64_t stride, std::size_t cols,
              const float* row) noexcept {
  if (stride == 1 && dtype == DType::kFloat32) {
    std::copy_n(row, cols, static_cast<float*>(data) + first);
  } else if (stride == 1 && dtype == DType::kBFloat16) {
    std::uint16_t* const bits = static_cast<std::uint16_t*>(data) + first;
    for (std::size_t col = 0; col < cols; ++col) bits[col] = RoundToBFloat16(row[col]);
  } else {
    for (std::size_t col = 0; col < cols; ++col, first += stride) {
      StoreElement(dtype, data, first, static_cast<double>(row[col]));
    }
  }
}

}  // namespace

TileRows RowReader::Rows(std::int64_t row, std::size_t count, std::size_t cols,
                         float* buffer) const noexcept {
  if (in_place()) {
    return {static_cast<const float*>(data_) + first_ + row * row_stride_, row_stride_};
  }
  CopyPadded(row, count, cols, cols, buffer);
  return {buffer, static_cast<std::ptrdiff_t>(cols)};
}

Bf16Rows RowReader::PairRows(std::int64_t row, std::size_t count, std::size_t cols,
                             std::uint16_t* buffer) const noexcept {
  const std::uint16_t* const data =
      static_cast<const std::uint16_t*>(data_) + first_ + row * row_stride_;
  if (col_stride_ == 1) return {data, row_stride_};
  for (std::size_t r = 0; r < count; ++r) {
    std::int64_t place = static_cast<std::int64_t>(r) * row_stride_;
    for (std::size_t col = 0; col < cols; ++col, place += col_stride_) {
      buffer[r * cols + col] = data[place];
    }
  }
  return {buffer, static_cast<std::ptrdiff_t>(cols)};
}

void RowReader::CopyPadded(std::int64_t row, std::size_t count, std::size_t cols,
                           std::size_t padded, float* buffer) const noexcept {
  for (std::size_t r = 0; r < count; ++r, buffer += padded) {
    ReadRow(dtype_, data_, first_ + (row + static_cast<std::int64_t>(r)) * row_stride_, col_stride_,
            cols, buffer);
    std::fill(buffer + cols, buffer + padded, 0.0F);
  }
}

void RowWriter::Write(std::int64_t row, std::size_t count, std::size_t cols, const float* rows,
                      std::size_t stride) const noexcept {
  for (std::size_t r = 0; r < count; ++r, rows += stride) {
    WriteRow(dtype_, data_, first_ + (row + static_cast<std::int64_t>(r)) * row_stride_,
             col_stride_, cols, rows);
  }
}

float* RowWriter::InPlace(std::int64_t row) const noexcept {
  if (dtype_ != DType::kFloat32 || col_stride_ != 1) return nullptr;
  return static_cast<float*>(data_) + first_ + row * row_stride_;
}

}  // namespace attndrop
