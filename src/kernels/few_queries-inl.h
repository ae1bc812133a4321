// SPDX-License-Identifier: Apache-2.0
// The two products of forward for a few queries, as when text is generated one word at a time.
// Lanes of a block that are no queries would be most of the work, so here the lanes are dims: a
// logit is a dot product, and out is summed row by row. Arrays are those of a block of 16, so that
// everything between the products stays the same.

// Per-target include guard
#if defined(ATTNDROP_KERNELS_FEW_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNDROP_KERNELS_FEW_QUERIES_INL_H_
#undef ATTNDROP_KERNELS_FEW_QUERIES_INL_H_
#else
#define ATTNDROP_KERNELS_FEW_QUERIES_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"
#include "kernels/kernels.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {

// Accumulators of a dot product group, and vectors of value columns that are summed at once.
inline constexpr int kDotAccumulators = kPanelVectors == 4 ? 16 : 8;
inline constexpr int kValueVectors = kPanelVectors == 4 ? 4 : 2;

// Columns first .. of a row, zero from `cols` on.
HWY_INLINE VF LoadColumns(DF d, const float* row, std::size_t first, std::size_t cols) {
  if (HWY_LIKELY(first + kLanes <= cols)) return hn::LoadU(d, row + first);
#if HWY_MEM_OPS_MIGHT_FAULT
  alignas(64) float columns[kLanes] = {};
  std::copy(row + first, row + cols, columns);
  return hn::Load(d, columns);
#else
  return hn::MaskedLoad(hn::FirstN(d, cols - first), d, row + first);
#endif
}

// The sums of the lanes of four vectors.
HWY_INLINE void SumLanes(DF d, const VF (&x)[4], float* sums) {
  using D4 = hn::CappedTag<float, 4>;
  using D2 = hn::Repartition<double, DF>;
  const D2 d2;
  const VF x01 = hn::Add(hn::InterleaveLower(d, x[0], x[1]), hn::InterleaveUpper(d, x[0], x[1]));
  const VF x23 = hn::Add(hn::InterleaveLower(d, x[2], x[3]), hn::InterleaveUpper(d, x[2], x[3]));
  // Moved two floats at a time, as doubles.
  const auto pairs01 = hn::BitCast(d2, x01);
  const auto pairs23 = hn::BitCast(d2, x23);
  const VF each = hn::Add(hn::BitCast(d, hn::InterleaveLower(d2, pairs01, pairs23)),
                          hn::BitCast(d, hn::InterleaveUpper(d2, pairs01, pairs23)));
  alignas(64) float blocks[kLanes];
  hn::Store(each, d, blocks);
  const D4 d4;
  auto sum = hn::Load(d4, blocks);
  for (std::size_t block = 4; block < kLanes; block += 4) {
    sum = hn::Add(sum, hn::Load(d4, blocks + block));
  }
  hn::StoreU(sum, d4, sums);
}

// Q queries and as many keys as there are accumulators for.
template <int Q>
HWY_INLINE void DotGroup(const FewLogitsArgs& args, std::size_t first_query, std::size_t first) {
  constexpr int kKeys = kDotAccumulators / Q;
  const DF d;
  const float* key[kKeys];
  for (int k = 0; k < kKeys; ++k) {
    const std::size_t i = std::min(first + static_cast<std::size_t>(k), args.list.count - 1);
    key[k] = args.key.Row(args.list.keys[i]);
  }
  VF sums[kKeys * Q];
  for (int i = 0; i < kKeys * Q; ++i) sums[i] = hn::Zero(d);
  const float* const query = args.query + first_query * args.query_stride;
  for (std::size_t dim = 0; dim < args.head_dim; dim += kLanes) {
    VF vq[Q];
    HWY_UNROLL(4)
    for (int q = 0; q < Q; ++q) {
      vq[q] = hn::LoadU(d, query + static_cast<std::size_t>(q) * args.query_stride + dim);
    }
    HWY_UNROLL(16)
    for (int k = 0; k < kKeys; ++k) {
      const VF vk = LoadColumns(d, key[k], dim, args.head_dim);
      HWY_UNROLL(4)
      for (int q = 0; q < Q; ++q) sums[k * Q + q] = hn::MulAdd(vk, vq[q], sums[k * Q + q]);
    }
  }
  float logits[kKeys * Q];
  HWY_UNROLL(4)
  for (int i = 0; i < kKeys * Q; i += 4) {
    const VF four[4] = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
    SumLanes(d, four, logits + i);
  }
  const std::size_t keys = std::min<std::size_t>(kKeys, args.list.count - first);
  const std::size_t queries = std::min<std::size_t>(Q, args.queries - first_query);
  for (std::size_t k = 0; k < keys; ++k) {
    float* const row = args.logits + (first + k) * args.width + args.first_lane + first_query;
    for (std::size_t q = 0; q < queries; ++q) row[q] = logits[k * Q + q];
  }
}

