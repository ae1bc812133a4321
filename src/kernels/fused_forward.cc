// SPDX-License-Identifier: Apache-2.0
// Fused forward. A task is a group of neighbouring query blocks of one head; it walks over the
// tiles of keys that they see, once, and writes their rows of out and logsumexp.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/arena.h"
#include "core/array_view.h"
#include "core/head_rows.h"
#include "kernels/fused.h"
#include "kernels/lane_rows.h"
#include "kernels/tile_words.h"

namespace attndrop {
namespace {

constexpr double kLn2 = 0.693147180559945309;
constexpr double kLog2E = 1.4426950408889634;

// A block of queries under way: everything that lives from tile to tile.
struct BlockWork {
  QueryBlock block;
  BlockState state;
  float* query = nullptr;  // [head_dim][width], scaled by scale * log2(e)
  float* out = nullptr;    // [head_dim_v][width], of weights that are not yet normalised
  alignas(64) float largest[kBlockQueries];
  alignas(64) float sums[kBlockQueries];
};

bool IsFinite(float x) noexcept {
  return (std::bit_cast<std::uint32_t>(x) & 0x7F800000U) != 0x7F800000U;
}

class ForwardWorker {
 public:
  ForwardWorker(const Problem& problem, const Tiling& tiling, const ForwardBuffers& buffers,
                Arena& arena) noexcept
      : problem_(problem),
        tiling_(tiling),
        kernels_(*tiling.kernels),
        buffers_(buffers),
        source_(problem, buffers.mask, *tiling.kernels),
        head_dim_(static_cast<std::size_t>(problem.shape().head_dim)),
        head_dim_v_(static_cast<std::size_t>(problem.shape().head_dim_v)) {
    const auto block = static_cast<std::int64_t>(kBlockQueries);
    const std::int64_t tile = tiling.tiles.forward_keys;
    const std::int64_t head_dim = problem.shape().head_dim;
    const std::int64_t head_dim_v = problem.shape().head_dim_v;
    works_ = arena.Take<BlockWork>(tiling.tiles.blocks_per_task);
    query_ = arena.Take<float>(SaturatingProduct(head_dim, block * tiling.tiles.blocks_per_task));
    out_ = arena.Take<float>(SaturatingProduct(head_dim_v, block * tiling.tiles.blocks_per_task));
    weights_ = arena.Take<float>(block * tile);
    words_ = arena.Take<TileWords>(1);
    rows_ = arena.Take<float>(SaturatingProduct(std::max(head_dim, head_dim_v), block));
    key_copy_ = arena.Take<float>(SaturatingProduct(head_dim, std::max(tile, block)));
    value_copy_ = arena.Take<float>(SaturatingProduct(head_dim_v, tile));
    if (tiling.bf16 == nullptr) return;
    weight_pairs_ = arena.Take<Bf16Pair>(block * (tile + 1) / 2);
    value_pairs_ = arena.Take<Bf16Pair>(SaturatingProduct(head_dim_v, (tile + 1) / 2));
  }

  // Blocks first_block .. first_block + blocks_per_task - 1 of a head, as far as they exist.
  void Run(std::int64_t batch, std::int64_t head, std::int64_t first_block) {
    const std::int64_t blocks =
        std::min(tiling_.tiles.blocks_per_task, NumBlocks(problem_.sequence(batch)) - first_block);
    if (blocks <= 0) return;
    pairs_ = tiling_.bf16 != nullptr;
    for (std::int64_t i = 0; i < blocks; ++i) Start(batch, head, first_block + i, works_[i]);
    RunTiles(blocks, /*careful=*/false);
    bool finite = true;
    for (std::int64_t i = 0; i < blocks; ++i) finite = Normalise(works_[i]) && finite;
    if (!finite) {
      // Some number is NaN or infinite: it must reach only the rows that see it.
      for (std::int64_t i = 0; i < blocks; ++i) {
        if (pairs_) LoadQuery(works_[i].block, works_[i].query);
        Restart(works_[i]);
      }
      pairs_ = false;
      RunTiles(blocks, /*careful=*/true);
      for (std::int64_t i = 0; i < blocks; ++i) (void)Normalise(works_[i]);
    }
    for (std::int64_t i = 0; i < blocks; ++i) Write(works_[i]);
  }

