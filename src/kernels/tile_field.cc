// SPDX-License-Identifier: Apache-2.0
// Draws of a tile, by what the scheme declares of its axes.
#include "kernels/tile_field.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/bit_matrix.h"

namespace attndrop {
namespace {

constexpr std::int64_t kOrderedQueries = 512;

// Neighbours on an axis that share a coordinate.
std::uint32_t RunOf(AxisMap axis, std::uint32_t param) noexcept {
  return axis == AxisMap::kDiv        ? param
         : axis == AxisMap::kIdentity ? 1
                                      : std::numeric_limits<std::uint32_t>::max();
}

}  // namespace

KeepWordsTables MakeFieldTables(const Problem& problem) noexcept {
  if (problem.drops_nothing() || problem.drops_everything()) return {};
  return MakeKeepWordsTables(
      MakeAliasTable(problem.keep_q32()),
      CallKey({problem.dropout().seed, problem.dropout().offset, Fnv1a(problem.scheme().info.name)},
              0));
}

TileField::TileField(const Problem& problem, const Kernels& kernels,
                     const KeepWordsTables& tables) noexcept
    : problem_(problem),
      kernels_(kernels),
      field_(problem, problem.dropout().offset, tables.table),
      tables_(tables) {}

Coord TileField::At(const QueryBlock& block, std::size_t lane,
                    std::int64_t global_key) const noexcept {
  const Coord& origin = problem_.origin();
  return {problem_.global_batch(block.batch), origin.head + static_cast<std::uint32_t>(block.head),
          static_cast<std::uint32_t>(block.global_query(lane)),
          static_cast<std::uint32_t>(global_key)};
}

KeepWordsArgs TileField::FieldOf(const QueryBlock& block) const noexcept {
  const FieldPoint point = field_.PointOf(At(block, block.lane_begin, block.sequence.origin_k));
  return {.tables = &tables_, .h = point.h, .b = point.b};
}

void TileField::Fill(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) {
  const SchemeInfo& scheme = problem_.scheme().info;
  const AxisMap rows = scheme.query_axis;
  const AxisMap cols = scheme.key_axis;
  if (rows == AxisMap::kIdentity && cols == AxisMap::kIdentity) {
    return FillDense(block, keys, words);
  }
  if (rows == AxisMap::kMaxOfPair && cols == AxisMap::kMinOfPair) {
    return FillSymmetric(block, keys, words);
  }
  if (rows == AxisMap::kIdentity && cols == AxisMap::kConstant) {
    return FillRows(block, keys, words);
  }
  if (rows == AxisMap::kConstant && cols == AxisMap::kIdentity) {
    return FillColumns(block, keys, words);
  }
  const auto is_run = [](AxisMap axis) {
    return axis == AxisMap::kIdentity || axis == AxisMap::kConstant || axis == AxisMap::kDiv;
  };
  if (is_run(rows) && is_run(cols)) return FillPatches(block, keys, words);
  FillOneByOne(block, keys, words);
}

// The SIMD generator walks whole groups of eight columns.
void TileField::FillDense(const QueryBlock& block, const KeyRange& keys,
                          std::uint64_t* words) const {
  const std::int64_t first = keys.begin + block.sequence.origin_k;
  const std::int64_t aligned = first / 8 * 8;
  const auto skipped = static_cast<std::size_t>(first - aligned);
  const auto count = static_cast<std::size_t>(keys.size());
  KeepWordsArgs args = FieldOf(block);
  args.row = static_cast<std::uint32_t>(block.first);
  args.column = static_cast<std::uint32_t>(aligned);
  args.count = (skipped + count + 7) / 8 * 8;
  if (args.count == count) {
    args.words = words;
    return kernels_.keep_words(args);
  }
  std::uint64_t buffer[kTileKeys + 16];
  args.words = buffer;
  kernels_.keep_words(args);
  std::copy(buffer + skipped, buffer + skipped + count, words);
}

// keep(i, j) = field(max, min): below the diagonal the dense field, above it the transpose of what
// stands opposite, on the diagonal both.
void TileField::FillSymmetric(const QueryBlock& block, const KeyRange& keys,
                              std::uint64_t* words) const {
  const std::int64_t begin = keys.begin + block.sequence.origin_k;
  const std::int64_t end = keys.end + block.sequence.origin_k;
  KeepWordsArgs args = FieldOf(block);
  args.count = 64;
  for (std::int64_t square = begin / 64 * 64; square < end; square += 64) {
    std::uint64_t lower[64];
    std::uint64_t upper[64];
    args.row = static_cast<std::uint32_t>(std::max(block.first, square));
    args.column = static_cast<std::uint32_t>(std::min(block.first, square));
    args.words = lower;
    kernels_.keep_words(args);
    std::copy(lower, lower + 64, upper);
    if (square >= block.first) TransposeBits(upper);
    for (std::int64_t key = std::max(begin, square); key < std::min(end, square + 64); ++key) {
      const auto column = static_cast<std::size_t>(key - square);
      const std::uint64_t on_or_below =
          LaneInterval(key - block.first, 63);  // queries at or after the key
      words[key - begin] = (lower[column] & on_or_below) | (upper[column] & ~on_or_below);
    }
  }
}

// Whole rows share a draw: the field's column 0.
void TileField::FillRows(const QueryBlock& block, const KeyRange& keys,
                         std::uint64_t* words) const {
  std::fill(words, words + keys.size(),
            block.is_ordered ? block.row_draws : RowDraws(block, block.first));
}

// Draws of 64 rows from global query `first` on, a multiple of 64.
std::uint64_t TileField::RowDraws(const QueryBlock& block, std::int64_t first) const {
  std::uint64_t columns[8];
  KeepWordsArgs args = FieldOf(block);
  args.row = static_cast<std::uint32_t>(first);
  args.count = 8;
  args.words = columns;
  kernels_.keep_words(args);
  return columns[0];
}

bool TileField::OrdersRows() const noexcept {
  const SchemeInfo& scheme = problem_.scheme().info;
  const bool draws = !problem_.drops_nothing() && !problem_.drops_everything();
  return draws && scheme.query_axis == AxisMap::kIdentity && scheme.key_axis == AxisMap::kConstant;
}

void TileField::OrderByDraw(QueryBlock& block) const {
  const Sequence& sequence = block.sequence;
  const std::int64_t first = block.first / kOrderedQueries * kOrderedQueries;
  const std::int64_t begin = std::max(sequence.origin_q, first) - first;
  const std::int64_t end =
      std::min(sequence.origin_q + sequence.seqlen_q, first + kOrderedQueries) - first;
  std::uint64_t draws[kOrderedQueries / 64] = {};
  std::int64_t kept = 0;
  for (std::int64_t i = begin / 64; i <= (end - 1) / 64; ++i) {
    draws[i] = RowDraws(block, first + 64 * i);
    kept += std::popcount(draws[i] & LaneInterval(begin - 64 * i, end - 1 - 64 * i));
  }
  // Places in the order that the block takes: as many rows stand before it as without an order.
  const std::int64_t place_begin =
      block.first + static_cast<std::int64_t>(block.lane_begin) - first - begin;
  std::int64_t next[2] = {kept, 0};  // place of the next row that is lost, kept
  std::size_t lane = block.lane_begin;
  for (std::int64_t row = begin; row < end && lane < block.lane_end; ++row) {
    const std::uint64_t keep = (draws[row / 64] >> (row % 64)) & 1U;
    const std::int64_t place = next[keep]++ - place_begin;
    if (place < 0 || place >= static_cast<std::int64_t>(block.lane_end - block.lane_begin))
      continue;
    block.order[lane] = static_cast<std::uint16_t>(row);
    block.row_draws |= keep << lane++;
  }
  std::fill(block.order.begin(), block.order.begin() + block.lane_begin,
            block.order[block.lane_begin]);
  std::fill(block.order.begin() + block.lane_end, block.order.end(),
            block.order[block.lane_end - 1]);
  block.first = first;
  block.is_ordered = true;
  FindKeys(problem_, block);
}

// All rows share the draws of a key: the field's row 0.
void TileField::FillColumns(const QueryBlock& block, const KeyRange& keys,
                            std::uint64_t* words) const {
  const std::int64_t first = keys.begin + block.sequence.origin_k;
  const auto skipped = static_cast<std::size_t>(first % 8);
  const auto count = static_cast<std::size_t>(keys.size());
  std::uint8_t octets[kTileKeys / 8 + 2];
  const KeepWordsArgs field = FieldOf(block);
  kernels_.keep_row({.tables = &tables_,
                     .row = 0,
                     .column = static_cast<std::uint32_t>(first / 8 * 8),
                     .h = field.h,
                     .b = field.b,
                     .count = (skipped + count + 7) / 8,
                     .octets = octets});
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t column = skipped + i;
    words[i] = ((octets[column / 8] >> (column % 8)) & 1U) != 0 ? kAllLanes : 0;
  }
}

