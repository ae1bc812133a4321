// SPDX-License-Identifier: Apache-2.0
// The policies of mask format 1, section 5, for one row at a time.
#include "core/row_state.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace attndrop {
namespace {

LocalIndex At(const Row& row, std::int64_t local_key) noexcept {
  return {row.at.batch, row.at.head, row.at.query, local_key};
}

// A key of the whole row; attn_mask is read only where the key is in this problem.
bool VisibleAtGlobal(const Row& row, const MaskReader& mask, std::int64_t global_key) noexcept {
  if (!row.whole.contains(global_key)) return false;
  const std::int64_t local = global_key - row.sequence.origin_k;
  if (local < 0 || local >= row.sequence.seqlen_k) return true;
  return mask.Visible(At(row, local));
}

// The visible key number `index`, counted from 0 in ascending order.
std::int64_t VisibleKey(const Row& row, const MaskReader& mask, std::int64_t index) noexcept {
  if (!mask.has_attn_mask()) return row.whole.begin + index;
  for (std::int64_t key = row.whole.begin; key < row.whole.end; ++key) {
    if (VisibleAtGlobal(row, mask, key) && index-- == 0) return key;
  }
  return -1;
}

// Whether an attempt keeps any visible key; stops at the first.
bool AnyKept(const Problem& problem, const Row& row, const MaskReader& mask, KeepField& field,
             std::uint32_t attempt) noexcept {
  for (std::int64_t key = row.whole.begin; key < row.whole.end; ++key) {
    if (VisibleAtGlobal(row, mask, key) && field.Bit(GlobalCoord(problem, row, key), attempt)) {
      return true;
    }
  }
  return false;
}

// 1 - (1 - keep_prob)^count without cancellation.
double ChanceOfAny(double keep_prob, double count) noexcept {
  return -std::expm1(count * std::log1p(-keep_prob));
}

RowState AtLeastOneState(const Problem& problem, const Row& row, const MaskReader& mask,
                         KeepField& field) {
  const std::int64_t visible = CountVisible(row, mask);
  const std::uint32_t attempts = problem.empty_row().attempts;
  RowState state;
  if (visible == 0) return state;
  state.factor = 1.0 / AtLeastOneInclusion(problem.keep_prob(), visible, attempts);
  state.forced_factor = state.factor;
  for (state.attempt = 0; state.attempt < attempts; ++state.attempt) {
    if (AnyKept(problem, row, mask, field, state.attempt)) return state;
  }
  // The last draws kept nothing, so reading them again leaves the chosen key alone.
  state.attempt = attempts - 1;
  const std::uint64_t word = field.ForcedWord(GlobalCoord(problem, row, row.whole.begin));
  const auto index = static_cast<std::int64_t>((word * static_cast<std::uint64_t>(visible)) >> 32);
  state.forced_key = VisibleKey(row, mask, index);
  return state;
}

RowState UndroppedState(const Problem& problem, const Row& row, const MaskReader& mask,
                        KeepField& field) {
  RowState state;
  const std::int64_t points = CountDistinctPoints(row, mask, field, problem);
  if (points == 0) return state;
  const double empty = std::pow(1.0 - problem.keep_prob(), static_cast<double>(points));
  state.keep_all = !AnyKept(problem, row, mask, field, 0);
  state.factor = state.keep_all ? 1.0 / (1.0 + empty) : 1.0 / (problem.keep_prob() * (1.0 + empty));
  return state;
}

RowState KeepOneKeyState(const Problem& problem, const Row& row, const MaskReader& mask,
                         std::int64_t global_key) noexcept {
  RowState state;
  state.factor = 1.0 / problem.keep_prob();
  if (VisibleAtGlobal(row, mask, global_key)) state.forced_key = global_key;
  return state;
}

std::int64_t CountDistinctBlocks(const Row& row, const MaskReader& mask,
                                 std::int64_t block_k) noexcept {
  if (row.whole.size() == 0) return 0;
  if (!mask.has_attn_mask()) {
    return (row.whole.end - 1) / block_k - row.whole.begin / block_k + 1;
  }
  std::int64_t count = 0;
  std::int64_t last_block = -1;
  for (std::int64_t key = row.whole.begin; key < row.whole.end; ++key) {
    if (key / block_k == last_block || !VisibleAtGlobal(row, mask, key)) continue;
    last_block = key / block_k;
    ++count;
  }
  return count;
}

// For schemes that declare nothing: collects the points. Takes memory linear in the row.
std::int64_t CountPointsBySorting(const Row& row, const MaskReader& mask, const KeepField& field,
                                  const Problem& problem) {
  std::vector<std::tuple<std::uint32_t, std::uint32_t>> points;
  for (std::int64_t key = row.whole.begin; key < row.whole.end; ++key) {
    if (!VisibleAtGlobal(row, mask, key)) continue;
    const FieldPoint point = field.PointOf(GlobalCoord(problem, row, key));
    points.emplace_back(point.r, point.c);
  }
  std::sort(points.begin(), points.end());
  return std::unique(points.begin(), points.end()) - points.begin();
}

RowState PolicyState(const Problem& problem, const Row& row, const MaskReader& mask,
                     KeepField& field) {
  switch (problem.empty_row().kind) {
    case EmptyRow::kZero:
      return {.factor = 1.0 / problem.keep_prob()};
    case EmptyRow::kAtLeastOne:
      return AtLeastOneState(problem, row, mask, field);
    case EmptyRow::kKeepSelf:
      return KeepOneKeyState(problem, row, mask, row.global_query() + row.sequence.shift);
    case EmptyRow::kKeepFirst:
      return KeepOneKeyState(problem, row, mask, 0);
    case EmptyRow::kUndropped:
      return UndroppedState(problem, row, mask, field);
  }
  return {};
}

}  // namespace

