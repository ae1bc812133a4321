// SPDX-License-Identifier: Apache-2.0
// Sizes and places of the arrays of a fused backward call.
#include "kernels/backward_memory.h"

#include <algorithm>

#include "kernels/mask_gradient.h"

namespace attndrop {
namespace {

std::int64_t RoundUp(std::int64_t x, std::int64_t multiple) noexcept {
  return (x + multiple - 1) / multiple * multiple;
}

template <class T>
Strided<void> Writable(const Strided<T>& array) noexcept {
  return {const_cast<void*>(array.data), array.batch_stride, array.head_stride, array.row_stride,
          array.col_stride};
}

}  // namespace

BackwardSizes FindSizes(const Problem& problem, const Tiling& tiling, const BackwardWork& work,
                        int num_workers) noexcept {
  const AttentionShape& shape = problem.shape();
  BackwardSizes sizes;
  // A sequence without queries may still have rows to clear.
  sizes.blocks = std::max<std::int64_t>(MostBlocks(problem), 1);
  const std::int64_t keys = tiling.tiles.backward_keys;
  sizes.tiles = std::max<std::int64_t>(1, RoundUp(shape.seqlen_k, keys) / keys);
  sizes.group = shape.num_kv_heads == 0 ? 1 : shape.num_heads / shape.num_kv_heads;
  sizes.heads_in_flight = std::clamp<std::int64_t>(
      SaturatingProduct(shape.batch, shape.num_kv_heads), 1, std::max(num_workers, 1));
  if (work.grad_attn_mask && MaskGradient::SharesSums(problem)) sizes.heads_in_flight = 1;
  sizes.head_dim = static_cast<std::size_t>(shape.head_dim);
  sizes.head_dim_v = static_cast<std::size_t>(shape.head_dim_v);
  sizes.padded_dim = PaddedDim(sizes.head_dim);
  sizes.padded_dim_v = PaddedDim(sizes.head_dim_v);
  return sizes;
}

HeadInFlight TakeHead(const Problem& problem, const BackwardSizes& sizes, Arena& arena) noexcept {
  const AttentionShape& shape = problem.shape();
  const auto lanes = static_cast<std::int64_t>(kBlockQueries);
  HeadInFlight head;
  head.blocks = arena.Take<BlockRecord>(sizes.blocks);
  head.query = arena.Take<float>(SaturatingProduct(sizes.blocks * lanes, shape.head_dim));
  head.grad_out = arena.Take<float>(SaturatingProduct(sizes.blocks * lanes, shape.head_dim_v));
  head.grad_query = arena.Take<float>(SaturatingProduct(sizes.blocks * lanes, shape.head_dim));
  if (sizes.group > 1) {
    const auto padded = static_cast<std::int64_t>(sizes.padded_dim);
    const auto padded_v = static_cast<std::int64_t>(sizes.padded_dim_v);
    head.grad_key = arena.Take<float>(SaturatingProduct(shape.seqlen_k, padded));
    head.grad_value = arena.Take<float>(SaturatingProduct(shape.seqlen_k, padded_v));
  }
  return head;
}

WorkerMemory TakeWorker(const Tiling& tiling, const BackwardSizes& sizes, Arena& arena) noexcept {
  const std::int64_t keys = tiling.tiles.backward_keys;
  const auto lanes = static_cast<std::int64_t>(kBlockQueries);
  const auto padded = static_cast<std::int64_t>(sizes.padded_dim);
  const auto padded_v = static_cast<std::int64_t>(sizes.padded_dim_v);
  WorkerMemory memory;
  memory.words = arena.Take<TileWords>(1);
  memory.weights = arena.Take<float>(keys * lanes);
  memory.grad_logits = arena.Take<float>(keys * lanes);
  memory.grad_key = arena.Take<float>(keys * padded);
  memory.grad_value = arena.Take<float>(keys * padded_v);
  memory.key_copy = arena.Take<float>(keys * padded);
  memory.value_copy = arena.Take<float>(keys * padded_v);
  memory.rows = arena.Take<float>(2 * lanes * std::max(padded, padded_v));
  return memory;
}

void TakeForward(const Problem& problem, const BackwardWork& work, Arena& arena,
                 BackwardBuffers& buffers) noexcept {
  if (!work.recompute_forward) return;
  const AttentionShape& shape = problem.shape();
  const std::int64_t rows = SaturatingProduct(
      SaturatingProduct(problem.array_batch(), shape.num_heads), problem.rows_q());
  const auto bytes = static_cast<std::int64_t>(SizeOf(problem.dtype()));
  void* const out =
      arena.Take<std::byte>(SaturatingProduct(SaturatingProduct(rows, shape.head_dim_v), bytes));
  void* const logsumexp = arena.Take<float>(rows);
  if (out == nullptr) return;  // measuring: strides of what no block could hold would overflow
  buffers.out = Dense<const void>(out, shape.num_heads, problem.rows_q(), shape.head_dim_v);
  buffers.logsumexp = Dense<const void>(logsumexp, shape.num_heads, problem.rows_q(), 1);
}

ForwardBuffers ForwardOf(const BackwardBuffers& buffers) noexcept {
  return {.query = buffers.query,
          .key = buffers.key,
          .value = buffers.value,
          .mask = buffers.mask,
          .out = Writable(buffers.out),
          .logsumexp = Writable(buffers.logsumexp)};
}

std::size_t FusedBackwardScratchBytes(const Problem& problem, const Tiling& tiling,
                                      const BackwardWork& work, int num_workers) noexcept {
  const BackwardSizes sizes = FindSizes(problem, tiling, work, num_workers);
  Arena arena;
  BackwardBuffers no_buffers;
  TakeForward(problem, work, arena, no_buffers);
  (void)arena.Take<HeadInFlight>(sizes.heads_in_flight);
  for (std::int64_t i = 0; i < sizes.heads_in_flight; ++i) (void)TakeHead(problem, sizes, arena);
  (void)arena.Take<WorkerMemory>(num_workers);
  for (int i = 0; i < num_workers; ++i) (void)TakeWorker(tiling, sizes, arena);
  if (work.grad_attn_mask) (void)MaskGradient(problem, sizes.heads_in_flight, arena);
  if (!work.recompute_forward) return arena.bytes();
  return SaturatingSum(arena.bytes(), FusedForwardScratchBytes(problem, tiling, num_workers));
}

}  // namespace attndrop
