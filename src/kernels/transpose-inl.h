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

// out[col][row] = in[row][col] for 4 rows and 4 columns, in registers.
HWY_INLINE void Transpose4x4(const float* in, std::ptrdiff_t in_stride, float* out,
                             std::ptrdiff_t out_stride) {
  const hn::CappedTag<float, 4> d;
  const auto r0 = hn::LoadU(d, in);
  const auto r1 = hn::LoadU(d, in + in_stride);
  const auto r2 = hn::LoadU(d, in + 2 * in_stride);
  const auto r3 = hn::LoadU(d, in + 3 * in_stride);
  const auto low01 = hn::InterleaveLower(d, r0, r1);
  const auto low23 = hn::InterleaveLower(d, r2, r3);
  const auto high01 = hn::InterleaveUpper(d, r0, r1);
  const auto high23 = hn::InterleaveUpper(d, r2, r3);
  hn::StoreU(hn::ConcatLowerLower(d, low23, low01), d, out);
  hn::StoreU(hn::ConcatUpperUpper(d, low23, low01), d, out + out_stride);
  hn::StoreU(hn::ConcatLowerLower(d, high23, high01), d, out + 2 * out_stride);
  hn::StoreU(hn::ConcatUpperUpper(d, high23, high01), d, out + 3 * out_stride);
}

inline void Transpose(const float* in, std::ptrdiff_t in_stride, std::size_t rows, std::size_t cols,
                      float* out, std::ptrdiff_t out_stride) {
  const auto num_rows = static_cast<std::ptrdiff_t>(rows);
  const auto num_cols = static_cast<std::ptrdiff_t>(cols);
  std::ptrdiff_t row = 0;
  for (; row + 4 <= num_rows; row += 4) {
    std::ptrdiff_t col = 0;
    for (; col + 4 <= num_cols; col += 4) {
      Transpose4x4(in + row * in_stride + col, in_stride, out + col * out_stride + row, out_stride);
    }
    for (; col < num_cols; ++col) {
      for (std::ptrdiff_t r = row; r < row + 4; ++r) {
        out[col * out_stride + r] = in[r * in_stride + col];
      }
    }
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
