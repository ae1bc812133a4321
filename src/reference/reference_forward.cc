// SPDX-License-Identifier: Apache-2.0
// Forward, one task for each (batch, key/value head): out_i = sum_j f_ij w_ij value_j (A4).
#include <algorithm>
#include <limits>

#include "core/array_view.h"
#include "reference/reference.h"
#include "reference/reference_row.h"

namespace attndrop {
namespace {

class ForwardWorker {
 public:
  ForwardWorker(const Problem& problem, const ForwardBuffers& buffers, Arena& arena) noexcept
      : problem_(problem), buffers_(buffers), softmax_(problem, buffers.mask, arena) {
    const AttentionShape& shape = problem.shape();
    key_ = arena.Take<double>(SaturatingProduct(shape.seqlen_k, shape.head_dim));
    value_ = arena.Take<double>(SaturatingProduct(shape.seqlen_k, shape.head_dim_v));
    query_ = arena.Take<double>(shape.head_dim);
    out_ = arena.Take<double>(shape.head_dim_v);
  }

  void Run(std::int64_t batch, std::int64_t kv_head) {
    const AttentionShape& shape = problem_.shape();
    const Sequence sequence = problem_.sequence(batch);
    const std::int64_t array_batch = ArrayBatch(problem_, batch);
    const HeadRows keys{array_batch, kv_head, sequence.first_row_k, sequence.seqlen_k};
    LoadRows(problem_.dtype(), buffers_.key, keys, shape.head_dim, key_);
    LoadRows(problem_.dtype(), buffers_.value, keys, shape.head_dim_v, value_);
    const std::int64_t group = shape.num_heads / shape.num_kv_heads;
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (std::int64_t query = 0; query < sequence.seqlen_q; ++query) {
        RunRow(MakeRow(problem_, batch, head, query),
               {array_batch, head, sequence.first_row_q + query, 1});
      }
      const HeadRows unused = UnusedRowsQ(problem_, sequence, batch, head);
      FillRows(problem_.dtype(), 0.0, unused, shape.head_dim_v, buffers_.out);
      StoreLogsumexp(-std::numeric_limits<double>::infinity(), unused);
    }
  }

 private:
  void RunRow(const Row& row, const HeadRows& place) {
    const AttentionShape& shape = problem_.shape();
    LoadRows(problem_.dtype(), buffers_.query, place, shape.head_dim, query_);
    softmax_.Compute(row, query_, key_);
    const RowNumbers& numbers = softmax_.numbers();
    std::fill(out_, out_ + shape.head_dim_v, 0.0);
    const double* value = value_ + row.local.begin * shape.head_dim_v;
    for (std::int64_t i = 0; i < row.local.size(); ++i, value += shape.head_dim_v) {
      // A dropped or masked value must not even meet a zero: it may be NaN.
      if (numbers.factors[i] == 0.0) continue;
      AddScaled(numbers.factors[i] * numbers.weights[i], value, out_, shape.head_dim_v);
    }
    StoreRows(problem_.dtype(), out_, place, shape.head_dim_v, buffers_.out);
    StoreLogsumexp(numbers.logsumexp, place);
  }

  void StoreLogsumexp(double logsumexp, const HeadRows& rows) const noexcept {
    if (buffers_.logsumexp.data == nullptr) return;
    FillRows(DTypeOf(problem_, Role::kLogsumexp), logsumexp, rows, 1, buffers_.logsumexp);
  }

  const Problem& problem_;
  const ForwardBuffers& buffers_;
  RowSoftmax softmax_;
  double* key_ = nullptr;    // [seqlen_k][head_dim]
  double* value_ = nullptr;  // [seqlen_k][head_dim_v]
  double* query_ = nullptr;  // [head_dim]
  double* out_ = nullptr;    // [head_dim_v]
};

}  // namespace

std::size_t ReferenceForwardScratchBytes(const Problem& problem, int num_workers) noexcept {
  Arena measure;
  const ForwardBuffers no_buffers;
  const ForwardWorker worker(problem, no_buffers, measure);
  return SaturatingTimes(measure.bytes(), num_workers);
}

void ReferenceForward(const Problem& problem, const ForwardBuffers& buffers, Executor& executor,
                      std::byte* scratch) {
  const AttentionShape& shape = problem.shape();
  const std::size_t worker_bytes = ReferenceForwardScratchBytes(problem, 1);
  const auto run = [&](std::int64_t task, int worker) {
    Arena arena(scratch + worker_bytes * static_cast<std::size_t>(worker));
    ForwardWorker(problem, buffers, arena)
        .Run(task / shape.num_kv_heads, task % shape.num_kv_heads);
  };
  executor.Run(shape.batch * shape.num_kv_heads, run);
}

}  // namespace attndrop
