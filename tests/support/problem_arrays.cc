// SPDX-License-Identifier: Apache-2.0
// The arrays that go with a problem: shapes, placements, contents.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/arrays.h"
#include "support/random.h"

namespace attndrop::testing {
namespace {

Placement PlacementOf(Layout layout, bool is_key_or_value) {
  Placement placement;
  switch (layout) {
    case Layout::kBhsd:
      break;
    case Layout::kBshd:
      placement.order = {0, 2, 1, 3};
      break;
    case Layout::kPadded:
      placement.padding[3] = 3;
      break;
    case Layout::kExpanded:
      placement.expand_batch = is_key_or_value;
      break;
    case Layout::kReversed:
      placement.reversed[2] = true;
      break;
  }
  return placement;
}

Placement RandomPlacement(Random& random) {
  Placement placement;
  for (std::int64_t k = 3; k > 0; --k) {
    std::swap(placement.order[static_cast<std::size_t>(k)],
              placement.order[static_cast<std::size_t>(random.Below(k + 1))]);
  }
  for (std::int64_t& padding : placement.padding) padding = random.Pick({0, 0, 1, 2, 5});
  for (bool& reversed : placement.reversed) reversed = random.Chance(0.25);
  placement.lead = random.Below(4);
  return placement;
}

std::int64_t Last(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : lengths.back();
}

// Rows of the arrays of queries or keys.
std::int64_t TotalRows(const ProblemArgs& args, bool keys) {
  if (args.ragged) return Last(keys ? args.ragged->cu_seqlens_k : args.ragged->cu_seqlens_q);
  return keys ? args.shape.seqlen_k : args.shape.seqlen_q;
}

std::int64_t Batch(const ProblemArgs& args) {
  return args.ragged ? static_cast<std::int64_t>(args.ragged->cu_seqlens_q.size()) - 1
                     : args.shape.batch;
}

std::int64_t Longest(const ProblemArgs& args, bool keys) {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < Batch(args); ++b) {
    const SequenceView view = ViewSequence(args, b);
    longest = std::max(longest, keys ? view.seqlen_k : view.seqlen_q);
  }
  if (!args.ragged) return keys ? args.shape.seqlen_k : args.shape.seqlen_q;
  return longest;
}

ArrayShape MaskShape(const ProblemArgs& args) {
  const MaskForm& form = args.attn_mask;
  return {form.per_batch ? Batch(args) : 1, form.per_head ? args.shape.num_heads : 1,
          form.per_query ? Longest(args, false) : 1, form.per_key ? Longest(args, true) : 1};
}

double LowestOf(Element element) {
  switch (element) {
    case Element::kFloat64:
      return std::numeric_limits<double>::lowest();
    case Element::kFloat16:
      return -65504.0;
    case Element::kBFloat16:
      return -0x1.FEp127;
    case Element::kFloat32:
    case Element::kByte:
      break;
  }
  return static_cast<double>(std::numeric_limits<float>::lowest());
}

double RandomMaskNumber(const MaskForm& form, double visible, Element element, Random& random) {
  const bool is_visible = random.Chance(visible);
  if (form.kind == MaskKind::kBool) return is_visible ? random.Pick({1.0, 1.0, 2.0, 255.0}) : 0.0;
  if (!is_visible) return -std::numeric_limits<double>::infinity();
  return random.Chance(0.03) ? LowestOf(element) : random.Normal();
}

void FillMask(const MaskForm& form, Random& random, Array& mask) {
  const double visible = random.Pick({0.1, 0.5, 0.9, 1.0});
  const double empty_row = random.Pick({0.0, 0.2});
  for (std::int64_t b = 0; b < mask.shape().batch; ++b) {
    for (std::int64_t h = 0; h < mask.shape().heads; ++h) {
      for (std::int64_t r = 0; r < mask.shape().rows; ++r) {
        const double row_visible = random.Chance(empty_row) ? 0.0 : visible;
        for (std::int64_t c = 0; c < mask.shape().cols; ++c) {
          mask.Set(b, h, r, c, RandomMaskNumber(form, row_visible, mask.element(), random));
        }
      }
    }
  }
}

}  // namespace

