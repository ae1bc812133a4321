// SPDX-License-Identifier: Apache-2.0
// Fused backward. Heads are computed in waves of one query head for each key/value head in flight.
// A wave has three phases:
//   prepare  one task a query block: query and grad_out into lanes, delta, row factors
//   tiles    one task a tile of keys, which owns its rows of grad_key and grad_value and walks over
//            the query blocks that see it; it adds to grad_query block by block, in ascending order
//            of tiles, so that the sums do not depend on threads
//   finish   one task a query block: grad_query back into rows
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "core/arena.h"
#include "core/head_rows.h"
#include "kernels/backward_memory.h"
#include "kernels/backward_prepare.h"
#include "kernels/fused.h"
#include "kernels/lane_rows.h"
#include "kernels/mask_gradient.h"
#include "kernels/tile_words.h"

namespace attndrop {
namespace {

// Weights are exp(logit - logsumexp); at this size a float32 logsumexp gives them to 0.4 %.
constexpr float kMaxLogsumexp = 65536.0F;

class BackwardRun {
 public:
  BackwardRun(const Problem& problem, const Tiling& tiling, const BackwardBuffers& buffers,
              Executor& executor, std::byte* scratch) noexcept
      : problem_(problem),
        tiling_(tiling),
        kernels_(*tiling.kernels),
        buffers_(buffers),
        forward_missing_(WorkOf(buffers).recompute_forward),
        executor_(executor),
        tables_(MakeFieldTables(problem)),
        sizes_(FindSizes(problem, tiling, WorkOf(buffers), executor.num_workers())) {
    Arena arena(scratch);
    TakeForward(problem, WorkOf(buffers), arena, buffers_);
    heads_ = arena.Take<HeadInFlight>(sizes_.heads_in_flight);
    for (std::int64_t i = 0; i < sizes_.heads_in_flight; ++i) {
      heads_[i] = TakeHead(problem, sizes_, arena);
    }
    workers_ = arena.Take<WorkerMemory>(executor.num_workers());
    for (int i = 0; i < executor.num_workers(); ++i)
      workers_[i] = TakeWorker(tiling, sizes_, arena);
    if (buffers.grad_attn_mask.data != nullptr) {
      mask_gradient_ = MaskGradient(problem, sizes_.heads_in_flight, arena);
    }
    forward_scratch_ = scratch + arena.bytes();
  }

  // False, with nothing written, when logsumexp leaves too few digits to find the weights again.
  [[nodiscard]] bool Run() {
    if (forward_missing_) {
      FusedForward(problem_, tiling_, ForwardOf(buffers_), executor_, forward_scratch_);
    }
    if (sizes_.group == 0 || !LogsumexpHasDigits()) return false;
    if (mask_gradient_.wanted()) mask_gradient_.Clear();
    const std::int64_t pairs =
        SaturatingProduct(problem_.shape().batch, problem_.shape().num_kv_heads);
    for (std::int64_t first = 0; first < pairs; first += sizes_.heads_in_flight) {
      wave_first_ = first;
      wave_size_ = std::min(sizes_.heads_in_flight, pairs - first);
      for (member_ = 0; member_ < sizes_.group; ++member_) RunWave();
    }
    if (mask_gradient_.wanted()) mask_gradient_.Store(buffers_.grad_attn_mask);
    return true;
  }

 private:
  // The query head that slot `slot` of the wave holds.
  struct Slot {
    std::int64_t batch;
    std::int64_t kv_head;
    std::int64_t head;
    HeadInFlight* flight;
  };
  [[nodiscard]] Slot SlotAt(std::int64_t slot) const noexcept {
    const std::int64_t pair = wave_first_ + slot;
    const std::int64_t kv_heads = problem_.shape().num_kv_heads;
    return {.batch = pair / kv_heads,
            .kv_head = pair % kv_heads,
            .head = pair % kv_heads * sizes_.group + member_,
            .flight = &heads_[slot]};
  }

