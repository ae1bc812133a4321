// SPDX-License-Identifier: Apache-2.0
// Transposition between rows of queries and lanes of queries, and scaling of lanes.

// Per-target include guard
#if defined(ATTNDROP_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNDROP_KERNELS_TRANSPOSE_INL_H_
#undef ATTNDROP_KERNELS_TRANSPOSE_INL_H_
#else
#define ATTNDROP_KERNELS_TRANSPOSE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {

// A vector of four floats each from rows 0, 4, 8, ... of `in`.
template <class D>
HWY_INLINE hn::Vec<D> LoadFours(D d, const float* in, std::ptrdiff_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, in);
  } else {
    const hn::Half<D> half;
    constexpr auto kRows = static_cast<std::ptrdiff_t>(hn::MaxLanes(D()) / 2);
    return hn::Combine(d, LoadFours(half, in + kRows * stride, stride),
                       LoadFours(half, in, stride));
  }
}

// out[col][row] = in[row][col] for 4 columns and as many rows as the vector has lanes: each block
// of 128 bits is a transposition of 4 x 4.
template <class D>
HWY_INLINE void TransposeFourColumns(D d, const float* in, std::ptrdiff_t in_stride, float* out,
                                     std::ptrdiff_t out_stride) {
  const hn::Repartition<double, D> pairs;
  const auto r0 = LoadFours(d, in, in_stride);
  const auto r1 = LoadFours(d, in + in_stride, in_stride);
  const auto r2 = LoadFours(d, in + 2 * in_stride, in_stride);
  const auto r3 = LoadFours(d, in + 3 * in_stride, in_stride);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, out);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, out + out_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, out + 2 * out_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, out + 3 * out_stride);
}

// Rows of the lanes of D, all columns.
template <class D>
HWY_INLINE void TransposeRows(D d, const float* in, std::ptrdiff_t in_stride, std::ptrdiff_t cols,
                              float* out, std::ptrdiff_t out_stride) {
  constexpr auto kRows = static_cast<std::ptrdiff_t>(hn::MaxLanes(D()));
  std::ptrdiff_t col = 0;
  for (; col + 4 <= cols; col += 4) {
    TransposeFourColumns(d, in + col, in_stride, out + col * out_stride, out_stride);
  }
  for (; col < cols; ++col) {
    for (std::ptrdiff_t row = 0; row < kRows; ++row) {
      out[col * out_stride + row] = in[row * in_stride + col];
    }
  }
}

inline void Transpose(const float* in, std::ptrdiff_t in_stride, std::size_t rows, std::size_t cols,
                      float* out, std::ptrdiff_t out_stride) {
  constexpr auto kWide = static_cast<std::ptrdiff_t>(kLanes);
  const auto num_rows = static_cast<std::ptrdiff_t>(rows);
  const auto num_cols = static_cast<std::ptrdiff_t>(cols);
  std::ptrdiff_t row = 0;
  for (; row + kWide <= num_rows; row += kWide) {
    TransposeRows(DF(), in + row * in_stride, in_stride, num_cols, out + row, out_stride);
  }
  const hn::CappedTag<float, 4> four;
  for (; row + 4 <= num_rows; row += 4) {
    TransposeRows(four, in + row * in_stride, in_stride, num_cols, out + row, out_stride);
  }
  for (; row < num_rows; ++row) {
    for (std::ptrdiff_t col = 0; col < num_cols; ++col) {
      out[col * out_stride + row] = in[row * in_stride + col];
    }
  }
}

inline void ScaleLanes(float* x, std::size_t dims, std::size_t width, const float* factor) {
  const DF d;
  for (std::size_t lane = 0; lane < width; lane += kLanes) {
    const VF f = hn::LoadU(d, factor + lane);
    for (std::size_t dim = 0; dim < dims; ++dim) {
      float* const place = x + dim * width + lane;
      hn::StoreU(hn::Mul(hn::LoadU(d, place), f), d, place);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
