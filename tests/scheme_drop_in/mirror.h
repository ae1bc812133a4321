// SPDX-License-Identifier: Apache-2.0
// A sample scheme for the drop-in test: each weight reads the draw of its neighbour.
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

// Nothing is declared about the axes, so every part of the library takes its general path.
struct Mirror {
  static constexpr SchemeInfo kInfo{.name = "mirror", .summary = "neighbouring keys swap draws"};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = at.query, .c = at.key ^ 1U, .h = at.head, .b = at.batch};
  }
};

}  // namespace attndrop::schemes