std::int64_t KvHeads(const ProblemArgs& args) {
  return args.shape.num_kv_heads == 0 ? args.shape.num_heads : args.shape.num_kv_heads;
}

std::int64_t HeadDimV(const ProblemArgs& args) {
  return args.shape.head_dim_v < 0 ? args.shape.head_dim : args.shape.head_dim_v;
}

SequenceView ViewSequence(const ProblemArgs& args, std::int64_t batch) {
  SequenceView view;
  const auto b = static_cast<std::size_t>(batch);
  view.origin_q = args.origin.query;
  view.origin_k = args.origin.key;
  if (args.ragged) {
    const RaggedLengths& ragged = *args.ragged;
    view.first_row_q = ragged.cu_seqlens_q[b];
    view.first_row_k = ragged.cu_seqlens_k[b];
    view.seqlen_q =
        ragged.used_q.empty() ? ragged.cu_seqlens_q[b + 1] - view.first_row_q : ragged.used_q[b];
    view.seqlen_k =
        ragged.used_k.empty() ? ragged.cu_seqlens_k[b + 1] - view.first_row_k : ragged.used_k[b];
  } else {
    view.array_batch = batch;
    view.seqlen_q = args.shape.seqlen_q;
    view.seqlen_k = args.shape.seqlen_k;
  }
  view.total_q = args.total ? args.total->seqlen_q : view.origin_q + view.seqlen_q;
  view.total_k = args.total ? args.total->seqlen_k : view.origin_k + view.seqlen_k;
  view.shift = args.causal_align == CausalAlign::kBottomRight ? view.total_k - view.total_q : 0;
  return view;
}

MaskBuffers ProblemArrays::Mask() {
  MaskBuffers mask;
  if (attn_mask.shape().batch > 0 || attn_mask.shape().cols > 0) {
    mask.attn_mask = attn_mask.ConstView();
  }
  if (!slopes.empty()) {
    mask.alibi_slopes = slopes.data();
    mask.alibi_batch_stride = num_heads;
  }
  return mask;
}

ForwardBuffers ProblemArrays::ForForward() {
  return {.query = query.ConstView(),
          .key = key.ConstView(),
          .value = value.ConstView(),
          .mask = Mask(),
          .out = out.View(),
          .logsumexp = logsumexp.View()};
}

BackwardBuffers ProblemArrays::ForBackward() {
  BackwardBuffers buffers{.query = query.ConstView(),
                          .key = key.ConstView(),
                          .value = value.ConstView(),
                          .mask = Mask(),
                          .out = out.ConstView(),
                          .logsumexp = logsumexp.ConstView(),
                          .grad_out = grad_out.ConstView(),
                          .grad_logsumexp = {},
                          .grad_query = grad_query.View(),
                          .grad_key = grad_key.View(),
                          .grad_value = grad_value.View(),
                          .grad_attn_mask = {}};
  if (has_grad_logsumexp) buffers.grad_logsumexp = grad_logsumexp.ConstView();
  if (has_grad_attn_mask) buffers.grad_attn_mask = grad_attn_mask.View();
  return buffers;
}

std::vector<Array*> ProblemArrays::Inputs() {
  return {&query, &key, &value, &attn_mask, &grad_out, &grad_logsumexp};
}

std::vector<Array*> ProblemArrays::Outputs() { return {&out, &logsumexp}; }

std::vector<Array*> ProblemArrays::Gradients() {
  return {&grad_query, &grad_key, &grad_value, &grad_attn_mask};
}

void ProblemArrays::Freeze() {
  for (Array* array : Inputs()) array->Freeze();
}

::testing::AssertionResult ProblemArrays::Intact() {
  for (Array* array : Inputs()) {
    if (!array->Unchanged()) return ::testing::AssertionFailure() << "an input was written";
  }
  for (const std::vector<Array*>& group : {Inputs(), Outputs(), Gradients()}) {
    for (Array* array : group) {
      if (const auto intact = array->GuardsIntact(); !intact) return intact;
    }
  }
  return ::testing::AssertionSuccess();
}

