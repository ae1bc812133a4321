// SPDX-License-Identifier: Apache-2.0
// Fused forward. A task is a group of neighbouring query blocks of one head; it walks over the
// tiles of keys that they see, once, and writes their rows of out and logsumexp.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/arena.h"
#include "core/array_view.h"
#include "core/head_rows.h"
#include "kernels/finite.h"
#include "kernels/forward_products.h"
#include "kernels/fused.h"
#include "kernels/lane_rows.h"
#include "kernels/tile_words.h"

namespace attndrop {
namespace {

// A block of queries under way: everything that lives from tile to tile.
struct BlockWork {
  QueryBlock block;
  BlockState state;
  float* query = nullptr;  // as ForwardProducts keeps it
  float* out = nullptr;    // [head_dim_v][width], of weights that are not yet normalised
  alignas(64) float largest[kBlockQueries];
  alignas(64) float sums[kBlockQueries];
};

class ForwardWorker {
 public:
  ForwardWorker(const Problem& problem, const Tiling& tiling, const ForwardBuffers& buffers,
                const KeepWordsTables& tables, Arena& arena) noexcept
      : problem_(problem),
        tiling_(tiling),
        kernels_(*tiling.kernels),
        buffers_(buffers),
        source_(problem, buffers.mask, *tiling.kernels, tables),
        products_(problem, tiling, buffers, arena),
        head_dim_v_(static_cast<std::size_t>(problem.shape().head_dim_v)),
        query_floats_(ForwardProducts::QueryFloats(problem.shape().head_dim)) {
    const auto block = static_cast<std::int64_t>(kBlockQueries);
    const std::int64_t blocks = tiling.tiles.blocks_per_task;
    const std::int64_t head_dim_v = problem.shape().head_dim_v;
    works_ = arena.Take<BlockWork>(blocks);
    query_ = arena.Take<float>(SaturatingProduct(query_floats_, blocks));
    out_ = arena.Take<float>(SaturatingProduct(head_dim_v, block * blocks));
    weights_ = arena.Take<float>(block * tiling.tiles.forward_keys);
    words_ = arena.Take<TileWords>(1);
    rows_ = arena.Take<float>(SaturatingProduct(head_dim_v, block));
  }

  // Blocks first_block .. first_block + blocks_per_task - 1 of a head, as far as they exist.
  void Run(std::int64_t batch, std::int64_t head, std::int64_t first_block) {
    const std::int64_t blocks =
        std::min(tiling_.tiles.blocks_per_task, NumBlocks(problem_.sequence(batch)) - first_block);
    if (blocks <= 0) return;
    for (std::int64_t i = 0; i < blocks; ++i) Start(batch, head, first_block + i, works_[i]);
    RunTiles(blocks, products_.Choose(blocks == 1 ? &works_[0].block : nullptr), /*careful=*/false);
    bool finite = true;
    for (std::int64_t i = 0; i < blocks; ++i) finite = Normalise(works_[i]) && finite;
    if (!finite) {
      // Some number is NaN or infinite: it must reach only the rows that see it.
      RunTiles(blocks, ProductWay::kLanes, /*careful=*/true);
      for (std::int64_t i = 0; i < blocks; ++i) (void)Normalise(works_[i]);
    }
    for (std::int64_t i = 0; i < blocks; ++i) Write(works_[i]);
  }

 private:
  void Start(std::int64_t batch, std::int64_t head, std::int64_t index, BlockWork& work) {
    work.block = source_.Block(batch, head, index);
    const std::ptrdiff_t slot = &work - works_;
    work.query = query_ + slot * query_floats_;
    work.out = out_ + static_cast<std::size_t>(slot) * head_dim_v_ * kBlockQueries;
    source_.FindBlockState(work.block, work.state);
  }

  void Restart(BlockWork& work) {
    products_.LoadQuery(work.block, work.query);
    std::fill_n(work.out, head_dim_v_ * work.block.width, 0.0F);
    std::fill_n(work.largest, kBlockQueries, -FLT_MAX);
    std::fill_n(work.sums, kBlockQueries, 0.0F);
  }

