// SPDX-License-Identifier: Apache-2.0
// Shapes of a problem's arrays and the reach of their strides.
#include "core/array_view.h"

#include <algorithm>
#include <cstdlib>

namespace attndrop {
namespace {

bool AddTo(std::int64_t& sum, std::int64_t value) noexcept {
  return !__builtin_add_overflow(sum, value, &sum);
}

bool MultiplyTo(std::int64_t& product, std::int64_t value) noexcept {
  return !__builtin_mul_overflow(product, value, &product);
}

struct Axis {
  std::int64_t stride = 0;  // its size, whatever its sign
  std::int64_t size = 0;
};

std::array<Axis, 4> AxesByStride(const std::array<std::int64_t, 4>& strides,
                                 const std::array<std::int64_t, 4>& sizes) noexcept {
  std::array<Axis, 4> axes;
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = {std::abs(strides[i]), sizes[i]};
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  return axes;
}

}  // namespace

std::optional<ByteRange> BytesOf(const ArrayView& view) noexcept {
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  for (std::size_t axis = 0; axis < view.sizes.size(); ++axis) {
    std::int64_t reach = view.strides[axis];
    if (!MultiplyTo(reach, view.sizes[axis] - 1)) return std::nullopt;
    if (!AddTo(reach < 0 ? lowest : highest, reach)) return std::nullopt;
  }
  const auto element = static_cast<std::int64_t>(view.element_bytes);
  if (!AddTo(highest, 1) || !MultiplyTo(highest, element) || !MultiplyTo(lowest, element)) {
    return std::nullopt;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(view.data);
  const ByteRange range{base + static_cast<std::uintptr_t>(lowest),
                        base + static_cast<std::uintptr_t>(highest)};
  const bool wraps = range.begin > base || range.end < base;
  if (wraps) return std::nullopt;
  return range;
}

bool OverlapsItself(const ArrayView& view) noexcept {
  // Each axis must step over all that the ones with smaller strides reach.
  std::int64_t reach = 0;
  for (const auto& [stride, size] : AxesByStride(view.strides, view.sizes)) {
    if (size <= 1) continue;
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

bool Interleaved(const ArrayView& a, const ArrayView& b) noexcept {
  if (a.strides != b.strides || a.element_bytes != b.element_bytes) return false;
  const std::int64_t bytes =
      reinterpret_cast<std::intptr_t>(b.data) - reinterpret_cast<std::intptr_t>(a.data);
  const auto element = static_cast<std::int64_t>(a.element_bytes);
  if (bytes % element != 0) return false;
  const std::int64_t distance = std::abs(bytes / element);
  std::array<std::int64_t, 4> sizes{};
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    sizes[axis] = std::max(a.sizes[axis], b.sizes[axis]);
  }
  // Index differences along the axes with strides up to the distance reach less than it, and those
  // along the others, if any, more than the two together.
  std::int64_t small_reach = 0;
  std::int64_t large_reach = 0;
  for (const auto& [stride, size] : AxesByStride(a.strides, sizes)) {
    if (size <= 1) continue;
    const bool is_small = stride <= distance;
    if (!is_small && stride - large_reach <= distance + small_reach) return false;
    (is_small ? small_reach : large_reach) += stride * (size - 1);
  }
  return distance > small_reach;
}

std::array<std::int64_t, 4> ShapeOf(const Problem& problem, Role role) noexcept {
  const AttentionShape& shape = problem.shape();
  const std::int64_t batch = problem.array_batch();
  const MaskForm& form = problem.attn_mask();
  switch (role) {
    case Role::kQuery:
      return {batch, shape.num_heads, problem.rows_q(), shape.head_dim};
    case Role::kKey:
      return {batch, shape.num_kv_heads, problem.rows_k(), shape.head_dim};
    case Role::kValue:
      return {batch, shape.num_kv_heads, problem.rows_k(), shape.head_dim_v};
    case Role::kOut:
      return {batch, shape.num_heads, problem.rows_q(), shape.head_dim_v};
    case Role::kLogsumexp:
      return {batch, shape.num_heads, problem.rows_q(), 1};
    case Role::kAttnMask:
      return {form.per_batch ? shape.batch : 1, form.per_head ? shape.num_heads : 1,
              form.per_query ? shape.seqlen_q : 1, form.per_key ? shape.seqlen_k : 1};
  }
  return {};
}

DType DTypeOf(const Problem& problem, Role role) noexcept {
  if (role == Role::kAttnMask) return problem.attn_mask().dtype;
  if (role != Role::kLogsumexp) return problem.dtype();
  return problem.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace attndrop
