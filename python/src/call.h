// SPDX-License-Identifier: Apache-2.0
// From the arguments of an operator to a Problem and views of its tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attndrop/attention.h"
#include "attndrop/problem.h"

#include "stack.h"

namespace attndrop::python {

// The tensors that every operator takes after its own, in the order of the schema.
struct SideTensors {
  Tensor rng;  // int64 (3): seed, offset, keep_q32; the first two modulo 2^64
  std::optional<Tensor> attn_mask;
  std::optional<Tensor> alibi_slopes;  // float32 (heads) or (batch, heads)
  std::optional<Tensor> cu_seqlens_q;  // int32 or int64 (batch + 1)
  std::optional<Tensor> cu_seqlens_k;
  std::optional<Tensor> batch_index;  // int32 or int64 (batch)
};

// The options that every operator ends with, in the order of the schema.
struct Options {
  std::optional<double> scale;
  bool is_causal = false;
  bool bottom_right = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::string scheme;
  std::string stage;
  std::string empty_row;
  std::vector<std::int64_t> origin;  // none, or batch, head, query, key
  std::vector<std::int64_t> total;   // none, or seqlen_q, seqlen_k
};

[[nodiscard]] SideTensors TakeSideTensors(Arguments& arguments);
[[nodiscard]] Options TakeOptions(Arguments& arguments);

// The checked Problem of an attention over `shape`, whose batch and lengths are those of the
// arrays: a ragged batch takes its own from cu_seqlens.
[[nodiscard]] Problem MakeProblem(const AttentionShape& shape, DType dtype, const SideTensors& side,
                                  const Options& options);

// Checks dtypes and shapes of the three against one another.
struct AttentionTensors {
  Tensor query;  // (batch, num_heads, seqlen_q, head_dim)
  Tensor key;
  Tensor value;
};
[[nodiscard]] AttentionShape ShapeOf(const AttentionTensors& tensors);
[[nodiscard]] DType DTypeOf(const Tensor& tensor, const char* name);

[[nodiscard]] Strided<const void> InputView(const Tensor& tensor);
[[nodiscard]] Strided<void> OutputView(const Tensor& tensor);
// The bias of a problem made by MakeProblem from the same tensors, which must outlive it.
[[nodiscard]] MaskBuffers MaskViews(const SideTensors& side);

// "(2, 3)".
[[nodiscard]] std::string ShapeText(const Tensor& tensor);

}  // namespace attndrop::python
