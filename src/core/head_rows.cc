// SPDX-License-Identifier: Apache-2.0
// Copies of rows, element by element.
#include "core/head_rows.h"

#include <cstddef>
#include <vector>

#include "core/element.h"

namespace attndrop {
namespace {

std::int64_t ElementOffset(const HeadRows& which, std::int64_t row, std::int64_t batch_stride,
                           std::int64_t head_stride, std::int64_t row_stride) noexcept {
  return which.batch * batch_stride + which.head * head_stride +
         (which.first_row + row) * row_stride;
}

template <class T>
std::int64_t RowOffset(const Strided<T>& array, const HeadRows& which, std::int64_t row) noexcept {
  return ElementOffset(which, row, array.batch_stride, array.head_stride, array.row_stride);
}

HeadRows UnusedRows(const std::vector<std::int64_t>& cu_seqlens, std::int64_t batch,
                    std::int64_t head, std::int64_t first_row) noexcept {
  const std::int64_t end = cu_seqlens[static_cast<std::size_t>(batch) + 1];
  return {.batch = 0, .head = head, .first_row = first_row, .rows = end - first_row};
}

}  // namespace

void LoadRows(DType dtype, const Strided<const void>& array, const HeadRows& which,
              std::int64_t cols, double* dense) noexcept {
  for (std::int64_t row = 0; row < which.rows; ++row) {
    const std::int64_t offset = RowOffset(array, which, row);
    for (std::int64_t col = 0; col < cols; ++col) {
      *dense++ = LoadElement(dtype, array.data, offset + col * array.col_stride);
    }
  }
}

void StoreRows(DType dtype, const double* dense, const HeadRows& which, std::int64_t cols,
               const Strided<void>& array) noexcept {
  for (std::int64_t row = 0; row < which.rows; ++row) {
    const std::int64_t offset = RowOffset(array, which, row);
    for (std::int64_t col = 0; col < cols; ++col) {
      StoreElement(dtype, array.data, offset + col * array.col_stride, *dense++);
    }
  }
}

void FillRows(DType dtype, double value, const HeadRows& which, std::int64_t cols,
              const Strided<void>& array) noexcept {
  for (std::int64_t row = 0; row < which.rows; ++row) {
    const std::int64_t offset = RowOffset(array, which, row);
    for (std::int64_t col = 0; col < cols; ++col) {
      StoreElement(dtype, array.data, offset + col * array.col_stride, value);
    }
  }
}

HeadRows UnusedRowsQ(const Problem& problem, const Sequence& sequence, std::int64_t batch,
                     std::int64_t head) noexcept {
  if (!problem.is_ragged()) return {batch, head, 0, 0};
  return UnusedRows(problem.ragged()->cu_seqlens_q, batch, head,
                    sequence.first_row_q + sequence.seqlen_q);
}

HeadRows UnusedRowsK(const Problem& problem, const Sequence& sequence, std::int64_t batch,
                     std::int64_t head) noexcept {
  if (!problem.is_ragged()) return {batch, head, 0, 0};
  return UnusedRows(problem.ragged()->cu_seqlens_k, batch, head,
                    sequence.first_row_k + sequence.seqlen_k);
}

}  // namespace attndrop
