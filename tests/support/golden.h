// SPDX-License-Identifier: Apache-2.0
// Finds and reads the known answers in tests/golden: lines of words, # opens a comment line.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace attndrop::testing {

inline std::filesystem::path GoldenPath(std::string_view name) {
  return std::filesystem::path(ATTNDROP_TEST_DATA_DIR) / name;
}

using GoldenRow = std::vector<std::string>;

// The words of every line that is neither empty nor a comment. A missing or empty file fails the
// calling test.
inline std::vector<GoldenRow> ReadGoldenRows(std::string_view name) {
  std::vector<GoldenRow> rows;
  std::ifstream file(GoldenPath(name));
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    GoldenRow row;
    for (std::string word; words >> word;) row.push_back(word);
    rows.push_back(row);
  }
  EXPECT_FALSE(rows.empty()) << "no known answers in " << GoldenPath(name);
  return rows;
}

// Fixed-width hexadecimal bit patterns, as the golden files hold them.
inline std::string Hex(std::uint64_t value, int digits) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
  return text;
}
inline std::string Bits(float value) { return Hex(std::bit_cast<std::uint32_t>(value), 8); }
inline std::string Bits(double value) { return Hex(std::bit_cast<std::uint64_t>(value), 16); }

template <class T>
std::vector<std::string> BitsOf(std::span<const T> values) {
  std::vector<std::string> bits;
  bits.reserve(values.size());
  for (const T value : values) bits.push_back(Bits(value));
  return bits;
}

template <class T>
std::vector<std::string> BitsOf(const std::vector<T>& values) {
  return BitsOf(std::span<const T>(values));
}

// The words of a row from position first on.
inline GoldenRow Words(const GoldenRow& row, std::size_t first) {
  return {row.begin() + static_cast<std::ptrdiff_t>(first), row.end()};
}

}  // namespace attndrop::testing
