// SPDX-License-Identifier: Apache-2.0
// Where the products of forward find their inputs, and which kernels compute them.
#include "kernels/forward_products.h"

#include <algorithm>
#include <cstring>
#include <numbers>

#include "core/head_rows.h"
#include "kernels/lane_rows.h"

namespace attndrop {
TileInputs TileInputs::From(std::size_t skipped) const noexcept {
  return {.tile = {tile.begin + static_cast<std::int64_t>(skipped), tile.end},
          .keys = keys.From(skipped),
          .values = values.From(skipped),
          .key_pairs = key_pairs.From(skipped),
          .value_pairs = value_pairs.From(skipped)};
}

ForwardProducts::ForwardProducts(const Problem& problem, const Tiling& tiling,
                                 const ForwardBuffers& buffers, Arena& arena) noexcept
    : problem_(problem),
      tiling_(tiling),
      kernels_(*tiling.kernels),
      buffers_(buffers),
      head_dim_(static_cast<std::size_t>(problem.shape().head_dim)),
      head_dim_v_(static_cast<std::size_t>(problem.shape().head_dim_v)) {
  const auto block = static_cast<std::int64_t>(kBlockQueries);
  const std::int64_t tile = tiling.tiles.forward_keys;
  const std::int64_t head_dim = problem.shape().head_dim;
  const std::int64_t head_dim_v = problem.shape().head_dim_v;
  rows_ = arena.Take<float>(SaturatingProduct(head_dim, block));
  key_copy_ = arena.Take<float>(SaturatingProduct(head_dim, std::max(tile, block)));
  value_copy_ = arena.Take<float>(SaturatingProduct(head_dim_v, tile));
  if (tiling.bf16 == nullptr) return;
  weight_pairs_ = arena.Take<Bf16Pair>(block * (tile + 1) / 2);
  value_pairs_ = arena.Take<Bf16Pair>(SaturatingProduct(head_dim_v, (tile + 1) / 2));
}

ProductWay ForwardProducts::Choose(const QueryBlock* only) const noexcept {
  const bool few =
      only != nullptr && only->width == 16 && only->lane_end - only->lane_begin <= kFewQueries;
  if (few) return ProductWay::kDimLanes;
  return tiling_.bf16 != nullptr ? ProductWay::kPairs : ProductWay::kLanes;
}

std::int64_t ForwardProducts::QueryFloats(std::int64_t head_dim) noexcept {
  const auto rows =
      static_cast<std::int64_t>(kFewQueries * PaddedDim(static_cast<std::size_t>(head_dim)));
  return std::max(SaturatingProduct(head_dim, static_cast<std::int64_t>(kBlockQueries)), rows);
}

RowReader ForwardProducts::Reader(const Strided<const void>& array, std::int64_t batch,
                                  std::int64_t head, std::int64_t first_row) const noexcept {
  return {problem_.dtype(), array, ArrayBatch(problem_, batch), head, first_row};
}

void ForwardProducts::LoadQuery(const QueryBlock& block, float* query) {
  const RowReader reader =
      Reader(buffers_.query, block.batch, block.head, block.sequence.first_row_q);
  switch (way_) {
    case ProductWay::kLanes:
      return LoadQueryLanes(reader, block, query);
    case ProductWay::kPairs:
      return LoadQueryPairs(reader, block, query);
    case ProductWay::kDimLanes:
      return LoadQueryRows(reader, block, query);
  }
}

// [head_dim][width], scaled. Lanes that are no queries hold zeros: whatever they compute is finite
// and not stored.
void ForwardProducts::LoadQueryLanes(const RowReader& reader, const QueryBlock& block,
                                     float* query) const {
  const std::size_t count = block.lane_end - block.lane_begin;
  const TileRows rows = ReadLanes(reader, block, QueryLanes(block), head_dim_, rows_);
  if (count < block.width) std::fill_n(query, head_dim_ * block.width, 0.0F);
  kernels_.transpose(rows.data, rows.stride, count, head_dim_, query + block.lane_begin,
                     Stride(block.width));
  alignas(64) float scale[kBlockQueries];
  std::fill_n(scale, kBlockQueries, static_cast<float>(problem_.scale() * std::numbers::log2e));
  kernels_.scale_lanes(query, head_dim_, block.width, scale);
}

// Neighbouring dims as pairs, [head_dim / 2][width]; the scale is applied to the products. Pairs
// are moved as floats: no arithmetic touches them.
void ForwardProducts::LoadQueryPairs(const RowReader& reader, const QueryBlock& block,
                                     float* query) const {
  const std::size_t count = block.lane_end - block.lane_begin;
  const Bf16Rows rows = ReadLanePairs(reader, block, QueryLanes(block), head_dim_,
                                      reinterpret_cast<std::uint16_t*>(key_copy_));
  for (std::size_t row = 0; row < count; ++row) {
    std::memcpy(rows_ + row * (head_dim_ / 2), rows.Row(row), head_dim_ * sizeof(std::uint16_t));
  }
  if (count < block.width) std::fill_n(query, head_dim_ / 2 * block.width, 0.0F);
  kernels_.transpose(rows_, Stride(head_dim_ / 2), count, head_dim_ / 2, query + block.lane_begin,
                     Stride(block.width));
}

// [kFewQueries][padded dims], scaled, zeros where there is nothing.
void ForwardProducts::LoadQueryRows(const RowReader& reader, const QueryBlock& block,
                                    float* query) const {
  const std::size_t padded = PaddedDim(head_dim_);
  const std::size_t count = block.lane_end - block.lane_begin;
  const TileRows rows = ReadLanes(reader, block, QueryLanes(block), head_dim_, rows_);
  const auto scale = static_cast<float>(problem_.scale() * std::numbers::log2e);
  std::fill_n(query, kFewQueries * padded, 0.0F);
  for (std::size_t row = 0; row < count; ++row) {
    for (std::size_t dim = 0; dim < head_dim_; ++dim) {
      query[row * padded + dim] = rows.Row(row)[dim] * scale;
    }
  }
}

TileInputs ForwardProducts::LoadTile(const QueryBlock& any, const KeyRange& tile) {
  const std::int64_t group = problem_.shape().num_heads / problem_.shape().num_kv_heads;
  const std::int64_t kv_head = any.head / group;
  const std::int64_t first_row = any.sequence.first_row_k;
  const RowReader key = Reader(buffers_.key, any.batch, kv_head, first_row);
  const RowReader value = Reader(buffers_.value, any.batch, kv_head, first_row);
  const auto count = static_cast<std::size_t>(tile.size());
  TileInputs inputs{.tile = tile};
  if (way_ == ProductWay::kPairs) {
    inputs.key_pairs =
        key.PairRows(tile.begin, count, head_dim_, reinterpret_cast<std::uint16_t*>(key_copy_));
    inputs.value_pairs = value.PairRows(tile.begin, count, head_dim_v_,
                                        reinterpret_cast<std::uint16_t*>(value_copy_));
  } else {
    inputs.keys = key.Rows(tile.begin, count, head_dim_, key_copy_);
    inputs.values = value.Rows(tile.begin, count, head_dim_v_, value_copy_);
  }
  return inputs;
}

void ForwardProducts::FindLogits(const BlockProducts& at, const TileInputs& inputs,
                                 float* largest) const {
  const QueryBlock& block = *at.block;
  switch (way_) {
    case ProductWay::kLanes:
      return kernels_.logits({.query = at.query,
                              .head_dim = head_dim_,
                              .width = block.width,
                              .lanes = at.words->lanes,
                              .key = inputs.keys,
                              .list = at.words->parts(),
                              .logits = at.weights,
                              .largest = largest});
    case ProductWay::kPairs:
      return tiling_.bf16->logits(
          {.query = reinterpret_cast<const Bf16Pair*>(at.query),
           .head_dim = head_dim_,
           .width = block.width,
           .lanes = at.words->lanes,
           .key = inputs.key_pairs,
           .list = at.words->parts(),
           .scale = static_cast<float>(problem_.scale() * std::numbers::log2e),
           .logits = at.weights,
           .largest = largest});
    case ProductWay::kDimLanes:
      return kernels_.few_logits({.query = at.query,
                                  .query_stride = PaddedDim(head_dim_),
                                  .queries = block.lane_end - block.lane_begin,
                                  .first_lane = block.lane_begin,
                                  .head_dim = head_dim_,
                                  .width = block.width,
                                  .key = inputs.keys,
                                  .list = at.words->parts(),
                                  .logits = at.weights,
                                  .largest = largest});
  }
}

void ForwardProducts::Accumulate(const BlockProducts& at, const TileInputs& inputs,
                                 const Sums& sums) const {
  const QueryBlock& block = *at.block;
  switch (way_) {
    case ProductWay::kLanes:
      return kernels_.accumulate({.weights = at.weights,
                                  .width = block.width,
                                  .lanes = at.words->lanes,
                                  .value = inputs.values,
                                  .head_dim = head_dim_v_,
                                  .list = at.words->compact_keeps(),
                                  .list_is_all = at.words->kept_count == at.words->count,
                                  .select = sums.select,
                                  .fold = sums.fold,
                                  .out = sums.out});
    case ProductWay::kPairs:
      return tiling_.bf16->accumulate({.weights = at.weights,
                                       .width = block.width,
                                       .lanes = at.words->lanes,
                                       .value = inputs.value_pairs,
                                       .head_dim = head_dim_v_,
                                       .list = at.words->compact_keeps(),
                                       .fold = sums.fold,
                                       .out = sums.out,
                                       .weight_pairs = weight_pairs_,
                                       .value_pairs = value_pairs_});
    case ProductWay::kDimLanes:
      return kernels_.few_accumulate({.weights = at.weights,
                                      .queries = block.lane_end - block.lane_begin,
                                      .first_lane = block.lane_begin,
                                      .width = block.width,
                                      .value = inputs.values,
                                      .head_dim = head_dim_v_,
                                      .list = at.words->compact_keeps(),
                                      .fold = sums.fold,
                                      .out = sums.out});
  }
}

}  // namespace attndrop
