// SPDX-License-Identifier: Apache-2.0
// attndrop::forward, attndrop::backward and attndrop::keep_mask for tensors on the CPU.
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attndrop/attndrop.h"

#include "allocate.h"
#include "call.h"
#include "errors.h"
#include "stack.h"
#include "torch_executor.h"

namespace attndrop::python {
namespace {

using torch::headeronly::ScalarType;

ScalarType LogsumexpType(const Tensor& query) {
  return query.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

void ForwardOp(StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  Arguments arguments(stack);
  AttentionTensors in{.query = arguments.Take<Tensor>(),
                      .key = arguments.Take<Tensor>(),
                      .value = arguments.Take<Tensor>()};
  const SideTensors side = TakeSideTensors(arguments);
  const Options options = TakeOptions(arguments);

  const AttentionShape shape = ShapeOf(in);
  const Problem problem = MakeProblem(shape, DTypeOf(in.query, "query"), side, options);
  const Plan plan = ValueOrThrow(Plan::Make(problem));
  const Tensor out = AllocateInOrderOf(in.query, shape.head_dim_v);
  const Tensor logsumexp =
      Allocate(std::array{shape.batch, shape.num_heads, shape.seqlen_q}, LogsumexpType(in.query));
  TorchExecutor executor;
  Scratch scratch;
  ThrowUnlessOk(Forward(plan,
                        {.query = InputView(in.query),
                         .key = InputView(in.key),
                         .value = InputView(in.value),
                         .mask = MaskViews(side),
                         .out = OutputView(out),
                         .logsumexp = OutputView(logsumexp)},
                        executor, scratch));
  Return(stack, out, logsumexp);
}

struct GradientTensors {
  Tensor query;
  Tensor key;
  Tensor value;
  Tensor attn_mask;
};

// What is not wanted stays an empty tensor.
GradientTensors EmptyGradients(const AttentionTensors& in, const SideTensors& side,
                               const std::vector<std::int64_t>& wanted) {
  const Tensor none = Allocate(std::array{std::int64_t{0}}, in.query.scalar_type());
  const auto like = [&](std::size_t index, const Tensor& tensor) {
    return wanted[index] != 0 ? AllocateInOrderOf(tensor, tensor.size(3)) : none;
  };
  GradientTensors grads{like(0, in.query), like(1, in.key), like(2, in.value), none};
  if (wanted[3] != 0) {
    if (!side.attn_mask) Refuse("value", "a gradient of attn_mask is wanted but there is none");
    const Tensor& mask = *side.attn_mask;
    grads.attn_mask = Allocate(std::array{mask.size(0), mask.size(1), mask.size(2), mask.size(3)},
                               mask.scalar_type());
  }
  return grads;
}

Strided<void> OutputViewIf(std::int64_t wanted, const Tensor& tensor) {
  return wanted != 0 ? OutputView(tensor) : Strided<void>{};
}

void CheckResult(const Tensor& tensor, const char* name, ScalarType type,
                 std::span<const std::int64_t> sizes) {
  bool equal = tensor.is_cpu() && tensor.dim() == static_cast<std::int64_t>(sizes.size()) &&
               tensor.scalar_type() == type;
  for (std::size_t axis = 0; equal && axis < sizes.size(); ++axis) {
    equal = tensor.size(static_cast<std::int64_t>(axis)) == sizes[axis];
  }
  if (equal) return;
  std::string wanted;
  for (const std::int64_t size : sizes)
    wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
  Refuse("value", std::string(name) + " must be a " + torch::headeronly::toString(type) +
                      " tensor of shape (" + wanted + ") on the CPU, got " +
                      torch::headeronly::toString(tensor.scalar_type()) + " of shape " +
                      ShapeText(tensor));
}

struct BackwardTensors {
  Tensor grad_out;
  std::optional<Tensor> grad_logsumexp;
  AttentionTensors in;
  Tensor out;
  Tensor logsumexp;
};

void CheckBackwardTensors(const BackwardTensors& t, const AttentionShape& shape) {
  const std::array out_sizes{shape.batch, shape.num_heads, shape.seqlen_q, shape.head_dim_v};
  const std::span rows = std::span(out_sizes).first<3>();
  const ScalarType type = t.in.query.scalar_type();
  const ScalarType logsumexp_type = LogsumexpType(t.in.query);
  CheckResult(t.grad_out, "grad_out", type, out_sizes);
  CheckResult(t.out, "out", type, out_sizes);
  CheckResult(t.logsumexp, "logsumexp", logsumexp_type, rows);
  if (t.grad_logsumexp) CheckResult(*t.grad_logsumexp, "grad_logsumexp", logsumexp_type, rows);
}

void BackwardOp(StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  Arguments arguments(stack);
  const BackwardTensors t{.grad_out = arguments.Take<Tensor>(),
                          .grad_logsumexp = arguments.Take<std::optional<Tensor>>(),
                          .in = {.query = arguments.Take<Tensor>(),
                                 .key = arguments.Take<Tensor>(),
                                 .value = arguments.Take<Tensor>()},
                          .out = arguments.Take<Tensor>(),
                          .logsumexp = arguments.Take<Tensor>()};
  const SideTensors side = TakeSideTensors(arguments);
  const auto wanted = arguments.Take<std::vector<std::int64_t>>();
  const Options options = TakeOptions(arguments);
  if (wanted.size() != 4) Refuse("value", "wanted must hold four numbers, 0 or 1");

  const AttentionShape shape = ShapeOf(t.in);
  CheckBackwardTensors(t, shape);
  const Problem problem = MakeProblem(shape, DTypeOf(t.in.query, "query"), side, options);
  const Plan plan = ValueOrThrow(Plan::Make(problem));
  const GradientTensors grads = EmptyGradients(t.in, side, wanted);
  BackwardBuffers buffers{.query = InputView(t.in.query),
                          .key = InputView(t.in.key),
                          .value = InputView(t.in.value),
                          .mask = MaskViews(side),
                          .out = InputView(t.out),
                          .logsumexp = InputView(t.logsumexp),
                          .grad_out = InputView(t.grad_out)};
  if (t.grad_logsumexp) buffers.grad_logsumexp = InputView(*t.grad_logsumexp);
  buffers.grad_query = OutputViewIf(wanted[0], grads.query);
  buffers.grad_key = OutputViewIf(wanted[1], grads.key);
  buffers.grad_value = OutputViewIf(wanted[2], grads.value);
  buffers.grad_attn_mask = OutputViewIf(wanted[3], grads.attn_mask);
  TorchExecutor executor;
  Scratch scratch;
  ThrowUnlessOk(Backward(plan, buffers, executor, scratch));
  Return(stack, grads.query, grads.key, grads.value, grads.attn_mask);
}

void KeepMaskOp(StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  Arguments arguments(stack);
  const SideTensors side = TakeSideTensors(arguments);
  const auto sizes = arguments.Take<std::vector<std::int64_t>>();
  const bool with_factors = arguments.Take<bool>();
  const Options options = TakeOptions(arguments);
  if (sizes.size() != 4) Refuse("value", "sizes must hold batch, heads, seqlen_q and seqlen_k");

  const AttentionShape arrays{
      .batch = sizes[0], .num_heads = sizes[1], .seqlen_q = sizes[2], .seqlen_k = sizes[3]};
  const Problem problem = MakeProblem(arrays, DType::kFloat64, side, options);
  const AttentionShape& shape = problem.shape();
  const std::vector<std::int64_t> mask_sizes{shape.batch, shape.num_heads, shape.seqlen_q,
                                             shape.seqlen_k};
  const Tensor keep = Allocate(mask_sizes, ScalarType::Bool);
  const Tensor factors =
      Allocate(with_factors ? mask_sizes : std::vector<std::int64_t>{0}, ScalarType::Double);
  KeepMaskBuffers buffers{.mask = MaskViews(side),
                          .keep = static_cast<std::uint8_t*>(keep.mutable_data_ptr())};
  if (with_factors) buffers.factors = static_cast<double*>(factors.mutable_data_ptr());
  TorchExecutor executor;
  ThrowUnlessOk(KeepMask(problem, buffers, executor));
  Return(stack, keep, factors);
}

}  // namespace

// The bool tensor is written as bytes 0 and 1.
static_assert(sizeof(bool) == 1);

STABLE_TORCH_LIBRARY_IMPL(attndrop, CPU, m) {
  m.impl("forward", &ForwardOp);
  m.impl("backward", &BackwardOp);
  m.impl("keep_mask", &KeepMaskOp);
}

}  // namespace attndrop::python
