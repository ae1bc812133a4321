// SPDX-License-Identifier: Apache-2.0
// Rows of one head of an array, copied to and from dense doubles.
#pragma once

#include <cstdint>

#include "attndrop/problem.h"
#include "attndrop/strided.h"

namespace attndrop {

// Where a sequence lies on the batch axis of the arrays: those of a ragged batch lie behind one
// another in the rows of entry 0.
[[nodiscard]] inline std::int64_t ArrayBatch(const Problem& problem, std::int64_t batch) noexcept {
  return problem.is_ragged() ? 0 : batch;
}

// Rows [first_row, first_row + rows) of one head of an array.
struct HeadRows {
  std::int64_t batch = 0;  // of the arrays
  std::int64_t head = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};
// Between an array and dense doubles [rows][cols].
void LoadRows(DType dtype, const Strided<const void>& array, const HeadRows& which,
              std::int64_t cols, double* dense) noexcept;
void StoreRows(DType dtype, const double* dense, const HeadRows& which, std::int64_t cols,
               const Strided<void>& array) noexcept;
void FillRows(DType dtype, double value, const HeadRows& which, std::int64_t cols,
              const Strided<void>& array) noexcept;

// Rows of the arrays that belong to a sequence of a ragged batch but are not used by it.
[[nodiscard]] HeadRows UnusedRowsQ(const Problem& problem, const Sequence& sequence,
                                   std::int64_t batch, std::int64_t head) noexcept;
[[nodiscard]] HeadRows UnusedRowsK(const Problem& problem, const Sequence& sequence,
                                   std::int64_t batch, std::int64_t head) noexcept;

}  // namespace attndrop
