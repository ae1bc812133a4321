// SPDX-License-Identifier: Apache-2.0
// Strict numbers from text: no spaces, no leftovers, no silent wrap-around.
#include "cli/flags.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace attndrop::cli {
namespace {

template <class T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [stopped, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stopped != end || text.empty()) return std::nullopt;
  return value;
}

std::string RangeText(IntRange range) {
  if (range.max == std::numeric_limits<std::int64_t>::max()) {
    return fmt::format("an integer of at least {}", range.min);
  }
  return fmt::format("an integer in [{}, {}]", range.min, range.max);
}

// "got nothing" is what a shell variable that is not set gives.
std::string GotText(std::string_view text) {
  return text.empty() ? std::string("got nothing") : fmt::format("got \"{}\"", text);
}

// A value that looks like a flag means that the value itself is missing.
std::string MissingValueHint(std::string_view text) {
  return text.starts_with("--") ? fmt::format("; is its value missing before {}?", text) : "";
}

Status PercentRefusal(const Flag& flag, std::string_view number) {
  const std::optional<double> percent = ParseWhole<double>(number);
  const std::string hint = percent ? fmt::format("{}", *percent / 100) : std::string("0.5");
  return Status::InvalidArgument(fmt::format(
      "{} must be a number, got \"{}%\"; percent is not read, write {}", flag.name, number, hint));
}

std::vector<std::string_view> SplitAtCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// Edits (insert, delete, replace, swap of neighbours) between the first i letters of a and the
// first j of b, for all i and j.
class EditTable {
 public:
  EditTable(std::string_view a, std::string_view b)
      : a_(a), b_(b), cost_(a.size() + 1, std::vector<std::size_t>(b.size() + 1)) {
    for (std::size_t i = 0; i <= a.size(); ++i) {
      for (std::size_t j = 0; j <= b.size(); ++j) cost_[i][j] = Cost(i, j);
    }
  }

  [[nodiscard]] std::size_t distance() const { return cost_.back().back(); }

 private:
  [[nodiscard]] std::size_t Cost(std::size_t i, std::size_t j) const {
    if (i == 0 || j == 0) return i + j;
    const std::size_t replaced = cost_[i - 1][j - 1] + (a_[i - 1] == b_[j - 1] ? 0 : 1);
    const std::size_t edited = std::min({replaced, cost_[i - 1][j] + 1, cost_[i][j - 1] + 1});
    const bool swapped = i > 1 && j > 1 && a_[i - 1] == b_[j - 2] && a_[i - 2] == b_[j - 1];
    return swapped ? std::min(edited, cost_[i - 2][j - 2] + 1) : edited;
  }

  std::string_view a_;
  std::string_view b_;
  std::vector<std::vector<std::size_t>> cost_;
};

}  // namespace

void AddFlag(CLI::App& app, Flag& flag, std::string name, const std::string& help,
             const std::string& placeholder) {
  flag.name = std::move(name);
  app.add_option_function<std::string>(
         flag.name, [&flag](const std::string& text) { flag.text = text; }, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->option_text(placeholder);
}

void AddListFlag(CLI::App& app, std::vector<std::string>& texts, const std::string& name,
                 const std::string& help, const std::string& placeholder) {
  app.add_option_function<std::vector<std::string>>(
         name, [&texts](const std::vector<std::string>& given) { texts = given; }, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1)
      ->option_text(placeholder);
}

void BeginGroup(CLI::App& app, const std::string& title) { app.option_defaults()->group(title); }

void AddSwitch(CLI::App& app, bool& is_on, const std::string& name, const std::string& help) {
  app.add_flag(name, is_on, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->disable_flag_override();
}

void FlagReader::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

double FlagReader::Number(const Flag& flag, double fallback) {
  if (!flag.given()) return fallback;
  const std::string_view text = *flag.text;
  if (const auto value = ParseWhole<double>(text)) return *value;
  if (text.ends_with('%')) {
    Fail(PercentRefusal(flag, text.substr(0, text.size() - 1)));
  } else {
    Fail(Status::InvalidArgument(
        fmt::format("{} must be a number that a double holds, written like 0.5 or -1e-3, {}{}",
                    flag.name, GotText(text), MissingValueHint(text))));
  }
  return fallback;
}

std::int64_t FlagReader::Integer(const Flag& flag, std::int64_t fallback, IntRange range) {
  if (!flag.given()) return fallback;
  const auto value = ParseWhole<std::int64_t>(*flag.text);
  if (value && *value >= range.min && *value <= range.max) return *value;
  Fail(Status::InvalidArgument(fmt::format("{} must be {}, {}{}", flag.name, RangeText(range),
                                           GotText(*flag.text), MissingValueHint(*flag.text))));
  return fallback;
}

std::uint64_t FlagReader::Unsigned64(const Flag& flag, std::uint64_t fallback) {
  if (!flag.given()) return fallback;
  if (const auto value = ParseWhole<std::uint64_t>(*flag.text)) return *value;
  Fail(Status::InvalidArgument(
      fmt::format("{} must be an integer in [0, 18446744073709551615] (2^64 - 1), {}{}", flag.name,
                  GotText(*flag.text), MissingValueHint(*flag.text))));
  return fallback;
}

std::vector<std::int64_t> FlagReader::Integers(const Flag& flag,
                                               const std::vector<std::string_view>& names,
                                               IntRange range) {
  std::vector<std::int64_t> values;
  if (!flag.given()) return values;
  const std::vector<std::string_view> parts = SplitAtCommas(*flag.text);
  for (const std::string_view part : parts) {
    const auto value = ParseWhole<std::int64_t>(part);
    if (value && *value >= range.min && *value <= range.max) values.push_back(*value);
  }
  if (values.size() != names.size() || parts.size() != names.size()) {
    Fail(Status::InvalidArgument(fmt::format("{} must be {}, without spaces, each {}, {}{}",
                                             flag.name, fmt::join(names, ","), RangeText(range),
                                             GotText(*flag.text), MissingValueHint(*flag.text))));
    values.assign(names.size(), range.min);
  }
  return values;
}

std::string NearestName(std::string_view given, const std::vector<std::string>& known) {
  // A long unknown word is no typing error, and comparing it would take long.
  constexpr std::size_t kLongestWord = 40;
  if (given.size() > kLongestWord) return "";
  std::string nearest;
  std::size_t least = 2 + given.size() / 4;
  for (const std::string& name : known) {
    const std::size_t distance = EditTable(given, name).distance();
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace attndrop::cli
