// SPDX-License-Identifier: Apache-2.0
// Rows of the caller's arrays that stand in lanes of a query block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_rows.h"
#include "kernels/query_block.h"

namespace attndrop {

// The lanes of a block that are queries.
[[nodiscard]] inline LaneRange QueryLanes(const QueryBlock& block) noexcept {
  return {block.lane_begin, block.lane_end};
}

// Row i is that of lane lanes.begin + i: in place, or copied to buffer [lanes][cols].
[[nodiscard]] TileRows ReadLanes(const RowReader& reader, const QueryBlock& block,
                                 const LaneRange& lanes, std::size_t cols, float* buffer) noexcept;
// The same of a bfloat16 array, as bfloat16.
[[nodiscard]] Bf16Rows ReadLanePairs(const RowReader& reader, const QueryBlock& block,
                                     const LaneRange& lanes, std::size_t cols,
                                     std::uint16_t* buffer) noexcept;
// The same with `padded` columns, zeros beyond cols: buffer [lanes][padded].
[[nodiscard]] TileRows ReadPaddedLanes(const RowReader& reader, const QueryBlock& block,
                                       const LaneRange& lanes, std::size_t cols, std::size_t padded,
                                       float* buffer) noexcept;

// lanes_of[col][lane] of all queries of the block to their rows, each rounded once.
// buffer: [lanes][cols].
struct LaneColumns {
  const float* data = nullptr;  // [cols][width]
  std::size_t width = 0;
  std::size_t cols = 0;
};
void WriteLanes(const Kernels& kernels, const LaneColumns& columns, const QueryBlock& block,
                const RowWriter& writer, float* buffer) noexcept;

}  // namespace attndrop
