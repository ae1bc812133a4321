// SPDX-License-Identifier: Apache-2.0
// Blocks of up to 64 queries, and the parts of a tile of keys that a block sees.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/visibility.h"
#include "kernels/kernels.h"

namespace attndrop {

// Up to 64 queries of one head, in ascending order. Lane i is global query first + i, and first a
// multiple of 64; or, in an ordered block (tile_field.h), query first + order[i]. Lanes outside
// [lane_begin, lane_end) are no queries of this problem.
struct QueryBlock {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t first = 0;  // global
  std::size_t lane_begin = 0;
  std::size_t lane_end = 0;
  std::size_t width = 0;  // lanes that the kernels compute: 16, 32 or 64
  Sequence sequence;
  KeyRange keys;  // local: the union of what its queries see inside causal and window
  KeyRange full;  // local: what all lanes see
  bool is_ordered = false;
  std::array<std::uint16_t, kBlockQueries> order{};
  std::uint64_t row_draws = 0;  // of an ordered block: the one draw of each lane's row

  [[nodiscard]] std::int64_t global_query(std::size_t lane) const noexcept {
    return first + static_cast<std::int64_t>(is_ordered ? order[lane] : lane);
  }
  [[nodiscard]] std::int64_t local_query(std::size_t lane) const noexcept {
    return global_query(lane) - sequence.origin_q;
  }
  // Lanes whose queries come before a global one; any number below 0 or above 64 stands for none
  // and all.
  [[nodiscard]] std::int64_t LanesBefore(std::int64_t query) const noexcept {
    if (!is_ordered) return query - first;
    return std::lower_bound(order.begin(), order.end(), query - first) - order.begin();
  }
};

// Runs f over the parts of `seen` that tiles are made of: what all queries of the block see in one
// piece, edges of a causal mask or window 16 keys at a time, for they need few of the lanes.
template <class F>
void ForEachPart(const QueryBlock& block, const KeyRange& seen, const F& f) {
  constexpr std::int64_t kStep = 16;
  const std::int64_t origin = block.sequence.origin_k;
  // Edges begin and end at multiples of 16 in global coordinates.
  const auto clip = [&seen](std::int64_t key) { return std::clamp(key, seen.begin, seen.end); };
  std::int64_t full_begin = clip((block.full.begin + origin + kStep - 1) / kStep * kStep - origin);
  std::int64_t full_end = clip((block.full.end + origin) / kStep * kStep - origin);
  if (block.full.begin <= seen.begin) full_begin = seen.begin;
  if (block.full.end >= seen.end) full_end = seen.end;
  if (full_begin >= full_end) full_begin = full_end = seen.end;
  const auto run_edge = [&f, origin](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t next = (begin + origin) / kStep * kStep + kStep - origin;
      f(KeyRange{begin, std::min(next, end)});
      begin = next;
    }
  };
  run_edge(seen.begin, full_begin);
  if (full_begin < full_end) f(KeyRange{full_begin, full_end});
  run_edge(full_end, seen.end);
}

// Blocks of a sequence's queries.
[[nodiscard]] std::int64_t NumBlocks(const Sequence& sequence) noexcept;
// Blocks of the sequence that has most; at once for any batch, since only those of a ragged batch
// differ and another may be billions long.
[[nodiscard]] std::int64_t MostBlocks(const Problem& problem) noexcept;
[[nodiscard]] QueryBlock MakeBlock(const Problem& problem, std::int64_t batch, std::int64_t head,
                                   std::int64_t index) noexcept;

inline constexpr std::uint64_t kAllLanes = ~std::uint64_t{0};

// Finds keys and full of a block whose queries are known.
void FindKeys(const Problem& problem, QueryBlock& block) noexcept;

// A word of lanes first .. last, both included and clipped to 0 .. 63.
[[nodiscard]] std::uint64_t LaneInterval(std::int64_t first, std::int64_t last) noexcept;

// The lanes of a block that are queries.
[[nodiscard]] inline std::uint64_t LanesOf(const QueryBlock& block) noexcept {
  return LaneInterval(static_cast<std::int64_t>(block.lane_begin),
                      static_cast<std::int64_t>(block.lane_end) - 1);
}

}  // namespace attndrop
