// SPDX-License-Identifier: Apache-2.0
// What the empty_row policy decided for one row, found before its weights are read; forward,
// backward, the keep mask and the statistics all read it.
#pragma once

#include <cstdint>

#include "attndrop/attention.h"
#include "attndrop/problem.h"

#include "core/visibility.h"
#include "rng/field.h"

namespace attndrop {

struct RowState {
  std::uint32_t attempt = 0;     // whose field the row reads
  std::int64_t forced_key = -1;  // global key kept whatever the field says; -1: none
  bool keep_all = false;         // every visible key is kept
  double factor = 1.0;           // of a kept weight at stage weights
  double forced_factor = 1.0;    // of forced_key
};

// One row of a problem: indices local, and what follows from them.
struct Row {
  LocalIndex at;  // key unused
  Sequence sequence;
  KeyRange whole;  // global, before attn_mask
  KeyRange local;  // local
  [[nodiscard]] std::int64_t global_query() const noexcept { return sequence.origin_q + at.query; }
};
[[nodiscard]] Row MakeRow(const Problem& problem, std::int64_t batch, std::int64_t head,
                          std::int64_t query) noexcept;

// The draws of one call: keep bits by global coordinates. Remembers the last group of four bits, so
// that walking along a row costs a quarter of a draw a key. One per thread.
class KeepField {
 public:
  explicit KeepField(const Problem& problem) noexcept
      : KeepField(problem, problem.dropout().offset) {}
  // As if the problem had this offset: another call under the same seed.
  KeepField(const Problem& problem, std::uint64_t offset) noexcept;
  // With the table of the problem's rate, which takes longer to make than a small head.
  KeepField(const Problem& problem, std::uint64_t offset, const AliasTable& table) noexcept;

  // The field bit at a weight; attempt as in section 5. drops_nothing: true; drops_everything:
  // false.
  [[nodiscard]] bool Bit(const Coord& at, std::uint32_t attempt) noexcept;
  [[nodiscard]] std::uint32_t ForcedWord(const Coord& row) const noexcept;
  [[nodiscard]] FieldPoint PointOf(const Coord& at) const noexcept;

 private:
  const Problem& problem_;
  CallId id_;
  AliasTable table_;
  PhiloxKey first_key_;
  std::uint32_t cached_attempt_ = 0;
  PhiloxKey cached_key_;
  FieldPoint cached_point_;  // c rounded down to a multiple of 4
  unsigned cached_nibble_ = 0;
  bool has_cached_nibble_ = false;
};

[[nodiscard]] Coord GlobalCoord(const Problem& problem, const Row& row,
                                std::int64_t global_key) noexcept;

// n: keys of the whole row that it sees.
[[nodiscard]] std::int64_t CountVisible(const Row& row, const MaskReader& mask) noexcept;
// m: distinct field points among them (section 4).
[[nodiscard]] std::int64_t CountDistinctPoints(const Row& row, const MaskReader& mask,
                                               KeepField& field, const Problem& problem);

[[nodiscard]] RowState FindRowState(const Problem& problem, const Row& row, const MaskReader& mask,
                                    KeepField& field);

// Whether a visible weight is kept, and its factor at stage weights (0 when it is not).
[[nodiscard]] KeepCell KeepOf(const RowState& state, const Coord& at, KeepField& field) noexcept;

// pi of section 5: the chance that a given one of n visible keys is kept by at_least_one.
[[nodiscard]] double AtLeastOneInclusion(double keep_prob, std::int64_t visible,
                                         std::uint32_t attempts) noexcept;

}  // namespace attndrop
