// SPDX-License-Identifier: Apache-2.0
// Entry points: check the buffers, take the scratch, run the plan's path.
#include "attndrop/attention.h"

#include "core/buffer_checks.h"
#include "reference/reference.h"

namespace attndrop {

Status Forward(const Plan& plan, const ForwardBuffers& buffers, Executor& executor,
               Scratch& scratch) {
  Status status = CheckForwardBuffers(plan.problem(), buffers);
  if (status.ok()) status = scratch.Reserve(plan.ForwardScratchBytes(executor.num_workers()));
  if (!status.ok()) return status;
  ReferenceForward(plan.problem(), buffers, executor, scratch.data());
  return Status::Ok();
}

Status Backward(const Plan& plan, const BackwardBuffers& buffers, Executor& executor,
                Scratch& scratch) {
  Status status = CheckBackwardBuffers(plan.problem(), buffers);
  const bool grad_attn_mask = buffers.grad_attn_mask.data != nullptr;
  if (status.ok()) {
    status = scratch.Reserve(plan.BackwardScratchBytes(executor.num_workers(), grad_attn_mask));
  }
  if (!status.ok()) return status;
  ReferenceBackward(plan.problem(), buffers, executor, scratch.data());
  return Status::Ok();
}

}  // namespace attndrop
