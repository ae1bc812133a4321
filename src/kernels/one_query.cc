// SPDX-License-Identifier: Apache-2.0
// Strides of grouped heads read as strides of queries.
#include "kernels/one_query.h"

#include "core/array_view.h"
#include "core/visibility.h"

namespace attndrop {
namespace {

// Keys (local) that the one query sees.
KeyRange SeenKeys(const Problem& problem) noexcept {
  const Sequence sequence = problem.sequence(0);
  const KeyRange keys =
      LocalKeyRange(sequence, WholeKeyRange(problem, sequence, sequence.origin_q));
  return keys.size() == 0 ? KeyRange{} : keys;
}

template <class T>
void MoveHeadsToRows(std::int64_t group, Strided<T>& array) noexcept {
  array.row_stride = array.head_stride;
  array.head_stride *= group;
}

// The view from its first `keys` on, along the stride that keys take.
void SkipKeys(std::int64_t keys, std::int64_t stride, std::size_t element_bytes,
              Strided<const void>& array) noexcept {
  if (array.data == nullptr) return;
  array.data = static_cast<const std::byte*>(array.data) +
               keys * stride * static_cast<std::int64_t>(element_bytes);
}

}  // namespace

std::optional<Problem> HeadsAsQueries(const Problem& problem) {
  const AttentionShape& shape = problem.shape();
  const bool one_query = shape.seqlen_q == 1 && !problem.is_ragged();
  const bool grouped = shape.num_kv_heads > 0 && shape.num_heads > shape.num_kv_heads;
  const bool same_for_heads =
      problem.drops_nothing() && !problem.alibi() && !problem.attn_mask().per_head;
  if (!one_query || !grouped || !same_for_heads) return std::nullopt;
  ProblemArgs args;
  args.shape = shape;
  args.shape.num_heads = shape.num_kv_heads;
  args.shape.seqlen_q = shape.num_heads / shape.num_kv_heads;
  args.shape.seqlen_k = SeenKeys(problem).size();
  args.dtype = problem.dtype();
  args.scale = problem.scale();
  args.attn_mask = problem.attn_mask();
  args.attn_mask.per_query = false;
  Result<Problem> made = Problem::Make(args);
  if (!made.ok()) return std::nullopt;
  return *std::move(made);
}

ForwardBuffers HeadsAsQueries(const Problem& problem, const ForwardBuffers& buffers) noexcept {
  const AttentionShape& shape = problem.shape();
  const std::int64_t group = shape.num_heads / shape.num_kv_heads;
  const std::int64_t first_key = SeenKeys(problem).begin;
  ForwardBuffers shared = buffers;
  MoveHeadsToRows(group, shared.query);
  MoveHeadsToRows(group, shared.out);
  MoveHeadsToRows(group, shared.logsumexp);
  const std::size_t bytes = SizeOf(problem.dtype());
  SkipKeys(first_key, shared.key.row_stride, bytes, shared.key);
  SkipKeys(first_key, shared.value.row_stride, bytes, shared.value);
  const MaskForm& mask = problem.attn_mask();
  if (mask.per_key) {
    SkipKeys(first_key, shared.mask.attn_mask.col_stride,
             mask.kind == MaskKind::kBool ? 1 : SizeOf(mask.dtype), shared.mask.attn_mask);
  }
  return shared;
}

}  // namespace attndrop
