// SPDX-License-Identifier: Apache-2.0
// Field bits of 64 rows and many columns as words: what the functions that draw them take. They all
// give the bits of rng/field.h; they differ in the instructions that they need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rng/field.h"

namespace attndrop {

// What stays the same in all calls for a key and a rate, laid out for loads into vectors.
struct KeepWordsTables {
  AliasTable table{};
  PhiloxKey key{};
  std::uint64_t k0[kPhiloxRounds] = {};  // the keys of all rounds
  std::uint64_t k1[kPhiloxRounds] = {};
  // Of outcome i mod 16: the 12 high bits of the threshold, where a half has its draw, and the
  // alias; as halves, and as bytes for machines that look up nothing wider.
  alignas(64) std::uint16_t threshold[32] = {};
  alignas(64) std::uint16_t alias[32] = {};
  alignas(64) std::uint8_t threshold_low[64] = {};
  alignas(64) std::uint8_t threshold_high[64] = {};
  alignas(64) std::uint8_t alias_bytes[64] = {};
};

[[nodiscard]] KeepWordsTables MakeKeepWordsTables(const AliasTable& table, PhiloxKey key) noexcept;

// Bit i of words[j] is the field's bit at (row + i, column + j).
struct KeepWordsArgs {
  const KeepWordsTables* tables = nullptr;
  std::uint32_t row = 0;     // a multiple of 64
  std::uint32_t column = 0;  // a multiple of 8
  std::uint32_t h = 0;
  std::uint32_t b = 0;
  std::size_t count = 0;  // a multiple of 8
  std::uint64_t* words = nullptr;
};

// Bit i of octets[j] is the field's bit at (row, column + 8 * j + i).
struct KeepRowArgs {
  const KeepWordsTables* tables = nullptr;
  std::uint32_t row = 0;
  std::uint32_t column = 0;  // a multiple of 8
  std::uint32_t h = 0;
  std::uint32_t b = 0;
  std::size_t count = 0;  // octets
  std::uint8_t* octets = nullptr;
};

using KeepWordsFunction = void (*)(const KeepWordsArgs&);

// Rewrites the bits of those rows of words[0 .. 3], columns first_column .. + 3, by the scalar
// definition: for draws that meet the threshold, one in 4096.
void DecideTies(const KeepWordsArgs& args, std::uint64_t rows, std::size_t first_column,
                std::uint64_t* words) noexcept;

// With AVX-512, its byte permutations and Galois field instructions; null where the processor has
// none of them.
[[nodiscard]] KeepWordsFunction FindGfniKeepWords() noexcept;

}  // namespace attndrop
