// SPDX-License-Identifier: Apache-2.0
// Shared dropout: all batches and heads use one (query, key) mask.
// Definition, moments and cost: docs/math/shared.md
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Shared {
  static constexpr SchemeInfo kInfo{.name = "shared",
                                    .summary = "one (query, key) mask for all batches and heads",
                                    .query_axis = AxisMap::kIdentity,
                                    .key_axis = AxisMap::kIdentity,
                                    .row_redraw = true};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = at.query, .c = at.key, .h = 0, .b = 0};
  }
};

}  // namespace attndrop::schemes
