// SPDX-License-Identifier: Apache-2.0
// A non-owning view of a (batch, head, row, column) array; strides are in elements, not bytes.
#pragma once

#include <cstdint>

namespace attndrop {

// T is `const void` for inputs and `void` for outputs: the element type is the Problem's dtype.
// A stride may be 0 (inputs only: one element read many times) or negative. In a ragged batch all
// sequences lie behind one another along the rows and batch_stride is not used.
template <class T>
struct Strided {
  T* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
};

// The view of a dense array of shape (batch, heads, rows, cols), last index fastest.
template <class T>
[[nodiscard]] constexpr Strided<T> Dense(T* data, std::int64_t heads, std::int64_t rows,
                                         std::int64_t cols) noexcept {
  return {.data = data,
          .batch_stride = heads * rows * cols,
          .head_stride = rows * cols,
          .row_stride = cols,
          .col_stride = 1};
}

}  // namespace attndrop
