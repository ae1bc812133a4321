// SPDX-License-Identifier: Apache-2.0
// Backward, one tile of keys for one block of queries; docs/math/attention.md, (A6) to (A9).
// Forward computed  weights = exp2(logits - logsumexp)  and  out = sum of kept * factor * weights *
// value; here, with the same keep words,
//   1. weights again from logits and logsumexp                                   (weights_again)
//   2. grad_weights^T = value . grad_out^T, and from it, while it is in registers,
//      grad_logits = weights * (kept * factor * grad_weights - delta)              (grad_logits)
//   3. grad_value += (kept * factor * weights) . grad_out                      (accumulate_rows)
//   4. grad_key += grad_logits . query                                         (accumulate_rows)
//   5. grad_query^T += key^T . grad_logits                              (accumulate, of forward)

// Per-target include guard
#if defined(ATTNDROP_KERNELS_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNDROP_KERNELS_BACKWARD_INL_H_
#undef ATTNDROP_KERNELS_BACKWARD_INL_H_
#else
#define ATTNDROP_KERNELS_BACKWARD_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {

// Runs Group<R, C>(first, lane) over the list in groups of rows and the lanes in panels.
template <class Group>
HWY_INLINE void ForEachGroup(const LaneRange& lanes, std::size_t count, const Group& group) {
  ForEachPanel(lanes, [count, &group]<int C>(std::size_t lane) HWY_ATTR {
    constexpr std::size_t kRows = kRowsFor<C>;
    std::size_t first = 0;
    for (; first + kRows <= count; first += kRows) group.template Run<kRows, C>(first, lane);
    for (; first < count; first += 4) group.template Run<4, C>(first, lane);
  });
}

template <bool kBias, bool kPart>
struct WeightsAgainGroup {
  const WeightsAgainArgs& args;

  template <int R, int C>
  HWY_INLINE void Run(std::size_t first, std::size_t lane) const {
    const DF d;
    const RowGroup<R> group(args.list, first);
    Accumulators<R, C> acc;
    RowsTimesLanes<R, C>(args.key, group, args.query + lane, args.width, args.head_dim, acc);
    HWY_UNROLL(4)
    for (int c = 0; c < C; ++c) {
      const std::size_t offset = lane + static_cast<std::size_t>(c) * kLanes;
      const VF logsumexp = hn::LoadU(d, args.logsumexp + offset);
      const VF rest = hn::LoadU(d, args.logsumexp_rest + offset);
      HWY_UNROLL(8)
      for (int r = 0; r < R; ++r) {
        const std::size_t key_place = group.keys[r] * args.width + offset;
        VF logits = acc.v[r][c];
        if constexpr (kBias) logits = hn::Add(logits, hn::LoadU(d, args.masks.bias + key_place));
        VF weights = PreciseExp2(d, hn::Sub(hn::Sub(logits, logsumexp), rest));
        if constexpr (kPart) {
          const MF part = LaneMask(d, args.masks.part[group.keys[r]], offset);
          weights = hn::IfThenElseZero(part, weights);
        }
        hn::StoreU(weights, d, args.weights + group.rows[r] * args.width + offset);
      }
    }
  }
};

inline void WeightsAgain(const WeightsAgainArgs& args) {
  const bool bias = args.masks.bias != nullptr;
  const bool part = args.masks.part != nullptr;
  const LaneRange& lanes = args.lanes;
  const std::size_t count = args.list.count;
  if (bias && part) return ForEachGroup(lanes, count, WeightsAgainGroup<true, true>{args});
  if (bias) return ForEachGroup(lanes, count, WeightsAgainGroup<true, false>{args});
  if (part) return ForEachGroup(lanes, count, WeightsAgainGroup<false, true>{args});
  return ForEachGroup(lanes, count, WeightsAgainGroup<false, false>{args});
}

template <bool kPart, bool kKept>
struct GradLogitsGroup {
  const GradLogitsArgs& args;

  template <int R, int C>
  HWY_INLINE void Run(std::size_t first, std::size_t lane) const {
    const DF d;
    const RowGroup<R> group(args.kept_list, first);
    Accumulators<R, C> acc;
    RowsTimesLanes<R, C>(args.value, group, args.grad_out + lane, args.width, args.head_dim, acc);
    HWY_UNROLL(4)
    for (int c = 0; c < C; ++c) {
      const std::size_t offset = lane + static_cast<std::size_t>(c) * kLanes;
      const VF delta = hn::LoadU(d, args.delta + offset);
      const VF factor = hn::LoadU(d, args.factor + offset);
      HWY_UNROLL(8)
      for (int r = 0; r < R; ++r) {
        // A row that a group repeats has been read and written already.
        if (r > 0 && group.rows[r] == group.rows[r - 1]) break;
        Finish({group.keys[r], group.rows[r], offset}, acc.v[r][c], delta, factor);
      }
    }
  }

  struct Where {
    std::size_t key;     // of the tile
    std::size_t row;     // of arrays of weights
    std::size_t offset;  // first lane
  };

