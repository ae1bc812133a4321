// SPDX-License-Identifier: Apache-2.0
// One row of attention: its logits, weights and dropout factors.
#pragma once

#include <cstdint>

#include "attndrop/attention.h"

#include "core/arena.h"
#include "core/head_rows.h"
#include "core/row_state.h"
#include "core/visibility.h"

namespace attndrop {

// Sum of a[i] * b[i], in an order that depends on n alone.
[[nodiscard]] double Dot(const double* a, const double* b, std::int64_t n) noexcept;
// y[i] += a * x[i]
void AddScaled(double a, const double* x, double* y, std::int64_t n) noexcept;

// A row's numbers; arrays are indexed by local key - row.local.begin.
struct RowNumbers {
  double* weights = nullptr;           // (A3), 0 where a key takes no part
  double* factors = nullptr;           // keep * factor, 0 where dropped or not visible
  std::uint8_t* takes_part = nullptr;  // in the softmax: visible, and at stage logits kept
  double logsumexp = 0.0;              // (A2) or (A5)
};

class RowSoftmax {
 public:
  // Takes its arrays (linear in seqlen_k) from the arena.
  RowSoftmax(const Problem& problem, const MaskBuffers& mask, Arena& arena) noexcept;

  // query: [head_dim]; key: [seqlen_k][head_dim] of the row's key/value head.
  void Compute(const Row& row, const double* query, const double* key);
  [[nodiscard]] const RowNumbers& numbers() const noexcept { return numbers_; }

 private:
  void ComputeLogits(const Row& row, const double* query, const double* key);
  void Normalise(std::int64_t count) noexcept;

  const Problem& problem_;
  MaskReader mask_;
  KeepField field_;
  RowNumbers numbers_;
};

}  // namespace attndrop
