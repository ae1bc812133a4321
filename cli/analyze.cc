// SPDX-License-Identifier: Apache-2.0
// attndrop analyze: exact statistics of one head, row by row, and their check by simulation.
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "attndrop/analytics.h"

#include "cli/attention_arrays.h"
#include "cli/command.h"
#include "cli/mask_files.h"
#include "cli/problem_flags.h"
#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxIndex = (std::int64_t{1} << 32) - 1;

// A problem and the arrays that its weights and outputs come from, where given.
struct Inputs {
  LoadedProblem loaded;
  std::optional<NpyArray> query, key, value;
};

Json ToJson(const Check& check) {
  return {{"exact", JsonNumber(check.exact)},
          {"estimate", JsonNumber(check.estimate)},
          {"z", JsonNumber(check.z)}};
}

Json ToJson(const std::vector<Check>& checks) {
  Json array = Json::array();
  for (const Check& check : checks) array.push_back(ToJson(check));
  return array;
}

Json ToJson(const SimulationCheck& check) {
  Json rows = Json::array();
  for (const RowChecks& row : check.rows) {
    rows.push_back({{"row", row.row},
                    {"p_zero", ToJson(row.p_zero)},
                    {"inclusion", ToJson(row.inclusion)},
                    {"mean_row_sum", ToJson(row.mean_row_sum)},
                    {"var_row_sum", ToJson(row.var_row_sum)}});
  }
  return {{"draws", check.draws},
          {"max_abs_z", JsonNumber(check.max_abs_z)},
          {"num_checks", check.num_checks},
          {"rows", std::move(rows)},
          {"expected_zero_rows", ToJson(check.expected_zero_rows)},
          {"out_mean", ToJson(check.out_mean)},
          {"out_var", ToJson(check.out_var)}};
}

// Row `row` of a (rows, columns) array; an empty one when there is none.
std::span<const double> RowOf(const std::vector<double>& array, std::size_t row, std::size_t rows) {
  const std::size_t columns = rows == 0 ? 0 : array.size() / rows;
  return std::span(array).subspan(row * columns, columns);
}

Json Numbers(std::span<const double> values) {
  Json array = Json::array();
  for (const double value : values) array.push_back(JsonNumber(value));
  return array;
}

Json RowsToJson(const HeadAnalysis& analysis) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < analysis.rows.size(); ++i) {
    const RowStatistics& row = analysis.rows[i];
    Json json = {{"row", row.row},
                 {"visible", row.visible},
                 {"distinct_points", row.distinct_points},
                 {"p_zero", JsonNumber(row.p_zero)},
                 {"inclusion", JsonNumber(row.inclusion)},
                 {"mean_row_sum", JsonNumber(row.mean_row_sum)},
                 {"var_row_sum", JsonNumber(row.var_row_sum)},
                 {"effective_keys", JsonNumber(row.effective_keys)}};
    if (!analysis.out_mean.empty()) {
      json["out_mean"] = Numbers(RowOf(analysis.out_mean, i, analysis.rows.size()));
      json["out_var"] = Numbers(RowOf(analysis.out_var, i, analysis.rows.size()));
    }
    rows.push_back(std::move(json));
  }
  return rows;
}

