// SPDX-License-Identifier: Apache-2.0
// The words of a tile: which of up to 64 queries see, and which keep, each of up to 256 keys. This
// is where masks, schemes and policies end; the kernels read nothing but these words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "attndrop/attention.h"

#include "core/row_state.h"
#include "kernels/kernels.h"
#include "kernels/query_block.h"
#include "kernels/tile_field.h"

namespace attndrop {

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
  bool whole_parts = false;    // all queries of the block need the keys of part_list
  bool whole_keeps = false;    // all that need a key of kept_list keep it
  bool has_special = false;
  bool has_bias = false;

  [[nodiscard]] KeyList parts() const noexcept { return {part_keys, part_count}; }
  // Rows count in arrays of the parts.
  [[nodiscard]] KeyList keeps() const noexcept { return {kept_keys, kept_count, kept_rows}; }
  // Rows count in arrays of the kept keys alone.
  [[nodiscard]] KeyList compact_keeps() const noexcept { return {kept_keys, kept_count}; }
  [[nodiscard]] TileMasks masks() const noexcept {
    return {has_bias ? bias : nullptr, whole_parts ? nullptr : part,
            has_kept && !whole_keeps ? kept : nullptr};
  }
};

class TileWordSource {
 public:
  // tables: of the problem (MakeFieldTables); they outlive this.
  TileWordSource(const Problem& problem, const MaskBuffers& mask, const Kernels& kernels,
                 const KeepWordsTables& tables) noexcept;

  // A block as the kernels take it: in order, where that saves work.
  [[nodiscard]] QueryBlock Block(std::int64_t batch, std::int64_t head, std::int64_t index) const;
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
  void ApplyPolicy(const QueryBlock& block, const BlockState& state, const KeyRange& keys,
                   TileWords& words);

  const Problem& problem_;
  MaskReader mask_;
  TileField field_;
};

}  // namespace attndrop
