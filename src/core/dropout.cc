// SPDX-License-Identifier: Apache-2.0
// Names of stages and empty_row policies, in both directions.
#include "attndrop/dropout.h"

#include <array>
#include <optional>

#include "core/text.h"

namespace attndrop {
namespace {

constexpr std::array<std::string_view, 2> kStageNames{"weights", "logits"};
constexpr std::array<std::string_view, 7> kPolicyNames{
    "zero", "at_least_one", "keep_one", "redraw", "keep_self", "keep_first", "undropped"};
constexpr std::string_view kAttemptsPrefix = "at_least_one:attempts=";

Result<EmptyRowPolicy> ParseAttempts(std::string_view text) {
  const auto attempts = ParseNumber<std::uint32_t>(text.substr(kAttemptsPrefix.size()));
  if (!attempts || *attempts < 1 || *attempts > kMaxAttempts) {
    return Status::InvalidArgument("empty_row at_least_one needs attempts in 1 .. " +
                                   FormatNumber(kMaxAttempts) + ", got \"" + std::string(text) +
                                   "\"; write at_least_one:attempts=64, or redraw");
  }
  return EmptyRowPolicy{EmptyRow::kAtLeastOne, *attempts};
}

}  // namespace

std::string_view StageName(Stage stage) noexcept {
  return kStageNames[static_cast<std::size_t>(stage)];
}

Result<Stage> ParseStage(std::string_view text) {
  if (text == kStageNames[0]) return Stage::kWeights;
  if (text == kStageNames[1]) return Stage::kLogits;
  return Status::InvalidArgument("stage \"" + std::string(text) + "\" is unknown" +
                                 Suggestion(text, kStageNames));
}

std::string EmptyRowName(const EmptyRowPolicy& policy) {
  switch (policy.kind) {
    case EmptyRow::kZero:
      return "zero";
    case EmptyRow::kAtLeastOne:
      if (policy.attempts == kKeepOneAttempts) return "keep_one";
      if (policy.attempts == kRedrawAttempts) return "redraw";
      return std::string(kAttemptsPrefix) + FormatNumber(policy.attempts);
    case EmptyRow::kKeepSelf:
      return "keep_self";
    case EmptyRow::kKeepFirst:
      return "keep_first";
    case EmptyRow::kUndropped:
      return "undropped";
  }
  return "unknown";
}

Result<EmptyRowPolicy> ParseEmptyRow(std::string_view text) {
  if (text == "zero") return EmptyRowPolicy{};
  if (text == "at_least_one" || text == "redraw") {
    return EmptyRowPolicy{EmptyRow::kAtLeastOne, kRedrawAttempts};
  }
  if (text == "keep_one") return EmptyRowPolicy{EmptyRow::kAtLeastOne, kKeepOneAttempts};
  if (text == "keep_self") return EmptyRowPolicy{EmptyRow::kKeepSelf};
  if (text == "keep_first") return EmptyRowPolicy{EmptyRow::kKeepFirst};
  if (text == "undropped") return EmptyRowPolicy{EmptyRow::kUndropped};
  if (text.starts_with(kAttemptsPrefix)) return ParseAttempts(text);
  return Status::InvalidArgument("empty_row \"" + std::string(text) + "\" is unknown" +
                                 Suggestion(text.substr(0, text.find(':')), kPolicyNames));
}

}  // namespace attndrop
