// SPDX-License-Identifier: Apache-2.0
// Arrays of a problem in the layout that it names, and the call that is measured.
#include "cli/bench_case.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

constexpr std::int64_t kPadding = 8;  // elements behind each row of Layout::kPadded

struct Placement {
  Strided<void> view;  // strides in elements; data not set
  std::int64_t num_elements = 0;
  std::int64_t first = 0;  // element (0, 0, 0, 0)
};

Placement Place(const BenchArray::Form& form) {
  const std::int64_t cols = form.cols + (form.layout == Layout::kPadded ? kPadding : 0);
  Placement place;
  place.view = Dense<void>(nullptr, form.heads, form.rows, cols);
  place.num_elements = form.batch * form.heads * form.rows * cols;
  if (form.layout == Layout::kBshd) {
    place.view.head_stride = cols;
    place.view.row_stride = form.heads * cols;
  } else if (form.layout == Layout::kExpanded && form.may_expand) {
    place.view.batch_stride = 0;
    place.num_elements = form.heads * form.rows * cols;
  } else if (form.layout == Layout::kReversed) {
    place.first = std::max<std::int64_t>(0, form.rows - 1) * cols;
    place.view.row_stride = -cols;
  }
  return place;
}

// Sums of uniform numbers, close enough to normal ones.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : state_(seed * 2 + 1) {}
  double Next() {
    double sum = -2.0;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      sum += static_cast<double>(state_ >> 40) / 16777216.0;
    }
    return sum * 1.7320508;
  }

 private:
  std::uint64_t state_;
};

void Store(DType dtype, double value, std::byte* at) {
  switch (dtype) {
    case DType::kFloat64:
      std::memcpy(at, &value, sizeof value);
      break;
    case DType::kFloat32: {
      const auto narrow = static_cast<float>(value);
      std::memcpy(at, &narrow, sizeof narrow);
      break;
    }
    case DType::kBFloat16:
    case DType::kFloat16: {
      const std::uint16_t bits =
          dtype == DType::kBFloat16 ? DoubleToBFloat16(value) : DoubleToFloat16(value);
      std::memcpy(at, &bits, sizeof bits);
      break;
    }
  }
}

// Keys of one sequence that a query sees, first and one behind the last, as global indices.
std::pair<std::int64_t, std::int64_t> VisibleKeys(const Problem& problem, const Sequence& sequence,
                                                  std::int64_t query) {
  const std::int64_t position = sequence.origin_q + query + sequence.shift;
  std::int64_t begin = sequence.origin_k;
  std::int64_t end = sequence.origin_k + sequence.seqlen_k;
  const Window& window = problem.window();
  if (problem.is_causal()) end = std::min(end, position + 1);
  if (window.left >= 0 && window.left < position) begin = std::max(begin, position - window.left);
  if (window.right >= 0 && window.right < end - position) end = position + window.right + 1;
  return {begin, std::max(begin, end)};
}

double BytesOf(const Problem& problem, Direction direction) {
  const AttentionShape& shape = problem.shape();
  const auto query_side = static_cast<double>(problem.array_batch() * shape.num_heads) *
                          static_cast<double>(problem.rows_q());
  const auto key_side = static_cast<double>(problem.array_batch() * shape.num_kv_heads) *
                        static_cast<double>(problem.rows_k());
  const auto dims = static_cast<double>(shape.head_dim + shape.head_dim_v);
  const double copies = direction == Direction::kBackward ? 2.0 : 1.0;
  return copies * (query_side + key_side) * dims * static_cast<double>(SizeOf(problem.dtype()));
}

}  // namespace

std::string_view DirectionName(Direction direction) noexcept {
  return direction == Direction::kForward ? "forward" : "backward";
}

