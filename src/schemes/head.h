// SPDX-License-Identifier: Apache-2.0
// Head dropout (DropHead): a head of a sequence is kept or lost as a whole.
// Definition, moments and cost: docs/math/head.md
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Head {
  static constexpr SchemeInfo kInfo{.name = "head",
                                    .summary = "whole heads are dropped",
                                    .query_axis = AxisMap::kConstant,
                                    .key_axis = AxisMap::kConstant};

  static constexpr FieldPoint PointOf(const SchemeParamValues& /*params*/,
                                      const Coord& at) noexcept {
    return {.r = 0, .c = 0, .h = at.head, .b = at.batch};
  }
};

}  // namespace attndrop::schemes
