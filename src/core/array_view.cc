// SPDX-License-Identifier: Apache-2.0
// Shapes of a problem's arrays and the reach of their strides.
#include "core/array_view.h"

#include <algorithm>
#include <limits>
#include <utility>

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

// stride * (size - 1): how far the indices of an axis lie apart at most; the largest number stands
// for everything beyond.
std::size_t Reach(std::size_t stride, std::int64_t size) noexcept {
  std::size_t product = 0;
  return __builtin_mul_overflow(stride, static_cast<std::size_t>(size - 1), &product)
             ? std::numeric_limits<std::size_t>::max()
             : product;
}

// How far the elements of two views can lie apart along one axis: an element of the first up to
// `ahead` above one of the second, or up to `behind` below it.
struct AxisPair {
  std::size_t stride = 0;  // magnitude
  std::size_t ahead = 0;
  std::size_t behind = 0;
};

// By stride; nothing when the views step differently along an axis that both have. The stride of an
// axis of length 1 is not used and may be anything.
std::optional<std::array<AxisPair, 4>> PairAxes(const ArrayView& a, const ArrayView& b) noexcept {
  std::array<AxisPair, 4> pairs;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (a.sizes[i] > 1 && b.sizes[i] > 1 && a.strides[i] != b.strides[i]) return std::nullopt;
    const std::int64_t stride = a.sizes[i] > 1 ? a.strides[i] : b.strides[i];
    AxisPair& pair = pairs[i];
    pair.stride = Magnitude(stride);
    pair.ahead = Reach(pair.stride, a.sizes[i]);
    pair.behind = Reach(pair.stride, b.sizes[i]);
    if (stride < 0) std::swap(pair.ahead, pair.behind);
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const AxisPair& x, const AxisPair& y) { return x.stride < y.stride; });
  return pairs;
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
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] > 1 && view.strides[i] == 0) return true;
  }
  // Each axis must step over all that the ones with smaller strides reach.
  const auto pairs = PairAxes(view, view);
  std::size_t reach = 0;
  for (const AxisPair& axis : *pairs) {
    if (axis.ahead == 0) continue;  // of length 1
    if (axis.stride <= reach) return true;
    reach = SaturatingSum(reach, axis.ahead);
  }
  return false;
}

// An element of the lower view a and one of b are the same where the differences along all axes sum
// to the distance D of their data. Axes with strides up to D sum to at most `ahead` and at least
// -`behind`, so with D > ahead the other axes would have to sum to something positive, at most
// D + behind. Their smallest positive sums are a stride less what smaller ones among them take
// back.
bool Interleaved(const ArrayView& a, const ArrayView& b) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(a.data);
  const auto second = reinterpret_cast<std::uintptr_t>(b.data);
  if (first > second) return Interleaved(b, a);
  const auto pairs = PairAxes(a, b);
  if (!pairs || a.element_bytes != b.element_bytes) return false;
  if ((second - first) % a.element_bytes != 0) return false;
  const std::size_t distance = (second - first) / a.element_bytes;
  std::size_t ahead = 0;
  std::size_t behind = 0;
  std::size_t far_ahead = 0;  // of the axes with strides above the distance
  std::size_t far_behind = 0;
  for (const AxisPair& axis : *pairs) {
    const bool is_near = axis.stride <= distance;
    const std::size_t covered = SaturatingSum(SaturatingSum(distance, behind), far_behind);
    if (!is_near && axis.ahead != 0 && axis.stride <= covered) return false;
    if (!is_near && axis.behind != 0 && axis.stride < far_ahead) return false;
    std::size_t& forwards = is_near ? ahead : far_ahead;
    std::size_t& backwards = is_near ? behind : far_behind;
    forwards = SaturatingSum(forwards, axis.ahead);
    backwards = SaturatingSum(backwards, axis.behind);
  }
  return distance > ahead;
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
