// SPDX-License-Identifier: Apache-2.0
// What is dropped, when, and what an empty row does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "attndrop/export.h"
#include "attndrop/status.h"

namespace attndrop {

enum class Stage : std::uint8_t {
  kWeights,  // after the softmax: a dropped weight is zero, kept ones are scaled
  kLogits,   // before the softmax (DropKey): a dropped key leaves it, the row sums to one
};

// What happens to a row that loses every visible key.
enum class EmptyRow : std::uint8_t {
  kZero,        // it is zero
  kAtLeastOne,  // it is drawn again, at last one key is chosen
  kKeepSelf,    // cannot happen: the key at the query's own position is always kept
  kKeepFirst,   // cannot happen: key 0 is always kept
  kUndropped,   // it keeps all its keys
};

inline constexpr std::uint32_t kKeepOneAttempts = 1;
inline constexpr std::uint32_t kRedrawAttempts = 64;
inline constexpr std::uint32_t kMaxAttempts = 1024;

struct EmptyRowPolicy {
  EmptyRow kind = EmptyRow::kZero;
  std::uint32_t attempts = kRedrawAttempts;  // kAtLeastOne only: 1 .. kMaxAttempts

  // Attempts count only where they are used.
  friend bool operator==(const EmptyRowPolicy& a, const EmptyRowPolicy& b) {
    return a.kind == b.kind && (a.kind != EmptyRow::kAtLeastOne || a.attempts == b.attempts);
  }
};

// "weights", "logits".
[[nodiscard]] ATTNDROP_EXPORT std::string_view StageName(Stage stage) noexcept;
[[nodiscard]] ATTNDROP_EXPORT Result<Stage> ParseStage(std::string_view text);

// "zero", "keep_one", "redraw", "at_least_one:attempts=5", "keep_self", "keep_first", "undropped".
[[nodiscard]] ATTNDROP_EXPORT std::string EmptyRowName(const EmptyRowPolicy& policy);
[[nodiscard]] ATTNDROP_EXPORT Result<EmptyRowPolicy> ParseEmptyRow(std::string_view text);

// A row of `attndrop schemes`: a policy's name and one-line summary.
struct EmptyRowInfo {
  EmptyRow kind;
  std::string_view name;
  std::string_view summary;
};
inline constexpr EmptyRowInfo kEmptyRowInfos[] = {
    {EmptyRow::kZero, "zero", "the row is zero"},
    {EmptyRow::kAtLeastOne, "at_least_one",
     "drawn again, up to attempts times, then one key is chosen (keep_one: 1, redraw: 64)"},
    {EmptyRow::kKeepSelf, "keep_self", "the key at the query's own position is always kept"},
    {EmptyRow::kKeepFirst, "keep_first", "key 0 is always kept"},
    {EmptyRow::kUndropped, "undropped", "an empty row keeps all its keys"},
};

struct DropoutConfig {
  double dropout_p = 0.0;          // probability of dropping, in [0, 1]
  std::string scheme = "element";  // NAME[:param=value,...], see Schemes()
  Stage stage = Stage::kWeights;
  EmptyRowPolicy empty_row{};
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  // one per call under a seed: another offset, another mask
  bool training = true;      // false: nothing is drawn, nothing dropped
};

}  // namespace attndrop
