// SPDX-License-Identifier: Apache-2.0
// The Bernoulli field of mask format 1: one keep bit as a function of key, rate and point.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "attndrop/schemes.h"

#include "rng/philox.h"

namespace attndrop {

// 32-bit FNV-1a of an ASCII name: the tag of a scheme.
[[nodiscard]] constexpr std::uint32_t Fnv1a(std::string_view name) noexcept {
  std::uint32_t hash = 0x811C9DC5;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  return hash;
}

// What separates the draws of one call from those of all others (section 1).
struct CallId {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  std::uint32_t tag = 0;  // Fnv1a of the scheme's name
};

[[nodiscard]] constexpr PhiloxKey CallKey(const CallId& id, std::uint32_t attempt) noexcept {
  const PhiloxKey seed_key{static_cast<std::uint32_t>(id.seed),
                           static_cast<std::uint32_t>(id.seed >> 32)};
  const PhiloxWords words =
      Philox(seed_key, {static_cast<std::uint32_t>(id.offset),
                        static_cast<std::uint32_t>(id.offset >> 32), id.tag, attempt});
  return {words[0], words[1]};
}

// floor((1 - dropout_p) * 2^32 + 0.5); dropout_p in [0, 1] (section 3).
[[nodiscard]] std::uint64_t KeepQ32(double dropout_p) noexcept;

// Walker's alias table over the 16 outcomes of four keep bits. Thresholds are in units of 2^-44:
// the high 12 bits meet the draw, the low 32 decide ties.
struct AliasTable {
  std::array<std::uint64_t, 16> threshold{};
  std::array<std::uint8_t, 16> alias{};
};

// Probability, in units of 2^-48, of one given outcome with k of its four bits kept, k = 0..4.
[[nodiscard]] std::array<std::uint64_t, 5> OutcomeProbabilities(std::uint64_t keep_q32) noexcept;

// 0 < keep_q32 < 2^32.
[[nodiscard]] AliasTable MakeAliasTable(std::uint64_t keep_q32) noexcept;

// Four keep bits, columns 4*(c div 4) .. +3 of one row, lowest bit first (section 2).
[[nodiscard]] unsigned FieldNibble(const AliasTable& table, PhiloxKey key,
                                   const FieldPoint& point) noexcept;

[[nodiscard]] inline bool FieldBit(const AliasTable& table, PhiloxKey key,
                                   const FieldPoint& point) noexcept {
  return ((FieldNibble(table, key, point) >> (point.c % 4)) & 1U) != 0;
}

// The 32-bit word that chooses the key of a row whose draws were all empty (section 5); key is that
// of attempt 0, point any field point of the row.
[[nodiscard]] std::uint32_t ForcedKeyWord(PhiloxKey key, const FieldPoint& point) noexcept;

}  // namespace attndrop