double CountVisibleWeights(const Problem& problem) {
  double count = 0.0;
  for (std::int64_t batch = 0; batch < problem.shape().batch; ++batch) {
    const Sequence sequence = problem.sequence(batch);
    for (std::int64_t query = 0; query < sequence.seqlen_q; ++query) {
      const auto [begin, end] = VisibleKeys(problem, sequence, query);
      count += static_cast<double>(end - begin);
    }
  }
  return count * static_cast<double>(problem.shape().num_heads);
}

double CountFlops(const Problem& problem, Direction direction) {
  const auto d = static_cast<double>(problem.shape().head_dim);
  const auto dv = static_cast<double>(problem.shape().head_dim_v);
  const double per_weight = direction == Direction::kForward ? 2 * d + 2 * dv : 6 * d + 4 * dv;
  return per_weight * CountVisibleWeights(problem);
}

Result<Problem> WithoutDropout(const Problem& problem) {
  const std::string line = problem.ToString();
  std::string_view rest = line;
  std::string kept;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    bool is_dropout = word == "eval";
    for (const std::string_view name :
         {"scheme=", "stage=", "empty_row=", "p=", "seed=", "offset="}) {
      is_dropout = is_dropout || word.starts_with(name);
    }
    if (!is_dropout) kept += (kept.empty() ? "" : " ") + std::string(word);
  }
  return Problem::Parse(kept);
}

BenchArray::BenchArray(const Form& form, std::uint64_t seed) {
  const Placement place = Place(form);
  const std::size_t size = SizeOf(form.dtype);
  const auto count = static_cast<std::size_t>(place.num_elements);
  memory_ = std::make_unique_for_overwrite<std::byte[]>(count * size);
  Noise noise(seed);
  for (std::size_t i = 0; i < count; ++i) Store(form.dtype, noise.Next(), &memory_[i * size]);
  view_ = place.view;
  view_.data = memory_.get() + static_cast<std::size_t>(place.first) * size;
}

Strided<const void> BenchArray::const_view() const noexcept {
  return {.data = view_.data,
          .batch_stride = view_.batch_stride,
          .head_stride = view_.head_stride,
          .row_stride = view_.row_stride,
          .col_stride = view_.col_stride};
}

BenchCase::BenchCase(const Plan& plan, Direction direction)
    : plan_(plan), direction_(direction), scratch_(std::make_unique<Scratch>()) {
  const Problem& p = problem();
  const AttentionShape& shape = p.shape();
  BenchArray::Form form{.batch = p.array_batch(),
                        .heads = shape.num_heads,
                        .rows = p.rows_q(),
                        .cols = shape.head_dim,
                        .dtype = p.dtype(),
                        .layout = p.layout()};
  query_ = BenchArray(form, 1);
  form.cols = shape.head_dim_v;
  out_ = BenchArray(form, 2);
  form.heads = shape.num_kv_heads;
  form.rows = p.rows_k();
  form.may_expand = true;
  value_ = BenchArray(form, 3);
  form.cols = shape.head_dim;
  key_ = BenchArray(form, 4);
  logsumexp_ =
      BenchArray({.batch = p.array_batch(),
                  .heads = shape.num_heads,
                  .rows = p.rows_q(),
                  .cols = 1,
                  .dtype = p.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32},
                 5);
  MakeMask();
  if (direction == Direction::kBackward) MakeBackward();
}

void BenchCase::MakeMask() {
  const Problem& p = problem();
  const MaskForm& mask = p.attn_mask();
  const BenchArray::Form form{.batch = mask.per_batch ? p.shape().batch : 1,
                              .heads = mask.per_head ? p.shape().num_heads : 1,
                              .rows = mask.per_query ? p.shape().seqlen_q : 1,
                              .cols = mask.per_key ? p.shape().seqlen_k : 1,
                              .dtype = mask.dtype};
  if (mask.kind == MaskKind::kFloat) attn_mask_ = BenchArray(form, 6);
  if (mask.kind == MaskKind::kBool) {
    const auto count = static_cast<std::size_t>(form.batch * form.heads * form.rows * form.cols);
    bool_mask_ = std::make_unique<std::uint8_t[]>(count);
    std::fill_n(bool_mask_.get(), count, std::uint8_t{1});
  }
  if (p.alibi()) slopes_.assign(static_cast<std::size_t>(p.shape().num_heads), 0.0625F);
}