  // From grad_weights (times the row's factor) to grad_logits, in registers.
  HWY_INLINE void Finish(const Where& at, VF grad_weights, VF delta, VF factor) const {
    const DF d;
    const std::size_t key = at.key;
    const std::size_t offset = at.offset;
    const std::size_t place = at.row * args.width + offset;
    const VF weights = hn::LoadU(d, args.weights + place);
    VF kept_weights = hn::Mul(weights, factor);
    if constexpr (kKept) {
      if (args.special != nullptr && args.special[key] != 0) {
        const MF special = LaneMask(d, args.special[key], offset);
        const VF ratio = hn::Set(d, args.special_ratio);
        grad_weights = hn::IfThenElse(special, hn::Mul(grad_weights, ratio), grad_weights);
        kept_weights = hn::IfThenElse(special, hn::Mul(kept_weights, ratio), kept_weights);
      }
      const MF kept = LaneMask(d, args.masks.kept[key], offset);
      grad_weights = hn::IfThenElseZero(kept, grad_weights);
      kept_weights = hn::IfThenElseZero(kept, kept_weights);
    }
    VF grad_logits = hn::Mul(weights, hn::Sub(grad_weights, delta));
    if constexpr (kPart) {
      grad_logits = hn::IfThenElseZero(LaneMask(d, args.masks.part[key], offset), grad_logits);
    }
    hn::StoreU(kept_weights, d, args.weights + place);
    hn::StoreU(grad_logits, d, args.grad_logits + place);
  }
};

// Keys that no query keeps: grad_logits = -weights * delta.
template <bool kPart>
HWY_INLINE void GradDroppedLogits(const GradLogitsArgs& args) {
  const DF d;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < args.list.count; ++i) {
    const std::size_t key = args.list.keys[i];
    if (kept < args.kept_list.count && args.kept_list.keys[kept] == key) {
      ++kept;
      continue;
    }
    for (std::size_t lane = args.lanes.begin; lane < args.lanes.end; lane += kLanes) {
      const std::size_t place = i * args.width + lane;
      const VF delta = hn::LoadU(d, args.delta + lane);
      VF grad_logits = hn::Mul(hn::LoadU(d, args.weights + place), hn::Neg(delta));
      if constexpr (kPart) {
        grad_logits = hn::IfThenElseZero(LaneMask(d, args.masks.part[key], lane), grad_logits);
      }
      hn::StoreU(grad_logits, d, args.grad_logits + place);
    }
  }
}

inline void GradLogits(const GradLogitsArgs& args) {
  const bool part = args.masks.part != nullptr;
  const bool kept = args.masks.kept != nullptr;
  if (args.kept_list.count < args.list.count) {
    part ? GradDroppedLogits<true>(args) : GradDroppedLogits<false>(args);
  }
  const LaneRange& lanes = args.lanes;
  const std::size_t count = args.kept_list.count;
  if (part && kept) return ForEachGroup(lanes, count, GradLogitsGroup<true, true>{args});
  if (part) return ForEachGroup(lanes, count, GradLogitsGroup<true, false>{args});
  if (kept) return ForEachGroup(lanes, count, GradLogitsGroup<false, true>{args});
  return ForEachGroup(lanes, count, GradLogitsGroup<false, false>{args});
}

// grad_key and grad_value: lanes are dims.
struct AccumulateRowsGroup {
  const AccumulateRowsArgs& args;

  template <int R, int C>
  HWY_INLINE void Run(std::size_t first, std::size_t dim) const {
    const DF d;
    const RowGroup<R> group(args.list, first);
    const float* weights[R];
    const TileRows weight_rows{args.weights + args.first_query, Stride(args.width)};
    PointAtRows<R>(weight_rows, group.rows, weights);
    Accumulators<R, C> acc;
    Product<R, C>(d, args.rows.data + dim, args.rows.stride, weights, 1, Stride(args.queries), acc);
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      if (r > 0 && group.rows[r] == group.rows[r - 1]) break;
      float* const row = args.out + group.keys[r] * args.padded_dim + dim;
      HWY_UNROLL(4)
      for (int c = 0; c < C; ++c) {
        float* const place = row + static_cast<std::size_t>(c) * kLanes;
        hn::StoreU(hn::Add(hn::LoadU(d, place), acc.v[r][c]), d, place);
      }
    }
  }
};

// The same sum where weights of 0 may meet NaN: terms that the words do not name are left out.
inline void AccumulateSelectedRows(const AccumulateRowsArgs& args) {
  const DF d;
  for (std::size_t i = 0; i < args.list.count; ++i) {
    const std::size_t key = args.list.keys[i];
    const std::size_t weight_row = args.list.rows != nullptr ? args.list.rows[i] : i;
    const float* const weights = args.weights + weight_row * args.width;
    float* const row = args.out + key * args.padded_dim;
    for (std::size_t dim = 0; dim < args.padded_dim; dim += kLanes) {
      VF sum = hn::Zero(d);
      for (std::size_t q = 0; q < args.queries; ++q) {
        const std::size_t query = args.first_query + q;
        if (((args.select[key] >> query) & 1U) == 0) continue;
        const VF weight = hn::Set(d, weights[query]);
        sum = hn::MulAdd(hn::LoadU(d, args.rows.Row(q) + dim), weight, sum);
      }
      hn::StoreU(hn::Add(hn::LoadU(d, row + dim), sum), d, row + dim);
    }
  }
}

inline void AccumulateRows(const AccumulateRowsArgs& args) {
  if (args.select != nullptr) return AccumulateSelectedRows(args);
  ForEachGroup({0, args.padded_dim}, args.list.count, AccumulateRowsGroup{args});
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