  [[nodiscard]] bool LogsumexpHasDigits() const noexcept {
    for (std::int64_t batch = 0; batch < problem_.array_batch(); ++batch) {
      for (std::int64_t head = 0; head < problem_.shape().num_heads; ++head) {
        const RowReader reader(DType::kFloat32, buffers_.logsumexp, batch, head, 0);
        for (std::int64_t row = 0; row < problem_.rows_q(); ++row) {
          float logsumexp = 0.0F;
          reader.CopyPadded(row, 1, 1, 1, &logsumexp);
          const bool empty = logsumexp == -std::numeric_limits<float>::infinity();
          if (!empty && std::abs(logsumexp) > kMaxLogsumexp) return false;
        }
      }
    }
    return true;
  }

  void RunWave() {
    const auto prepare = [this](std::int64_t task, int worker) {
      PrepareBlock(SlotAt(task / sizes_.blocks), task % sizes_.blocks, workers_[worker]);
    };
    executor_.Run(wave_size_ * sizes_.blocks, prepare);
    // An executor may hand out its numbers in any order; the tiles wait for lower ones, so they
    // take their own, ascending.
    std::atomic<std::int64_t> next{0};
    const auto tiles = [this, &next](std::int64_t /*task*/, int worker) {
      const std::int64_t task = next.fetch_add(1);
      RunTile(SlotAt(task / sizes_.tiles), task % sizes_.tiles, workers_[worker]);
    };
    executor_.Run(wave_size_ * sizes_.tiles, tiles);
    const auto finish = [this](std::int64_t task, int worker) {
      FinishBlock(SlotAt(task / sizes_.blocks), task % sizes_.blocks, workers_[worker]);
    };
    executor_.Run(wave_size_ * sizes_.blocks, finish);
    for (std::int64_t i = 0; mask_gradient_.wanted() && i < wave_size_; ++i) {
      const Slot slot = SlotAt(i);
      mask_gradient_.FinishHead(slot.batch, slot.head, i);
    }
  }

  // ---- prepare ----

  void PrepareBlock(const Slot& slot, std::int64_t index, const WorkerMemory& memory) const {
    if (index == 0) ClearUnusedRows(slot);
    if (index >= NumBlocks(problem_.sequence(slot.batch))) return;
    BlockPreparation(problem_, kernels_, tables_, buffers_, sizes_)
        .Run(slot.batch, slot.head, index, *slot.flight, memory.rows);
  }

  // ---- tiles ----

  void RunTile(const Slot& slot, std::int64_t index, WorkerMemory& memory) {
    const Sequence sequence = problem_.sequence(slot.batch);
    const std::int64_t begin = index * tiling_.tiles.backward_keys;
    const KeyRange tile{begin, std::min(begin + tiling_.tiles.backward_keys, sequence.seqlen_k)};
    if (tile.size() == 0) return;
    const auto count = static_cast<std::size_t>(tile.size());
    StartTile(slot, tile, memory);
    const std::int64_t batch = ArrayBatch(problem_, slot.batch);
    const RowReader key(problem_.dtype(), buffers_.key, batch, slot.kv_head, sequence.first_row_k);
    const RowReader value(problem_.dtype(), buffers_.value, batch, slot.kv_head,
                          sequence.first_row_k);
    const TileRows keys = key.Rows(begin, count, sizes_.head_dim, memory.key_copy);
    const TileRows values = value.Rows(begin, count, sizes_.head_dim_v, memory.value_copy);
    const bool finite =
        RowsFinite(keys, count, sizes_.head_dim) && RowsFinite(values, count, sizes_.head_dim_v);
    TileWordSource source(problem_, buffers_.mask, kernels_, tables_);
    const std::int64_t blocks = NumBlocks(sequence);
    for (std::int64_t i = 0; i < blocks; ++i) {
      BlockRecord& record = slot.flight->blocks[i];
      const KeyRange seen{std::max(tile.begin, record.block.keys.begin),
                          std::min(tile.end, record.block.keys.end)};
      if (seen.size() == 0) continue;
      TilePair pair{.record = record, .block_index = i, .index = index};
      pair.careful = !finite || !record.finite;
      pair.special_ratio = source.special_ratio();
      ForEachPart(record.block, seen, [&](const KeyRange& part) {
        pair.skipped = static_cast<std::size_t>(part.begin - tile.begin);
        pair.keys = keys.From(pair.skipped);
        pair.values = values.From(pair.skipped);
        source.Fill(record.block, record.state, part, *memory.words);
        if (memory.words->part_count > 0) RunPair(slot, pair, memory);
      });
      WaitForTurn(pair);
      record.tiles_done.store(Turn(pair) + 1, std::memory_order_release);
    }
    FinishTile(slot, tile, memory);
  }

