// SPDX-License-Identifier: Apache-2.0
// The two products of forward, logits = key . query and out += value . weights, in one of three
// ways. The driver (fused_forward.cc) does not know which: it sees logits, weights and out in
// lanes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/arena.h"
#include "kernels/float_rows.h"
#include "kernels/fused.h"
#include "kernels/tile_words.h"

namespace attndrop {

enum class ProductWay : std::uint8_t {
  kLanes,     // float32, queries in the lanes: always possible
  kPairs,     // bfloat16 pairs, where the machine multiplies them
  kDimLanes,  // float32, dims in the lanes: for a few queries
};

// A tile of keys and values, as float32 or as bfloat16.
struct TileInputs {
  KeyRange tile{};
  TileRows keys{};
  TileRows values{};
  Bf16Rows key_pairs{};
  Bf16Rows value_pairs{};

  // The same from key `skipped` of the tile on.
  [[nodiscard]] TileInputs From(std::size_t skipped) const noexcept;
};

// Where the logits, weights and out of a block are.
struct BlockProducts {
  const QueryBlock* block = nullptr;
  const TileWords* words = nullptr;
  const float* query = nullptr;  // as LoadQuery left it
  float* weights = nullptr;      // [i][width], logits before they are weights
};

class ForwardProducts {
 public:
  ForwardProducts(const Problem& problem, const Tiling& tiling, const ForwardBuffers& buffers,
                  Arena& arena) noexcept;

  // The best way for a task's blocks; `only` is its block where it has one, else null.
  [[nodiscard]] ProductWay Choose(const QueryBlock* only) const noexcept;
  void Use(ProductWay way) noexcept { way_ = way; }

  // Numbers that a block's query takes in any way, of a problem with this head_dim.
  [[nodiscard]] static std::int64_t QueryFloats(std::int64_t head_dim) noexcept;
  void LoadQuery(const QueryBlock& block, float* query);
  [[nodiscard]] TileInputs LoadTile(const QueryBlock& any, const KeyRange& tile);
  // largest: that of all tiles up to this one, in and out. Masks are not applied.
  void FindLogits(const BlockProducts& at, const TileInputs& inputs, float* largest) const;
  // select: lanes of each key that count, or null for all (AccumulateArgs); only in lanes.
  struct Sums {
    const std::uint64_t* select = nullptr;
    const float* fold = nullptr;
    float* out = nullptr;  // [head_dim_v][width]
  };
  void Accumulate(const BlockProducts& at, const TileInputs& inputs, const Sums& sums) const;

 private:
  [[nodiscard]] RowReader Reader(const Strided<const void>& array, std::int64_t batch,
                                 std::int64_t head, std::int64_t first_row) const noexcept;
  void LoadQueryLanes(const RowReader& reader, const QueryBlock& block, float* query) const;
  void LoadQueryPairs(const RowReader& reader, const QueryBlock& block, float* query) const;
  void LoadQueryRows(const RowReader& reader, const QueryBlock& block, float* query) const;

  const Problem& problem_;
  const Tiling& tiling_;
  const Kernels& kernels_;
  const ForwardBuffers& buffers_;
  std::size_t head_dim_;
  std::size_t head_dim_v_;
  ProductWay way_ = ProductWay::kLanes;
  float* rows_ = nullptr;             // [64][head_dim], of query
  float* key_copy_ = nullptr;         // [keys][head_dim], where keys cannot be read in place
  float* value_copy_ = nullptr;       // [keys][head_dim_v]
  Bf16Pair* weight_pairs_ = nullptr;  // [keys / 2][width], where the machine multiplies pairs
  Bf16Pair* value_pairs_ = nullptr;   // [keys / 2][head_dim_v]
};

}  // namespace attndrop
