// SPDX-License-Identifier: Apache-2.0
// The tile kernels of one instruction set, as a table of functions. A tile is a block of queries
// (in the lanes: 16, 32 or 64) by a run of keys; all arrays here are float32. The kernels see keep
// words, never schemes: bit i of a word speaks of query i of the block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attndrop/target.h"

#include "kernels/keep_words.h"

namespace attndrop {

inline constexpr std::size_t kBlockQueries = 64;  // the widest block
inline constexpr std::size_t kTileKeys = 256;     // the longest tile; every sum is folded per tile

// A length as a stride.
[[nodiscard]] constexpr std::ptrdiff_t Stride(std::size_t length) noexcept {
  return static_cast<std::ptrdiff_t>(length);
}

// Rows of key or value: row j of the tile begins at data + j * stride, its columns are adjacent.
// The stride may be negative.
struct TileRows {
  const float* data = nullptr;
  std::ptrdiff_t stride = 0;

  [[nodiscard]] const float* Row(std::size_t row) const noexcept {
    return data + static_cast<std::ptrdiff_t>(row) * stride;
  }
  // The same rows from row `skipped` on.
  [[nodiscard]] TileRows From(std::size_t skipped) const noexcept { return {Row(skipped), stride}; }
};

// Lanes that a kernel computes, multiples of 16; the others are left as they are.
struct LaneRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Keys of the tile that a kernel reads, ascending. Arrays of weights hold only the keys of a list,
// one behind the other: key keys[i] has row rows[i], or row i where rows is null.
struct KeyList {
  const std::uint16_t* keys = nullptr;
  std::size_t count = 0;
  const std::uint16_t* rows = nullptr;
};

// What the logits of a tile meet. Null pointers: nothing of the kind.
struct TileMasks {
  const float* bias = nullptr;          // [key][width], in units of the logits
  const std::uint64_t* part = nullptr;  // [key]: takes part in the softmax
  const std::uint64_t* kept = nullptr;  // [key]: contributes to out, where some lanes do not
};

// logits[i][query] = sum over dims of key * query, i in the list; largest = max(largest, logits).
// Error of a logit: at most head_dim roundings of its partial sums (docs/math/accuracy.md).
struct LogitsArgs {
  const float* query = nullptr;  // [head_dim][width], scaled by scale * log2(e)
  std::size_t head_dim = 0;
  std::size_t width = 0;
  LaneRange lanes{};
  TileRows key{};
  KeyList list{};
  float* logits = nullptr;   // [i][width]
  float* largest = nullptr;  // [width], in and out
};

// Adds the bias, hides what takes no part (-FLT_MAX), and finds the largest logits again.
struct MaskLogitsArgs {
  TileMasks masks{};
  KeyList list{};
  std::size_t width = 0;
  LaneRange lanes{};
  float* logits = nullptr;   // [i][width], in and out
  float* largest = nullptr;  // [width], in and out
};

// logits -> exp2(logits - largest), 0 where it takes no part; sums over the tile before what is not
// kept becomes 0. Rows of keys that are not in kept_list are left out: afterwards weights holds the
// rows of kept_list.
struct WeightsArgs {
  TileMasks masks{};
  KeyList list{};
  KeyList kept_list{};
  std::size_t width = 0;
  LaneRange lanes{};
  const float* largest = nullptr;  // [width]
  float* weights = nullptr;        // [i][width], logits in
  float* sums = nullptr;           // [width], out
  bool infinite = false;           // logits may be infinite: +inf weighs 1 beside itself
};

// Moves the running sums from the old largest logits to the new: fold = exp2(old - new), which out
// is to be multiplied with too; sums = sums * fold + tile_sums.
struct FoldArgs {
  std::size_t width = 0;
  LaneRange lanes{};
  const float* old_largest = nullptr;  // [width], likewise all
  const float* new_largest = nullptr;
  const float* tile_sums = nullptr;
  float* sums = nullptr;  // in and out
  float* fold = nullptr;  // out
};

// out[dim][query] = out * fold + sum over the list of value[key][dim] * weights[i][query].
struct AccumulateArgs {
  const float* weights = nullptr;  // [i][width]
  std::size_t width = 0;
  LaneRange lanes{};
  TileRows value{};
  std::size_t head_dim = 0;
  KeyList list{};
  bool list_is_all = false;               // the list is 0 .. count - 1
  const std::uint64_t* select = nullptr;  // [key]: only these lanes of a term count (NaN elsewhere)
  const float* fold = nullptr;            // [width]
  float* out = nullptr;                   // [head_dim][width]
};

// As LogitsArgs and AccumulateArgs, for up to kFewQueries queries in a block of width 16; lane
// first_lane + q is query q. logits of other lanes become 0, out of other lanes stays.
inline constexpr std::size_t kFewQueries = 8;
struct FewLogitsArgs {
  const float* query = nullptr;  // [queries up to a multiple of 4][query_stride], scaled; zeros
  std::size_t query_stride = 0;  // beyond head_dim and queries. A multiple of kDimPadding
  std::size_t queries = 0;
  std::size_t first_lane = 0;
  std::size_t head_dim = 0;
  std::size_t width = 0;
  TileRows key{};
  KeyList list{};
  float* logits = nullptr;   // [i][width]
  float* largest = nullptr;  // [width], in and out
};
struct FewAccumulateArgs {
  const float* weights = nullptr;  // [i][width]
  std::size_t queries = 0;
  std::size_t first_lane = 0;
  std::size_t width = 0;
  TileRows value{};
  std::size_t head_dim = 0;
  KeyList list{};
  const float* fold = nullptr;  // [width]
  float* out = nullptr;         // [head_dim][width]
};

// weights[i][query] = exp2(logit - logsumexp), 0 where it takes no part (backward).
struct WeightsAgainArgs {
  const float* query = nullptr;  // [head_dim][width], scaled
  std::size_t head_dim = 0;
  std::size_t width = 0;
  LaneRange lanes{};
  TileRows key{};
  KeyList list{};
  TileMasks masks{};
  const float* logsumexp = nullptr;  // [width], in units of log2; with logsumexp_rest to 48 bits
  const float* logsumexp_rest = nullptr;
  float* weights = nullptr;  // [i][width]
};

// grad_weights = value . grad_out; grad_logits = weights * (kept * grad_weights - delta), where
// weights becomes kept * weights * factor; rows of keys that are not in kept_list stay as they are.
struct GradLogitsArgs {
  const float* grad_out = nullptr;  // [head_dim_v][width], times the row's factor
  std::size_t head_dim = 0;
  std::size_t width = 0;
  LaneRange lanes{};
  TileRows value{};
  KeyList list{};       // keys that take part
  KeyList kept_list{};  // of them, those that some query keeps: the others need no product
  TileMasks masks{};
  const std::uint64_t* special = nullptr;  // [key]: lanes whose factor is times special_ratio
  float special_ratio = 1.0F;
  const float* delta = nullptr;   // [width]
  const float* factor = nullptr;  // [width]
  float* weights = nullptr;       // [i][width], in and out
  float* grad_logits = nullptr;   // [i][width], out
};

// out[key][dim] += sum over queries of weights[i][query] * rows[query][dim].
struct AccumulateRowsArgs {
  const float* weights = nullptr;  // [i][width]
  std::size_t width = 0;
  std::size_t queries = 0;  // valid ones, from query first_query
  std::size_t first_query = 0;
  TileRows rows{};             // of query first_query on; readable up to padded_dim columns
  std::size_t padded_dim = 0;  // a multiple of kDimPadding
  KeyList list{};
  const std::uint64_t* select = nullptr;  // [key], as above
  float* out = nullptr;                   // [key][padded_dim]
};
inline constexpr std::size_t kDimPadding = 16;
[[nodiscard]] constexpr std::size_t PaddedDim(std::size_t head_dim) noexcept {
  return (head_dim + kDimPadding - 1) / kDimPadding * kDimPadding;
}

struct Kernels {
  Target target;
  void (*logits)(const LogitsArgs&);
  void (*mask_logits)(const MaskLogitsArgs&);
  void (*weights)(const WeightsArgs&);
  void (*fold)(const FoldArgs&);
  void (*accumulate)(const AccumulateArgs&);
  void (*few_logits)(const FewLogitsArgs&);
  void (*few_accumulate)(const FewAccumulateArgs&);
  void (*weights_again)(const WeightsAgainArgs&);
  void (*grad_logits)(const GradLogitsArgs&);
  void (*accumulate_rows)(const AccumulateRowsArgs&);
  // out[col][row] = in[row][col]; strides in elements.
  void (*transpose)(const float* in, std::ptrdiff_t in_stride, std::size_t rows, std::size_t cols,
                    float* out, std::ptrdiff_t out_stride);
  // x[dim][lane] *= factor[lane]
  void (*scale_lanes)(float* x, std::size_t dims, std::size_t width, const float* factor);
  KeepWordsFunction keep_words;
  void (*keep_row)(const KeepRowArgs&);
};

// Null when the program or the machine has no such kernels.
[[nodiscard]] const Kernels* KernelsFor(Target target) noexcept;
// The same as Highway's instruction sets have them, without what a processor may have beyond.
[[nodiscard]] const Kernels* PlainKernelsFor(Target target) noexcept;
// Those of the widest target; null when there are none.
[[nodiscard]] const Kernels* WidestKernels() noexcept;

}  // namespace attndrop