  // One tile of keys and one block of queries.
  struct TilePair {
    BlockRecord& record;
    std::int64_t block_index = 0;
    std::int64_t index = 0;   // of the tile
    std::size_t skipped = 0;  // keys of the tile that the block does not see
    TileRows keys{};
    TileRows values{};
    bool careful = false;
    float special_ratio = 1.0F;
  };

  void RunPair(const Slot& slot, const TilePair& pair, WorkerMemory& memory) {
    if (AddsNothing(pair, *memory.words)) return;
    FindGradLogits(slot, pair, memory);
    AddToKeysAndValues(pair, memory);
    if (mask_gradient_.wanted()) mask_gradient_.AddOwned(MaskTile(pair, memory));
    WaitForTurn(pair);
    AddToQueries(slot, pair, memory);
    if (!mask_gradient_.wanted()) return;
    mask_gradient_.AddOrdered(MaskTile(pair, memory), slot.flight - heads_);
  }

  // Where nothing is kept, grad_logits = -weights * delta: zero for a block whose rows lost all.
  [[nodiscard]] static bool AddsNothing(const TilePair& pair, const TileWords& words) noexcept {
    return words.kept_count == 0 && pair.record.no_delta && !pair.careful;
  }

  // Tiles add to a block's grad_query in ascending order; lower tiles never wait for this one.
  [[nodiscard]] std::int64_t Turn(const TilePair& pair) const noexcept {
    return pair.index - pair.record.block.keys.begin / tiling_.tiles.backward_keys;
  }
  void WaitForTurn(const TilePair& pair) const noexcept {
    const std::int64_t turn = Turn(pair);
    while (pair.record.tiles_done.load(std::memory_order_acquire) != turn) {
      std::this_thread::yield();
    }
  }

  [[nodiscard]] GradLogitsTile MaskTile(const TilePair& pair,
                                        const WorkerMemory& memory) const noexcept {
    return {.block = pair.record.block,
            .words = *memory.words,
            .grad_logits = memory.grad_logits,
            .first_key =
                pair.index * tiling_.tiles.backward_keys + static_cast<std::int64_t>(pair.skipped)};
  }

  void FindGradLogits(const Slot& slot, const TilePair& pair, WorkerMemory& memory) const {
    const BlockRecord& record = pair.record;
    const TileWords& words = *memory.words;
    const std::size_t lanes = static_cast<std::size_t>(pair.block_index) * kBlockQueries;
    kernels_.weights_again({.query = slot.flight->query + lanes * sizes_.head_dim,
                            .head_dim = sizes_.head_dim,
                            .width = record.block.width,
                            .lanes = words.lanes,
                            .key = pair.keys,
                            .list = words.parts(),
                            .masks = words.masks(),
                            .logsumexp = record.logsumexp,
                            .logsumexp_rest = record.logsumexp_rest,
                            .weights = memory.weights});
    kernels_.grad_logits({.grad_out = slot.flight->grad_out + lanes * sizes_.head_dim_v,
                          .head_dim = sizes_.head_dim_v,
                          .width = record.block.width,
                          .lanes = words.lanes,
                          .value = pair.values,
                          .list = words.parts(),
                          .kept_list = words.keeps(),
                          .masks = words.masks(),
                          .special = words.has_special ? words.special : nullptr,
                          .special_ratio = pair.special_ratio,
                          .delta = record.delta,
                          .factor = record.state.factor.data(),
                          .weights = memory.weights,
                          .grad_logits = memory.grad_logits});
  }

