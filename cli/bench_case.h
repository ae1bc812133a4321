// SPDX-License-Identifier: Apache-2.0
// One thing to measure: a problem with arrays of its own, in one direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "attndrop/attention.h"
#include "attndrop/executor.h"
#include "attndrop/plan.h"
#include "attndrop/problem.h"
#include "attndrop/scratch.h"
#include "attndrop/status.h"

namespace attndrop::cli {

enum class Direction : std::uint8_t { kForward, kBackward };
[[nodiscard]] std::string_view DirectionName(Direction direction) noexcept;

// Weights that some query sees by its position: causal, window and ragged lengths count, attn_mask
// does not.
[[nodiscard]] double CountVisibleWeights(const Problem& problem);

// Multiplications and additions of the matrix products: 2 products of each visible weight forward,
// 5 backward (the logits are computed again).
[[nodiscard]] double CountFlops(const Problem& problem, Direction direction);

// The same problem when nothing is dropped.
[[nodiscard]] Result<Problem> WithoutDropout(const Problem& problem);

// Memory that is filled with numbers near 1 and, where it is a boolean attn_mask, with true.
class BenchArray {
 public:
  struct Form {
    std::int64_t batch = 0, heads = 0, rows = 0, cols = 0;
    DType dtype = DType::kFloat32;
    Layout layout = Layout::kBhsd;
    bool may_expand = false;  // Layout::kExpanded applies
  };
  BenchArray() = default;
  BenchArray(const Form& form, std::uint64_t seed);
  [[nodiscard]] Strided<void> view() const noexcept { return view_; }
  [[nodiscard]] Strided<const void> const_view() const noexcept;

 private:
  std::unique_ptr<std::byte[]> memory_;
  Strided<void> view_;
};

class BenchCase {
 public:
  // Backward: computes out and logsumexp.
  [[nodiscard]] static Result<BenchCase> Make(const Plan& plan, Direction direction,
                                              Executor& executor);
  [[nodiscard]] Status Run(Executor& executor);

  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  [[nodiscard]] const Problem& problem() const noexcept { return plan_.problem(); }
  [[nodiscard]] Direction direction() const noexcept { return direction_; }
  [[nodiscard]] std::size_t ScratchBytes(const Executor& executor) const noexcept;

 private:
  BenchCase(const Plan& plan, Direction direction);
  void MakeMask();
  void MakeBackward();
  [[nodiscard]] MaskBuffers mask() const;

  Plan plan_;
  Direction direction_;
  BenchArray query_, key_, value_, out_, logsumexp_, attn_mask_;
  BenchArray grad_out_, grad_query_, grad_key_, grad_value_;
  std::unique_ptr<std::uint8_t[]> bool_mask_;
  std::vector<float> slopes_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace attndrop::cli
