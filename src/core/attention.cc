// SPDX-License-Identifier: Apache-2.0
// Entry points: check the buffers, take the scratch, run the plan's path.
#include "attndrop/attention.h"

#include "core/array_view.h"
#include "core/buffer_checks.h"
#include "kernels/fused.h"
#include "kernels/one_query.h"
#include "reference/reference.h"

namespace attndrop {
namespace {

bool IsWanted(const Problem& problem, Role role, const Strided<void>& array) noexcept {
  return array.data != nullptr && !MakeView(problem, role, {}, array).is_empty();
}

// Calls that have no number to write end at once: their other sizes may be anything.
bool WritesNothing(const Problem& problem, const ForwardBuffers& buffers) noexcept {
  return !IsWanted(problem, Role::kOut, buffers.out) &&
         !IsWanted(problem, Role::kLogsumexp, buffers.logsumexp);
}
bool WritesNothing(const Problem& problem, const BackwardBuffers& buffers) noexcept {
  return !IsWanted(problem, Role::kQuery, buffers.grad_query) &&
         !IsWanted(problem, Role::kKey, buffers.grad_key) &&
         !IsWanted(problem, Role::kValue, buffers.grad_value) &&
         !IsWanted(problem, Role::kAttnMask, buffers.grad_attn_mask);
}

void RunFused(const Plan& plan, const ForwardBuffers& buffers, Executor& executor,
              std::byte* scratch) {
  const Tiling tiling = MakeTiling(plan);
  if (!plan.heads_as_queries()) {
    FusedForward(plan.problem(), tiling, buffers, executor, scratch);
    return;
  }
  FusedForward(*plan.heads_as_queries(), tiling, HeadsAsQueries(plan.problem(), buffers), executor,
               scratch);
}

}  // namespace

BackwardWork WorkOf(const BackwardBuffers& buffers) noexcept {
  return {.grad_attn_mask = buffers.grad_attn_mask.data != nullptr,
          .recompute_forward = buffers.out.data == nullptr || buffers.logsumexp.data == nullptr};
}

Status Forward(const Plan& plan, const ForwardBuffers& buffers, Executor& executor,
               Scratch& scratch) {
  Status status = CheckForwardBuffers(plan.problem(), buffers);
  if (status.ok() && WritesNothing(plan.problem(), buffers)) return status;
  if (status.ok()) status = scratch.Reserve(plan.ForwardScratchBytes(executor.num_workers()));
  if (!status.ok()) return status;
  if (plan.path() == Path::kFused) {
    RunFused(plan, buffers, executor, scratch.data());
  } else {
    ReferenceForward(plan.problem(), buffers, executor, scratch.data());
  }
  return Status::Ok();
}

Status Backward(const Plan& plan, const BackwardBuffers& buffers, Executor& executor,
                Scratch& scratch) {
  Status status = CheckBackwardBuffers(plan.problem(), buffers);
  if (status.ok() && WritesNothing(plan.problem(), buffers)) return status;
  if (status.ok()) {
    status = scratch.Reserve(plan.BackwardScratchBytes(executor.num_workers(), WorkOf(buffers)));
  }
  if (!status.ok()) return status;
  if (plan.path() == Path::kFused &&
      FusedBackward(plan.problem(), MakeTiling(plan), buffers, executor, scratch.data())) {
    return status;
  }
  status = scratch.Reserve(ReferenceBackwardScratchBytes(plan.problem(), executor.num_workers(),
                                                         WorkOf(buffers).grad_attn_mask));
  if (!status.ok()) return status;
  ReferenceBackward(plan.problem(), buffers, executor, scratch.data());
  return Status::Ok();
}

}  // namespace attndrop
