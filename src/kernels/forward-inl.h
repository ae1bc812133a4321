// SPDX-License-Identifier: Apache-2.0
// Forward, one tile of keys for one block of queries, the online softmax of docs/math/attention.md:
//   1. logits^T = key . query^T            (logits, in units of log2)
//   2. bias, masks, largest logit so far   (mask_logits; only where a tile has any)
//   3. weights = exp2(logits - largest), their sum over the tile; then 0 where dropped (weights)
//   4. out^T = out^T * exp2(old largest - new) + value^T . weights               (accumulate)
// Each tile's sums start from zero and are folded in, so that the error of a long sequence grows
// with its tiles, not with its keys.

// Per-target include guard
#if defined(ATTNDROP_KERNELS_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNDROP_KERNELS_FORWARD_INL_H_
#undef ATTNDROP_KERNELS_FORWARD_INL_H_
#else
#define ATTNDROP_KERNELS_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cfloat>

#include "hwy/highway.h"
#include "kernels/kernels.h"
#include "kernels/lanes-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {

// Calls f.template operator()<C>(first lane) for panels of C vectors that cover the lanes.
template <class F>
HWY_INLINE void ForEachPanel(const LaneRange& lanes, const F& f) {
  constexpr std::size_t kPanel = static_cast<std::size_t>(kPanelVectors) * kLanes;
  std::size_t lane = lanes.begin;
  for (; lane + kPanel <= lanes.end; lane += kPanel) f.template operator()<kPanelVectors>(lane);
  if (lane == lanes.end) return;
  if constexpr (kPanelVectors == 4) {
    const std::size_t vectors = (lanes.end - lane) / kLanes;
    if (vectors == 3) return f.template operator()<3>(lane);
    if (vectors == 2) return f.template operator()<2>(lane);
  }
  f.template operator()<1>(lane);
}

// Rows that a panel of C vectors takes at once: narrow panels take more, for a multiply-add must
// not wait for the one before it.
template <int C>
inline constexpr int kRowsFor = C == kPanelVectors || C == 3 ? kPanelRows
                                : C == 2                     ? 8
                                                             : 6;

// The rows of a list in groups of R. A group beyond the end of the list repeats its last row, so
// that no tail needs code of its own: the same numbers are computed and stored again.
template <int R>
struct RowGroup {
  std::size_t keys[R];  // of the tile
  std::size_t rows[R];  // of arrays of weights

  RowGroup(const KeyList& list, std::size_t first) {
    for (int r = 0; r < R; ++r) {
      const std::size_t i = std::min(first + static_cast<std::size_t>(r), list.count - 1);
      keys[r] = list.keys[i];
      rows[r] = list.rows != nullptr ? list.rows[i] : i;
    }
  }
};

template <int R>
HWY_INLINE void PointAtRows(const TileRows& tile, const std::size_t (&rows)[R],
                            const float* (&pointers)[R]) {
  for (int r = 0; r < R; ++r) pointers[r] = tile.Row(rows[r]);
}

// acc[r] = sum over dims of a row of the group times the lanes of that dim; the rows broadcast.
template <int R, int C>
HWY_INLINE void RowsTimesLanes(const TileRows& tile, const RowGroup<R>& group, const float* lanes,
                               std::size_t width, std::size_t head_dim, Accumulators<R, C>& acc) {
  const float* rows[R];
  PointAtRows<R>(tile, group.keys, rows);
  Product<R, C>(DF(), lanes, Stride(width), rows, 1, Stride(head_dim), acc);
}

template <int R, int C>
HWY_INLINE void LogitsGroup(const LogitsArgs& args, std::size_t first, std::size_t lane,
                            VF (&largest)[C]) {
  const DF d;
  const RowGroup<R> group(args.list, first);
  Accumulators<R, C> acc;
  RowsTimesLanes<R, C>(args.key, group, args.query + lane, args.width, args.head_dim, acc);
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    float* const row = args.logits + group.rows[r] * args.width + lane;
    HWY_UNROLL(4)
    for (int c = 0; c < C; ++c) {
      hn::StoreU(acc.v[r][c], d, row + static_cast<std::size_t>(c) * kLanes);
      largest[c] = hn::Max(largest[c], acc.v[r][c]);
    }
  }
}

