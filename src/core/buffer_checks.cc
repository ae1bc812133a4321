// SPDX-License-Identifier: Apache-2.0
// The refusals of Forward, Backward and KeepMask.
#include "core/buffer_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/array_view.h"
#include "core/element.h"
#include "core/text.h"

namespace attndrop {
namespace {

std::string ShapeText(const ArrayView& view) { return '(' + JoinNumbers(view.sizes) + ')'; }

std::string RangeText(const ByteRange& range) {
  return FormatNumber(range.begin) + " .. " + FormatNumber(range.end);
}

// The pointer and the reach of one array; an empty array may be null.
Status CheckView(const ArrayView& view, ByteRange& range) {
  const std::string name(view.name);
  if (view.data == nullptr) {
    return Status::InvalidArgument(name + " of shape " + ShapeText(view) +
                                   " is a null pointer; pass its data");
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % view.element_bytes != 0) {
    return Status::InvalidArgument(
        name + " must be aligned to its " + FormatNumber(view.element_bytes) +
        "-byte elements, got address " + FormatNumber(reinterpret_cast<std::uintptr_t>(view.data)));
  }
  const std::optional<ByteRange> bytes = BytesOf(view);
  if (!bytes) {
    return Status::InvalidArgument(name + " of shape " + ShapeText(view) + " and strides (" +
                                   JoinNumbers(view.strides) +
                                   ") reaches beyond the address space; check its strides, which "
                                   "count elements");
  }
  range = *bytes;
  return Status::Ok();
}

struct CheckedView {
  ArrayView view;
  ByteRange range;
};

// Collects the arrays of a call and compares each output with everything else.
class BufferSet {
 public:
  void AddInput(const ArrayView& view) { Add(view, inputs_); }
  // Optional arrays are left out when they have no data.
  void AddOptionalInput(const ArrayView& view) {
    if (view.data != nullptr) Add(view, inputs_);
  }
  void AddOutput(const ArrayView& view) { Add(view, outputs_); }
  void AddOptionalOutput(const ArrayView& view) {
    if (view.data != nullptr) Add(view, outputs_);
  }

  [[nodiscard]] Status Check() const {
    if (!status_.ok()) return status_;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const CheckedView& output = outputs_[i];
      if (OverlapsItself(output.view)) return OverlapOfStrides(output.view);
      for (const CheckedView& input : inputs_) {
        if (Overlap(output, input)) return OverlapOf(output, input);
      }
      for (std::size_t k = 0; k < i; ++k) {
        if (Overlap(output, outputs_[k])) return OverlapOf(output, outputs_[k]);
      }
    }
    return Status::Ok();
  }

 private:
  void Add(const ArrayView& view, std::vector<CheckedView>& views) {
    if (!status_.ok() || view.is_empty()) return;
    ByteRange range;
    status_ = CheckView(view, range);
    views.push_back({view, range});
  }

  static bool Overlap(const CheckedView& a, const CheckedView& b) noexcept {
    return a.range.begin < b.range.end && b.range.begin < a.range.end &&
           !Interleaved(a.view, b.view);
  }

  static Status OverlapOf(const CheckedView& output, const CheckedView& other) {
    return Status::InvalidArgument(std::string(output.view.name) + " overlaps " +
                                   std::string(other.view.name) + ": bytes " +
                                   RangeText(output.range) + " and " + RangeText(other.range) +
                                   "; outputs need memory of their own");
  }
  static Status OverlapOfStrides(const ArrayView& view) {
    return Status::InvalidArgument(std::string(view.name) + " of shape " + ShapeText(view) +
                                   " has strides (" + JoinNumbers(view.strides) +
                                   ") with which some elements are the same; an output needs an "
                                   "element for each index");
  }