  // grad_value += weights . grad_out, grad_key += grad_logits . query, rows as the caller has them.
  void AddToKeysAndValues(const TilePair& pair, WorkerMemory& memory) const {
    const TileWords& words = *memory.words;
    const std::uint64_t* const kept = words.has_kept ? words.kept : words.part;
    AddRows(pair, buffers_.grad_out, sizes_.head_dim_v, memory,
            {.weights = memory.weights,
             .padded_dim = sizes_.padded_dim_v,
             .list = words.keeps(),
             .select = pair.careful ? kept : nullptr,
             .out = memory.grad_value + pair.skipped * sizes_.padded_dim_v});
    AddRows(pair, buffers_.query, sizes_.head_dim, memory,
            {.weights = memory.grad_logits,
             .padded_dim = sizes_.padded_dim,
             .list = words.parts(),
             .select = pair.careful ? words.part : nullptr,
             .out = memory.grad_key + pair.skipped * sizes_.padded_dim});
  }

  void AddRows(const TilePair& pair, const Strided<const void>& array, std::size_t cols,
               const WorkerMemory& memory, AccumulateRowsArgs args) const {
    float* const buffer = memory.rows;
    const LaneRange& lanes = memory.words->lanes;
    if (args.list.count == 0) return;
    const QueryBlock& block = pair.record.block;
    const RowReader reader(problem_.dtype(), array, ArrayBatch(problem_, block.batch), block.head,
                           block.sequence.first_row_q);
    args.width = block.width;
    args.first_query = std::max(block.lane_begin, lanes.begin);
    args.queries = std::min(block.lane_end, lanes.end) - args.first_query;
    args.rows = ReadPaddedLanes(reader, block, {args.first_query, args.first_query + args.queries},
                                cols, args.padded_dim, buffer);
    kernels_.accumulate_rows(args);
  }

  void AddToQueries(const Slot& slot, const TilePair& pair, const WorkerMemory& memory) const {
    const TileWords& words = *memory.words;
    alignas(64) float ones[kBlockQueries];
    std::fill_n(ones, kBlockQueries, 1.0F);
    const std::size_t lanes = static_cast<std::size_t>(pair.block_index) * kBlockQueries;
    kernels_.accumulate({.weights = memory.grad_logits,
                         .width = pair.record.block.width,
                         .lanes = words.lanes,
                         .value = pair.keys,
                         .head_dim = sizes_.head_dim,
                         .list = words.parts(),
                         .list_is_all = words.part_count == words.count,
                         .select = pair.careful ? words.part : nullptr,
                         .fold = ones,
                         .out = slot.flight->grad_query + lanes * sizes_.head_dim});
  }

  // Heads that share keys add to the sums of the head before.
  void StartTile(const Slot& slot, const KeyRange& tile, WorkerMemory& memory) const noexcept {
    const auto first = static_cast<std::size_t>(tile.begin);
    const auto count = static_cast<std::size_t>(tile.size());
    if (member_ > 0) {
      std::copy_n(slot.flight->grad_key + first * sizes_.padded_dim, count * sizes_.padded_dim,
                  memory.grad_key);
      std::copy_n(slot.flight->grad_value + first * sizes_.padded_dim_v,
                  count * sizes_.padded_dim_v, memory.grad_value);
      return;
    }
    std::fill_n(memory.grad_key, count * sizes_.padded_dim, 0.0F);
    std::fill_n(memory.grad_value, count * sizes_.padded_dim_v, 0.0F);
  }

