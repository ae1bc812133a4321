// SPDX-License-Identifier: Apache-2.0
// The computation: attention with dropout, forward and backward, and its keep mask.
#pragma once

#include <cstdint>

#include "attndrop/executor.h"
#include "attndrop/export.h"
#include "attndrop/plan.h"
#include "attndrop/problem.h"
#include "attndrop/scratch.h"
#include "attndrop/status.h"
#include "attndrop/strided.h"

namespace attndrop {

// The bias of a Problem: what decides, beside its geometry, which keys a query sees.
struct MaskBuffers {
  // uint8 or a float type, as Problem::attn_mask() says; a broadcast axis has length 1 there and
  // its stride is not used. A ragged batch indexes it inside each sequence.
  Strided<const void> attn_mask{};
  // ALiBi slopes, one per query head: slopes[batch * alibi_batch_stride + head].
  const float* alibi_slopes = nullptr;
  std::int64_t alibi_batch_stride = 0;
};

// Shapes, with rows_q = Problem::rows_q(), rows_k likewise:
//   query (array_batch, num_heads, rows_q, head_dim)
//   key (array_batch, num_kv_heads, rows_k, head_dim), value likewise with head_dim_v
//   out (array_batch, num_heads, rows_q, head_dim_v)
//   logsumexp (array_batch, num_heads, rows_q): float64 for float64 problems, else float32; data
//   may be null. Rows that no sequence of a ragged batch uses become zero, with logsumexp -inf.
// Outputs must not overlap one another or an input.
struct ForwardBuffers {
  Strided<const void> query{};
  Strided<const void> key{};
  Strided<const void> value{};
  MaskBuffers mask{};
  Strided<void> out{};
  Strided<void> logsumexp{};  // col_stride is not used
};

// grad_* have the shapes of their inputs. Null data means "not wanted" for any of the outputs.
// out and logsumexp are those of Forward of the same plan; null: they are computed again. The
// reference path computes them again in double precision in any case. grad_logsumexp (null: zero)
// has the shape and type of logsumexp. grad_attn_mask has the form and dtype of a float attn_mask.
struct BackwardBuffers {
  Strided<const void> query{};
  Strided<const void> key{};
  Strided<const void> value{};
  MaskBuffers mask{};
  Strided<const void> out{};
  Strided<const void> logsumexp{};
  Strided<const void> grad_out{};
  Strided<const void> grad_logsumexp{};
  Strided<void> grad_query{};
  Strided<void> grad_key{};
  Strided<void> grad_value{};
  Strided<void> grad_attn_mask{};
};

// out = sum_j f_j w_j value_j (docs/math/attention.md, (A4)). On an error nothing has been written.
[[nodiscard]] ATTNDROP_EXPORT Status Forward(const Plan& plan, const ForwardBuffers& buffers,
                                             Executor& executor, Scratch& scratch);

// What a call with these buffers asks of Plan::BackwardScratchBytes.
[[nodiscard]] ATTNDROP_EXPORT BackwardWork WorkOf(const BackwardBuffers& buffers) noexcept;

// Gradients of out (and logsumexp) (docs/math/attention.md, (A6) to (A9)). grad_out is needed. On
// an error nothing has been written, save when memory ends in a call that turns to the reference
// path.
[[nodiscard]] ATTNDROP_EXPORT Status Backward(const Plan& plan, const BackwardBuffers& buffers,
                                              Executor& executor, Scratch& scratch);

// The final keep mask: keep (batch, num_heads, seqlen_q, seqlen_k), one byte per weight, dense;
// 1 = visible and kept. Cells that a query cannot see, and the padding of a ragged batch, are 0.
// factors (null: not wanted), same shape: the factor of each weight, 0 where it is not kept; at
// stage logits a kept weight has factor 1.
struct KeepMaskBuffers {
  MaskBuffers mask{};
  std::uint8_t* keep = nullptr;
  double* factors = nullptr;
};
[[nodiscard]] ATTNDROP_EXPORT Status KeepMask(const Problem& problem,
                                              const KeepMaskBuffers& buffers, Executor& executor);

// One weight, at local indices (origin is added): whether it is visible and kept, and its factor.
// Works for problems of any size; costs one row of draws at most (at_least_one: one an attempt).
// A float attn_mask is read as a whole, to check its numbers.
struct LocalIndex {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t query = 0;
  std::int64_t key = 0;
};
struct KeepCell {
  bool keep = false;
  double factor = 0.0;
};
[[nodiscard]] ATTNDROP_EXPORT Result<KeepCell> KeepAt(const Problem& problem,
                                                      const MaskBuffers& mask,
                                                      const LocalIndex& at);

}  // namespace attndrop
