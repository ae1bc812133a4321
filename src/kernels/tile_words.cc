// SPDX-License-Identifier: Apache-2.0
// Tile words from geometry, attn_mask, scheme and policy.
#include "kernels/tile_words.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/bit_matrix.h"

namespace attndrop {
namespace {

constexpr std::uint64_t kAllLanes = ~std::uint64_t{0};
constexpr double kLog2E = 1.4426950408889634;
// Biases end here so that adding one to a logit stays finite: rows of lowest floats are equal.
constexpr double kLargestBias = 3.0e38;

// Lanes first .. last, both included and clipped to 0 .. 63.
std::uint64_t LaneInterval(std::int64_t first, std::int64_t last) noexcept {
  first = std::max<std::int64_t>(first, 0);
  last = std::min<std::int64_t>(last, 63);
  if (first > last) return 0;
  return (kAllLanes >> (63 - last)) & (kAllLanes << first);
}

// The queries of a block that see global key `key` inside causal and window.
std::uint64_t GeometryWord(const Problem& problem, const QueryBlock& block,
                           std::int64_t key) noexcept {
  // Lane of the query that stands at the key.
  const std::int64_t lane = key - block.sequence.shift - block.first;
  std::int64_t first = 0;
  std::int64_t last = 63;
  if (problem.is_causal()) first = std::max(first, lane);
  if (problem.window().right >= 0) first = std::max(first, lane - problem.window().right);
  if (problem.window().left >= 0) last = std::min(last, lane + problem.window().left);
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

// Keys that all 64 lanes see, unused ones included, so that their words are all ones.
KeyRange FullRange(const Problem& problem, const QueryBlock& block) noexcept {
  const std::int64_t first = block.first + block.sequence.shift;
  const std::int64_t last = first + static_cast<std::int64_t>(kBlockQueries) - 1;
  KeyRange full{0, block.sequence.total_k};
  if (problem.is_causal()) full.end = std::min(full.end, first + 1);
  const Window& window = problem.window();
  if (window.right >= 0) full.end = std::min(full.end, first + window.right + 1);
  if (window.left >= 0) full.begin = std::max(full.begin, last - window.left);
  return LocalKeyRange(block.sequence, full);
}

// The lanes of a word, out to multiples of 16.
LaneRange LanesOf(std::uint64_t word, std::size_t width) noexcept {
  if (word == 0) return {};
  const auto begin = static_cast<std::size_t>(std::countr_zero(word)) / 16 * 16;
  const auto end = (static_cast<std::size_t>(std::bit_width(word)) + 15) / 16 * 16;
  return {begin, std::min(end, width)};
}

std::size_t WidthFor(std::size_t lane_end) noexcept {
  return lane_end <= 16 ? 16 : lane_end <= 32 ? 32 : 64;
}

}  // namespace

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
  // Ranges move to the right with the query, so the first and last query bound them all.
  const KeyRange first = WholeKeyRange(problem, sequence, begin);
  const KeyRange last = WholeKeyRange(problem, sequence, end - 1);
  block.keys = LocalKeyRange(sequence, {first.begin, last.end});
  block.full = FullRange(problem, block);
  return block;
}

TileWordSource::TileWordSource(const Problem& problem, const MaskBuffers& mask,
                               const Kernels& kernels) noexcept
    : problem_(problem), kernels_(kernels), mask_(problem, mask), field_(problem) {
  if (problem.drops_nothing() || problem.drops_everything()) return;
  tables_ = MakeKeepWordsTables(
      MakeAliasTable(problem.keep_q32()),
      CallKey({problem.dropout().seed, problem.dropout().offset, Fnv1a(problem.scheme().info.name)},
              0));
}

float TileWordSource::special_ratio() const noexcept {
  return static_cast<float>(problem_.keep_prob());
}

Coord TileWordSource::At(const QueryBlock& block, std::size_t lane,
                         std::int64_t global_key) const noexcept {
  const Coord& origin = problem_.origin();
  return {problem_.global_batch(block.batch),
          origin.head + static_cast<std::uint32_t>(block.head),
          static_cast<std::uint32_t>(block.first + static_cast<std::int64_t>(lane)),
          static_cast<std::uint32_t>(global_key)};
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
        policy == EmptyRow::kKeepSelf
            ? block.first + static_cast<std::int64_t>(lane) + block.sequence.shift
            : 0;
  }
  if (draws && (policy == EmptyRow::kKeepSelf || policy == EmptyRow::kKeepFirst)) {
    state.forced = LaneInterval(static_cast<std::int64_t>(block.lane_begin),
                                static_cast<std::int64_t>(block.lane_end) - 1);
  }
}

