// SPDX-License-Identifier: Apache-2.0
// The words of a tile: which of up to 64 queries see, and which keep, each of up to 256 keys. This
// is where masks, schemes and policies end; the kernels read nothing but these words.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "attndrop/attention.h"

#include "core/row_state.h"
#include "core/visibility.h"
#include "kernels/kernels.h"
#include "rng/field.h"

namespace attndrop {

// Up to 64 queries of one head, at a multiple of 64 in global coordinates. Lane i is global query
// first + i; lanes outside [lane_begin, lane_end) are no queries of this problem.
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

  [[nodiscard]] std::int64_t local_query(std::size_t lane) const noexcept {
    return first + static_cast<std::int64_t>(lane) - sequence.origin_q;
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

// What the policy decided for each query of a block (core/row_state.h), as words and lanes.
struct BlockState {
  std::uint64_t keep_all = 0;  // rows that keep all visible keys
  std::uint64_t redrawn = 0;   // rows that read a later attempt
  std::uint64_t forced = 0;    // rows that keep forced_key in any case
  std::array<std::uint32_t, kBlockQueries> attempt{};
  std::array<std::int64_t, kBlockQueries> forced_key{};   // global
  alignas(64) std::array<float, kBlockQueries> factor{};  // of kept weights; 0 in unused lanes
};

struct TileWords {
  std::uint64_t part[kTileKeys];
  std::uint64_t kept[kTileKeys];     // within part
  std::uint64_t special[kTileKeys];  // within kept; factor is the block's times special_ratio
  alignas(64) float bias[kTileKeys * kBlockQueries];  // [key][width], units of log2
  // The keys, as lists: in the arrays below, or shared ones where all keys are meant.
  const std::uint16_t* part_keys = nullptr;
  const std::uint16_t* kept_keys = nullptr;
  const std::uint16_t* kept_rows = nullptr;  // where each of kept_keys stands in part_keys
  std::uint16_t part_list[kTileKeys];
  std::uint16_t kept_list[kTileKeys];
  std::uint16_t kept_row_list[kTileKeys];
  std::size_t count = 0;       // keys of the tile
  std::size_t part_count = 0;  // keys that some query's softmax needs
  std::size_t kept_count = 0;  // keys that some query keeps
  LaneRange lanes{};           // that some key of the tile needs
  bool all_part = false;       // part is all ones
  bool has_kept = false;       // kept differs from part
  bool has_special = false;
  bool has_bias = false;

  [[nodiscard]] KeyList parts() const noexcept { return {part_keys, part_count}; }
  // Rows count in arrays of the parts.
  [[nodiscard]] KeyList keeps() const noexcept { return {kept_keys, kept_count, kept_rows}; }
  // Rows count in arrays of the kept keys alone.
  [[nodiscard]] KeyList compact_keeps() const noexcept { return {kept_keys, kept_count}; }
  [[nodiscard]] TileMasks masks() const noexcept {
    return {has_bias ? bias : nullptr, all_part ? nullptr : part, has_kept ? kept : nullptr};
  }
};

class TileWordSource {
 public:
  TileWordSource(const Problem& problem, const MaskBuffers& mask, const Kernels& kernels) noexcept;

  void FindBlockState(const QueryBlock& block, BlockState& state);
  // keys: local, at most kTileKeys of them.
  void Fill(const QueryBlock& block, const BlockState& state, const KeyRange& keys,
            TileWords& words);
  // What a special factor is a multiple of the block's factor by.
  [[nodiscard]] float special_ratio() const noexcept;

 private:
  void AddRowState(const QueryBlock& block, std::size_t lane, BlockState& state);
  void FillPart(const QueryBlock& block, const KeyRange& keys, TileWords& words) const;
  void ApplyAttnMask(const QueryBlock& block, const KeyRange& keys, TileWords& words) const;
  void AddBias(const QueryBlock& block, const KeyRange& keys, TileWords& words) const;
  void FillField(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words);
  void FillDense(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  void FillSymmetric(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  struct RowRun;
  void FillRows(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  void FillColumns(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  void FillByRuns(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words);
  void FillOneByOne(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words);
  void ApplyPolicy(const QueryBlock& block, const BlockState& state, const KeyRange& keys,
                   TileWords& words);
  [[nodiscard]] Coord At(const QueryBlock& block, std::size_t lane,
                         std::int64_t global_key) const noexcept;
  [[nodiscard]] KeepWordsArgs FieldOf(const QueryBlock& block) const noexcept;

  const Problem& problem_;
  const Kernels& kernels_;
  MaskReader mask_;
  KeepField field_;
  KeepWordsTables tables_;
};

}  // namespace attndrop
