// SPDX-License-Identifier: Apache-2.0
// Backward's first phase: what the tiles read of a block of queries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attndrop/attention.h"

#include "kernels/backward_memory.h"

namespace attndrop {

// No number of rows [count][cols] is NaN or infinite.
[[nodiscard]] bool RowsFinite(const TileRows& rows, std::size_t count, std::size_t cols) noexcept;

class BlockPreparation {
 public:
  BlockPreparation(const Problem& problem, const Kernels& kernels, const KeepWordsTables& tables,
                   const BackwardBuffers& buffers, const BackwardSizes& sizes) noexcept
      : problem_(problem), kernels_(kernels), tables_(tables), buffers_(buffers), sizes_(sizes) {}

  // Writes record `index` of a head: query and grad_out into lanes, scaled; grad_query zero;
  // logsumexp, delta and factors of its rows. buffer: room for two sets of rows.
  void Run(std::int64_t batch, std::int64_t head, std::int64_t index, HeadInFlight& flight,
           float* buffer) const;

 private:
  // Rows of a block into lanes [cols][width]; false when some number is not finite.
  bool LoadLanes(const QueryBlock& block, const Strided<const void>& array, std::size_t cols,
                 float* buffer, float* lanes) const noexcept;
  // logsumexp and delta of each row, in double (O(seqlen_q * head_dim)).
  void LoadRowNumbers(BlockRecord& record, float* buffer) const noexcept;

  const Problem& problem_;
  const Kernels& kernels_;
  const KeepWordsTables& tables_;
  const BackwardBuffers& buffers_;
  const BackwardSizes& sizes_;
};

}  // namespace attndrop
