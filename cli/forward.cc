// SPDX-License-Identifier: Apache-2.0
// attndrop forward: attention of three files, written to files.
#include <utility>
#include <vector>

#include "attndrop/attention.h"
#include "attndrop/plan.h"
#include "attndrop/scratch.h"

#include "cli/attention_arrays.h"
#include "cli/command.h"
#include "cli/problem_flags.h"
#include "cli/progress.h"
#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

class ForwardCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "forward"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "attention of --query, --key and --value, to --out";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop forward --query q.npy --key k.npy --value v.npy --causal --out out.npy\n"
           "attndrop forward --query q.npy --key k.npy --value v.npy --out out.npy --dropout-p 0.1 "
           "\\\n"
           "    --seed 7 --scheme key --empty-row undropped --logsumexp lse.npy";
  }

  void AddFlags(CLI::App& app) override {
    BeginGroup(app, "Arrays");
    AddArrayFlags(app, array_flags_);
    AddFlag(app, out_, "--out", "result: batch, heads, seqlen_q, head_dim_v", "FILE");
    AddFlag(app, logsumexp_, "--logsumexp", "result: batch, heads, seqlen_q", "FILE");
    AddProblemFlags(app, problem_flags_);
    BeginGroup(app, "Run");
    AddThreadsFlag(app, run_flags_);
    AddPathFlag(app, run_flags_);
    AddTargetFlag(app, run_flags_);
    AddForceFlag(app, run_flags_);
    AddVerboseFlag(app, run_flags_);
    AddJsonFlag(app, run_flags_);
  }

  [[nodiscard]] Status Check() override {
    for (const Flag* flag : {&array_flags_.query, &array_flags_.key, &array_flags_.value}) {
      if (Status there = RequireFlag(*flag, "a .npy file"); !there.ok()) return there;
    }
    if (!out_.given() && !logsumexp_.given()) {
      return Status::InvalidArgument("there is nothing to write: give --out, --logsumexp or both");
    }
    if (Status executor = MakeExecutor(run_flags_).status(); !executor.ok()) return executor;
    if (Status options = ReadPlanOptions(run_flags_).status(); !options.ok()) return options;
    return ReadProblemFlags(problem_flags_).status();
  }

  [[nodiscard]] Status Run(const Streams& streams) override {
    OutputSet outputs(run_flags_.force);
    for (const Flag* flag : {&out_, &logsumexp_}) {
      if (!flag->given()) continue;
      if (Status added = outputs.Add(flag->name, *flag->text); !added.ok()) return added;
    }
    Result<ProblemArgs> args = ReadProblemFlags(problem_flags_);
    if (!args.ok()) return args.status();
    const Result<AttentionArrays> arrays = LoadArrays(array_flags_, *args);
    if (!arrays.ok()) return arrays.status();
    const Result<LoadedProblem> loaded = LoadProblem(problem_flags_, *std::move(args));
    if (!loaded.ok()) return loaded.status();
    if (Status rows = CheckRows(array_flags_, *arrays, loaded->problem); !rows.ok()) return rows;
    NoteAlignment(streams, problem_flags_, loaded->problem);
    PrintProblem(streams, run_flags_, loaded->problem);
    return Compute(*arrays, *loaded, outputs, streams);
  }

 private:
  [[nodiscard]] Status Compute(const AttentionArrays& arrays, const LoadedProblem& loaded,
                               const OutputSet& outputs, const Streams& streams) const {
    const Problem& problem = loaded.problem;
    const std::int64_t batch = problem.array_batch();
    const std::int64_t heads = problem.shape().num_heads;
    const std::int64_t rows = problem.rows_q();
    const NpyType type = arrays.query.header.type;
    const NpyType logsumexp_type =
        type == NpyType::kFloat64 ? NpyType::kFloat64 : NpyType::kFloat32;
    std::vector<ResultArray> results;
    // The computation always has an out; without --out it is not written.
    Result<ResultArray> out =
        ResultArray::Make("--out", type, {batch, heads, rows, problem.shape().head_dim_v});
    if (!out.ok()) return out.status();
    if (Status added =
            AddResult(outputs, logsumexp_, logsumexp_type, {batch, heads, rows}, results);
        !added.ok()) {
      return added;
    }
    const ResultArray* logsumexp = FindResult(logsumexp_, results);
    const ForwardBuffers buffers{
        .query = ViewOf(arrays.query),
        .key = ViewOf(arrays.key),
        .value = ViewOf(arrays.value),
        .mask = loaded.mask_buffers(),
        .out = out->view(),
        .logsumexp = logsumexp == nullptr ? Strided<void>{} : logsumexp->row_view()};
    const Result<PlanOptions> options = ReadPlanOptions(run_flags_);
    if (!options.ok()) return options.status();
    const Result<Plan> plan = Plan::Make(problem, *options);
    if (!plan.ok()) return plan.status();
    Result<ThreadExecutor> threads = MakeExecutor(run_flags_);
    if (!threads.ok()) return threads.status();
    ProgressExecutor executor(*threads, streams);
    Scratch scratch;
    if (Status done = Forward(*plan, buffers, executor, scratch); !done.ok()) return done;
    if (outputs.Has(out_.name)) results.insert(results.begin(), *std::move(out));
    if (Status written = WriteResults(outputs, results); !written.ok()) return written;
    if (run_flags_.json) {
      PrintJson(streams, {{"problem", problem.ToString()},
                          {"path", std::string(PathName(plan->path()))},
                          {"outputs", DescribeResults(outputs, results)}});
    }
    return {};
  }

  ArrayFlags array_flags_;
  ProblemFlags problem_flags_;
  RunFlags run_flags_;
  Flag out_, logsumexp_;
};

}  // namespace

std::unique_ptr<Command> MakeForwardCommand() { return std::make_unique<ForwardCommand>(); }

}  // namespace attndrop::cli