  std::vector<CheckedView> inputs_;
  std::vector<CheckedView> outputs_;
  Status status_;
};

bool IsBias(double value) noexcept { return !std::isnan(value) && value < HUGE_VAL; }

// Every number of a float attn_mask; names the first bad one.
Status CheckFloatMask(const Problem& problem, const MaskBuffers& buffers) {
  const ArrayView view = MakeView(problem, Role::kAttnMask, "attn_mask", buffers.attn_mask);
  std::array<std::int64_t, 4> at{};
  std::array<std::int64_t, 4> sizes = view.sizes;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    // One number seen many times is read once.
    if (view.strides[axis] == 0) sizes[axis] = std::min<std::int64_t>(sizes[axis], 1);
  }
  const auto& [batches, heads, rows, cols] = sizes;
  for (at[0] = 0; at[0] < batches; ++at[0]) {
    for (at[1] = 0; at[1] < heads; ++at[1]) {
      for (at[2] = 0; at[2] < rows; ++at[2]) {
        for (at[3] = 0; at[3] < cols; ++at[3]) {
          const std::int64_t offset = at[0] * view.strides[0] + at[1] * view.strides[1] +
                                      at[2] * view.strides[2] + at[3] * view.strides[3];
          const double value = LoadElement(problem.attn_mask().dtype, view.data, offset);
          if (IsBias(value)) continue;
          return Status::InvalidArgument(
              "attn_mask must hold finite numbers or -inf (which hides a key), got " +
              FormatNumber(value) + " at [" + JoinNumbers(at) + "]");
        }
      }
    }
  }
  return Status::Ok();
}

Status CheckSlopes(const Problem& problem, const MaskBuffers& buffers) {
  const AttentionShape& shape = problem.shape();
  const std::int64_t batches =
      buffers.alibi_batch_stride == 0 ? std::min<std::int64_t>(shape.batch, 1) : shape.batch;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    for (std::int64_t head = 0; head < shape.num_heads; ++head) {
      const float slope = buffers.alibi_slopes[batch * buffers.alibi_batch_stride + head];
      if (std::isfinite(slope)) continue;
      return Status::InvalidArgument("alibi_slopes must be finite numbers, got " +
                                     FormatNumber(slope) + " for batch " + FormatNumber(batch) +
                                     ", head " + FormatNumber(head));
    }
  }
  return Status::Ok();
}

void AddMask(const Problem& problem, const MaskBuffers& mask, BufferSet& set) {
  if (problem.attn_mask().kind != MaskKind::kNone) {
    set.AddInput(MakeView(problem, Role::kAttnMask, "attn_mask", mask.attn_mask));
  }
  if (!problem.alibi()) return;
  set.AddInput({.name = "alibi_slopes",
                .data = mask.alibi_slopes,
                .element_bytes = sizeof(float),
                .sizes = {problem.shape().batch, problem.shape().num_heads, 1, 1},
                .strides = {mask.alibi_batch_stride, 1, 0, 0}});
}

Status CheckUnusedMask(const Problem& problem, const MaskBuffers& mask) {
  if (problem.attn_mask().kind == MaskKind::kNone && mask.attn_mask.data != nullptr) {
    return Status::InvalidArgument(
        "attn_mask was passed but the problem has none; set its form in ProblemArgs::attn_mask");
  }
  if (!problem.alibi() && mask.alibi_slopes != nullptr) {
    return Status::InvalidArgument(
        "alibi_slopes were passed but the problem has no ALiBi; set ProblemArgs::alibi");
  }
  return Status::Ok();
}

Status CheckMaskNumbers(const Problem& problem, const MaskBuffers& mask) {
  Status status = problem.alibi() ? CheckSlopes(problem, mask) : Status::Ok();
  if (!status.ok() || problem.attn_mask().kind != MaskKind::kFloat) return status;
  return CheckFloatMask(problem, mask);
}