Row MakeRow(const Problem& problem, std::int64_t batch, std::int64_t head,
            std::int64_t query) noexcept {
  Row row{
      .at = {batch, head, query, 0}, .sequence = problem.sequence(batch), .whole = {}, .local = {}};
  row.whole = WholeKeyRange(problem, row.sequence, row.global_query());
  row.local = LocalKeyRange(row.sequence, row.whole);
  return row;
}

KeepField::KeepField(const Problem& problem, std::uint64_t offset) noexcept
    : KeepField(problem, offset,
                problem.drops_nothing() || problem.drops_everything()
                    ? AliasTable{}
                    : MakeAliasTable(problem.keep_q32())) {}

KeepField::KeepField(const Problem& problem, std::uint64_t offset, const AliasTable& table) noexcept
    : problem_(problem),
      id_{problem.dropout().seed, offset, Fnv1a(problem.scheme().info.name)},
      table_(table) {
  if (problem.drops_nothing() || problem.drops_everything()) return;
  first_key_ = CallKey(id_, 0);
  cached_key_ = first_key_;
}

FieldPoint KeepField::PointOf(const Coord& at) const noexcept {
  return problem_.scheme().point_of(problem_.scheme_params(), at);
}

bool KeepField::Bit(const Coord& at, std::uint32_t attempt) noexcept {
  if (problem_.drops_nothing()) return true;
  if (problem_.drops_everything()) return false;
  FieldPoint point = PointOf(at);
  const std::uint32_t bit = point.c % 4;
  point.c -= bit;
  if (attempt != cached_attempt_) {
    cached_key_ = CallKey(id_, attempt);
    cached_attempt_ = attempt;
    has_cached_nibble_ = false;
  }
  if (!has_cached_nibble_ || !(point == cached_point_)) {
    cached_nibble_ = FieldNibble(table_, cached_key_, point);
    cached_point_ = point;
    has_cached_nibble_ = true;
  }
  return ((cached_nibble_ >> bit) & 1U) != 0;
}

std::uint32_t KeepField::ForcedWord(const Coord& row) const noexcept {
  return ForcedKeyWord(first_key_, PointOf(row));
}

Coord GlobalCoord(const Problem& problem, const Row& row, std::int64_t global_key) noexcept {
  return {problem.global_batch(row.at.batch),
          problem.origin().head + static_cast<std::uint32_t>(row.at.head),
          static_cast<std::uint32_t>(row.global_query()), static_cast<std::uint32_t>(global_key)};
}

std::int64_t CountVisible(const Row& row, const MaskReader& mask) noexcept {
  if (!mask.has_attn_mask()) return row.whole.size();
  std::int64_t count = 0;
  for (std::int64_t key = row.whole.begin; key < row.whole.end; ++key) {
    count += VisibleAtGlobal(row, mask, key) ? 1 : 0;
  }
  return count;
}

std::int64_t CountDistinctPoints(const Row& row, const MaskReader& mask, KeepField& field,
                                 const Problem& problem) {
  switch (problem.scheme().info.key_axis) {
    case AxisMap::kConstant:
      return std::min<std::int64_t>(1, CountVisible(row, mask));
    case AxisMap::kDiv:
      return CountDistinctBlocks(row, mask, std::int64_t{problem.scheme_params()[1]});
    case AxisMap::kUndeclared:
      return CountPointsBySorting(row, mask, field, problem);
    case AxisMap::kIdentity:
    case AxisMap::kMaxOfPair:
    case AxisMap::kMinOfPair:
      return CountVisible(row, mask);
  }
  return 0;
}

RowState FindRowState(const Problem& problem, const Row& row, const MaskReader& mask,
                      KeepField& field) {
  if (problem.drops_nothing() || problem.drops_everything()) return {};
  RowState state = PolicyState(problem, row, mask, field);
  if (problem.stage() == Stage::kLogits) state.factor = state.forced_factor = 1.0;
  return state;
}

KeepCell KeepOf(const RowState& state, const Coord& at, KeepField& field) noexcept {
  if (state.forced_key == std::int64_t{at.key}) return {true, state.forced_factor};
  if (state.keep_all || field.Bit(at, state.attempt)) return {true, state.factor};
  return {};
}

double AtLeastOneInclusion(double keep_prob, std::int64_t visible,
                           std::uint32_t attempts) noexcept {
  const auto n = static_cast<double>(visible);
  // Beyond this a row is empty with a chance below 2^-64, which pi does not show.
  if (n * keep_prob > 45.0) return keep_prob;
  const double all_attempts = n * static_cast<double>(attempts);
  const double forced = std::pow(1.0 - keep_prob, all_attempts);
  return keep_prob * ChanceOfAny(keep_prob, all_attempts) / ChanceOfAny(keep_prob, n) + forced / n;
}

}  // namespace attndrop
