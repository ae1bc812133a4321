// SPDX-License-Identifier: Apache-2.0
// The memory of a fused backward call: heads in flight, and what each worker needs for one tile.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "attndrop/attention.h"

#include "core/arena.h"
#include "kernels/fused.h"
#include "kernels/tile_words.h"

namespace attndrop {

// A query block of the head in flight, as prepare leaves it for the tiles.
struct BlockRecord {
  QueryBlock block;
  BlockState state;
  bool no_delta = true;                     // delta is zero for all rows
  bool finite = true;                       // query, grad_out, delta and logsumexp
  std::atomic<std::int64_t> tiles_done{0};  // of those that it sees: have added to grad_query
  alignas(64) float logsumexp_rest[kBlockQueries];
  alignas(64) float logsumexp[kBlockQueries];  // units of log2
  alignas(64) float delta[kBlockQueries];      // (A6)
};

// One query head in flight: memory linear in the sequence length.
struct HeadInFlight {
  BlockRecord* blocks = nullptr;  // [num blocks]
  float* query = nullptr;         // [block][head_dim][64], scaled by scale * log2(e)
  float* grad_out = nullptr;      // [block][head_dim_v][64], times the row's factor
  float* grad_query = nullptr;    // [block][head_dim][64]
  float* grad_key = nullptr;      // [seqlen_k][padded head_dim], only where heads share keys
  float* grad_value = nullptr;    // [seqlen_k][padded head_dim_v]
};

// What a worker needs for one tile.
struct WorkerMemory {
  TileWords* words = nullptr;
  float* weights = nullptr;      // [keys][64]
  float* grad_logits = nullptr;  // [keys][64]
  float* grad_key = nullptr;     // [keys][padded head_dim]
  float* grad_value = nullptr;   // [keys][padded head_dim_v]
  float* key_copy = nullptr;     // [keys][head_dim]
  float* value_copy = nullptr;   // [keys][head_dim_v]
  float* rows = nullptr;         // [64][padded max head_dim], twice
};

struct BackwardSizes {
  std::int64_t blocks = 0;  // of the longest sequence
  std::int64_t tiles = 0;
  std::int64_t heads_in_flight = 0;
  std::int64_t group = 0;  // query heads of a key/value head
  std::size_t head_dim = 0;
  std::size_t head_dim_v = 0;
  std::size_t padded_dim = 0;
  std::size_t padded_dim_v = 0;
};

[[nodiscard]] BackwardSizes FindSizes(const Problem& problem, const Tiling& tiling,
                                      const BackwardWork& work, int num_workers) noexcept;

// Each takes its arrays from the arena, or measures them.
[[nodiscard]] HeadInFlight TakeHead(const Problem& problem, const BackwardSizes& sizes,
                                    Arena& arena) noexcept;
[[nodiscard]] WorkerMemory TakeWorker(const Tiling& tiling, const BackwardSizes& sizes,
                                      Arena& arena) noexcept;
// Room for out and logsumexp, where the caller has not kept them.
void TakeForward(const Problem& problem, const BackwardWork& work, Arena& arena,
                 BackwardBuffers& buffers) noexcept;
// The forward call whose results TakeForward made room for.
[[nodiscard]] ForwardBuffers ForwardOf(const BackwardBuffers& buffers) noexcept;

}  // namespace attndrop
