// SPDX-License-Identifier: Apache-2.0
// Block dropout: patches of block_q queries by block_k keys are kept or lost together.
// Definition, moments and cost: docs/math/block.md
#pragma once

#include "attndrop/schemes.h"

namespace attndrop::schemes {

struct Block {
  static constexpr SchemeInfo kInfo{
      .name = "block",
      .summary = "patches of block_q queries by block_k keys are dropped together",
      .query_axis = AxisMap::kDiv,
      .key_axis = AxisMap::kDiv,
      .num_params = 2,
      .params = {{{.name = "block_q", .default_value = 64, .min = 1, .max = 0xFFFFFFFF},
                  {.name = "block_k", .default_value = 64, .min = 1, .max = 0xFFFFFFFF}}}};

  static constexpr FieldPoint PointOf(const SchemeParamValues& params, const Coord& at) noexcept {
    return {.r = at.query / params[0], .c = at.key / params[1], .h = at.head, .b = at.batch};
  }
};

}  // namespace attndrop::schemes
