// SPDX-License-Identifier: Apache-2.0
// Problem::Parse takes any bytes without crashing; what it accepts prints and reads back as itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "attndrop/plan.h"
#include "attndrop/problem.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const attndrop::Result<attndrop::Problem> problem = attndrop::Problem::Parse(text);
  if (!problem.ok()) {
    Require(!problem.status().message().empty());
    return 0;
  }
  const std::string line = problem->ToString();
  const attndrop::Result<attndrop::Problem> again = attndrop::Problem::Parse(line);
  Require(again.ok());
  Require(*again == *problem);
  Require(again->ToString() == line);
  for (std::int64_t batch = 0; batch < problem->shape().batch && batch < 3; ++batch) {
    const attndrop::Sequence sequence = problem->sequence(batch);
    Require(sequence.seqlen_q <= problem->shape().seqlen_q);
    Require(sequence.seqlen_k <= problem->shape().seqlen_k);
  }
  const attndrop::Result<attndrop::Plan> plan = attndrop::Plan::Make(*problem);
  if (plan.ok())
    (void)plan->BackwardScratchBytes(4096, {.grad_attn_mask = true, .recompute_forward = true});
  return 0;
}