// One draw a patch of block_q queries by block_k keys.
void TileField::FillPatches(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) {
  const SchemeInfo& scheme = problem_.scheme().info;
  const std::uint32_t block_q = RunOf(scheme.query_axis, problem_.scheme_params()[0]);
  const std::uint32_t block_k = RunOf(scheme.key_axis, problem_.scheme_params()[1]);
  const std::int64_t origin = block.sequence.origin_k;
  for (std::int64_t key = keys.begin + origin; key < keys.end + origin;) {
    const std::int64_t next = std::min((key / block_k + 1) * block_k, keys.end + origin);
    std::fill(words + (key - origin - keys.begin), words + (next - origin - keys.begin),
              PatchWord(block, key, block_q));
    key = next;
  }
}

// The word of one key, whose queries share draws in runs of block_q.
std::uint64_t TileField::PatchWord(const QueryBlock& block, std::int64_t key,
                                   std::uint32_t block_q) {
  std::uint64_t word = 0;
  for (auto lane = static_cast<std::int64_t>(block.lane_begin);
       lane < static_cast<std::int64_t>(block.lane_end);) {
    const std::int64_t query = block.first + lane;
    const std::int64_t next = (query / block_q + 1) * block_q - block.first;
    if (Bit(block, static_cast<std::size_t>(lane), key, 0)) word |= LaneInterval(lane, next - 1);
    lane = next;
  }
  return word;
}

void TileField::FillOneByOne(const QueryBlock& block, const KeyRange& keys, std::uint64_t* words) {
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    const std::int64_t key = keys.begin + block.sequence.origin_k + i;
    words[i] = 0;
    for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
      const bool keep = Bit(block, lane, key, 0);
      words[i] |= static_cast<std::uint64_t>(keep ? 1 : 0) << lane;
    }
  }
}

}  // namespace attndrop