void BenchCase::MakeBackward() {
  const Problem& p = problem();
  const AttentionShape& shape = p.shape();
  BenchArray::Form form{.batch = p.array_batch(),
                        .heads = shape.num_heads,
                        .rows = p.rows_q(),
                        .cols = shape.head_dim,
                        .dtype = p.dtype(),
                        .layout = p.layout()};
  grad_query_ = BenchArray(form, 7);
  form.cols = shape.head_dim_v;
  grad_out_ = BenchArray(form, 8);
  form.heads = shape.num_kv_heads;
  form.rows = p.rows_k();
  grad_value_ = BenchArray(form, 9);
  form.cols = shape.head_dim;
  grad_key_ = BenchArray(form, 10);
}

MaskBuffers BenchCase::mask() const {
  MaskBuffers buffers;
  const Problem& p = problem();
  const MaskForm& form = p.attn_mask();
  if (form.kind == MaskKind::kFloat) buffers.attn_mask = attn_mask_.const_view();
  if (form.kind == MaskKind::kBool) {
    buffers.attn_mask = Dense<const void>(bool_mask_.get(), form.per_head ? p.shape().num_heads : 1,
                                          form.per_query ? p.shape().seqlen_q : 1,
                                          form.per_key ? p.shape().seqlen_k : 1);
  }
  if (p.alibi()) buffers.alibi_slopes = slopes_.data();
  return buffers;
}

Result<BenchCase> BenchCase::Make(const Plan& plan, Direction direction, Executor& executor) {
  const Problem& problem = plan.problem();
  const auto scratch = static_cast<double>(std::max(
      plan.ForwardScratchBytes(executor.num_workers()),
      direction == Direction::kForward ? 0 : plan.BackwardScratchBytes(executor.num_workers())));
  if (Status fits = CheckMemory(BytesOf(problem, direction) + scratch,
                                fmt::format("the problem {}", problem.ToString()),
                                "give a smaller one with --problem, or --explain");
      !fits.ok()) {
    return fits;
  }
  BenchCase made(plan, direction);
  if (direction == Direction::kBackward) {
    made.direction_ = Direction::kForward;
    if (Status done = made.Run(executor); !done.ok()) return done;
    made.direction_ = Direction::kBackward;
  }
  return {std::move(made)};
}

Status BenchCase::Run(Executor& executor) {
  if (direction_ == Direction::kForward) {
    const ForwardBuffers buffers{.query = query_.const_view(),
                                 .key = key_.const_view(),
                                 .value = value_.const_view(),
                                 .mask = mask(),
                                 .out = out_.view(),
                                 .logsumexp = logsumexp_.view()};
    return Forward(plan_, buffers, executor, *scratch_);
  }
  BackwardBuffers buffers;
  buffers.query = query_.const_view();
  buffers.key = key_.const_view();
  buffers.value = value_.const_view();
  buffers.mask = mask();
  buffers.out = out_.const_view();
  buffers.logsumexp = logsumexp_.const_view();
  buffers.grad_out = grad_out_.const_view();
  buffers.grad_query = grad_query_.view();
  buffers.grad_key = grad_key_.view();
  buffers.grad_value = grad_value_.view();
  return Backward(plan_, buffers, executor, *scratch_);
}

std::size_t BenchCase::ScratchBytes(const Executor& executor) const noexcept {
  return direction_ == Direction::kForward ? plan_.ForwardScratchBytes(executor.num_workers())
                                           : plan_.BackwardScratchBytes(executor.num_workers());
}

}  // namespace attndrop::cli