template <class Buffers>
void AddQueryKeyValue(const Problem& problem, const Buffers& buffers, BufferSet& set) {
  set.AddInput(MakeView(problem, Role::kQuery, "query", buffers.query));
  set.AddInput(MakeView(problem, Role::kKey, "key", buffers.key));
  set.AddInput(MakeView(problem, Role::kValue, "value", buffers.value));
  AddMask(problem, buffers.mask, set);
}

Status CheckAll(const Problem& problem, const MaskBuffers& mask, const BufferSet& set) {
  Status status = CheckUnusedMask(problem, mask);
  if (status.ok()) status = set.Check();
  return status.ok() ? CheckMaskNumbers(problem, mask) : status;
}

}  // namespace

Status CheckForwardBuffers(const Problem& problem, const ForwardBuffers& buffers) {
  BufferSet set;
  AddQueryKeyValue(problem, buffers, set);
  set.AddOutput(MakeView(problem, Role::kOut, "out", buffers.out));
  set.AddOptionalOutput(MakeView(problem, Role::kLogsumexp, "logsumexp", buffers.logsumexp));
  return CheckAll(problem, buffers.mask, set);
}

Status CheckBackwardBuffers(const Problem& problem, const BackwardBuffers& buffers) {
  if (buffers.grad_attn_mask.data != nullptr && problem.attn_mask().kind != MaskKind::kFloat) {
    return Status::InvalidArgument(
        "grad_attn_mask needs a float attn_mask, and this problem has none; leave it null");
  }
  BufferSet set;
  AddQueryKeyValue(problem, buffers, set);
  set.AddInput(MakeView(problem, Role::kOut, "grad_out", buffers.grad_out));
  set.AddOptionalInput(MakeView(problem, Role::kOut, "out", buffers.out));
  set.AddOptionalInput(MakeView(problem, Role::kLogsumexp, "logsumexp", buffers.logsumexp));
  set.AddOptionalInput(
      MakeView(problem, Role::kLogsumexp, "grad_logsumexp", buffers.grad_logsumexp));
  set.AddOptionalOutput(MakeView(problem, Role::kQuery, "grad_query", buffers.grad_query));
  set.AddOptionalOutput(MakeView(problem, Role::kKey, "grad_key", buffers.grad_key));
  set.AddOptionalOutput(MakeView(problem, Role::kValue, "grad_value", buffers.grad_value));
  set.AddOptionalOutput(
      MakeView(problem, Role::kAttnMask, "grad_attn_mask", buffers.grad_attn_mask));
  return CheckAll(problem, buffers.mask, set);
}

Status CheckMaskBuffers(const Problem& problem, const MaskBuffers& mask) {
  BufferSet set;
  AddMask(problem, mask, set);
  return CheckAll(problem, mask, set);
}

Status CheckKeepMaskBuffers(const Problem& problem, const KeepMaskBuffers& buffers) {
  const AttentionShape& shape = problem.shape();
  ArrayView keep{.name = "keep",
                 .data = buffers.keep,
                 .element_bytes = 1,
                 .sizes = {shape.batch, shape.num_heads, shape.seqlen_q, shape.seqlen_k},
                 .strides = {0, 0, shape.seqlen_k, 1}};
  const bool too_large = __builtin_mul_overflow(shape.seqlen_q, shape.seqlen_k, &keep.strides[1]) ||
                         __builtin_mul_overflow(keep.strides[1], shape.num_heads, &keep.strides[0]);
  if (too_large && !keep.is_empty()) {
    return Status::InvalidArgument("keep of shape " + ShapeText(keep) +
                                   " has more than 2^63 elements; ask for single weights instead");
  }
  ArrayView factors = keep;
  factors.name = "factors";
  factors.data = buffers.factors;
  factors.element_bytes = sizeof(double);
  BufferSet set;
  AddMask(problem, buffers.mask, set);
  set.AddOutput(keep);
  set.AddOptionalOutput(factors);
  return CheckAll(problem, buffers.mask, set);
}

}  // namespace attndrop