inline void Logits(const LogitsArgs& args) {
  if (args.list.count == 0) return;
  ForEachPanel(args.lanes, [&args]<int C>(std::size_t lane) HWY_ATTR {
    constexpr int kRows = kRowsFor<C>;
    const DF d;
    VF largest[C];
    for (int c = 0; c < C; ++c) {
      largest[c] = hn::LoadU(d, args.largest + lane + static_cast<std::size_t>(c) * kLanes);
    }
    std::size_t first = 0;
    for (; first + kRows <= args.list.count; first += kRows) {
      LogitsGroup<kRows, C>(args, first, lane, largest);
    }
    for (; first < args.list.count; first += 4) LogitsGroup<4, C>(args, first, lane, largest);
    for (int c = 0; c < C; ++c) {
      hn::StoreU(largest[c], d, args.largest + lane + static_cast<std::size_t>(c) * kLanes);
    }
  });
}

inline void MaskLogits(const MaskLogitsArgs& args) {
  const DF d;
  const VF hidden = hn::Set(d, -FLT_MAX);
  for (std::size_t lane = args.lanes.begin; lane < args.lanes.end; lane += kLanes) {
    VF largest = hn::LoadU(d, args.largest + lane);
    for (std::size_t i = 0; i < args.list.count; ++i) {
      const std::size_t key = args.list.keys[i];
      float* const place = args.logits + i * args.width + lane;
      VF logits = hn::LoadU(d, place);
      if (args.masks.bias != nullptr) {
        logits = hn::Add(logits, hn::LoadU(d, args.masks.bias + key * args.width + lane));
      }
      if (args.masks.part != nullptr) {
        logits = hn::IfThenElse(LaneMask(d, args.masks.part[key], lane), logits, hidden);
      }
      hn::StoreU(logits, d, place);
      largest = hn::Max(largest, logits);
    }
    hn::StoreU(largest, d, args.largest + lane);
  }
}

// a - b for b >= a, as an argument of Exp2: 0 where both are the same infinity, never -inf.
HWY_INLINE VF FiniteDifference(DF d, VF a, VF b) {
  const VF lowest = hn::Set(d, -200.0F);
  const VF x = hn::IfThenZeroElse(hn::Eq(a, b), hn::Sub(a, b));
  return hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
}

// What the loop over a tile's weights must do.
struct WeightsForm {
  bool part = false;      // hide what takes no part
  bool kept = false;      // hide what is not kept
  bool compacts = false;  // leave rows out
  bool infinite = false;
};

template <WeightsForm kForm, int C>
HWY_INLINE void WeightsPanel(const WeightsArgs& args, std::size_t lane) {
  const DF d;
  // Copies, for the compiler must take any store of a vector for a change of args.
  const KeyList list = args.list;
  const KeyList kept_list = args.kept_list;
  const TileMasks masks = args.masks;
  const std::size_t width = args.width;
  float* const rows = args.weights + lane;
  VF largest[C];
  VF sums[C];
  for (int c = 0; c < C; ++c) {
    largest[c] = hn::LoadU(d, args.largest + lane + static_cast<std::size_t>(c) * kLanes);
    sums[c] = hn::Zero(d);
  }
  std::size_t kept = 0;  // rows so far; at most i, so that none is written before it is read
  HWY_UNROLL(2)
  for (std::size_t i = 0; i < list.count; ++i) {
    const std::size_t key = list.keys[i];
    const float* const row = rows + i * width;
    float* const kept_row = rows + (kForm.compacts ? kept : i) * width;
    if constexpr (kForm.compacts) {
      kept += kept < kept_list.count && kept_list.keys[kept] == key ? 1 : 0;
    }
    HWY_UNROLL(4)
    for (int c = 0; c < C; ++c) {
      const std::size_t offset = static_cast<std::size_t>(c) * kLanes;
      const VF logits = hn::LoadU(d, row + offset);
      VF x = hn::Sub(logits, largest[c]);
      if constexpr (kForm.infinite) x = FiniteDifference(d, logits, largest[c]);
      VF weights = Exp2(d, x);
      if constexpr (kForm.part) {
        weights = hn::IfThenElseZero(LaneMask(d, masks.part[key], lane + offset), weights);
      }
      sums[c] = hn::Add(sums[c], weights);
      if constexpr (kForm.kept) {
        weights = hn::IfThenElseZero(LaneMask(d, masks.kept[key], lane + offset), weights);
      }
      // A row that nothing keeps is written over by the next one, or is the last.
      hn::StoreU(weights, d, kept_row + offset);
    }
  }
  for (int c = 0; c < C; ++c) {
    hn::StoreU(sums[c], d, args.sums + lane + static_cast<std::size_t>(c) * kLanes);
  }
}

