// SPDX-License-Identifier: Apache-2.0
// The draws of a tile as words, before masks and policies: bit i of words[j] is the field bit that
// query i of a block and key j read under the scheme. What a scheme declares of its axes chooses
// the way; all ways give the same bits.
#pragma once

#include <cstdint>

#include "core/row_state.h"
#include "kernels/kernels.h"
#include "kernels/query_block.h"

namespace attndrop {

// The tables of a call, which all its tiles share; empty where nothing or everything is dropped.
[[nodiscard]] KeepWordsTables MakeFieldTables(const Problem& problem) noexcept;

class TileField {
 public:
  // tables: of the problem; they outlive this.
  TileField(const Problem& problem, const Kernels& kernels, const KeepWordsTables& tables) noexcept;

  // keys: local, at most kTileKeys of them. Of a problem that drops some weights and keeps others.
  void Fill(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words);
  // Whole rows share a draw: then most work is saved if rows that are kept stand in blocks of their
  // own. Among the 512 queries around a block, those that are kept come first; the block takes as
  // many of them as before, from the same place on.
  [[nodiscard]] bool OrdersRows() const noexcept;
  void OrderByDraw(QueryBlock& block) const;
  // One bit, of any attempt.
  [[nodiscard]] bool Bit(const QueryBlock& block, std::size_t lane, std::int64_t global_key,
                         std::uint32_t attempt) noexcept {
    return field_.Bit(At(block, lane, global_key), attempt);
  }
  [[nodiscard]] KeepField& scalar() noexcept { return field_; }

 private:
  void FillDense(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  void FillSymmetric(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  void FillRows(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  void FillColumns(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) const;
  void FillPatches(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words);
  [[nodiscard]] std::uint64_t PatchWord(const QueryBlock& block, std::int64_t key,
                                        std::uint32_t block_q);
  [[nodiscard]] std::uint64_t RowDraws(const QueryBlock& block, std::int64_t first) const;
  void FillOneByOne(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words);
  [[nodiscard]] Coord At(const QueryBlock& block, std::size_t lane,
                         std::int64_t global_key) const noexcept;
  [[nodiscard]] KeepWordsArgs FieldOf(const QueryBlock& block) const noexcept;

  const Problem& problem_;
  const Kernels& kernels_;
  KeepField field_;
  const KeepWordsTables& tables_;
};

}  // namespace attndrop
