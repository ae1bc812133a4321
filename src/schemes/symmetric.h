// SPDX-License-Identifier: Apache-2.0
// Symmetric dropout: a pair of positions keeps or loses both of its directions.
// Definition, moments and cost: docs/math/symmetric.md
#pragma once

#include <algorithm>

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Symmetric {
  static constexpr SchemeInfo kInfo{.name = "symmetric",
                                    .summary = "keep(i, j) equals keep(j, i)",
                                    .query_axis = AxisMap::kMaxOfPair,
                                    .key_axis = AxisMap::kMinOfPair,
                                    .requires_square = true};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = std::max(at.query, at.key),
            .c = std::min(at.query, at.key),
            .h = at.head,
            .b = at.batch};
  }
};

}  // namespace attndrop::schemes