ProblemArrays Allocate(const ProblemArgs& args, const ArrayOptions& options) {
  Random random(options.shuffle_seed.value_or(0));
  const auto make = [&](Element element, const ArrayShape& shape, bool is_key_or_value = false) {
    const Placement placement =
        options.shuffle_seed ? RandomPlacement(random) : PlacementOf(args.layout, is_key_or_value);
    return Array(element, shape, placement);
  };
  const Element element = ElementOf(args.dtype);
  const Element lse = args.dtype == DType::kFloat64 ? Element::kFloat64 : Element::kFloat32;
  const std::int64_t batch = args.ragged ? 1 : args.shape.batch;
  const std::int64_t heads = args.shape.num_heads, kv_heads = KvHeads(args);
  const std::int64_t rows_q = TotalRows(args, false), rows_k = TotalRows(args, true);
  const ArrayShape q{batch, heads, rows_q, args.shape.head_dim};
  const ArrayShape k{batch, kv_heads, rows_k, args.shape.head_dim};
  const ArrayShape v{batch, kv_heads, rows_k, HeadDimV(args)};
  const ArrayShape o{batch, heads, rows_q, HeadDimV(args)};
  const ArrayShape l{batch, heads, rows_q, 1};

  ProblemArrays arrays;
  arrays.num_heads = heads;
  arrays.query = make(element, q);
  arrays.key = make(element, k, true);
  arrays.value = make(element, v, true);
  arrays.out = make(element, o);
  arrays.logsumexp = make(lse, l);
  arrays.grad_out = make(element, o);
  arrays.grad_logsumexp = make(lse, l);
  arrays.grad_query = make(element, q);
  arrays.grad_key = make(element, k);
  arrays.grad_value = make(element, v);
  arrays.has_grad_logsumexp = options.grad_logsumexp;
  const MaskForm& form = args.attn_mask;
  if (form.kind != MaskKind::kNone) {
    const bool is_float = form.kind == MaskKind::kFloat;
    arrays.attn_mask = make(is_float ? ElementOf(form.dtype) : Element::kByte, MaskShape(args));
    arrays.has_grad_attn_mask = is_float && options.grad_attn_mask;
    if (is_float) arrays.grad_attn_mask = make(ElementOf(form.dtype), MaskShape(args));
  }
  return arrays;
}

void FillRandom(const ProblemArgs& args, std::uint64_t seed, ProblemArrays& arrays) {
  Random random(seed);
  const double zeros = random.Pick({0.0, 0.0, 0.3});
  const bool coarse = random.Chance(0.2);  // many equal logits
  for (Array* array :
       {&arrays.query, &arrays.key, &arrays.value, &arrays.grad_out, &arrays.grad_logsumexp}) {
    array->Fill([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
      if (random.Chance(zeros)) return random.Chance(0.5) ? 0.0 : -0.0;
      const double x = random.Normal();
      return coarse ? std::nearbyint(x) : x;
    });
  }
  if (args.attn_mask.kind != MaskKind::kNone) FillMask(args.attn_mask, random, arrays.attn_mask);
  arrays.slopes.clear();
  if (args.alibi) {
    arrays.slopes.resize(
        std::max<std::size_t>(1, static_cast<std::size_t>(Batch(args) * args.shape.num_heads)));
    for (float& slope : arrays.slopes) {
      slope = static_cast<float>(random.Pick({0.5, 0.25, 0.0625, 0.0, -0.03125}));
    }
  }
}

ProblemArrays MakeArrays(const ProblemArgs& args, std::uint64_t seed, const ArrayOptions& options) {
  ProblemArrays arrays = Allocate(args, options);
  FillRandom(args, seed, arrays);
  arrays.Freeze();
  return arrays;
}

}  // namespace attndrop::testing
