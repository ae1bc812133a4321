// SPDX-License-Identifier: Apache-2.0
// attndrop mask: the keep mask of a problem as a file, or one cell of it.
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "attndrop/attention.h"

#include "cli/attention_arrays.h"
#include "cli/command.h"
#include "cli/problem_flags.h"
#include "cli/progress.h"
#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

constexpr std::int64_t kMaxIndex = (std::int64_t{1} << 32) - 1;

class MaskCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "mask"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "the keep mask of a problem to --output, or one cell with --at";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop mask --heads 8 --seqlen-q 512 --causal --dropout-p 0.1 --output mask.npy\n"
           "attndrop mask --heads 32 --seqlen-q 70000 --dropout-p 0.1 --at 0,31,69999,69999";
  }

  void AddFlags(CLI::App& app) override {
    AddSizeFlags(app, size_flags_);
    BeginGroup(app, "Results");
    AddFlag(app, output_, "--output", "uint8: batch, heads, seqlen_q, seqlen_k; 1 = kept", "FILE");
    AddFlag(app, factors_, "--factors", "float64, same shape: factor of each weight", "FILE");
    AddFlag(app, at_, "--at", "print one cell, 0 or 1; the problem may be of any size", "b,h,i,j");
    AddProblemFlags(app, problem_flags_);
    BeginGroup(app, "Run");
    AddThreadsFlag(app, run_flags_);
    AddForceFlag(app, run_flags_);
    AddVerboseFlag(app, run_flags_);
    AddJsonFlag(app, run_flags_);
  }

  [[nodiscard]] Status Check() override {
    if (at_.given() == (output_.given() || factors_.given())) {
      return Status::InvalidArgument(
          "give --output and/or --factors for the whole mask, or --at b,h,i,j for one cell");
    }
    FlagReader reader;
    const std::vector<std::int64_t> at =
        reader.Integers(at_, {"batch", "head", "query", "key"}, {0, kMaxIndex});
    if (!reader.ok()) return reader.status();
    if (at_.given()) cell_ = {.batch = at[0], .head = at[1], .query = at[2], .key = at[3]};
    if (Status executor = MakeExecutor(run_flags_).status(); !executor.ok()) return executor;
    return CheckSizes(size_flags_, problem_flags_);
  }

  [[nodiscard]] Status Run(const Streams& streams) override {
    OutputSet outputs(run_flags_.force);
    for (const Flag* flag : {&output_, &factors_}) {
      if (!flag->given()) continue;
      if (Status added = outputs.Add(flag->name, *flag->text); !added.ok()) return added;
    }
    const Result<LoadedProblem> loaded = LoadSizedProblem(size_flags_, problem_flags_);
    if (!loaded.ok()) return loaded.status();
    if (!size_flags_.problem.given()) NoteAlignment(streams, problem_flags_, loaded->problem);
    PrintProblem(streams, run_flags_, loaded->problem);
    return at_.given() ? PrintCell(*loaded, streams) : WriteMask(*loaded, outputs, streams);
  }

 private:
  [[nodiscard]] Status PrintCell(const LoadedProblem& loaded, const Streams& streams) const {
    const Result<KeepCell> cell = KeepAt(loaded.problem, loaded.mask_buffers(), cell_);
    if (!cell.ok()) return cell.status();
    if (run_flags_.json) {
      PrintJson(streams, {{"problem", loaded.problem.ToString()},
                          {"at", {cell_.batch, cell_.head, cell_.query, cell_.key}},
                          {"keep", cell->keep},
                          {"factor", JsonNumber(cell->factor)}});
    } else {
      streams.out << (cell->keep ? "1\n" : "0\n");
    }
    return {};
  }

  [[nodiscard]] Status WriteMask(const LoadedProblem& loaded, const OutputSet& outputs,
                                 const Streams& streams) const {
    const AttentionShape& shape = loaded.problem.shape();
    const std::vector<std::int64_t> sizes = {shape.batch, shape.num_heads, shape.seqlen_q,
                                             shape.seqlen_k};
    double bytes = factors_.given() ? 9.0 : 1.0;
    for (const std::int64_t size : sizes) bytes *= static_cast<double>(size);
    if (Status memory = CheckMemory(bytes, "the whole mask", "ask for single cells with --at");
        !memory.ok()) {
      return memory;
    }
    // The computation always has a mask; without --output it is not written.
    Result<ResultArray> keep = ResultArray::Make("--output", NpyType::kUint8, sizes);
    if (!keep.ok()) return keep.status();
    std::vector<ResultArray> results;
    if (Status added = AddResult(outputs, factors_, NpyType::kFloat64, sizes, results);
        !added.ok()) {
      return added;
    }
    const KeepMaskBuffers buffers{.mask = loaded.mask_buffers(),
                                  .keep = static_cast<std::uint8_t*>(keep->view().data),
                                  .factors = static_cast<double*>(ViewFor(factors_, results).data)};
    Result<ThreadExecutor> threads = MakeExecutor(run_flags_);
    if (!threads.ok()) return threads.status();
    ProgressExecutor executor(*threads, streams);
    if (Status done = KeepMask(loaded.problem, buffers, executor); !done.ok()) return done;
    if (outputs.Has(output_.name)) results.insert(results.begin(), *std::move(keep));
    if (Status written = WriteResults(outputs, results); !written.ok()) return written;
    if (run_flags_.json) {
      PrintJson(streams, {{"problem", loaded.problem.ToString()},
                          {"keep_prob", loaded.problem.keep_prob()},
                          {"outputs", DescribeResults(outputs, results)}});
    }
    return {};
  }

  SizeFlags size_flags_;
  ProblemFlags problem_flags_;
  RunFlags run_flags_;
  Flag output_, factors_, at_;
  LocalIndex cell_;
};

}  // namespace

std::unique_ptr<Command> MakeMaskCommand() { return std::make_unique<MaskCommand>(); }

}  // namespace attndrop::cli
