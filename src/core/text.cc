// SPDX-License-Identifier: Apache-2.0
// Text helpers of parsers and error sentences.
#include "core/text.h"

#include <algorithm>
#include <cstddef>

namespace attndrop {
namespace {

// Levenshtein distance.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  for (;;) {
    const std::size_t end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::string JoinNames(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::string_view NearestName(std::string_view text, std::span<const std::string_view> names) {
  // Longer texts are no typing mistakes, and the distance costs their product.
  constexpr std::size_t kLongestName = 64;
  std::string_view nearest;
  if (text.empty() || text.size() > kLongestName) return nearest;
  std::size_t fewest = text.size() / 3 + 1;
  for (const std::string_view name : names) {
    const std::size_t distance = EditDistance(text, name);
    if (distance > fewest || (distance == fewest && !nearest.empty())) continue;
    fewest = distance;
    nearest = name;
  }
  return nearest;
}

std::string Suggestion(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view nearest = NearestName(text, names);
  std::string sentence = "; ";
  if (!nearest.empty()) sentence += "did you mean \"" + std::string(nearest) + "\"? ";
  return sentence + "known: " + JoinNames(names);
}

}  // namespace attndrop