 private:
  [[nodiscard]] std::int64_t ArrayBatch(std::int64_t batch) const noexcept {
    return problem_.is_ragged() ? 0 : batch;
  }

  void Start(std::int64_t batch, std::int64_t head, std::int64_t index, BlockWork& work) {
    work.block = source_.Block(batch, head, index);
    const QueryBlock& block = work.block;
    const std::ptrdiff_t slot = &work - works_;
    work.query = query_ + static_cast<std::size_t>(slot) * head_dim_ * kBlockQueries;
    work.out = out_ + static_cast<std::size_t>(slot) * head_dim_v_ * kBlockQueries;
    source_.FindBlockState(block, work.state);
    if (pairs_) {
      LoadQueryPairs(block, work.query);
    } else {
      LoadQuery(block, work.query);
    }
    Restart(work);
  }

  void Restart(BlockWork& work) const noexcept {
    std::fill_n(work.out, head_dim_v_ * work.block.width, 0.0F);
    std::fill_n(work.largest, kBlockQueries, -FLT_MAX);
    std::fill_n(work.sums, kBlockQueries, 0.0F);
  }

  // Lanes that are no queries hold zeros: whatever they compute is finite and not stored.
  void LoadQuery(const QueryBlock& block, float* query) {
    const RowReader reader(problem_.dtype(), buffers_.query, ArrayBatch(block.batch), block.head,
                           block.sequence.first_row_q);
    const std::size_t count = block.lane_end - block.lane_begin;
    const TileRows rows = ReadLanes(reader, block, QueryLanes(block), head_dim_, rows_);
    if (count < block.width) std::fill_n(query, head_dim_ * block.width, 0.0F);
    kernels_.transpose(rows.data, rows.stride, count, head_dim_, query + block.lane_begin,
                       Stride(block.width));
    alignas(64) float scale[kBlockQueries];
    std::fill_n(scale, kBlockQueries, static_cast<float>(problem_.scale() * kLog2E));
    kernels_.scale_lanes(query, head_dim_, block.width, scale);
  }

