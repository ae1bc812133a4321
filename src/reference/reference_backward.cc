// SPDX-License-Identifier: Apache-2.0
// Backward, one task for each (batch, key/value head), which owns that head's grad_key and
// grad_value; docs/math/attention.md, (A6) to (A9).
#include <algorithm>

#include "core/array_view.h"
#include "core/element.h"
#include "reference/reference.h"
#include "reference/reference_row.h"

namespace attndrop {
namespace {

class BackwardWorker {
 public:
  BackwardWorker(const Problem& problem, const BackwardBuffers& buffers, Arena& arena) noexcept
      : problem_(problem), buffers_(buffers), softmax_(problem, buffers.mask, arena) {
    const AttentionShape& shape = problem.shape();
    const std::int64_t key_size = SaturatingProduct(shape.seqlen_k, shape.head_dim);
    const std::int64_t value_size = SaturatingProduct(shape.seqlen_k, shape.head_dim_v);
    key_ = arena.Take<double>(key_size);
    grad_key_ = arena.Take<double>(key_size);
    value_ = arena.Take<double>(value_size);
    grad_value_ = arena.Take<double>(value_size);
    query_ = arena.Take<double>(shape.head_dim);
    grad_query_ = arena.Take<double>(shape.head_dim);
    grad_out_ = arena.Take<double>(shape.head_dim_v);
    grad_logits_ = arena.Take<double>(shape.seqlen_k);
  }

  // grad_attn_mask: sums in double, in the mask's form, or null.
  void Run(std::int64_t batch, std::int64_t kv_head, double* grad_attn_mask) {
    const AttentionShape& shape = problem_.shape();
    const Sequence sequence = problem_.sequence(batch);
    const std::int64_t array_batch = ArrayBatch(problem_, batch);
    const HeadRows keys{array_batch, kv_head, sequence.first_row_k, sequence.seqlen_k};
    LoadRows(problem_.dtype(), buffers_.key, keys, shape.head_dim, key_);
    LoadRows(problem_.dtype(), buffers_.value, keys, shape.head_dim_v, value_);
    std::fill(grad_key_, grad_key_ + sequence.seqlen_k * shape.head_dim, 0.0);
    std::fill(grad_value_, grad_value_ + sequence.seqlen_k * shape.head_dim_v, 0.0);
    const std::int64_t group = shape.num_heads / shape.num_kv_heads;
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (std::int64_t query = 0; query < sequence.seqlen_q; ++query) {
        const Row row = MakeRow(problem_, batch, head, query);
        const HeadRows place{array_batch, head, sequence.first_row_q + query, 1};
        RunRow(row, place);
        if (grad_attn_mask != nullptr) AddToMask(row, grad_attn_mask);
      }
      Fill(buffers_.grad_query, UnusedRowsQ(problem_, sequence, batch, head), shape.head_dim);
    }
    Store(grad_key_, buffers_.grad_key, keys, shape.head_dim);
    Store(grad_value_, buffers_.grad_value, keys, shape.head_dim_v);
    const HeadRows unused = UnusedRowsK(problem_, sequence, batch, kv_head);
    Fill(buffers_.grad_key, unused, shape.head_dim);
    Fill(buffers_.grad_value, unused, shape.head_dim_v);
  }

 private:
  void RunRow(const Row& row, const HeadRows& place) {
    const AttentionShape& shape = problem_.shape();
    LoadRows(problem_.dtype(), buffers_.query, place, shape.head_dim, query_);
    LoadRows(problem_.dtype(), buffers_.grad_out, place, shape.head_dim_v, grad_out_);
    softmax_.Compute(row, query_, key_);
    ComputeGradLogits(row, place);
    std::fill(grad_query_, grad_query_ + shape.head_dim, 0.0);
    const RowNumbers& numbers = softmax_.numbers();
    for (std::int64_t i = 0; i < row.local.size(); ++i) {
      if (numbers.takes_part[i] == 0) continue;
      const std::int64_t key = row.local.begin + i;
      const double step = problem_.scale() * grad_logits_[i];
      AddScaled(step, key_ + key * shape.head_dim, grad_query_, shape.head_dim);  // (A8)
      AddScaled(step, query_, grad_key_ + key * shape.head_dim, shape.head_dim);  // (A8)
      if (numbers.factors[i] == 0.0) continue;
      AddScaled(numbers.factors[i] * numbers.weights[i], grad_out_,
                grad_value_ + key * shape.head_dim_v, shape.head_dim_v);  // (A9)
    }
    Store(grad_query_, buffers_.grad_query, place, shape.head_dim);
  }

  // (A7). At stage logits every key that takes part has factor 1, so one formula serves both.
  void ComputeGradLogits(const Row& row, const HeadRows& place) noexcept {
    const RowNumbers& numbers = softmax_.numbers();
    const std::int64_t head_dim_v = problem_.shape().head_dim_v;
    // (A6): grad_out . out is the same sum as that over keys of f w (grad_out . value).
    double delta = -GradLogsumexp(place);
    const double* value = value_ + row.local.begin * head_dim_v;
    for (std::int64_t i = 0; i < row.local.size(); ++i, value += head_dim_v) {
      const bool kept = numbers.factors[i] != 0.0;
      grad_logits_[i] = kept ? numbers.factors[i] * Dot(grad_out_, value, head_dim_v) : 0.0;
      if (kept) delta += numbers.weights[i] * grad_logits_[i];
    }
    for (std::int64_t i = 0; i < row.local.size(); ++i) {
      const bool takes_part = numbers.takes_part[i] != 0;
      grad_logits_[i] = takes_part ? numbers.weights[i] * (grad_logits_[i] - delta) : 0.0;
    }
  }

