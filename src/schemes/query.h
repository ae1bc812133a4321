// SPDX-License-Identifier: Apache-2.0
// Query dropout: a row of a head is kept or lost as a whole.
// Definition, moments and cost: docs/math/query.md
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Query {
  static constexpr SchemeInfo kInfo{.name = "query",
                                    .summary = "a head drops whole queries: their rows are zero",
                                    .query_axis = AxisMap::kIdentity,
                                    .key_axis = AxisMap::kConstant};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = at.query, .c = 0, .h = at.head, .b = at.batch};
  }
};

}  // namespace attndrop::schemes
