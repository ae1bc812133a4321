// SPDX-License-Identifier: Apache-2.0
// attndrop backward: gradients of attention; computes the forward it needs itself.
#include <array>
#include <optional>
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

// The files of one run.
struct Inputs {
  AttentionArrays arrays;
  LoadedProblem loaded;
  NpyArray grad_out;
  std::optional<NpyArray> grad_logsumexp;
};

class BackwardCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "backward"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "gradients of query, key, value and attn_mask from --grad-out";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop backward --query q.npy --key k.npy --value v.npy --causal \\\n"
           "    --grad-out go.npy --grad-query gq.npy\n"
           "attndrop backward --query q.npy --key k.npy --value v.npy --dropout-p 0.1 --seed 7 \\\n"
           "    --grad-out go.npy --grad-query gq.npy --grad-key gk.npy --grad-value gv.npy";
  }

  void AddFlags(CLI::App& app) override {
    BeginGroup(app, "Arrays");
    AddArrayFlags(app, array_flags_);
    AddFlag(app, grad_out_, "--grad-out", "gradient of out: batch, heads, seqlen_q, head_dim_v",
            "FILE");
    AddFlag(app, grad_logsumexp_, "--grad-logsumexp",
            "gradient of logsumexp: batch, heads, seqlen_q; default zero", "FILE");
    AddFlag(app, grad_query_, "--grad-query", "result, shaped as --query", "FILE");
    AddFlag(app, grad_key_, "--grad-key", "result, shaped as --key", "FILE");
    AddFlag(app, grad_value_, "--grad-value", "result, shaped as --value", "FILE");
    AddFlag(app, grad_attn_mask_, "--grad-attn-mask", "result, shaped as a float --attn-mask",
            "FILE");
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
    for (const Flag* flag :
         {&array_flags_.query, &array_flags_.key, &array_flags_.value, &grad_out_}) {
      if (Status there = RequireFlag(*flag, "a .npy file"); !there.ok()) return there;
    }
    bool writes = false;
    for (const Flag* flag : Results()) writes = writes || flag->given();
    if (!writes) {
      return Status::InvalidArgument(
          "there is nothing to write: give --grad-query, --grad-key, --grad-value or "
          "--grad-attn-mask");
    }
    if (grad_attn_mask_.given() && !problem_flags_.attn_mask.given()) {
      return Status::InvalidArgument("--grad-attn-mask needs a float --attn-mask; give one");
    }
    if (Status executor = MakeExecutor(run_flags_).status(); !executor.ok()) return executor;
    if (Status options = ReadPlanOptions(run_flags_).status(); !options.ok()) return options;
    return ReadProblemFlags(problem_flags_).status();
  }

  [[nodiscard]] Status Run(const Streams& streams) override {
    OutputSet outputs(run_flags_.force);
    for (const Flag* flag : Results()) {
      if (!flag->given()) continue;
      if (Status added = outputs.Add(flag->name, *flag->text); !added.ok()) return added;
    }
    const Result<Inputs> inputs = Load();
    if (!inputs.ok()) return inputs.status();
    NoteAlignment(streams, problem_flags_, inputs->loaded.problem);
    PrintProblem(streams, run_flags_, inputs->loaded.problem);
    return Compute(*inputs, outputs, streams);
  }

 private:
  [[nodiscard]] std::array<const Flag*, 4> Results() const {
    return {&grad_query_, &grad_key_, &grad_value_, &grad_attn_mask_};
  }

  [[nodiscard]] Result<Inputs> Load() const {
    Result<ProblemArgs> args = ReadProblemFlags(problem_flags_);
    if (!args.ok()) return args.status();
    Result<AttentionArrays> arrays = LoadArrays(array_flags_, *args);
    if (!arrays.ok()) return arrays.status();
    Result<LoadedProblem> loaded = LoadProblem(problem_flags_, *std::move(args));
    if (!loaded.ok()) return loaded.status();
    const Problem& problem = loaded->problem;
    if (Status rows = CheckRows(array_flags_, *arrays, problem); !rows.ok()) return rows;
    if (grad_attn_mask_.given() && problem.attn_mask().kind != MaskKind::kFloat) {
      return Status::InvalidArgument(
          "--grad-attn-mask needs a float --attn-mask; a boolean one has no gradient");
    }
    const NpyType type = arrays->query.header.type;
    std::vector<std::int64_t> shape = {problem.array_batch(), problem.shape().num_heads,
                                       problem.rows_q(), problem.shape().head_dim_v};
    Result<NpyArray> grad_out =
        LoadLike(grad_out_, type, shape, "the shape and type of the forward's out");
    if (!grad_out.ok()) return grad_out.status();
    Inputs inputs{.arrays = *std::move(arrays),
                  .loaded = *std::move(loaded),
                  .grad_out = *std::move(grad_out),
                  .grad_logsumexp = {}};
    if (grad_logsumexp_.given()) {
      shape.pop_back();
      Result<NpyArray> grad_logsumexp = LoadLike(
          grad_logsumexp_, type == NpyType::kFloat64 ? NpyType::kFloat64 : NpyType::kFloat32, shape,
          "the shape and type of the forward's logsumexp");
      if (!grad_logsumexp.ok()) return grad_logsumexp.status();
      inputs.grad_logsumexp = *std::move(grad_logsumexp);
    }
    return {std::move(inputs)};
  }

  // One array for each result that is wanted.
  [[nodiscard]] Status AddResults(const Inputs& inputs, const OutputSet& outputs,
                                  std::vector<ResultArray>& results) const {
    const std::array<const NpyArray*, 4> shaped_as = {
        &inputs.arrays.query, &inputs.arrays.key, &inputs.arrays.value,
        inputs.loaded.attn_mask ? &*inputs.loaded.attn_mask : nullptr};
    for (std::size_t i = 0; i < shaped_as.size(); ++i) {
      if (shaped_as[i] == nullptr) continue;
      if (Status added = AddResult(outputs, *Results()[i], shaped_as[i]->header.type,
                                   shaped_as[i]->header.shape, results);
          !added.ok()) {
        return added;
      }
    }
    return {};
  }

  [[nodiscard]] BackwardBuffers MakeBuffers(const Inputs& inputs,
                                            const std::vector<ResultArray>& results) const {
    BackwardBuffers buffers;
    buffers.query = ViewOf(inputs.arrays.query);
    buffers.key = ViewOf(inputs.arrays.key);
    buffers.value = ViewOf(inputs.arrays.value);
    buffers.mask = inputs.loaded.mask_buffers();
    buffers.grad_out = ViewOf(inputs.grad_out);
    if (inputs.grad_logsumexp) {
      const NpyArray& array = *inputs.grad_logsumexp;
      buffers.grad_logsumexp = Dense<const void>(array.data.get(), array.dim(1), array.dim(2), 1);
    }
    buffers.grad_query = ViewFor(grad_query_, results);
    buffers.grad_key = ViewFor(grad_key_, results);
    buffers.grad_value = ViewFor(grad_value_, results);
    buffers.grad_attn_mask = ViewFor(grad_attn_mask_, results);
    return buffers;
  }

  [[nodiscard]] Status Compute(const Inputs& inputs, const OutputSet& outputs,
                               const Streams& streams) const {
    std::vector<ResultArray> results;
    if (Status added = AddResults(inputs, outputs, results); !added.ok()) return added;
    const Result<PlanOptions> options = ReadPlanOptions(run_flags_);
    if (!options.ok()) return options.status();
    const Result<Plan> plan = Plan::Make(inputs.loaded.problem, *options);
    if (!plan.ok()) return plan.status();
    Result<ThreadExecutor> threads = MakeExecutor(run_flags_);
    if (!threads.ok()) return threads.status();
    ProgressExecutor executor(*threads, streams);
    Scratch scratch;
    if (Status done = Backward(*plan, MakeBuffers(inputs, results), executor, scratch);
        !done.ok()) {
      return done;
    }
    if (Status written = WriteResults(outputs, results); !written.ok()) return written;
    if (run_flags_.json) {
      PrintJson(streams, {{"problem", inputs.loaded.problem.ToString()},
                          {"path", std::string(PathName(plan->path()))},
                          {"outputs", DescribeResults(outputs, results)}});
    }
    return {};
  }

  ArrayFlags array_flags_;
  ProblemFlags problem_flags_;
  RunFlags run_flags_;
  Flag grad_out_, grad_logsumexp_;
  Flag grad_query_, grad_key_, grad_value_, grad_attn_mask_;
};

}  // namespace

std::unique_ptr<Command> MakeBackwardCommand() { return std::make_unique<BackwardCommand>(); }

}  // namespace attndrop::cli
