// SPDX-License-Identifier: Apache-2.0
// Shapes of a problem's arrays and the reach of their strides.
#include "core/array_view.h"

#include <algorithm>
#include <limits>

#include "core/arena.h"

namespace attndrop {
namespace {

bool AddTo(std::int64_t& sum, std::int64_t value) noexcept {
  return !__builtin_add_overflow(sum, value, &sum);
}

bool MultiplyTo(std::int64_t& product, std::int64_t value) noexcept {
  return !__builtin_mul_overflow(product, value, &product);
}

// |value|, that of the smallest number included.
std::size_t Magnitude(std::int64_t value) noexcept {
  const auto bits = static_cast<std::size_t>(value);
  return value < 0 ? std::size_t{0} - bits : bits;
}

struct Axis {
  std::size_t stride = 0;  // its magnitude; 0 for an axis of length 1, whose stride is not used
  std::size_t size = 0;

  // How far its indices lie apart at most; the largest number stands for everything beyond.
  [[nodiscard]] std::size_t reach() const noexcept {
    std::size_t product = 0;
    return __builtin_mul_overflow(stride, size - 1, &product)
               ? std::numeric_limits<std::size_t>::max()
               : product;
  }
};

using Axes = std::array<Axis, 4>;

void SortByStride(Axes& axes) noexcept {
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
}

Axis MakeAxis(const ArrayView& view, std::size_t axis) noexcept {
  const auto size = static_cast<std::size_t>(view.sizes[axis]);
  return {size <= 1 ? 0 : Magnitude(view.strides[axis]), size};
}

// The axes that two views have in common; nothing when they step differently along one of them.
std::optional<Axes> CommonAxes(const ArrayView& a, const ArrayView& b) noexcept {
  Axes axes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (a.sizes[i] > 1 && b.sizes[i] > 1 && a.strides[i] != b.strides[i]) return std::nullopt;
    axes[i] = MakeAxis(a.sizes[i] >= b.sizes[i] ? a : b, i);
  }
  SortByStride(axes);
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
  Axes axes;
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = MakeAxis(view, i);
  SortByStride(axes);
  std::size_t reach = 0;
  for (const Axis& axis : axes) {
    if (axis.size <= 1) continue;
    if (axis.stride <= reach) return true;
    reach = SaturatingSum(reach, axis.reach());
  }
  return false;
}

bool Interleaved(const ArrayView& a, const ArrayView& b) noexcept {
  const std::optional<Axes> axes = CommonAxes(a, b);
  if (!axes || a.element_bytes != b.element_bytes) return false;
  const auto first = reinterpret_cast<std::uintptr_t>(a.data);
  const auto second = reinterpret_cast<std::uintptr_t>(b.data);
  const std::size_t bytes = std::max(first, second) - std::min(first, second);
  if (bytes % a.element_bytes != 0) return false;
  const std::size_t distance = bytes / a.element_bytes;
  // Index differences along the axes with strides up to the distance reach less than it, and those
  // along the others, if any, more than the two together.
  std::size_t small_reach = 0;
  std::size_t large_reach = 0;
  for (const Axis& axis : *axes) {
    if (axis.size <= 1) continue;
    const bool is_small = axis.stride <= distance;
    const std::size_t covered = SaturatingSum(large_reach, SaturatingSum(distance, small_reach));
    if (!is_small && axis.stride <= covered) return false;
    std::size_t& reach = is_small ? small_reach : large_reach;
    reach = SaturatingSum(reach, axis.reach());
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
