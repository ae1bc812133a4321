// SPDX-License-Identifier: Apache-2.0
// The gradient of a float attn_mask: grad_logits summed in float32 over the axes that the mask is
// broadcast along, in an order that does not depend on threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attndrop/attention.h"

#include "core/arena.h"
#include "kernels/tile_words.h"

namespace attndrop {

// One tile's grad_logits: [i][width], i in the tile's parts; its key 0 is local key first_key.
struct GradLogitsTile {
  const QueryBlock& block;
  const TileWords& words;
  const float* grad_logits = nullptr;
  std::int64_t first_key = 0;  // local
};

// Cells of a mask that varies over keys belong to the task that owns the keys (AddOwned). Sums over
// keys meet in one cell a row; the caller adds them in ascending order of tiles (AddOrdered). Where
// batches or heads share the mask (SharesSums), the caller runs heads one after the other.
class MaskGradient {
 public:
  MaskGradient() = default;
  // Takes sums of the mask's size from the arena, and where the mask does not vary over keys also
  // one number a query row for each head in flight.
  MaskGradient(const Problem& problem, std::int64_t heads_in_flight, Arena& arena) noexcept;

  [[nodiscard]] bool wanted() const noexcept { return problem_ != nullptr; }
  // Heads must not be computed side by side.
  [[nodiscard]] static bool SharesSums(const Problem& problem) noexcept;

  void Clear() noexcept;
  void AddOwned(const GradLogitsTile& tile) const noexcept;
  // slot: the head's place among those in flight.
  void AddOrdered(const GradLogitsTile& tile, std::int64_t slot) const noexcept;
  // After all tiles of a head; ascending heads where they share sums.
  void FinishHead(std::int64_t batch, std::int64_t head, std::int64_t slot) const noexcept;
  void Store(const Strided<void>& grad_attn_mask) const noexcept;

 private:
  [[nodiscard]] float* Sum(std::int64_t batch, std::int64_t head, std::int64_t query,
                           std::int64_t key) const noexcept;

  const Problem* problem_ = nullptr;
  float* sums_ = nullptr;      // the mask's form, dense
  float* row_sums_ = nullptr;  // [slot][seqlen_q], where the mask does not vary over keys
  std::int64_t sizes_[4] = {};
  std::int64_t slots_ = 0;
};

}  // namespace attndrop
