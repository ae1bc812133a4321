// SPDX-License-Identifier: Apache-2.0
// Element dropout: every weight of every head draws for itself (the usual attention dropout).
// Definition, moments and cost: docs/math/element.md
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Element {
  static constexpr SchemeInfo kInfo{.name = "element",
                                    .summary = "every weight draws for itself",
                                    .query_axis = AxisMap::kIdentity,
                                    .key_axis = AxisMap::kIdentity,
                                    .row_redraw = true};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = at.query, .c = at.key, .h = at.head, .b = at.batch};
  }
};

}  // namespace attndrop::schemes
