// SPDX-License-Identifier: Apache-2.0
// attndrop::analyze, the exact statistics of one head, and attndrop::schemes.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/stable/ops.h>

#include "attndrop/attndrop.h"

#include "call.h"
#include "errors.h"
#include "stack.h"

namespace attndrop::python {
namespace {

using torch::headeronly::ScalarType;

constexpr std::int64_t kRowFigures = 8;

Tensor Matrix(const std::vector<double>& values, std::int64_t rows, std::int64_t columns) {
  const std::int64_t sizes[] = {rows, columns};
  const Tensor tensor = torch::stable::empty(sizes, ScalarType::Double);
  std::copy(values.begin(), values.end(), static_cast<double*>(tensor.mutable_data_ptr()));
  return tensor;
}

// The columns of `rows` in the order of RowStatistics.
Tensor RowsTensor(const std::vector<RowStatistics>& rows) {
  std::vector<double> figures;
  figures.reserve(rows.size() * kRowFigures);
  for (const RowStatistics& row : rows) {
    figures.insert(figures.end(),
                   {static_cast<double>(row.row), static_cast<double>(row.visible),
                    static_cast<double>(row.distinct_points), row.p_zero, row.inclusion,
                    row.mean_row_sum, row.var_row_sum, row.effective_keys});
  }
  return Matrix(figures, static_cast<std::int64_t>(rows.size()), kRowFigures);
}

struct OptionalTensors {
  std::optional<Tensor> query;
  std::optional<Tensor> key;
  std::optional<Tensor> value;
};

// sizes: batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v of the arrays.
Problem AnalyzedProblem(const OptionalTensors& in, const SideTensors& side,
                        const std::vector<std::int64_t>& sizes, const Options& options) {
  if (sizes.size() != 7) Refuse("value", "sizes must hold seven numbers");
  if (in.query.has_value() != in.key.has_value()) {
    Refuse("value", "query and key come together, got only one of them");
  }
  AttentionShape shape{.batch = sizes[0],
                       .num_heads = sizes[1],
                       .num_kv_heads = sizes[2],
                       .seqlen_q = sizes[3],
                       .seqlen_k = sizes[4],
                       .head_dim = sizes[5],
                       .head_dim_v = sizes[6]};
  DType dtype = DType::kFloat64;
  if (in.query && in.value) {
    shape = ShapeOf({.query = *in.query, .key = *in.key, .value = *in.value});
    dtype = DTypeOf(*in.query, "query");
  } else if (in.query) {
    shape = ShapeOf({.query = *in.query, .key = *in.key, .value = *in.key});
    dtype = DTypeOf(*in.query, "query");
  } else if (in.value) {
    dtype = DTypeOf(*in.value, "value");
    if (in.value->dim() != 4 || in.value->size(0) != sizes[0] || in.value->size(1) != sizes[2] ||
        in.value->size(2) != sizes[4]) {
      Refuse("value",
             "value must have the shape (batch, num_kv_heads, seqlen_k, head_dim_v), got " +
                 ShapeText(*in.value));
    }
  }
  return MakeProblem(shape, dtype, side, options);
}

void AnalyzeOp(StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  Arguments arguments(stack);
  const OptionalTensors in{.query = arguments.Take<std::optional<Tensor>>(),
                           .key = arguments.Take<std::optional<Tensor>>(),
                           .value = arguments.Take<std::optional<Tensor>>()};
  const SideTensors side = TakeSideTensors(arguments);
  const auto sizes = arguments.Take<std::vector<std::int64_t>>();
  const auto batch = arguments.Take<std::int64_t>();
  const auto head = arguments.Take<std::int64_t>();
  const Options options = TakeOptions(arguments);

  const Problem problem = AnalyzedProblem(in, side, sizes, options);
  AnalyzeOptions analyze{.batch = batch, .head = head, .mask = MaskViews(side)};
  if (in.query) analyze.query = InputView(*in.query);
  if (in.key) analyze.key = InputView(*in.key);
  if (in.value) analyze.value = InputView(*in.value);
  const HeadAnalysis result = ValueOrThrow(Analyze(problem, analyze));
  const auto rows = static_cast<std::int64_t>(result.rows.size());
  const std::int64_t columns = in.value ? problem.shape().head_dim_v : 0;
  Return(stack, RowsTensor(result.rows), Matrix(result.out_mean, rows, columns),
         Matrix(result.out_var, rows, columns), result.out_var_status.message());
}

// One line for each scheme: name, summary and parameters (name=default), separated by tabs.
void SchemesOp(StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  std::string text;
  for (const Scheme& scheme : Schemes()) {
    if (!text.empty()) text += '\n';
    text += std::string(scheme.info.name) + '\t' + std::string(scheme.info.summary);
    for (std::size_t i = 0; i < scheme.info.num_params; ++i) {
      const SchemeParam& param = scheme.info.params[i];
      text += '\t' + std::string(param.name) + '=' + std::to_string(param.default_value);
    }
  }
  Return(stack, text);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attndrop, CPU, m) { m.impl("analyze", &AnalyzeOp); }

STABLE_TORCH_LIBRARY_IMPL(attndrop, CompositeExplicitAutograd, m) { m.impl("schemes", &SchemesOp); }

}  // namespace attndrop::python
