// SPDX-License-Identifier: Apache-2.0
// Plan: how a Problem will be computed, and why; immutable, reusable, printable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "attndrop/export.h"
#include "attndrop/problem.h"
#include "attndrop/status.h"

namespace attndrop {

enum class Path : std::uint8_t {
  kReference,  // double precision, row by row, memory linear in the sequence length
};

[[nodiscard]] ATTNDROP_EXPORT std::string_view PathName(Path path) noexcept;

class ATTNDROP_EXPORT Plan {
 public:
  [[nodiscard]] static Result<Plan> Make(const Problem& problem);

  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }
  [[nodiscard]] Path path() const noexcept { return path_; }
  // One sentence: why this path.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

  // Scratch that a call takes with so many workers.
  [[nodiscard]] std::size_t ForwardScratchBytes(int num_workers) const noexcept;
  [[nodiscard]] std::size_t BackwardScratchBytes(int num_workers,
                                                 bool grad_attn_mask) const noexcept;

 private:
  explicit Plan(Problem problem) : problem_(std::move(problem)) {}

  Problem problem_;
  Path path_ = Path::kReference;
  std::string reason_;
};

}  // namespace attndrop
