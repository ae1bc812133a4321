// SPDX-License-Identifier: Apache-2.0
// A second, slow implementation of mask format 1, written from its text (docs/mask-format.md) and
// sharing no code with the library: what the library's masks are judged by.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attndrop/dropout.h"

namespace attndrop::testing {

using OracleWords = std::array<std::uint32_t, 4>;

struct OracleKey {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  friend bool operator==(const OracleKey&, const OracleKey&) = default;
};

// Section 1.
[[nodiscard]] OracleWords OraclePhilox(OracleKey key, OracleWords counter);
[[nodiscard]] std::uint32_t OracleFnv1a(std::string_view name);
struct OracleCall {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  std::string scheme;  // the name alone
};
[[nodiscard]] OracleKey OracleCallKey(const OracleCall& call, std::uint32_t attempt);

// Section 3.
[[nodiscard]] std::uint64_t OracleKeepQ32(double dropout_p);
[[nodiscard]] std::array<std::uint64_t, 5> OracleOutcomes(std::uint64_t keep_q32);
struct OracleTable {
  std::array<std::uint64_t, 16> threshold{};
  std::array<unsigned, 16> alias{};
};
[[nodiscard]] OracleTable OracleAliasTable(std::uint64_t keep_q32);

// Sections 2 and 4.
struct OraclePoint {
  std::uint64_t r = 0;
  std::uint64_t c = 0;
  std::uint64_t h = 0;
  std::uint64_t b = 0;
  friend auto operator<=>(const OraclePoint&, const OraclePoint&) = default;
};
[[nodiscard]] bool OracleFieldBit(const OracleTable& table, OracleKey key, const OraclePoint& at);

struct OracleScheme {
  std::string name;
  std::uint64_t block_q = 64;
  std::uint64_t block_k = 64;
};
// NAME[:param=value,...]
[[nodiscard]] OracleScheme ParseOracleScheme(std::string_view text);
struct OracleWeight {
  std::uint64_t b = 0;
  std::uint64_t h = 0;
  std::uint64_t i = 0;
  std::uint64_t j = 0;
};
[[nodiscard]] OraclePoint OraclePointOf(const OracleScheme& scheme, const OracleWeight& at);

// Section 5. One row, all coordinates global. `visible` (ascending) holds the visible keys of the
// whole row for the policies at_least_one and undropped; for the others any of them.
struct OracleRow {
  std::uint64_t b = 0;
  std::uint64_t h = 0;
  std::uint64_t i = 0;
  std::int64_t self = -1;  // the key at the query's own position; negative: outside the sequence
  std::vector<std::uint64_t> visible;
};
struct OracleCell {
  bool keep = false;
  double factor = 0.0;  // at stage weights; 0 when dropped
};

class MaskOracle {
 public:
  explicit MaskOracle(const DropoutConfig& config);

  [[nodiscard]] std::uint64_t keep_q32() const { return keep_q32_; }
  // The bit that the scheme reads, before any policy.
  [[nodiscard]] bool Drawn(const OracleWeight& at, std::uint32_t attempt) const;
  // One cell per entry of row.visible.
  [[nodiscard]] std::vector<OracleCell> Row(const OracleRow& row) const;
  // pi of section 5.
  [[nodiscard]] double Inclusion(std::uint64_t visible, std::uint32_t attempts) const;

 private:
  [[nodiscard]] std::vector<bool> Draw(const OracleRow& row, std::uint32_t attempt) const;
  [[nodiscard]] std::vector<OracleCell> AtLeastOne(const OracleRow& row) const;
  [[nodiscard]] std::vector<OracleCell> Forced(const OracleRow& row,
                                               std::optional<std::uint64_t> forced) const;
  [[nodiscard]] std::vector<OracleCell> Undropped(const OracleRow& row) const;

  DropoutConfig config_;
  OracleScheme scheme_;
  std::uint64_t keep_q32_;
  OracleTable table_;
};

}  // namespace attndrop::testing
