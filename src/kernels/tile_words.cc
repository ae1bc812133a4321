// SPDX-License-Identifier: Apache-2.0
// Tile words from geometry, attn_mask, scheme and policy.
#include "kernels/tile_words.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

namespace attndrop {
namespace {

// Biases end here so that adding one to a logit stays finite: rows of lowest floats are equal.
constexpr double kLargestBias = 3.0e38;

// The queries of a block that see global key `key` inside causal and window.
std::uint64_t GeometryWord(const Problem& problem, const QueryBlock& block,
                           std::int64_t key) noexcept {
  const std::int64_t query = key - block.sequence.shift;  // the one that stands at the key
  const Window& window = problem.window();
  std::int64_t first = 0;
  std::int64_t last = 63;
  if (problem.is_causal()) first = std::max(first, block.LanesBefore(query));
  if (window.right >= 0) first = std::max(first, block.LanesBefore(query - window.right));
  if (window.left >= 0) last = std::min(last, block.LanesBefore(query + window.left + 1) - 1);
  return LaneInterval(first, last);
}

constexpr std::array<std::uint16_t, kTileKeys> AllKeys() noexcept {
  std::array<std::uint16_t, kTileKeys> keys{};
  for (std::size_t key = 0; key < kTileKeys; ++key) keys[key] = static_cast<std::uint16_t>(key);
  return keys;
}
constexpr std::array<std::uint16_t, kTileKeys> kAllKeys = AllKeys();

// Every word has one of the lanes. Written so that it becomes vectors: ~x & (x - 1) has its highest
// bit set for x = 0 alone.
bool AllMeet(const std::uint64_t* words, std::size_t count, std::uint64_t lanes) noexcept {
  std::uint64_t missing = 0;
  for (std::size_t key = 0; key < count; ++key) {
    const std::uint64_t x = words[key] & lanes;
    missing |= ~x & (x - 1);
  }
  return (missing >> 63) == 0;
}

// Each word has all of the lanes or none. Most words of a scheme that drops single weights have
// not: the first one tells.
bool AllWhole(const std::uint64_t* words, std::size_t count, std::uint64_t lanes) noexcept {
  return std::all_of(words, words + count, [lanes](std::uint64_t word) {
    return (word & lanes) == 0 || (word & lanes) == lanes;
  });
}

// Keys that some lane's softmax needs.
void ListParts(std::uint64_t lanes, TileWords& words) noexcept {
  if (words.all_part || AllMeet(words.part, words.count, lanes)) {
    words.part_keys = kAllKeys.data();
    words.part_count = words.count;
    return;
  }
  words.part_keys = words.part_list;
  words.part_count = 0;
  for (std::size_t key = 0; key < words.count; ++key) {
    words.part_list[words.part_count] = static_cast<std::uint16_t>(key);
    words.part_count += (words.part[key] & lanes) != 0 ? 1 : 0;
  }
}

// Those of them that some lane keeps.
void ListKept(std::uint64_t lanes, TileWords& words) noexcept {
  const bool parts_are_all = words.part_count == words.count;
  if (!words.has_kept || (parts_are_all && AllMeet(words.kept, words.count, lanes))) {
    words.kept_keys = words.part_keys;
    words.kept_rows = kAllKeys.data();
    words.kept_count = words.part_count;
    return;
  }
  words.kept_keys = words.kept_list;
  words.kept_rows = words.kept_row_list;
  words.kept_count = 0;
  for (std::size_t i = 0; i < words.part_count; ++i) {
    const std::uint16_t key = words.part_keys[i];
    words.kept_list[words.kept_count] = key;
    words.kept_row_list[words.kept_count] = static_cast<std::uint16_t>(i);
    words.kept_count += (words.kept[key] & lanes) != 0 ? 1 : 0;
  }
}

// The lanes of a word, out to multiples of 16.
LaneRange LanesAround(std::uint64_t word, std::size_t width) noexcept {
  if (word == 0) return {};
  const auto begin = static_cast<std::size_t>(std::countr_zero(word)) / 16 * 16;
  const auto end = (static_cast<std::size_t>(std::bit_width(word)) + 15) / 16 * 16;
  return {begin, std::min(end, width)};
}

}  // namespace

TileWordSource::TileWordSource(const Problem& problem, const MaskBuffers& mask,
                               const Kernels& kernels, const KeepWordsTables& tables) noexcept
    : problem_(problem), mask_(problem, mask), field_(problem, kernels, tables) {}

QueryBlock TileWordSource::Block(std::int64_t batch, std::int64_t head, std::int64_t index) const {
  QueryBlock block = MakeBlock(problem_, batch, head, index);
  if (field_.OrdersRows()) field_.OrderByDraw(block);
  return block;
}

float TileWordSource::special_ratio() const noexcept {
  return static_cast<float>(problem_.keep_prob());
}

void TileWordSource::FindBlockState(const QueryBlock& block, BlockState& state) {
  state = {};
  const EmptyRow policy = problem_.empty_row().kind;
  const bool draws = !problem_.drops_nothing() && !problem_.drops_everything();
  if (draws && (policy == EmptyRow::kAtLeastOne || policy == EmptyRow::kUndropped)) {
    for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
      AddRowState(block, lane, state);
    }
    return;
  }
  // The other policies do not look at a row's draws.
  const bool scaled = draws && problem_.stage() == Stage::kWeights;
  const auto factor = static_cast<float>(scaled ? 1.0 / problem_.keep_prob() : 1.0);
  for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
    state.factor[lane] = factor;
    state.forced_key[lane] =
        policy == EmptyRow::kKeepSelf ? block.global_query(lane) + block.sequence.shift : 0;
  }
  if (draws && (policy == EmptyRow::kKeepSelf || policy == EmptyRow::kKeepFirst)) {
    state.forced = LanesOf(block);
  }
}

