// SPDX-License-Identifier: Apache-2.0
// What a dropout scheme is: a pure integer map from a weight to a point of the Bernoulli field.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "attndrop/export.h"

namespace attndrop {

// A weight, in global coordinates (origin added).
struct Coord {
  std::uint32_t batch = 0;
  std::uint32_t head = 0;  // query head
  std::uint32_t query = 0;
  std::uint32_t key = 0;
  friend bool operator==(const Coord&, const Coord&) = default;
};

// A point of the Bernoulli field; weights that read the same point share one draw.
struct FieldPoint {
  std::uint32_t r = 0;
  std::uint32_t c = 0;
  std::uint32_t h = 0;
  std::uint32_t b = 0;
  friend bool operator==(const FieldPoint&, const FieldPoint&) = default;
};

// How one field coordinate depends on the query (for r) or the key (for c). A declaration buys
// speed and a closed form for the number of distinct points of a row; kUndeclared is always right.
enum class AxisMap : std::uint8_t {
  kUndeclared,
  kIdentity,   // r = query, c = key
  kConstant,   // 0
  kDiv,        // r = query div params[0], c = key div params[1]
  kMaxOfPair,  // r = max(query, key)
  kMinOfPair,  // c = min(query, key)
};

inline constexpr std::size_t kMaxSchemeParams = 2;

// `name:param=value` of a scheme, allowed in [min, max].
struct SchemeParam {
  std::string_view name;
  std::uint32_t default_value = 0;
  std::uint32_t min = 0;
  std::uint32_t max = 0;
};

using SchemeParamValues = std::array<std::uint32_t, kMaxSchemeParams>;

struct SchemeInfo {
  std::string_view name;     // lower case; its FNV-1a hash enters the call key
  std::string_view summary;  // one line for tables
  AxisMap query_axis = AxisMap::kUndeclared;
  AxisMap key_axis = AxisMap::kUndeclared;
  bool requires_square = false;  // seqlen_q == seqlen_k
  // One row can be drawn again without changing what other rows share (mask format 1, section 5).
  bool row_redraw = false;
  std::size_t num_params = 0;
  std::array<SchemeParam, kMaxSchemeParams> params{};
};

// A registered scheme: built from the files of src/schemes/, sorted by name.
struct Scheme {
  SchemeInfo info;
  FieldPoint (*point_of)(const SchemeParamValues& params, const Coord& at) noexcept = nullptr;
};

[[nodiscard]] ATTNDROP_EXPORT std::span<const Scheme> Schemes() noexcept;

// nullptr when no scheme has this name.
[[nodiscard]] ATTNDROP_EXPORT const Scheme* FindScheme(std::string_view name) noexcept;

}  // namespace attndrop