  void RunTiles(std::int64_t blocks, ProductWay way, bool careful) {
    products_.Use(way);
    KeyRange all{std::numeric_limits<std::int64_t>::max(), 0};
    for (std::int64_t i = 0; i < blocks; ++i) {
      Restart(works_[i]);
      const KeyRange& keys = works_[i].block.keys;
      if (keys.size() == 0) continue;
      all = {std::min(all.begin, keys.begin), std::max(all.end, keys.end)};
    }
    const std::int64_t step = tiling_.tiles.forward_keys;
    for (std::int64_t begin = all.begin; begin < all.end; begin += step) {
      const TileInputs inputs =
          products_.LoadTile(works_[0].block, {begin, std::min(begin + step, all.end)});
      for (std::int64_t i = 0; i < blocks; ++i) RunTile(works_[i], inputs, careful);
    }
  }

  // What one block sees of a tile.
  void RunTile(BlockWork& work, const TileInputs& inputs, bool careful) {
    const QueryBlock& block = work.block;
    const KeyRange& tile = inputs.tile;
    const KeyRange seen{std::max(tile.begin, block.keys.begin), std::min(tile.end, block.keys.end)};
    if (seen.size() == 0) return;
    ForEachPart(block, seen, [&](const KeyRange& part) {
      source_.Fill(block, work.state, part, *words_);
      if (words_->part_count == 0) return;
      const TileInputs rest = inputs.From(static_cast<std::size_t>(part.begin - tile.begin));
      alignas(64) float largest[kBlockQueries];
      const BlockProducts at{&block, words_, work.query, weights_};
      FindLogits(work, at, rest, largest);
      FindWeights(work, largest, careful);
      const std::uint64_t* const kept = words_->has_kept ? words_->kept : words_->part;
      products_.Accumulate(at, rest,
                           {.select = careful ? kept : nullptr, .fold = fold_, .out = work.out});
    });
  }

  // largest: that of all tiles up to this one.
  void FindLogits(const BlockWork& work, const BlockProducts& at, const TileInputs& inputs,
                  float* largest) const {
    const TileMasks masks = words_->masks();
    std::copy_n(work.largest, kBlockQueries, largest);
    products_.FindLogits(at, inputs, largest);
    if (masks.bias == nullptr && masks.part == nullptr) return;
    std::copy_n(work.largest, kBlockQueries, largest);
    kernels_.mask_logits({.masks = masks,
                          .list = words_->parts(),
                          .width = work.block.width,
                          .lanes = words_->lanes,
                          .logits = weights_,
                          .largest = largest});
  }

  void FindWeights(BlockWork& work, const float* largest, bool careful) {
    const std::size_t width = work.block.width;
    alignas(64) float tile_sums[kBlockQueries];
    kernels_.weights({.masks = words_->masks(),
                      .list = words_->parts(),
                      .kept_list = words_->compact_keeps(),
                      .width = width,
                      .lanes = words_->lanes,
                      .largest = largest,
                      .weights = weights_,
                      .sums = tile_sums,
                      .infinite = careful});
    kernels_.fold({.width = width,
                   .lanes = words_->lanes,
                   .old_largest = work.largest,
                   .new_largest = largest,
                   .tile_sums = tile_sums,
                   .sums = work.sums,
                   .fold = fold_});
    std::copy_n(largest, kBlockQueries, work.largest);
    if (words_->has_special) ScaleSpecial(width);
  }

  // One weight a row at most has a factor of its own.
  void ScaleSpecial(std::size_t width) const noexcept {
    const float ratio = source_.special_ratio();
    for (std::size_t row = 0; row < words_->kept_count; ++row) {
      const std::uint64_t special = words_->special[words_->kept_keys[row]];
      for (std::uint64_t lanes = special; lanes != 0; lanes &= lanes - 1) {
        const auto lane = static_cast<std::size_t>(std::countr_zero(lanes));
        if (lane < width) weights_[row * width + lane] *= ratio;
      }
    }
  }

  // out = factor * out / sums; false when some number is not finite.
  bool Normalise(BlockWork& work) const noexcept {
    const QueryBlock& block = work.block;
    const std::size_t lanes = block.lane_end - block.lane_begin;
    alignas(64) float scale[kBlockQueries] = {};
    for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
      if (work.sums[lane] != 0.0F) scale[lane] = work.state.factor[lane] / work.sums[lane];
    }
    kernels_.scale_lanes(work.out, head_dim_v_, block.width, scale);
    bool finite = AllFinite(work.sums + block.lane_begin, lanes) &&
                  AllFinite(work.largest + block.lane_begin, lanes);
    for (std::size_t dim = 0; dim < head_dim_v_; ++dim) {
      finite = AllFinite(work.out + dim * block.width + block.lane_begin, lanes) && finite;
    }
    return finite;
  }

