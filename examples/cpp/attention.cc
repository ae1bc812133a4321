// SPDX-License-Identifier: Apache-2.0
// A torch::autograd::Function over attndrop's Forward and Backward, on libtorch's own threads.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <ATen/Parallel.h>
#include <attndrop/attndrop.h>

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Two pools of threads would be in each other's way.
class TorchExecutor final : public attndrop::Executor {
 public:
  [[nodiscard]] int num_workers() const noexcept override { return std::max(1, threads_); }

  void Run(std::int64_t num_tasks, attndrop::TaskBody body) override {
    std::atomic<std::int64_t> next_task = 0;
    const auto work = [&](std::int64_t worker, std::int64_t /*end*/) {
      for (std::int64_t task = next_task++; task < num_tasks; task = next_task++) {
        body(task, static_cast<int>(worker));
      }
    };
    at::parallel_for(0, std::min<std::int64_t>(num_workers(), num_tasks), 1, work);
  }

 private:
  int threads_ = at::get_num_threads();
};

void Check(const attndrop::Status& status) { TORCH_CHECK(status.ok(), status.message()); }

attndrop::Strided<const void> Input(const Tensor& dense) {
  return attndrop::Dense<const void>(dense.const_data_ptr(), dense.size(1), dense.size(2),
                                     dense.size(3));
}

attndrop::Strided<void> Output(const Tensor& dense) {
  return attndrop::Dense<void>(dense.mutable_data_ptr(), dense.size(1), dense.size(2),
                               dense.size(3));
}

// logsumexp is (batch, heads, length).
template <class T>
attndrop::Strided<T> Rows(T* data, const Tensor& dense) {
  return attndrop::Dense<T>(data, dense.size(1), dense.size(2), 1);
}

attndrop::Plan MakePlan(const Tensor& query, const Tensor& key, double scale,
                        const AttentionDropout& dropout) {
  attndrop::ProblemArgs args;
  args.shape = {.batch = query.size(0),
                .num_heads = query.size(1),
                .seqlen_q = query.size(2),
                .seqlen_k = key.size(2),
                .head_dim = query.size(3)};
  args.is_causal = true;
  args.scale = scale;
  args.dropout = {.dropout_p = dropout.dropout_p,
                  .empty_row = {attndrop::EmptyRow::kAtLeastOne},
                  .seed = dropout.seed,
                  .offset = dropout.offset};
  const attndrop::Result<attndrop::Problem> problem = attndrop::Problem::Make(args);
  Check(problem.status());
  attndrop::Result<attndrop::Plan> plan = attndrop::Plan::Make(*problem);
  Check(plan.status());
  return *std::move(plan);
}

struct Attention : torch::autograd::Function<Attention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key,
                        const Tensor& value, double scale, const AttentionDropout& dropout) {
    const Tensor q = query.contiguous(), k = key.contiguous(), v = value.contiguous();
    const Tensor out = torch::empty_like(q);
    const Tensor logsumexp = torch::empty({q.size(0), q.size(1), q.size(2)}, q.options());
    const attndrop::ForwardBuffers buffers{
        .query = Input(q),
        .key = Input(k),
        .value = Input(v),
        .out = Output(out),
        .logsumexp = Rows(logsumexp.mutable_data_ptr(), logsumexp)};
    TorchExecutor executor;
    attndrop::Scratch scratch;
    Check(attndrop::Forward(MakePlan(q, k, scale, dropout), buffers, executor, scratch));

    // Nothing quadratic is kept: backward draws the mask again.
    ctx->save_for_backward({q, k, v, out, logsumexp});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["dropout_p"] = dropout.dropout_p;
    ctx->saved_data["seed"] = static_cast<std::int64_t>(dropout.seed);
    ctx->saved_data["offset"] = static_cast<std::int64_t>(dropout.offset);
    return out;
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    TORCH_CHECK(!torch::GradMode::is_enabled(), "second derivatives are not built in this example");
    const tensor_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const AttentionDropout dropout{
        .dropout_p = ctx->saved_data["dropout_p"].toDouble(),
        .seed = static_cast<std::uint64_t>(ctx->saved_data["seed"].toInt()),
        .offset = static_cast<std::uint64_t>(ctx->saved_data["offset"].toInt())};
    const Tensor grad_out = grads[0].contiguous();
    const Tensor grad_q = torch::empty_like(q), grad_k = torch::empty_like(k),
                 grad_v = torch::empty_like(v);
    const attndrop::BackwardBuffers buffers{.query = Input(q),
                                            .key = Input(k),
                                            .value = Input(v),
                                            .out = Input(out),
                                            .logsumexp = Rows(lse.const_data_ptr(), lse),
                                            .grad_out = Input(grad_out),
                                            .grad_query = Output(grad_q),
                                            .grad_key = Output(grad_k),
                                            .grad_value = Output(grad_v)};
    TorchExecutor executor;
    attndrop::Scratch scratch;
    const double scale = ctx->saved_data["scale"].toDouble();
    Check(attndrop::Backward(MakePlan(q, k, scale, dropout), buffers, executor, scratch));
    return {grad_q, grad_k, grad_v, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor CausalAttention(const Tensor& query, const Tensor& key, const Tensor& value, double scale,
                       const AttentionDropout& dropout) {
  for (const Tensor& t : {query, key, value}) {
    TORCH_CHECK(t.dim() == 4 && t.device().is_cpu() && t.scalar_type() == torch::kFloat,
                "query, key and value must be float32 on the CPU with four axes, got ",
                t.toString(), " of shape ", t.sizes());
  }
  TORCH_CHECK(query.sizes() == key.sizes() && key.sizes() == value.sizes(),
              "query, key and value must have one shape, got ", query.sizes(), ", ", key.sizes(),
              " and ", value.sizes());
  return Attention::apply(query, key, value, scale, dropout);
}
