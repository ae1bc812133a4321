// SPDX-License-Identifier: Apache-2.0
// The library as plain functions, for bench/peers.py: dense arrays by address, problems as lines.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "attndrop/attention.h"

using attndrop::Plan;
using attndrop::PlanOptions;
using attndrop::Problem;
using attndrop::Result;
using attndrop::Status;
using attndrop::Strided;

// A problem ready to run; opaque outside.
struct AttndropCall {
  Plan plan;
  attndrop::ThreadExecutor executor;
  attndrop::Scratch scratch;
  std::string error;
};

// Addresses of dense (batch, heads, seqlen, head_dim) arrays; null where there is none. attn_mask
// has length 1 on the axes that the problem's form does not vary over.
struct AttndropArrays {
  const void* query;
  const void* key;
  const void* value;
  const void* attn_mask;
  void* out;
  float* logsumexp;
  const void* grad_out;
  void* grad_query;
  void* grad_key;
  void* grad_value;
};

extern "C" {
// target: a name, or "" for the widest. Null when the problem is refused: then error holds why.
AttndropCall* attndrop_open(const char* line, const char* target, int threads, char* error,
                            std::size_t error_size);
void attndrop_close(AttndropCall* call);
// 0: done. Else attndrop_error tells what went wrong.
int attndrop_forward(AttndropCall* call, const AttndropArrays* arrays);
int attndrop_backward(AttndropCall* call, const AttndropArrays* arrays);
// (batch, num_heads, seqlen_q, seqlen_k), both.
int attndrop_keep_mask(AttndropCall* call, const AttndropArrays* arrays, std::uint8_t* keep,
                       double* factors);
const char* attndrop_error(const AttndropCall* call);
}

namespace {

Result<Plan> MakePlan(const char* line, std::string_view target) {
  const Result<Problem> problem = Problem::Parse(line);
  if (!problem.ok()) return problem.status();
  PlanOptions options;
  if (!target.empty()) {
    const Result<attndrop::Target> parsed = attndrop::ParseTarget(target);
    if (!parsed.ok()) return parsed.status();
    options.target = *parsed;
  }
  return Plan::Make(*problem, options);
}

void Copy(const std::string& text, char* to, std::size_t size) {
  if (size == 0) return;
  const std::size_t length = text.copy(to, size - 1);
  to[length] = '\0';
}

// (batch, heads, rows, cols) with rows and cols as the problem has them.
class Views {
 public:
  explicit Views(const Problem& problem) : problem_(problem) {}

  template <class T>
  [[nodiscard]] Strided<T> OfQuery(T* data, std::int64_t cols) const {
    return attndrop::Dense(data, problem_.shape().num_heads, problem_.rows_q(), cols);
  }
  template <class T>
  [[nodiscard]] Strided<T> OfKey(T* data, std::int64_t cols) const {
    return attndrop::Dense(data, problem_.shape().num_kv_heads, problem_.rows_k(), cols);
  }
  [[nodiscard]] attndrop::MaskBuffers Mask(const void* data) const {
    attndrop::MaskBuffers mask;
    if (data == nullptr) return mask;
    const attndrop::MaskForm& form = problem_.attn_mask();
    mask.attn_mask = attndrop::Dense(data, form.per_head ? problem_.shape().num_heads : 1,
                                     form.per_query ? problem_.shape().seqlen_q : 1,
                                     form.per_key ? problem_.shape().seqlen_k : 1);
    return mask;
  }

 private:
  const Problem& problem_;
};

int Finish(AttndropCall* call, const Status& status) {
  call->error = status.ok() ? "" : status.message();
  return status.ok() ? 0 : 1;
}

}  // namespace

AttndropCall* attndrop_open(const char* line, const char* target, int threads, char* error,
                            std::size_t error_size) {
  Result<Plan> plan = MakePlan(line, target);
  if (!plan.ok()) {
    Copy(plan.status().message(), error, error_size);
    return nullptr;
  }
  Result<attndrop::ThreadExecutor> executor = attndrop::ThreadExecutor::Make(threads);
  if (!executor.ok()) {
    Copy(executor.status().message(), error, error_size);
    return nullptr;
  }
  return new AttndropCall{*std::move(plan), *std::move(executor), attndrop::Scratch(), ""};
}

void attndrop_close(AttndropCall* call) { delete call; }

int attndrop_forward(AttndropCall* call, const AttndropArrays* arrays) {
  const Problem& problem = call->plan.problem();
  const Views views(problem);
  const attndrop::ForwardBuffers buffers{
      .query = views.OfQuery(arrays->query, problem.shape().head_dim),
      .key = views.OfKey(arrays->key, problem.shape().head_dim),
      .value = views.OfKey(arrays->value, problem.shape().head_dim_v),
      .mask = views.Mask(arrays->attn_mask),
      .out = views.OfQuery(arrays->out, problem.shape().head_dim_v),
      .logsumexp = views.OfQuery<void>(arrays->logsumexp, 1)};
  return Finish(call, attndrop::Forward(call->plan, buffers, call->executor, call->scratch));
}

int attndrop_backward(AttndropCall* call, const AttndropArrays* arrays) {
  const Problem& problem = call->plan.problem();
  const std::int64_t dim = problem.shape().head_dim;
  const std::int64_t dim_v = problem.shape().head_dim_v;
  const Views views(problem);
  attndrop::BackwardBuffers buffers;
  buffers.query = views.OfQuery(arrays->query, dim);
  buffers.key = views.OfKey(arrays->key, dim);
  buffers.value = views.OfKey(arrays->value, dim_v);
  buffers.mask = views.Mask(arrays->attn_mask);
  buffers.out = views.OfQuery<const void>(arrays->out, dim_v);
  buffers.logsumexp = views.OfQuery<const void>(arrays->logsumexp, 1);
  buffers.grad_out = views.OfQuery(arrays->grad_out, dim_v);
  buffers.grad_query = views.OfQuery(arrays->grad_query, dim);
  buffers.grad_key = views.OfKey(arrays->grad_key, dim);
  buffers.grad_value = views.OfKey(arrays->grad_value, dim_v);
  return Finish(call, attndrop::Backward(call->plan, buffers, call->executor, call->scratch));
}

int attndrop_keep_mask(AttndropCall* call, const AttndropArrays* arrays, std::uint8_t* keep,
                       double* factors) {
  const Problem& problem = call->plan.problem();
  attndrop::KeepMaskBuffers buffers;
  buffers.mask = Views(problem).Mask(arrays->attn_mask);
  buffers.keep = keep;
  buffers.factors = factors;
  return Finish(call, attndrop::KeepMask(problem, buffers, call->executor));
}

const char* attndrop_error(const AttndropCall* call) { return call->error.c_str(); }