  // Neighbouring dims as pairs, [head_dim / 2][width]; the scale is applied to the products. Pairs
  // are moved as floats: no arithmetic touches them.
  void LoadQueryPairs(const QueryBlock& block, float* query) {
    const RowReader reader(problem_.dtype(), buffers_.query, ArrayBatch(block.batch), block.head,
                           block.sequence.first_row_q);
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

  void RunTiles(std::int64_t blocks, bool careful) {
    const QueryBlock& any = works_[0].block;
    KeyRange all{std::numeric_limits<std::int64_t>::max(), 0};
    for (std::int64_t i = 0; i < blocks; ++i) {
      const KeyRange& keys = works_[i].block.keys;
      if (keys.size() == 0) continue;
      all = {std::min(all.begin, keys.begin), std::max(all.end, keys.end)};
    }
    const std::int64_t group = problem_.shape().num_heads / problem_.shape().num_kv_heads;
    const std::int64_t batch = ArrayBatch(any.batch);
    const std::int64_t kv_head = any.head / group;
    const std::int64_t first_row = any.sequence.first_row_k;
    const RowReader key(problem_.dtype(), buffers_.key, batch, kv_head, first_row);
    const RowReader value(problem_.dtype(), buffers_.value, batch, kv_head, first_row);
    const std::int64_t step = tiling_.tiles.forward_keys;
    for (std::int64_t begin = all.begin; begin < all.end; begin += step) {
      const KeyRange tile{begin, std::min(begin + step, all.end)};
      const auto count = static_cast<std::size_t>(tile.size());
      TileInputs inputs{.tile = tile, .careful = careful};
      if (pairs_) {
        inputs.key_pairs =
            key.PairRows(tile.begin, count, head_dim_, reinterpret_cast<std::uint16_t*>(key_copy_));
        inputs.value_pairs = value.PairRows(tile.begin, count, head_dim_v_,
                                            reinterpret_cast<std::uint16_t*>(value_copy_));
      } else {
        inputs.keys = key.Rows(tile.begin, count, head_dim_, key_copy_);
        inputs.values = value.Rows(tile.begin, count, head_dim_v_, value_copy_);
      }
      for (std::int64_t i = 0; i < blocks; ++i) RunTile(works_[i], inputs);
    }
  }

  // A tile of keys and values, as float32 or as bfloat16.
  struct TileInputs {
    KeyRange tile{};
    TileRows keys{};
    TileRows values{};
    Bf16Rows key_pairs{};
    Bf16Rows value_pairs{};
    bool careful = false;

    // The same from key `skipped` of the tile on.
    [[nodiscard]] TileInputs From(std::size_t skipped) const noexcept {
      TileInputs rest = *this;
      rest.keys = keys.From(skipped);
      rest.values = values.From(skipped);
      rest.key_pairs = key_pairs.From(skipped);
      rest.value_pairs = value_pairs.From(skipped);
      return rest;
    }
  };

  // What one block sees of a tile.
  void RunTile(BlockWork& work, const TileInputs& inputs) {
    const QueryBlock& block = work.block;
    const KeyRange& tile = inputs.tile;
    const KeyRange seen{std::max(tile.begin, block.keys.begin), std::min(tile.end, block.keys.end)};
    if (seen.size() == 0) return;
    ForEachPart(block, seen, [&](const KeyRange& part) {
      source_.Fill(block, work.state, part, *words_);
      if (words_->part_count == 0) return;
      const TileInputs rest = inputs.From(static_cast<std::size_t>(part.begin - tile.begin));
      alignas(64) float largest[kBlockQueries];
      FindLogits(work, rest, largest);
      FindWeights(work, largest, rest.careful);
      if (pairs_) {
        AccumulatePairs(work, rest.value_pairs);
      } else {
        Accumulate(work, rest.values, rest.careful);
      }
    });
  }

  // largest: that of all tiles up to this one.
  void FindLogits(const BlockWork& work, const TileInputs& inputs, float* largest) {
    const std::size_t width = work.block.width;
    const TileMasks masks = words_->masks();
    const bool masked = masks.bias != nullptr || masks.part != nullptr;
    std::copy_n(work.largest, kBlockQueries, largest);
    if (pairs_) {
      tiling_.bf16->logits({.query = reinterpret_cast<const Bf16Pair*>(work.query),
                            .head_dim = head_dim_,
                            .width = width,
                            .lanes = words_->lanes,
                            .key = inputs.key_pairs,
                            .list = words_->parts(),
                            .scale = static_cast<float>(problem_.scale() * kLog2E),
                            .logits = weights_,
                            .largest = largest});
    } else {
      kernels_.logits({.query = work.query,
                       .head_dim = head_dim_,
                       .width = width,
                       .lanes = words_->lanes,
                       .key = inputs.keys,
                       .list = words_->parts(),
                       .logits = weights_,
                       .largest = largest});
    }
    if (!masked) return;
    std::copy_n(work.largest, kBlockQueries, largest);
    kernels_.mask_logits({.masks = masks,
                          .list = words_->parts(),
                          .width = width,
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

  void Accumulate(const BlockWork& work, const TileRows& values, bool careful) const {
    const std::uint64_t* const kept = words_->has_kept ? words_->kept : words_->part;
    kernels_.accumulate({.weights = weights_,
                         .width = work.block.width,
                         .lanes = words_->lanes,
                         .value = values,
                         .head_dim = head_dim_v_,
                         .list = words_->compact_keeps(),
                         .list_is_all = words_->kept_count == words_->count,
                         .select = careful ? kept : nullptr,
                         .fold = fold_,
                         .out = work.out});
  }

  void AccumulatePairs(const BlockWork& work, const Bf16Rows& values) const {
    tiling_.bf16->accumulate({.weights = weights_,
                              .width = work.block.width,
                              .lanes = words_->lanes,
                              .value = values,
                              .head_dim = head_dim_v_,
                              .list = words_->compact_keeps(),
                              .fold = fold_,
                              .out = work.out,
                              .weight_pairs = weight_pairs_,
                              .value_pairs = value_pairs_});
  }

  // out = factor * out / sums; false when some number is not finite.
  bool Normalise(BlockWork& work) const noexcept {
    const QueryBlock& block = work.block;
    alignas(64) float scale[kBlockQueries] = {};
    bool finite = true;
    for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
      if (work.sums[lane] != 0.0F) scale[lane] = work.state.factor[lane] / work.sums[lane];
      finite = finite && IsFinite(work.sums[lane]) && IsFinite(work.largest[lane]);
    }
    kernels_.scale_lanes(work.out, head_dim_v_, block.width, scale);
    for (std::size_t dim = 0; dim < head_dim_v_; ++dim) {
      const float* const out = work.out + dim * block.width;
      for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
        finite = finite && IsFinite(out[lane]);
      }
    }
    return finite;
  }

  void Write(const BlockWork& work) {
    const QueryBlock& block = work.block;
    const RowWriter out(problem_.dtype(), buffers_.out, ArrayBatch(block.batch), block.head,
                        block.sequence.first_row_q);
    WriteLanes(kernels_, {work.out, block.width, head_dim_v_}, block, out, rows_);
    WriteLogsumexp(work);
  }

  void WriteLogsumexp(const BlockWork& work) const {
    const QueryBlock& block = work.block;
    const RowWriter logsumexp(DType::kFloat32, buffers_.logsumexp, ArrayBatch(block.batch),
                              block.head, block.sequence.first_row_q);
    if (!logsumexp.wanted()) return;
    for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
      const double sum = static_cast<double>(work.sums[lane]);
      const double log2 = static_cast<double>(work.largest[lane]) + std::log2(sum);
      const float value =
          sum == 0.0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(log2 * kLn2);
      logsumexp.Write(block.local_query(lane), 1, 1, &value, 1);
    }
  }

  const Problem& problem_;
  const Tiling& tiling_;
  const Kernels& kernels_;
  const ForwardBuffers& buffers_;
  TileWordSource source_;
  std::size_t head_dim_;
  std::size_t head_dim_v_;
  BlockWork* works_ = nullptr;  // [blocks_per_task]
  float* query_ = nullptr;      // [blocks_per_task][head_dim][64]
  float* out_ = nullptr;        // [blocks_per_task][head_dim_v][64]
  float* weights_ = nullptr;    // [keys][width], of the tile at hand
  TileWords* words_ = nullptr;
  float* rows_ = nullptr;             // [64][max head_dim]
  float* key_copy_ = nullptr;         // [keys][head_dim], where keys cannot be read in place
  float* value_copy_ = nullptr;       // [keys][head_dim_v]
  Bf16Pair* weight_pairs_ = nullptr;  // [keys / 2][width], where the machine multiplies pairs
  Bf16Pair* value_pairs_ = nullptr;   // [keys / 2][head_dim_v]
  bool pairs_ = false;                // the blocks at hand are computed from bfloat16 pairs
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
  const ForwardWorker worker(problem, tiling, no_buffers, measure);
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
  // Late queries see most under a causal mask; they go first, so that no worker ends with them.
  const auto run = [&](std::int64_t task, int worker) {
    Arena arena(scratch + worker_bytes * static_cast<std::size_t>(worker));
    const std::int64_t group = groups - 1 - task % groups;
    const std::int64_t batch = task / groups / shape.num_heads;
    const std::int64_t head = task / groups % shape.num_heads;
    if (group == 0 && problem.is_ragged()) ClearUnusedRows(problem, buffers, batch, head);
    ForwardWorker(problem, tiling, buffers, arena)
        .Run(batch, head, group * tiling.tiles.blocks_per_task);
  };
  executor.Run(shape.batch * shape.num_heads * groups, run);
}

}  // namespace attndrop
