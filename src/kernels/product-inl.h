// SPDX-License-Identifier: Apache-2.0
// The one matrix product that all kernels are made of:
//   acc[r][c] = sum_k  b_rows[r][k * b_step] * a[k * a_stride + c * kLanes .. + kLanes)
// a is read as vectors, b as broadcast scalars straight from the caller's arrays, so that only
// queries (and grad_out) are ever transposed. The sum runs over k in ascending order on every
// target: results do not depend on the width of the vectors, only on whether the target has a fused
// multiply-add (SSE4 has none).
//
//   forward   logits^T [key][query]   a = query^T [dim][query]  b = key rows      k = dim
//             out^T    [dim][query]   a = weights [key][query]  b = value columns k = key
//   backward  the same two (grad_weights = value . grad_out, grad_query = grad_logits . key), and
//             grad_value, grad_key [key][dim]  a = grad_out or query rows  b = weight rows  k =
//             query

// Per-target include guard
#if defined(ATTNDROP_KERNELS_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNDROP_KERNELS_PRODUCT_INL_H_
#undef ATTNDROP_KERNELS_PRODUCT_INL_H_
#else
#define ATTNDROP_KERNELS_PRODUCT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop {
namespace HWY_NAMESPACE {

// R x C accumulators; they live in registers.
template <int R, int C>
struct Accumulators {
  VF v[R][C];
};

template <int R, int C>
HWY_INLINE void Clear(DF d, Accumulators<R, C>& acc) {
  HWY_UNROLL(12)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(4)
    for (int c = 0; c < C; ++c) acc.v[r][c] = hn::Zero(d);
  }
}

// Rows of b that lie one element apart: one pointer serves them all.
struct AdjacentRows {
  const float* first;

  HWY_INLINE const float* operator[](int row) const { return first + row; }
};

// One step of the sum: R x C multiply-adds from C vectors of a and R scalars of b. Rows: pointers,
// or AdjacentRows.
template <int R, int C, class Rows>
HWY_INLINE void MultiplyAddStep(DF d, const float* HWY_RESTRICT a, const Rows& b_rows,
                                std::ptrdiff_t b_index, Accumulators<R, C>& acc) {
  VF va[C];
  HWY_UNROLL(4)
  for (int c = 0; c < C; ++c) va[c] = hn::LoadU(d, a + static_cast<std::size_t>(c) * kLanes);
  HWY_UNROLL(12)
  for (int r = 0; r < R; ++r) {
    const VF vb = hn::Set(d, b_rows[r][b_index]);
    HWY_UNROLL(4)
    for (int c = 0; c < C; ++c) acc.v[r][c] = hn::MulAdd(va[c], vb, acc.v[r][c]);
  }
}

// The whole sum over k in [0, count).
template <int R, int C, class Rows>
HWY_INLINE void Product(DF d, const float* HWY_RESTRICT a, std::ptrdiff_t a_stride,
                        const Rows& b_rows, std::ptrdiff_t b_step, std::ptrdiff_t count,
                        Accumulators<R, C>& acc) {
  Clear(d, acc);
  std::ptrdiff_t k = 0;
  for (; k + 4 <= count; k += 4) {
    HWY_UNROLL(4)
    for (std::ptrdiff_t u = 0; u < 4; ++u) {
      MultiplyAddStep<R, C>(d, a + (k + u) * a_stride, b_rows, (k + u) * b_step, acc);
    }
  }
  for (; k < count; ++k) MultiplyAddStep<R, C>(d, a + k * a_stride, b_rows, k * b_step, acc);
}

// The same sum where row k of a meets number list[k] of b.
template <int R, int C, class Rows>
HWY_INLINE void ListedProduct(DF d, const float* HWY_RESTRICT a, std::ptrdiff_t a_stride,
                              const Rows& b_rows, std::ptrdiff_t b_step,
                              const std::uint16_t* HWY_RESTRICT list, std::ptrdiff_t count,
                              Accumulators<R, C>& acc) {
  Clear(d, acc);
  HWY_UNROLL(4)
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    MultiplyAddStep<R, C>(d, a + k * a_stride, b_rows, list[k] * b_step, acc);
  }
}

// As ListedProduct, but a term counts only in the lanes that words[list[k]] names: what is not in a
// lane may be NaN. For arrays that hold numbers that are not finite.
template <int R, int C>
HWY_INLINE void SelectedProduct(DF d, const float* HWY_RESTRICT a, std::ptrdiff_t a_stride,
                                const float* const (&b_rows)[R], std::ptrdiff_t b_step,
                                const std::uint16_t* HWY_RESTRICT list, std::ptrdiff_t count,
                                const std::uint64_t* HWY_RESTRICT words, std::size_t first_lane,
                                Accumulators<R, C>& acc) {
  Clear(d, acc);
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    for (int c = 0; c < C; ++c) {
      const std::size_t offset = static_cast<std::size_t>(c) * kLanes;
      const MF mask = LaneMask(d, words[list[k]], first_lane + offset);
      const VF va = hn::LoadU(d, a + k * a_stride + offset);
      for (int r = 0; r < R; ++r) {
        const VF sum = hn::MulAdd(va, hn::Set(d, b_rows[r][list[k] * b_step]), acc.v[r][c]);
        acc.v[r][c] = hn::IfThenElse(mask, sum, acc.v[r][c]);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
