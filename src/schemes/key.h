// SPDX-License-Identifier: Apache-2.0
// Key dropout: a head loses a key for all its queries at once.
// Definition, moments and cost: docs/math/key.md
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Key {
  static constexpr SchemeInfo kInfo{.name = "key",
                                    .summary = "a head drops whole keys: all its queries lose them",
                                    .query_axis = AxisMap::kConstant,
                                    .key_axis = AxisMap::kIdentity};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = 0, .c = at.key, .h = at.head, .b = at.batch};
  }
};

}  // namespace attndrop::schemes