  void Write(const BlockWork& work) {
    const QueryBlock& block = work.block;
    const RowWriter out(problem_.dtype(), buffers_.out, ArrayBatch(problem_, block.batch),
                        block.head, block.sequence.first_row_q);
    WriteLanes(kernels_, {work.out, block.width, head_dim_v_}, block, out, rows_);
    WriteLogsumexp(work);
  }

  void WriteLogsumexp(const BlockWork& work) const {
    const QueryBlock& block = work.block;
    const RowWriter logsumexp(DType::kFloat32, buffers_.logsumexp,
                              ArrayBatch(problem_, block.batch), block.head,
                              block.sequence.first_row_q);
    if (!logsumexp.wanted()) return;
    for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
      const double sum = static_cast<double>(work.sums[lane]);
      const double log2 = static_cast<double>(work.largest[lane]) + std::log2(sum);
      const float value = sum == 0.0 ? -std::numeric_limits<float>::infinity()
                                     : static_cast<float>(log2 * std::numbers::ln2);
      logsumexp.Write(block.local_query(lane), 1, 1, &value, 1);
    }
  }

  const Problem& problem_;
  const Tiling& tiling_;
  const Kernels& kernels_;
  const ForwardBuffers& buffers_;
  TileWordSource source_;
  ForwardProducts products_;
  std::size_t head_dim_v_;
  std::int64_t query_floats_;   // of a block
  BlockWork* works_ = nullptr;  // [blocks_per_task]
  float* query_ = nullptr;      // [blocks_per_task][query_floats]
  float* out_ = nullptr;        // [blocks_per_task][head_dim_v][64]
  float* weights_ = nullptr;    // [keys][width], of the tile at hand
  TileWords* words_ = nullptr;
  float* rows_ = nullptr;  // [64][head_dim_v]
  alignas(64) float fold_[kBlockQueries];
};

// Rows of a ragged batch that no sequence uses.
void ClearUnusedRows(const Problem& problem, const ForwardBuffers& buffers, std::int64_t batch,
                     std::int64_t head) noexcept {
  const HeadRows rows = UnusedRowsQ(problem, problem.sequence(batch), batch, head);
  FillRows(problem.dtype(), 0.0, rows, problem.shape().head_dim_v, buffers.out);
  if (buffers.logsumexp.data == nullptr) return;
  FillRows(DType::kFloat32, -std::numeric_limits<double>::infinity(), rows, 1, buffers.logsumexp);
}

}  // namespace

std::size_t FusedForwardScratchBytes(const Problem& problem, const Tiling& tiling,
                                     int num_workers) noexcept {
  Arena measure;
  const ForwardBuffers no_buffers;
  const KeepWordsTables no_tables;
  const ForwardWorker worker(problem, tiling, no_buffers, no_tables, measure);
  return SaturatingTimes(measure.bytes(), num_workers);
}

void FusedForward(const Problem& problem, const Tiling& tiling, const ForwardBuffers& buffers,
                  Executor& executor, std::byte* scratch) {
  const AttentionShape& shape = problem.shape();
  const std::size_t worker_bytes = FusedForwardScratchBytes(problem, tiling, 1);
  // A sequence without queries may still have rows to clear.
  const std::int64_t blocks = std::max<std::int64_t>(MostBlocks(problem), 1);
  const std::int64_t groups =
      (blocks + tiling.tiles.blocks_per_task - 1) / tiling.tiles.blocks_per_task;
  const KeepWordsTables tables = MakeFieldTables(problem);
  // Late queries see most under a causal mask; they go first, so that no worker ends with them.
  const auto run = [&](std::int64_t task, int worker) {
    Arena arena(scratch + worker_bytes * static_cast<std::size_t>(worker));
    const std::int64_t group = groups - 1 - task % groups;
    const std::int64_t batch = task / groups / shape.num_heads;
    const std::int64_t head = task / groups % shape.num_heads;
    if (group == 0 && problem.is_ragged()) ClearUnusedRows(problem, buffers, batch, head);
    ForwardWorker(problem, tiling, buffers, tables, arena)
        .Run(batch, head, group * tiling.tiles.blocks_per_task);
  };
  executor.Run(shape.batch * shape.num_heads * groups, run);
}

}  // namespace attndrop