void TileWordSource::AddRowState(const QueryBlock& block, std::size_t lane, BlockState& state) {
  const Row row = MakeRow(problem_, block.batch, block.head, block.local_query(lane));
  const RowState found = FindRowState(problem_, row, mask_, field_);
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
      FillField(block, keys, words.kept);
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
  const std::uint64_t lanes = LaneInterval(static_cast<std::int64_t>(block.lane_begin),
                                           static_cast<std::int64_t>(block.lane_end) - 1);
  std::uint64_t needed = words.all_part ? kAllLanes : 0;
  for (std::size_t key = 0; !words.all_part && key < words.count; ++key) needed |= words.part[key];
  words.lanes = LanesOf(needed & lanes, block.width);
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
    const std::int64_t position =
        block.first + static_cast<std::int64_t>(lane) + block.sequence.shift;
    std::int64_t global_key = keys.begin + block.sequence.origin_k;
    for (std::size_t key = 0; key < words.count; ++key, ++at.key, ++global_key) {
      const double bias = mask_.Bias(at, std::abs(position - global_key)) * kLog2E;
      words.bias[key * block.width + lane] =
          static_cast<float>(std::clamp(bias, -kLargestBias, kLargestBias));
    }
  }
}

KeepWordsArgs TileWordSource::FieldOf(const QueryBlock& block) const noexcept {
  const FieldPoint point = field_.PointOf(At(block, block.lane_begin, block.sequence.origin_k));
  return {.tables = &tables_, .h = point.h, .b = point.b};
}

void TileWordSource::FillField(const QueryBlock& block, const KeyRange& keys,
                               std::uint64_t* words) {
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
  if (is_run(rows) && is_run(cols)) return FillByRuns(block, keys, words);
  FillOneByOne(block, keys, words);
}

// The SIMD generator walks whole groups of eight columns.
void TileWordSource::FillDense(const QueryBlock& block, const KeyRange& keys,
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
void TileWordSource::FillSymmetric(const QueryBlock& block, const KeyRange& keys,
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
void TileWordSource::FillRows(const QueryBlock& block, const KeyRange& keys,
                              std::uint64_t* words) const {
  std::uint64_t columns[8];
  KeepWordsArgs args = FieldOf(block);
  args.row = static_cast<std::uint32_t>(block.first);
  args.count = 8;
  args.words = columns;
  kernels_.keep_words(args);
  std::fill(words, words + keys.size(), columns[0]);
}

// All rows share the draws of a key: the field's row 0.
void TileWordSource::FillColumns(const QueryBlock& block, const KeyRange& keys,
                                 std::uint64_t* words) const {
  FieldPoint point = field_.PointOf(At(block, block.lane_begin, 0));
  unsigned nibble = 0;
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    const auto column = static_cast<std::uint32_t>(keys.begin + block.sequence.origin_k + i);
    if (i == 0 || column % 4 == 0) {
      point.c = column;
      nibble = FieldNibble(tables_.table, tables_.key, point);
    }
    words[i] = ((nibble >> (column % 4)) & 1U) != 0 ? kAllLanes : 0;
  }
}

// Lanes that read the same row of the field.
struct TileWordSource::RowRun {
  std::size_t lane = 0;  // the first
  std::uint64_t lanes = 0;
};

// Rows and columns that map to runs of equal coordinates: one draw a patch.
void TileWordSource::FillByRuns(const QueryBlock& block, const KeyRange& keys,
                                std::uint64_t* words) {
  RowRun runs[kBlockQueries];
  std::size_t num_runs = 0;
  std::uint32_t last_row = 0;
  for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
    const std::uint32_t row = field_.PointOf(At(block, lane, 0)).r;
    if (num_runs == 0 || row != last_row) runs[num_runs++] = {lane, 0};
    runs[num_runs - 1].lanes |= std::uint64_t{1} << lane;
    last_row = row;
  }
  std::uint32_t last_column = 0;
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    const std::int64_t key = keys.begin + block.sequence.origin_k + i;
    const std::uint32_t column = field_.PointOf(At(block, block.lane_begin, key)).c;
    words[i] = 0;
    if (i > 0 && column == last_column) {
      words[i] = words[i - 1];
      continue;
    }
    last_column = column;
    for (std::size_t run = 0; run < num_runs; ++run) {
      if (field_.Bit(At(block, runs[run].lane, key), 0)) words[i] |= runs[run].lanes;
    }
  }
}

void TileWordSource::FillOneByOne(const QueryBlock& block, const KeyRange& keys,
                                  std::uint64_t* words) {
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    const std::int64_t key = keys.begin + block.sequence.origin_k + i;
    words[i] = 0;
    for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
      const bool keep = field_.Bit(At(block, lane, key), 0);
      words[i] |= static_cast<std::uint64_t>(keep ? 1 : 0) << lane;
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
      const Coord at = At(block, lane, first + static_cast<std::int64_t>(key));
      const bool keep = field_.Bit(at, state.attempt[lane]);
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
