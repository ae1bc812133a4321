// SPDX-License-Identifier: Apache-2.0
// Where blocks of queries begin and end, and which keys they see.
#include "kernels/query_block.h"

namespace attndrop {
namespace {

// Keys that all 64 lanes see, unused ones included, so that their words are all ones.
KeyRange FullRange(const Problem& problem, const QueryBlock& block) noexcept {
  const std::int64_t first = block.global_query(0) + block.sequence.shift;
  const std::int64_t last = block.global_query(kBlockQueries - 1) + block.sequence.shift;
  KeyRange full{0, block.sequence.total_k};
  if (problem.is_causal()) full.end = std::min(full.end, first + 1);
  const Window& window = problem.window();
  if (window.right >= 0) full.end = std::min(full.end, first + window.right + 1);
  if (window.left >= 0) full.begin = std::max(full.begin, last - window.left);
  return LocalKeyRange(block.sequence, full);
}

std::size_t WidthFor(std::size_t lane_end) noexcept {
  return lane_end <= 16 ? 16 : lane_end <= 32 ? 32 : 64;
}

}  // namespace

std::uint64_t LaneInterval(std::int64_t first, std::int64_t last) noexcept {
  first = std::max<std::int64_t>(first, 0);
  last = std::min<std::int64_t>(last, 63);
  if (first > last) return 0;
  return (kAllLanes >> (63 - last)) & (kAllLanes << first);
}

std::int64_t NumBlocks(const Sequence& sequence) noexcept {
  if (sequence.seqlen_q == 0) return 0;
  const auto width = static_cast<std::int64_t>(kBlockQueries);
  return (sequence.origin_q + sequence.seqlen_q - 1) / width - sequence.origin_q / width + 1;
}

std::int64_t MostBlocks(const Problem& problem) noexcept {
  const std::int64_t batch = problem.shape().batch;
  const std::int64_t different = problem.is_ragged() ? batch : std::min<std::int64_t>(batch, 1);
  std::int64_t most = 0;
  for (std::int64_t sequence = 0; sequence < different; ++sequence) {
    most = std::max(most, NumBlocks(problem.sequence(sequence)));
  }
  return most;
}

// Ranges move to the right with the query, so the first and last query bound them all.
void FindKeys(const Problem& problem, QueryBlock& block) noexcept {
  const Sequence& sequence = block.sequence;
  const KeyRange first = WholeKeyRange(problem, sequence, block.global_query(block.lane_begin));
  const KeyRange last = WholeKeyRange(problem, sequence, block.global_query(block.lane_end - 1));
  block.keys = LocalKeyRange(sequence, {first.begin, last.end});
  block.full = FullRange(problem, block);
}

QueryBlock MakeBlock(const Problem& problem, std::int64_t batch, std::int64_t head,
                     std::int64_t index) noexcept {
  const auto block_queries = static_cast<std::int64_t>(kBlockQueries);
  QueryBlock block{
      .batch = batch, .head = head, .sequence = problem.sequence(batch), .keys = {}, .full = {}};
  const Sequence& sequence = block.sequence;
  block.first = (sequence.origin_q / block_queries + index) * block_queries;
  const std::int64_t begin = std::max(sequence.origin_q, block.first);
  const std::int64_t end =
      std::min(sequence.origin_q + sequence.seqlen_q, block.first + block_queries);
  block.lane_begin = static_cast<std::size_t>(begin - block.first);
  block.lane_end = static_cast<std::size_t>(end - block.first);
  block.width = WidthFor(block.lane_end);
  FindKeys(problem, block);
  return block;
}

}  // namespace attndrop
