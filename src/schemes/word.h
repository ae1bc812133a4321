// SPDX-License-Identifier: Apache-2.0
// Word dropout: all heads of a sequence lose a key at once.
// Definition, moments and cost: docs/math/word.md
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Word {
  static constexpr SchemeInfo kInfo{
      .name = "word",
      .summary = "a sequence drops whole words: all queries of all heads lose them",
      .query_axis = AxisMap::kConstant,
      .key_axis = AxisMap::kIdentity};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = 0, .c = at.key, .h = 0, .b = at.batch};
  }
};

}  // namespace attndrop::schemes