template <WeightsForm kForm>
HWY_INLINE void WeightsTile(const WeightsArgs& args) {
  ForEachPanel(args.lanes,
               [&args]<int C>(std::size_t lane) HWY_ATTR { WeightsPanel<kForm, C>(args, lane); });
}

template <bool kPart>
HWY_INLINE void WeightsOf(const WeightsArgs& args) {
  const bool kept = args.masks.kept != nullptr;
  const bool compacts = args.kept_list.count < args.list.count;
  // The rare and slow case has fewer forms: rows that all stay may be compacted.
  if (args.infinite) {
    return kept ? WeightsTile<WeightsForm{kPart, true, true, true}>(args)
                : WeightsTile<WeightsForm{kPart, false, true, true}>(args);
  }
  if (kept && compacts) return WeightsTile<WeightsForm{kPart, true, true}>(args);
  if (kept) return WeightsTile<WeightsForm{kPart, true, false}>(args);
  if (compacts) return WeightsTile<WeightsForm{kPart, false, true}>(args);
  return WeightsTile<WeightsForm{kPart, false, false}>(args);
}

inline void Weights(const WeightsArgs& args) {
  return args.masks.part != nullptr ? WeightsOf<true>(args) : WeightsOf<false>(args);
}

inline void Fold(const FoldArgs& args) {
  const DF d;
  for (std::size_t lane = args.lanes.begin; lane < args.lanes.end; lane += kLanes) {
    const VF before = hn::LoadU(d, args.old_largest + lane);
    const VF after = hn::LoadU(d, args.new_largest + lane);
    // Exactly 1 where nothing changes: Exp2(0) is an ULP above it, once for each of many tiles.
    const VF fold = hn::IfThenElse(hn::Eq(before, after), hn::Set(d, 1.0F),
                                   Exp2(d, FiniteDifference(d, before, after)));
    hn::StoreU(fold, d, args.fold + lane);
    const VF sums = hn::LoadU(d, args.sums + lane);
    hn::StoreU(hn::MulAdd(sums, fold, hn::LoadU(d, args.tile_sums + lane)), d, args.sums + lane);
  }
}

// The sum of a group of columns of value; Rows as in Product.
template <int R, int C, class Rows>
HWY_INLINE void SumOverKeys(const AccumulateArgs& args, const Rows& value, std::size_t lane,
                            Accumulators<R, C>& acc) {
  const DF d;
  const float* const weights = args.weights + lane;
  const auto width = Stride(args.width);
  const auto count = Stride(args.list.count);
  if (args.list_is_all) {
    Product<R, C>(d, weights, width, value, args.value.stride, count, acc);
  } else {
    ListedProduct<R, C>(d, weights, width, value, args.value.stride, args.list.keys, count, acc);
  }
}

template <int R, int C>
HWY_INLINE void AccumulateGroup(const AccumulateArgs& args, std::size_t dim, std::size_t lane) {
  const DF d;
  const float* value[R];
  const std::size_t valid = std::min<std::size_t>(R, args.head_dim - dim);
  for (int r = 0; r < R; ++r) {
    value[r] = args.value.data + dim + std::min(static_cast<std::size_t>(r), valid - 1);
  }
  Accumulators<R, C> acc;
  if (args.select != nullptr) {
    SelectedProduct<R, C>(d, args.weights + lane, Stride(args.width), value, args.value.stride,
                          args.list.keys, Stride(args.list.count), args.select, lane, acc);
  } else if (valid == R) {
    SumOverKeys<R, C>(args, AdjacentRows{args.value.data + dim}, lane, acc);
  } else {
    SumOverKeys<R, C>(args, value, lane, acc);
  }
  HWY_UNROLL(4)
  for (int c = 0; c < C; ++c) {
    const std::size_t offset = lane + static_cast<std::size_t>(c) * kLanes;
    const VF fold = hn::LoadU(d, args.fold + offset);
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      if (static_cast<std::size_t>(r) >= valid) break;
      float* const place = args.out + (dim + static_cast<std::size_t>(r)) * args.width + offset;
      hn::StoreU(hn::MulAdd(hn::LoadU(d, place), fold, acc.v[r][c]), d, place);
    }
  }
}

inline void Accumulate(const AccumulateArgs& args) {
  ForEachPanel(args.lanes, [&args]<int C>(std::size_t lane) HWY_ATTR {
    constexpr std::size_t kRows = kRowsFor<C>;
    std::size_t dim = 0;
    for (; dim + kRows <= args.head_dim; dim += kRows) AccumulateGroup<kRows, C>(args, dim, lane);
    for (; dim < args.head_dim; dim += 4) AccumulateGroup<4, C>(args, dim, lane);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
