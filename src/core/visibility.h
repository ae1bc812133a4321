// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees, and what is added to its logits (mask format 1, section 5).
#pragma once

#include <algorithm>
#include <cstdint>

#include "attndrop/attention.h"
#include "attndrop/problem.h"

namespace attndrop {

// Keys begin .. end-1, empty when begin >= end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const noexcept {
    return std::max<std::int64_t>(0, end - begin);
  }
  [[nodiscard]] bool contains(std::int64_t key) const noexcept { return begin <= key && key < end; }
};

// Keys (global) of the whole sequence inside causal and window for global query `query`; attn_mask
// can only take keys away from it.
[[nodiscard]] KeyRange WholeKeyRange(const Problem& problem, const Sequence& sequence,
                                     std::int64_t query) noexcept;

// The part of `whole` (global) that lies in this problem, as local keys.
[[nodiscard]] KeyRange LocalKeyRange(const Sequence& sequence, const KeyRange& whole) noexcept;

// Reads attn_mask and ALiBi at local indices.
class MaskReader {
 public:
  MaskReader(const Problem& problem, const MaskBuffers& buffers) noexcept;

  [[nodiscard]] bool has_attn_mask() const noexcept { return form_.kind != MaskKind::kNone; }
  // attn_mask lets the weight take part; true without one.
  [[nodiscard]] bool Visible(const LocalIndex& at) const noexcept;
  // Added to the scaled logit of a visible weight; `distance` = |i + shift - j| for ALiBi.
  [[nodiscard]] double Bias(const LocalIndex& at, std::int64_t distance) const noexcept;
  // Position of the weight's number in attn_mask, in elements.
  [[nodiscard]] std::int64_t Offset(const LocalIndex& at) const noexcept;

 private:
  MaskForm form_;
  Strided<const void> mask_;  // strides of broadcast axes set to 0
  const float* slopes_ = nullptr;
  std::int64_t slopes_batch_stride_ = 0;
};

}  // namespace attndrop
