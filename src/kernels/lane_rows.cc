// SPDX-License-Identifier: Apache-2.0
// Neighbouring queries have neighbouring rows; the queries of an ordered block are copied one by
// one.
#include "kernels/lane_rows.h"

namespace attndrop {

TileRows ReadLanes(const RowReader& reader, const QueryBlock& block, const LaneRange& lanes,
                   std::size_t cols, float* buffer) noexcept {
  return ReadPaddedLanes(reader, block, lanes, cols, cols, buffer);
}

Bf16Rows ReadLanePairs(const RowReader& reader, const QueryBlock& block, const LaneRange& lanes,
                       std::size_t cols, std::uint16_t* buffer) noexcept {
  if (!block.is_ordered) {
    return reader.PairRows(block.local_query(lanes.begin), lanes.end - lanes.begin, cols, buffer);
  }
  for (std::size_t lane = lanes.begin; lane < lanes.end; ++lane) {
    std::uint16_t* const row = buffer + (lane - lanes.begin) * cols;
    const Bf16Rows one = reader.PairRows(block.local_query(lane), 1, cols, row);
    if (one.Row(0) != row) std::copy_n(one.Row(0), cols, row);
  }
  return {buffer, Stride(cols)};
}

TileRows ReadPaddedLanes(const RowReader& reader, const QueryBlock& block, const LaneRange& lanes,
                         std::size_t cols, std::size_t padded, float* buffer) noexcept {
  const std::int64_t first = block.local_query(lanes.begin);
  const std::size_t count = lanes.end - lanes.begin;
  if (!block.is_ordered) {
    if (cols == padded) return reader.Rows(first, count, cols, buffer);
    reader.CopyPadded(first, count, cols, padded, buffer);
    return {buffer, Stride(padded)};
  }
  for (std::size_t i = 0; i < count; ++i) {
    reader.CopyPadded(block.local_query(lanes.begin + i), 1, cols, padded, buffer + i * padded);
  }
  return {buffer, Stride(padded)};
}

void WriteLanes(const Kernels& kernels, const LaneColumns& columns, const QueryBlock& block,
                const RowWriter& writer, float* buffer) noexcept {
  const std::size_t count = block.lane_end - block.lane_begin;
  const std::size_t cols = columns.cols;
  const std::int64_t first = block.local_query(block.lane_begin);
  const float* const lanes = columns.data + block.lane_begin;
  float* const place = block.is_ordered ? nullptr : writer.InPlace(first);
  if (place != nullptr) {
    kernels.transpose(lanes, Stride(columns.width), cols, count, place, writer.row_stride());
    return;
  }
  kernels.transpose(lanes, Stride(columns.width), cols, count, buffer, Stride(cols));
  if (!block.is_ordered) return writer.Write(first, count, cols, buffer, cols);
  for (std::size_t i = 0; i < count; ++i) {
    writer.Write(block.local_query(block.lane_begin + i), 1, cols, buffer + i * cols, cols);
  }
}

}  // namespace attndrop