void TileWordSource::AddRowState(const QueryBlock& block, std::size_t lane, BlockState& state) {
  const Row row = MakeRow(problem_, block.batch, block.head, block.local_query(lane));
  const RowState found = FindRowState(problem_, row, mask_, field_.scalar());
  const std::uint64_t bit = std::uint64_t{1} << lane;
  if (found.keep_all) state.keep_all |= bit;
  if (found.attempt != 0) state.redrawn |= bit;
  if (found.forced_key >= 0) state.forced |= bit;
  state.attempt[lane] = found.attempt;
  state.forced_key[lane] = found.forced_key;
  state.factor[lane] = static_cast<float>(found.factor);
}

void TileWordSource::Fill(const QueryBlock& block, const BlockState& state, const KeyRange& keys,
                          TileWords& words) {
  words.count = static_cast<std::size_t>(keys.size());
  words.has_kept = words.has_special = words.has_bias = false;
  FillPart(block, keys, words);
  if (problem_.attn_mask().kind != MaskKind::kNone) ApplyAttnMask(block, keys, words);
  if (problem_.attn_mask().kind == MaskKind::kFloat || problem_.alibi()) {
    AddBias(block, keys, words);
  }
  if (!problem_.drops_nothing()) {
    if (problem_.drops_everything()) {
      std::fill(words.kept, words.kept + words.count, 0);
    } else {
      field_.Fill(block, keys, words.kept);
      ApplyPolicy(block, state, keys, words);
    }
    if (!words.all_part) {
      for (std::size_t key = 0; key < words.count; ++key) words.kept[key] &= words.part[key];
    }
    words.has_kept = problem_.stage() == Stage::kWeights;
    if (!words.has_kept) {
      std::copy(words.kept, words.kept + words.count, words.part);
      words.all_part = false;
    }
  }
  const std::uint64_t lanes = LanesOf(block);
  std::uint64_t needed = words.all_part ? kAllLanes : 0;
  for (std::size_t key = 0; !words.all_part && key < words.count; ++key) needed |= words.part[key];
  words.lanes = LanesAround(needed & lanes, block.width);
  words.whole_parts = words.all_part || AllWhole(words.part, words.count, lanes);
  words.whole_keeps = words.has_kept && words.whole_parts && !words.has_special &&
                      AllWhole(words.kept, words.count, lanes);
  ListParts(lanes, words);
  ListKept(lanes, words);
}

