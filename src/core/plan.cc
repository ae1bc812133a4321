// SPDX-License-Identifier: Apache-2.0
// Choice of the path, and the memory that it takes.
#include "attndrop/plan.h"

#include "reference/reference.h"

namespace attndrop {

std::string_view PathName(Path path) noexcept {
  switch (path) {
    case Path::kReference:
      return "reference";
  }
  return "unknown";
}

Result<Plan> Plan::Make(const Problem& problem) {
  Plan plan(problem);
  plan.reason_ = "the reference path computes every problem in double precision";
  return plan;
}

std::size_t Plan::ForwardScratchBytes(int num_workers) const noexcept {
  return ReferenceForwardScratchBytes(problem_, num_workers);
}

std::size_t Plan::BackwardScratchBytes(int num_workers, bool grad_attn_mask) const noexcept {
  return ReferenceBackwardScratchBytes(problem_, num_workers, grad_attn_mask);
}

}  // namespace attndrop
