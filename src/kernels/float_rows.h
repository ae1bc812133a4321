// SPDX-License-Identifier: Apache-2.0
// Rows of the caller's arrays as float32, read in place where they are that already.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attndrop/dtype.h"
#include "attndrop/strided.h"

#include "kernels/bf16_kernels.h"
#include "kernels/kernels.h"

namespace attndrop {

// One head of an array of the caller: row r, column c is element first + r * row_stride + c *
// col_stride.
template <class Data>
class HeadOfArray {
 public:
  HeadOfArray(DType dtype, const Strided<Data>& array, std::int64_t batch, std::int64_t head,
              std::int64_t first_row) noexcept
      : dtype_(dtype),
        data_(array.data),
        first_(batch * array.batch_stride + head * array.head_stride +
               first_row * array.row_stride),
        row_stride_(array.row_stride),
        col_stride_(array.col_stride) {}

 protected:
  DType dtype_;
  Data* data_;
  std::int64_t first_;
  std::int64_t row_stride_;
  std::int64_t col_stride_;
};

class RowReader : public HeadOfArray<const void> {
 public:
  using HeadOfArray::HeadOfArray;

  // Rows can be read in place.
  [[nodiscard]] bool in_place() const noexcept {
    return dtype_ == DType::kFloat32 && col_stride_ == 1;
  }

  // Rows row .. row+count-1 with adjacent columns; in place, or copied to buffer [count][cols].
  [[nodiscard]] TileRows Rows(std::int64_t row, std::size_t count, std::size_t cols,
                              float* buffer) const noexcept;
  // The same of a bfloat16 array, as bfloat16.
  [[nodiscard]] Bf16Rows PairRows(std::int64_t row, std::size_t count, std::size_t cols,
                                  std::uint16_t* buffer) const noexcept;
  // As Rows, always copied, with zeros in columns cols .. padded-1: buffer [count][padded].
  void CopyPadded(std::int64_t row, std::size_t count, std::size_t cols, std::size_t padded,
                  float* buffer) const noexcept;
};

class RowWriter : public HeadOfArray<void> {
 public:
  using HeadOfArray::HeadOfArray;

  [[nodiscard]] bool wanted() const noexcept { return data_ != nullptr; }
  // Rounds rows [count][cols] (stride elements apart) once to the dtype.
  void Write(std::int64_t row, std::size_t count, std::size_t cols, const float* rows,
             std::size_t stride) const noexcept;
  // Where row `row` begins, when rows can be written in place; else null.
  [[nodiscard]] float* InPlace(std::int64_t row) const noexcept;
  [[nodiscard]] std::ptrdiff_t row_stride() const noexcept { return row_stride_; }
};

}  // namespace attndrop