void TileWordSource::FillPart(const QueryBlock& block, const KeyRange& keys,
                              TileWords& words) const {
  const std::int64_t first = keys.begin + block.sequence.origin_k;
  const std::int64_t last = keys.end - 1 + block.sequence.origin_k;
  // The words of a run of keys shift by one lane a key: if both ends are full, so are all.
  words.all_part = GeometryWord(problem_, block, first) == kAllLanes &&
                   GeometryWord(problem_, block, last) == kAllLanes;
  if (words.all_part) {
    std::fill(words.part, words.part + words.count, kAllLanes);
    return;
  }
  for (std::size_t key = 0; key < words.count; ++key) {
    words.part[key] = GeometryWord(problem_, block, first + static_cast<std::int64_t>(key));
  }
}

void TileWordSource::ApplyAttnMask(const QueryBlock& block, const KeyRange& keys,
                                   TileWords& words) const {
  words.all_part = false;
  const bool per_query = problem_.attn_mask().per_query;
  const std::size_t rows = per_query ? block.lane_end : block.lane_begin + 1;
  std::uint64_t hidden[kTileKeys] = {};
  for (std::size_t lane = block.lane_begin; lane < rows; ++lane) {
    LocalIndex at{block.batch, block.head, block.local_query(lane), keys.begin};
    for (std::size_t key = 0; key < words.count; ++key, ++at.key) {
      hidden[key] |= static_cast<std::uint64_t>(mask_.Visible(at) ? 0 : 1) << lane;
    }
  }
  for (std::size_t key = 0; key < words.count; ++key) {
    words.part[key] &= per_query ? ~hidden[key] : hidden[key] != 0 ? 0 : kAllLanes;
  }
}

void TileWordSource::AddBias(const QueryBlock& block, const KeyRange& keys,
                             TileWords& words) const {
  words.has_bias = true;
  std::fill(words.bias, words.bias + words.count * block.width, 0.0F);
  for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
    LocalIndex at{block.batch, block.head, block.local_query(lane), keys.begin};
    const std::int64_t position = block.global_query(lane) + block.sequence.shift;
    std::int64_t global_key = keys.begin + block.sequence.origin_k;
    for (std::size_t key = 0; key < words.count; ++key, ++at.key, ++global_key) {
      const double bias = mask_.Bias(at, std::abs(position - global_key)) * std::numbers::log2e;
      words.bias[key * block.width + lane] =
          static_cast<float>(std::clamp(bias, -kLargestBias, kLargestBias));
    }
  }
}

// Rows that were drawn again are few; each is patched on its own.
void TileWordSource::ApplyPolicy(const QueryBlock& block, const BlockState& state,
                                 const KeyRange& keys, TileWords& words) {
  const std::int64_t first = keys.begin + block.sequence.origin_k;
  if (state.keep_all != 0) {
    for (std::size_t key = 0; key < words.count; ++key) words.kept[key] |= state.keep_all;
  }
  for (std::uint64_t rows = state.redrawn; rows != 0; rows &= rows - 1) {
    const auto lane = static_cast<std::size_t>(std::countr_zero(rows));
    const std::uint64_t bit = std::uint64_t{1} << lane;
    for (std::size_t key = 0; key < words.count; ++key) {
      const bool keep =
          field_.Bit(block, lane, first + static_cast<std::int64_t>(key), state.attempt[lane]);
      words.kept[key] = (words.kept[key] & ~bit) | (keep ? bit : 0);
    }
  }
  const EmptyRow policy = problem_.empty_row().kind;
  const bool own_factor = problem_.stage() == Stage::kWeights &&
                          (policy == EmptyRow::kKeepSelf || policy == EmptyRow::kKeepFirst);
  if (own_factor) std::fill(words.special, words.special + words.count, 0);
  for (std::uint64_t rows = state.forced; rows != 0; rows &= rows - 1) {
    const auto lane = static_cast<std::size_t>(std::countr_zero(rows));
    const std::int64_t key = state.forced_key[lane] - first;
    if (key < 0 || key >= keys.size()) continue;
    words.kept[key] |= std::uint64_t{1} << lane;
    if (!own_factor) continue;
    words.special[key] |= (std::uint64_t{1} << lane) & words.part[key];
    words.has_special = true;
  }
}

}  // namespace attndrop