template <int Q>
HWY_INLINE void DotAllKeys(const FewLogitsArgs& args, std::size_t first_query) {
  for (std::size_t first = 0; first < args.list.count; first += kDotAccumulators / Q) {
    DotGroup<Q>(args, first_query, first);
  }
}

// Calls f.template operator()<Q>(first query) for groups of Q queries; a group of four may have
// only three.
template <class F>
HWY_INLINE void ForEachQueryGroup(std::size_t queries, const F& f) {
  std::size_t first = 0;
  for (; first + 2 < queries; first += 4) f.template operator()<4>(first);
  if (first + 2 == queries) f.template operator()<2>(first);
  if (first + 1 == queries) f.template operator()<1>(first);
}

inline void FewLogits(const FewLogitsArgs& args) {
  const DF d;
  if (args.list.count == 0) return;
  std::fill_n(args.logits, args.list.count * args.width, 0.0F);
  ForEachQueryGroup(args.queries, [&args]<int Q>(std::size_t first_query)
                                      HWY_ATTR { DotAllKeys<Q>(args, first_query); });
  for (std::size_t lane = 0; lane < args.width; lane += kLanes) {
    VF largest = hn::LoadU(d, args.largest + lane);
    for (std::size_t i = 0; i < args.list.count; ++i) {
      largest = hn::Max(largest, hn::LoadU(d, args.logits + i * args.width + lane));
    }
    hn::StoreU(largest, d, args.largest + lane);
  }
}

// V vectors of columns of out for Q queries.
template <int Q, int V>
HWY_INLINE void SumValues(const FewAccumulateArgs& args, std::size_t first_query, std::size_t dim) {
  const DF d;
  VF sums[Q][V];
  for (int q = 0; q < Q; ++q) {
    for (int v = 0; v < V; ++v) sums[q][v] = hn::Zero(d);
  }
  const std::size_t first_lane = args.first_lane + first_query;
  const std::size_t queries = std::min<std::size_t>(Q, args.queries - first_query);
  const float* weights = args.weights + first_lane;
  for (std::size_t i = 0; i < args.list.count; ++i, weights += args.width) {
    const float* const value = args.value.Row(args.list.keys[i]);
    VF vw[Q];
    HWY_UNROLL(4)
    for (int q = 0; q < Q; ++q) {
      // The fourth of three queries computes the third again.
      vw[q] = hn::Set(d, weights[std::min(static_cast<std::size_t>(q), queries - 1)]);
    }
    HWY_UNROLL(4)
    for (int v = 0; v < V; ++v) {
      const VF columns =
          LoadColumns(d, value, dim + static_cast<std::size_t>(v) * kLanes, args.head_dim);
      HWY_UNROLL(4)
      for (int q = 0; q < Q; ++q) sums[q][v] = hn::MulAdd(vw[q], columns, sums[q][v]);
    }
  }
  alignas(64) float row[V * kLanes];
  const std::size_t cols = std::min<std::size_t>(V * kLanes, args.head_dim - dim);
  for (std::size_t q = 0; q < queries; ++q) {
    for (int v = 0; v < V; ++v) {
      hn::Store(sums[q][v], d, row + static_cast<std::size_t>(v) * kLanes);
    }
    const float fold = args.fold[first_lane + q];
    float* out = args.out + dim * args.width + first_lane + q;
    for (std::size_t col = 0; col < cols; ++col, out += args.width) *out = *out * fold + row[col];
  }
}

inline void FewAccumulate(const FewAccumulateArgs& args) {
  ForEachQueryGroup(args.queries, [&args]<int Q>(std::size_t first_query) HWY_ATTR {
    constexpr std::size_t kStep = static_cast<std::size_t>(kValueVectors) * kLanes;
    std::size_t dim = 0;
    for (; dim + kStep <= args.head_dim; dim += kStep) {
      SumValues<Q, kValueVectors>(args, first_query, dim);
    }
    for (; dim < args.head_dim; dim += kLanes) SumValues<Q, 1>(args, first_query, dim);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
