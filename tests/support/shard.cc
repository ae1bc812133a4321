// SPDX-License-Identifier: Apache-2.0
// Arguments and views of shards.
#include "support/shard.h"

namespace attndrop::testing {
namespace {

Strided<const void> Const(const Strided<void>& view) {
  return {view.data, view.batch_stride, view.head_stride, view.row_stride, view.col_stride};
}

std::int64_t GroupSize(const ProblemArgs& args) {
  return KvHeads(args) == 0 ? 1 : args.shape.num_heads / KvHeads(args);
}

Strided<void> QueryPart(Array& array, const Cut& cut) {
  return array.ViewAt(cut.batch.first, cut.heads.first, cut.queries.first);
}

Strided<void> KeyPart(const ProblemArgs& args, Array& array, const Cut& cut) {
  return array.ViewAt(cut.batch.first, cut.heads.first / GroupSize(args), cut.keys.first);
}

Strided<void> MaskPart(const ProblemArgs& args, Array& array, const Cut& cut) {
  const MaskForm& form = args.attn_mask;
  return array.ViewAt(form.per_batch ? cut.batch.first : 0, form.per_head ? cut.heads.first : 0,
                      form.per_query ? cut.queries.first : 0, form.per_key ? cut.keys.first : 0);
}

}  // namespace

Cut WholeCut(const ProblemArgs& args) {
  return {{0, args.shape.batch},
          {0, args.shape.num_heads},
          {0, args.shape.seqlen_q},
          {0, args.shape.seqlen_k}};
}

ProblemArgs ShardArgs(const ProblemArgs& args, const Cut& cut) {
  ProblemArgs shard = args;
  const SequenceView view = ViewSequence(args, 0);
  shard.total = TotalLengths{view.total_q, view.total_k};
  shard.shape.batch = cut.batch.count;
  shard.shape.num_heads = cut.heads.count;
  shard.shape.num_kv_heads = cut.heads.count / GroupSize(args);
  shard.shape.seqlen_q = cut.queries.count;
  shard.shape.seqlen_k = cut.keys.count;
  shard.origin.batch += static_cast<std::uint32_t>(cut.batch.first);
  shard.origin.head += static_cast<std::uint32_t>(cut.heads.first);
  shard.origin.query += static_cast<std::uint32_t>(cut.queries.first);
  shard.origin.key += static_cast<std::uint32_t>(cut.keys.first);
  return shard;
}

MaskBuffers ShardMask(const ProblemArgs& args, const Cut& cut, ProblemArrays& arrays) {
  MaskBuffers mask = arrays.Mask();
  if (args.attn_mask.kind != MaskKind::kNone) {
    mask.attn_mask = Const(MaskPart(args, arrays.attn_mask, cut));
  }
  if (mask.alibi_slopes != nullptr) {
    mask.alibi_slopes += cut.batch.first * args.shape.num_heads + cut.heads.first;
  }
  return mask;
}

ForwardBuffers ShardForward(const ProblemArgs& args, const Cut& cut, ProblemArrays& arrays) {
  return {.query = Const(QueryPart(arrays.query, cut)),
          .key = Const(KeyPart(args, arrays.key, cut)),
          .value = Const(KeyPart(args, arrays.value, cut)),
          .mask = ShardMask(args, cut, arrays),
          .out = QueryPart(arrays.out, cut),
          .logsumexp = QueryPart(arrays.logsumexp, cut)};
}

BackwardBuffers ShardBackward(const ProblemArgs& args, const Cut& cut, ProblemArrays& arrays) {
  BackwardBuffers buffers{.query = Const(QueryPart(arrays.query, cut)),
                          .key = Const(KeyPart(args, arrays.key, cut)),
                          .value = Const(KeyPart(args, arrays.value, cut)),
                          .mask = ShardMask(args, cut, arrays),
                          .out = {},
                          .logsumexp = {},
                          .grad_out = Const(QueryPart(arrays.grad_out, cut)),
                          .grad_logsumexp = {},
                          .grad_query = QueryPart(arrays.grad_query, cut),
                          .grad_key = KeyPart(args, arrays.grad_key, cut),
                          .grad_value = KeyPart(args, arrays.grad_value, cut),
                          .grad_attn_mask = {}};
  if (arrays.has_grad_logsumexp) {
    buffers.grad_logsumexp = Const(QueryPart(arrays.grad_logsumexp, cut));
  }
  return buffers;
}

}  // namespace attndrop::testing
