// SPDX-License-Identifier: Apache-2.0
// Queries and grad_out into lanes, and the numbers of each row (docs/math/attention.md, (A6)).
#include "kernels/backward_prepare.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numbers>

#include "core/head_rows.h"
#include "kernels/finite.h"
#include "kernels/lane_rows.h"
#include "kernels/tile_words.h"

namespace attndrop {
bool RowsFinite(const TileRows& rows, std::size_t count, std::size_t cols) noexcept {
  for (std::size_t row = 0; row < count; ++row) {
    if (!AllFinite(rows.Row(row), cols)) return false;
  }
  return true;
}

void BlockPreparation::Run(std::int64_t batch, std::int64_t head, std::int64_t index,
                           HeadInFlight& flight, float* buffer) const {
  BlockRecord& record = *new (&flight.blocks[index]) BlockRecord;
  TileWordSource source(problem_, buffers_.mask, kernels_, tables_);
  record.block = source.Block(batch, head, index);
  source.FindBlockState(record.block, record.state);
  const std::size_t lanes = static_cast<std::size_t>(index) * kBlockQueries;
  float* const query = flight.query + lanes * sizes_.head_dim;
  float* const grad_out = flight.grad_out + lanes * sizes_.head_dim_v;
  alignas(64) float scale[kBlockQueries];
  std::fill_n(scale, kBlockQueries, static_cast<float>(problem_.scale() * std::numbers::log2e));
  const bool query_finite = LoadLanes(record.block, buffers_.query, sizes_.head_dim, buffer, query);
  const bool grad_out_finite =
      LoadLanes(record.block, buffers_.grad_out, sizes_.head_dim_v, buffer, grad_out);
  record.finite = query_finite && grad_out_finite;
  kernels_.scale_lanes(query, sizes_.head_dim, record.block.width, scale);
  kernels_.scale_lanes(grad_out, sizes_.head_dim_v, record.block.width, record.state.factor.data());
  LoadRowNumbers(record, buffer);
  std::fill_n(flight.grad_query + lanes * sizes_.head_dim, kBlockQueries * sizes_.head_dim, 0.0F);
}

bool BlockPreparation::LoadLanes(const QueryBlock& block, const Strided<const void>& array,
                                 std::size_t cols, float* buffer, float* lanes) const noexcept {
  const RowReader reader(problem_.dtype(), array, ArrayBatch(problem_, block.batch), block.head,
                         block.sequence.first_row_q);
  const std::size_t count = block.lane_end - block.lane_begin;
  const TileRows rows = ReadLanes(reader, block, QueryLanes(block), cols, buffer);
  if (count < block.width) std::fill_n(lanes, cols * block.width, 0.0F);
  kernels_.transpose(rows.data, rows.stride, count, cols, lanes + block.lane_begin,
                     Stride(block.width));
  return RowsFinite(rows, count, cols);
}

void BlockPreparation::LoadRowNumbers(BlockRecord& record, float* buffer) const noexcept {
  const QueryBlock& block = record.block;
  std::fill_n(record.logsumexp, kBlockQueries, 0.0F);
  std::fill_n(record.logsumexp_rest, kBlockQueries, 0.0F);
  std::fill_n(record.delta, kBlockQueries, 0.0F);
  const std::int64_t batch = ArrayBatch(problem_, block.batch);
  const std::int64_t first_row = block.sequence.first_row_q;
  const RowReader out(problem_.dtype(), buffers_.out, batch, block.head, first_row);
  const RowReader grad_out(problem_.dtype(), buffers_.grad_out, batch, block.head, first_row);
  const RowReader logsumexp(DType::kFloat32, buffers_.logsumexp, batch, block.head, first_row);
  const RowReader grad(DType::kFloat32, buffers_.grad_logsumexp, batch, block.head, first_row);
  float* const second = buffer + kBlockQueries * std::max(sizes_.padded_dim, sizes_.padded_dim_v);
  for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
    const std::int64_t row = block.local_query(lane);
    const float* const o = out.Rows(row, 1, sizes_.head_dim_v, buffer).data;
    const float* const g = grad_out.Rows(row, 1, sizes_.head_dim_v, second).data;
    double delta = 0.0;
    for (std::size_t dim = 0; dim < sizes_.head_dim_v; ++dim) {
      delta += static_cast<double>(o[dim]) * static_cast<double>(g[dim]);
    }
    float number = 0.0F;
    if (buffers_.grad_logsumexp.data != nullptr) {
      grad.CopyPadded(row, 1, 1, 1, &number);
      delta -= static_cast<double>(number);
    }
    logsumexp.CopyPadded(row, 1, 1, 1, &number);
    // A row that sees no key has logsumexp -inf; its weights are 0 by its words.
    const bool empty = number == -std::numeric_limits<float>::infinity();
    const double log2 = empty ? 0.0 : static_cast<double>(number) * std::numbers::log2e;
    record.logsumexp[lane] = static_cast<float>(log2);
    record.logsumexp_rest[lane] =
        static_cast<float>(log2 - static_cast<double>(record.logsumexp[lane]));
    record.delta[lane] = static_cast<float>(delta);
    record.no_delta = record.no_delta && record.delta[lane] == 0.0F;
    record.finite =
        record.finite && IsFinite(record.logsumexp[lane]) && IsFinite(record.delta[lane]);
  }
}

}  // namespace attndrop