  [[nodiscard]] double GradLogsumexp(const HeadRows& place) const noexcept {
    if (buffers_.grad_logsumexp.data == nullptr) return 0.0;
    double value = 0.0;
    LoadRows(DTypeOf(problem_, Role::kLogsumexp), buffers_.grad_logsumexp, place, 1, &value);
    return value;
  }

  // Invisible keys have grad_logits 0.
  void AddToMask(const Row& row, double* grad_attn_mask) const noexcept {
    const std::array<std::int64_t, 4> sizes = ShapeOf(problem_, Role::kAttnMask);
    const MaskBuffers dense{.attn_mask =
                                Dense<const void>(grad_attn_mask, sizes[1], sizes[2], sizes[3])};
    const MaskReader offsets(problem_, dense);
    LocalIndex at = row.at;
    for (std::int64_t i = 0; i < row.local.size(); ++i) {
      at.key = row.local.begin + i;
      grad_attn_mask[offsets.Offset(at)] += grad_logits_[i];
    }
  }

  void Store(const double* dense, const Strided<void>& array, const HeadRows& rows,
             std::int64_t cols) const noexcept {
    if (array.data != nullptr) StoreRows(problem_.dtype(), dense, rows, cols, array);
  }
  void Fill(const Strided<void>& array, const HeadRows& rows, std::int64_t cols) const noexcept {
    if (array.data != nullptr) FillRows(problem_.dtype(), 0.0, rows, cols, array);
  }

  const Problem& problem_;
  const BackwardBuffers& buffers_;
  RowSoftmax softmax_;
  double* key_ = nullptr;  // [seqlen_k][head_dim], likewise grad_key_
  double* grad_key_ = nullptr;
  double* value_ = nullptr;  // [seqlen_k][head_dim_v], likewise grad_value_
  double* grad_value_ = nullptr;
  double* query_ = nullptr;  // [head_dim], likewise grad_query_
  double* grad_query_ = nullptr;
  double* grad_out_ = nullptr;     // [head_dim_v]
  double* grad_logits_ = nullptr;  // [seqlen_k]
};

std::size_t WorkerBytes(const Problem& problem) noexcept {
  Arena measure;
  const BackwardBuffers no_buffers;
  const BackwardWorker worker(problem, no_buffers, measure);
  return measure.bytes();
}

std::int64_t MaskElements(const Problem& problem) noexcept {
  std::int64_t product = 1;
  for (const std::int64_t size : ShapeOf(problem, Role::kAttnMask)) {
    product = SaturatingProduct(product, size);
  }
  return product;
}

void StoreMask(const Problem& problem, const double* sums, const Strided<void>& array) noexcept {
  const auto [batches, heads, rows, cols] = ShapeOf(problem, Role::kAttnMask);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    for (std::int64_t head = 0; head < heads; ++head, sums += rows * cols) {
      StoreRows(problem.attn_mask().dtype, sums, {batch, head, 0, rows}, cols, array);
    }
  }
}

}  // namespace

std::size_t ReferenceBackwardScratchBytes(const Problem& problem, int num_workers,
                                          bool grad_attn_mask) noexcept {
  Arena measure;
  (void)measure.Take<double>(grad_attn_mask ? MaskElements(problem) : 0);
  return SaturatingSum(measure.bytes(), SaturatingTimes(WorkerBytes(problem), num_workers));
}

void ReferenceBackward(const Problem& problem, const BackwardBuffers& buffers, Executor& executor,
                       std::byte* scratch) {
  const AttentionShape& shape = problem.shape();
  Arena shared(scratch);
  double* mask_sums = nullptr;
  if (buffers.grad_attn_mask.data != nullptr) {
    mask_sums = shared.Take<double>(MaskElements(problem));
    std::fill(mask_sums, mask_sums + MaskElements(problem), 0.0);
  }
  std::byte* const workers = scratch + shared.bytes();
  const std::size_t worker_bytes = WorkerBytes(problem);
  const auto run = [&](std::int64_t task, int worker) {
    Arena arena(workers + worker_bytes * static_cast<std::size_t>(worker));
    BackwardWorker(problem, buffers, arena)
        .Run(task / shape.num_kv_heads, task % shape.num_kv_heads, mask_sums);
  };
  // Tasks that add to the same mask sums run one after the other, in order.
  const bool shares_sums =
      mask_sums != nullptr && !(problem.attn_mask().per_batch && problem.attn_mask().per_head);
  SerialExecutor serial;
  Executor& chosen = shares_sums ? static_cast<Executor&>(serial) : executor;
  chosen.Run(SaturatingProduct(shape.batch, shape.num_kv_heads), run);
  if (mask_sums != nullptr) StoreMask(problem, mask_sums, buffers.grad_attn_mask);
}

}  // namespace attndrop
