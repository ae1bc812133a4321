// SPDX-License-Identifier: Apache-2.0
// attndrop::analyze and ::simulate, the statistics of one head, and attndrop::schemes.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attndrop/attndrop.h"

#include "allocate.h"
#include "call.h"
#include "errors.h"
#include "stack.h"

namespace attndrop::python {
namespace {

using torch::headeronly::ScalarType;

constexpr std::int64_t kRowFigures = 8;

Tensor Matrix(const std::vector<double>& values, std::int64_t rows, std::int64_t columns) {
  const std::int64_t sizes[] = {rows, columns};
  const Tensor tensor = Allocate(sizes, ScalarType::Double);
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

// The arguments of an operator that looks at one head; the tensors outlive the views of them.
struct AnalyzeCall {
  OptionalTensors in;
  SideTensors side;
  std::vector<std::int64_t> sizes;
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t draws = 0;  // simulate only
  Options options;

  [[nodiscard]] Problem MakeProblem() const { return AnalyzedProblem(in, side, sizes, options); }

  [[nodiscard]] AnalyzeOptions Views() const {
    AnalyzeOptions views{.batch = batch, .head = head, .mask = MaskViews(side)};
    if (in.query) views.query = InputView(*in.query);
    if (in.key) views.key = InputView(*in.key);
    if (in.value) views.value = InputView(*in.value);
    return views;
  }
};

AnalyzeCall TakeCall(Arguments& arguments, bool with_draws) {
  AnalyzeCall call;
  call.in.query = arguments.Take<std::optional<Tensor>>();
  call.in.key = arguments.Take<std::optional<Tensor>>();
  call.in.value = arguments.Take<std::optional<Tensor>>();
  call.side = TakeSideTensors(arguments);
  call.sizes = arguments.Take<std::vector<std::int64_t>>();
  call.batch = arguments.Take<std::int64_t>();
  call.head = arguments.Take<std::int64_t>();
  if (with_draws) call.draws = arguments.Take<std::int64_t>();
  call.options = TakeOptions(arguments);
  return call;
}

void AnalyzeOp(StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  Arguments arguments(stack);
  const AnalyzeCall call = TakeCall(arguments, false);
  const Problem problem = call.MakeProblem();
  const HeadAnalysis result = ValueOrThrow(Analyze(problem, call.Views()));
  const auto rows = static_cast<std::int64_t>(result.rows.size());
  const std::int64_t columns = call.in.value ? problem.shape().head_dim_v : 0;
  Return(stack, RowsTensor(result.rows), Matrix(result.out_mean, rows, columns),
         Matrix(result.out_var, rows, columns), result.out_var_status.message());
}

// Each check as a row of three: exact, estimate, z.
Tensor ChecksTensor(const std::vector<Check>& checks) {
  std::vector<double> figures;
  figures.reserve(checks.size() * 3);
  for (const Check& check : checks) {
    figures.insert(figures.end(), {check.exact, check.estimate, check.z});
  }
  return Matrix(figures, static_cast<std::int64_t>(checks.size()), 3);
}

// The checks of the rows (four a row, in the order of RowChecks), of the head, of out_mean and of
// out_var, and then max_abs_z and num_checks.
void SimulateOp(StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  Arguments arguments(stack);
  const AnalyzeCall call = TakeCall(arguments, true);
  const Problem problem = call.MakeProblem();
  const AnalyzeOptions views = call.Views();
  const HeadAnalysis exact = ValueOrThrow(Analyze(problem, views));
  const SimulationCheck result = ValueOrThrow(CheckBySimulation(problem, views, exact, call.draws));
  std::vector<Check> rows;
  for (const RowChecks& row : result.rows) {
    rows.insert(rows.end(), {row.p_zero, row.inclusion, row.mean_row_sum, row.var_row_sum});
  }
  Return(stack, ChecksTensor(rows), ChecksTensor({result.expected_zero_rows}),
         ChecksTensor(result.out_mean), ChecksTensor(result.out_var),
         Matrix({result.max_abs_z, static_cast<double>(result.num_checks)}, 1, 2));
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

STABLE_TORCH_LIBRARY_IMPL(attndrop, CPU, m) {
  m.impl("analyze", &AnalyzeOp);
  m.impl("simulate", &SimulateOp);
}

STABLE_TORCH_LIBRARY_IMPL(attndrop, CompositeExplicitAutograd, m) { m.impl("schemes", &SchemesOp); }

}  // namespace attndrop::python
