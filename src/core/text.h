// SPDX-License-Identifier: Apache-2.0
// Numbers and names as text: exact printing, strict parsing, the nearest of several names.
#pragma once

#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace attndrop {

// The whole text as a number (decimal, no sign for unsigned types, no spaces), else nothing.
template <class T>
[[nodiscard]] std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The shortest text that ParseNumber reads back as the same number.
template <class T>
[[nodiscard]] std::string FormatNumber(T value) {
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc{} ? std::string(buffer, end) : std::string();
}

// "a,b,c"
template <class Range>
[[nodiscard]] std::string JoinNumbers(const Range& values) {
  std::string text;
  for (const auto value : values) {
    if (!text.empty()) text += ',';
    text += FormatNumber(value);
  }
  return text;
}

// Pieces between separators; an empty text has none.
[[nodiscard]] std::vector<std::string_view> Split(std::string_view text, char separator);

// "a, b, c"
[[nodiscard]] std::string JoinNames(std::span<const std::string_view> names);

// The name with the fewest edits from `text`; empty when that takes more than one edit and one more
// for every three letters.
[[nodiscard]] std::string_view NearestName(std::string_view text,
                                           std::span<const std::string_view> names);

// `; did you mean "x"? known: a, b, c` or `; known: a, b, c`.
[[nodiscard]] std::string Suggestion(std::string_view text,
                                     std::span<const std::string_view> names);

}  // namespace attndrop