double Average(std::span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

void PrintRows(const Streams& streams, const HeadAnalysis& analysis) {
  const bool has_outputs = !analysis.out_mean.empty();
  streams.out << fmt::format("{:>7} {:>8} {:>12} {:>10} {:>12} {:>12} {:>14}{}\n", "row", "visible",
                             "p_zero", "inclusion", "mean_row_sum", "var_row_sum", "effective_keys",
                             has_outputs ? "  mean_out_var" : "");
  for (std::size_t i = 0; i < analysis.rows.size(); ++i) {
    const RowStatistics& row = analysis.rows[i];
    streams.out << fmt::format("{:>7} {:>8} {:>12.6g} {:>10.6g} {:>12.6g} {:>12.6g} {:>14.6g}",
                               row.row, row.visible, row.p_zero, row.inclusion, row.mean_row_sum,
                               row.var_row_sum, row.effective_keys);
    if (has_outputs) {
      const double var = Average(RowOf(analysis.out_var, i, analysis.rows.size()));
      streams.out << fmt::format(" {:>13}", std::isnan(var) ? "-" : fmt::format("{:.6g}", var));
    }
    streams.out << '\n';
  }
}

std::string Score(double z) { return std::isnan(z) ? "-" : fmt::format("{:.2f}", z); }

void PrintCheck(const Streams& streams, const SimulationCheck& check) {
  streams.out << fmt::format("\nz scores of {} draws ((drawn - exact) / standard error)\n",
                             check.draws);
  streams.out << fmt::format("{:>7} {:>12} {:>10} {:>12} {:>12}\n", "row", "p_zero", "inclusion",
                             "mean_row_sum", "var_row_sum");
  for (const RowChecks& row : check.rows) {
    streams.out << fmt::format("{:>7} {:>12} {:>10} {:>12} {:>12}\n", row.row, Score(row.p_zero.z),
                               Score(row.inclusion.z), Score(row.mean_row_sum.z),
                               Score(row.var_row_sum.z));
  }
  streams.out << fmt::format("expected_zero_rows: exact {:.6g}, drawn {:.6g}, z {}\n",
                             check.expected_zero_rows.exact, check.expected_zero_rows.estimate,
                             Score(check.expected_zero_rows.z));
  streams.out << fmt::format("largest |z| of {} figures: {:.2f}\n", check.num_checks,
                             check.max_abs_z);
}

class AnalyzeCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "analyze"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "exact statistics of every row: chance of zero, mean, variance";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop analyze --seqlen-q 8 --causal --dropout-p 0.5 --heads 12 --layers 12\n"
           "attndrop analyze --query q.npy --key k.npy --value v.npy --dropout-p 0.1 --draws 1000";
  }

  void AddFlags(CLI::App& app) override {
    BeginGroup(app, "Arrays (without them every visible key weighs the same)");
    AddArrayFlags(app, array_flags_);
    AddSizeFlags(app, size_flags_);
    BeginGroup(app, "Statistics");
    AddFlag(app, select_, "--select", "the batch entry and head to analyze; default 0,0", "b,h");
    AddFlag(app, layers_, "--layers", "for the expected zero rows of a model; default 1", "N");
    AddFlag(app, draws_, "--draws", "check by so many masks, of offset, offset + 1, ...", "N");
    AddProblemFlags(app, problem_flags_);
    BeginGroup(app, "Run");
    AddVerboseFlag(app, run_flags_);
    AddJsonFlag(app, run_flags_);
  }

  [[nodiscard]] Status Check() override {
    FlagReader reader;
    const auto select = reader.Integers(select_, {"batch", "head"}, {0, kMaxIndex});
    if (select_.given()) {
      batch_ = select[0];
      head_ = select[1];
    }
    num_layers_ = reader.Integer(layers_, 1, {1, kMaxIndex});
    num_draws_ = reader.Integer(draws_, 0, {2, std::numeric_limits<std::int64_t>::max()});
    if (!reader.ok()) return reader.status();
    if (array_flags_.query.given() != array_flags_.key.given() ||
        (array_flags_.value.given() && !array_flags_.query.given())) {
      return Status::InvalidArgument(
          "--query and --key belong together and --value needs both: the weights come from them");
    }
    if (!array_flags_.query.given()) return CheckSizes(size_flags_, problem_flags_);
    for (const Flag* flag : {&size_flags_.batch, &size_flags_.heads, &size_flags_.kv_heads,
                             &size_flags_.seqlen_q, &size_flags_.seqlen_k, &size_flags_.problem}) {
      if (flag->given()) {
        return Status::InvalidArgument(fmt::format(
            "{} cannot be given beside --query; the sizes are those of the files", flag->name));
      }
    }
    return ReadProblemFlags(problem_flags_).status();
  }

  [[nodiscard]] Status Run(const Streams& streams) override {
    const Result<Inputs> inputs = array_flags_.query.given() ? LoadFiles() : LoadSizes();
    if (!inputs.ok()) return inputs.status();
    const Problem& problem = inputs->loaded.problem;
    if (!size_flags_.problem.given()) NoteAlignment(streams, problem_flags_, problem);
    PrintProblem(streams, run_flags_, problem);
    AnalyzeOptions options;
    options.batch = batch_;
    options.head = head_;
    if (inputs->query) options.query = ViewOf(*inputs->query);
    if (inputs->key) options.key = ViewOf(*inputs->key);
    if (inputs->value) options.value = ViewOf(*inputs->value);
    options.mask = inputs->loaded.mask_buffers();
    const Result<HeadAnalysis> analysis = Analyze(problem, options);
    if (!analysis.ok()) return analysis.status();
    std::optional<SimulationCheck> check;
    if (draws_.given()) {
      Result<SimulationCheck> drawn = CheckBySimulation(problem, options, *analysis, num_draws_);
      if (!drawn.ok()) return drawn.status();
      check = *std::move(drawn);
    } else if (!analysis->out_var_status.ok()) {
      PrintWarning(streams, analysis->out_var_status.message());
    }
    run_flags_.json ? PrintAsJson(streams, problem, *analysis, check)
                    : PrintAsText(streams, problem, *analysis, check);
    return {};
  }

 private:
  [[nodiscard]] Result<Inputs> LoadSizes() const {
    Result<LoadedProblem> loaded = LoadSizedProblem(size_flags_, problem_flags_);
    if (!loaded.ok()) return loaded.status();
    return Inputs{.loaded = *std::move(loaded), .query = {}, .key = {}, .value = {}};
  }

  [[nodiscard]] Result<Inputs> LoadFiles() const {
    Result<ProblemArgs> args = ReadProblemFlags(problem_flags_);
    if (!args.ok()) return args.status();
    // Without --value the key stands in for its shape; nothing of it is read.
    ArrayFlags flags = array_flags_;
    if (!flags.value.given()) flags.value = flags.key;
    Result<AttentionArrays> arrays = LoadArrays(flags, *args);
    if (!arrays.ok()) return arrays.status();
    Result<LoadedProblem> loaded = LoadProblem(problem_flags_, *std::move(args));
    if (!loaded.ok()) return loaded.status();
    if (Status rows = CheckRows(flags, *arrays, loaded->problem); !rows.ok()) return rows;
    Inputs inputs{.loaded = *std::move(loaded),
                  .query = std::move(arrays->query),
                  .key = std::move(arrays->key),
                  .value = {}};
    if (array_flags_.value.given()) inputs.value = std::move(arrays->value);
    return {std::move(inputs)};
  }

  [[nodiscard]] double OfModel(const Problem& problem, const HeadAnalysis& analysis) const {
    return ExpectedZeroRowsOfModel(analysis.expected_zero_rows, problem.shape().num_heads,
                                   num_layers_);
  }

  void PrintAsJson(const Streams& streams, const Problem& problem, const HeadAnalysis& analysis,
                   const std::optional<SimulationCheck>& check) const {
    Json json = {{"problem", problem.ToString()},
                 {"batch", batch_},
                 {"head", head_},
                 {"keep_prob", problem.keep_prob()},
                 {"rows", RowsToJson(analysis)},
                 {"expected_zero_rows", JsonNumber(analysis.expected_zero_rows)},
                 {"expected_zero_rows_model",
                  {{"layers", num_layers_},
                   {"heads", problem.shape().num_heads},
                   {"value", JsonNumber(OfModel(problem, analysis))}}}};
    if (check) json["check"] = ToJson(*check);
    PrintJson(streams, json);
  }

  void PrintAsText(const Streams& streams, const Problem& problem, const HeadAnalysis& analysis,
                   const std::optional<SimulationCheck>& check) const {
    PrintRows(streams, analysis);
    streams.out << fmt::format(
        "\nexpected_zero_rows: {:.6g} per head of {} rows, {:.6g} in {} "
        "layer{} of {} head{}\n",
        analysis.expected_zero_rows, analysis.rows.size(), OfModel(problem, analysis), num_layers_,
        num_layers_ == 1 ? "" : "s", problem.shape().num_heads,
        problem.shape().num_heads == 1 ? "" : "s");
    if (check) PrintCheck(streams, *check);
  }

  ArrayFlags array_flags_;
  SizeFlags size_flags_;
  ProblemFlags problem_flags_;
  RunFlags run_flags_;
  Flag select_, layers_, draws_;
  std::int64_t batch_ = 0;
  std::int64_t head_ = 0;
  std::int64_t num_layers_ = 1;
  std::int64_t num_draws_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeAnalyzeCommand() { return std::make_unique<AnalyzeCommand>(); }

}  // namespace attndrop::cli