  void FinishTile(const Slot& slot, const KeyRange& tile, WorkerMemory& memory) const noexcept {
    const auto first = static_cast<std::size_t>(tile.begin);
    const auto count = static_cast<std::size_t>(tile.size());
    if (member_ + 1 < sizes_.group) {
      std::copy_n(memory.grad_key, count * sizes_.padded_dim,
                  slot.flight->grad_key + first * sizes_.padded_dim);
      std::copy_n(memory.grad_value, count * sizes_.padded_dim_v,
                  slot.flight->grad_value + first * sizes_.padded_dim_v);
      return;
    }
    const std::int64_t batch = ArrayBatch(problem_, slot.batch);
    const std::int64_t first_row = problem_.sequence(slot.batch).first_row_k;
    const RowWriter grad_key(problem_.dtype(), buffers_.grad_key, batch, slot.kv_head, first_row);
    const RowWriter grad_value(problem_.dtype(), buffers_.grad_value, batch, slot.kv_head,
                               first_row);
    const auto scale = static_cast<float>(problem_.scale());
    for (std::size_t i = 0; i < count * sizes_.padded_dim; ++i) memory.grad_key[i] *= scale;
    if (grad_key.wanted()) {
      grad_key.Write(tile.begin, count, sizes_.head_dim, memory.grad_key, sizes_.padded_dim);
    }
    if (grad_value.wanted()) {
      grad_value.Write(tile.begin, count, sizes_.head_dim_v, memory.grad_value,
                       sizes_.padded_dim_v);
    }
  }

  // ---- finish ----

  void FinishBlock(const Slot& slot, std::int64_t index, const WorkerMemory& memory) const {
    if (index >= NumBlocks(problem_.sequence(slot.batch))) return;
    const QueryBlock& block = slot.flight->blocks[index].block;
    const RowWriter writer(problem_.dtype(), buffers_.grad_query, ArrayBatch(problem_, block.batch),
                           block.head, block.sequence.first_row_q);
    if (!writer.wanted()) return;
    float* const lanes =
        slot.flight->grad_query + static_cast<std::size_t>(index) * kBlockQueries * sizes_.head_dim;
    alignas(64) float scale[kBlockQueries];
    std::fill_n(scale, kBlockQueries, static_cast<float>(problem_.scale()));
    kernels_.scale_lanes(lanes, sizes_.head_dim, block.width, scale);
    WriteLanes(kernels_, {lanes, block.width, sizes_.head_dim}, block, writer, memory.rows);
  }

  // Rows of a ragged batch that no sequence uses become zero.
  void ClearUnusedRows(const Slot& slot) const noexcept {
    if (!problem_.is_ragged()) return;
    const AttentionShape& shape = problem_.shape();
    const Sequence sequence = problem_.sequence(slot.batch);
    const HeadRows queries = UnusedRowsQ(problem_, sequence, slot.batch, slot.head);
    const HeadRows keys = UnusedRowsK(problem_, sequence, slot.batch, slot.kv_head);
    Clear(buffers_.grad_query, queries, shape.head_dim);
    Clear(buffers_.grad_key, keys, shape.head_dim);
    Clear(buffers_.grad_value, keys, shape.head_dim_v);
  }
  void Clear(const Strided<void>& array, const HeadRows& rows, std::int64_t cols) const noexcept {
    if (array.data != nullptr) FillRows(problem_.dtype(), 0.0, rows, cols, array);
  }

  const Problem& problem_;
  const Tiling& tiling_;
  const Kernels& kernels_;
  BackwardBuffers buffers_;
  bool forward_missing_;
  Executor& executor_;
  KeepWordsTables tables_;
  BackwardSizes sizes_;
  HeadInFlight* heads_ = nullptr;    // [heads_in_flight]
  WorkerMemory* workers_ = nullptr;  // [num_workers]
  MaskGradient mask_gradient_;
  std::byte* forward_scratch_ = nullptr;
  std::int64_t wave_first_ = 0;  // first (batch, key/value head) of the wave
  std::int64_t wave_size_ = 0;
  std::int64_t member_ = 0;  // which query head of each group
};

}  // namespace

bool FusedBackward(const Problem& problem, const Tiling& tiling, const BackwardBuffers& buffers,
                   Executor& executor, std::byte* scratch) {
  return BackwardRun(problem, tiling, buffers, executor, scratch).Run();
}

}  // namespace attndrop
