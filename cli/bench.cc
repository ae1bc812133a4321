// SPDX-License-Identifier: Apache-2.0
// attndrop bench: how fast problems are computed here, beside the peak of the machine and beside
// the same problem without dropout.
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "attndrop/plan.h"
#include "attndrop/problem.h"

#include "cli/bench_case.h"
#include "cli/bench_measure.h"
#include "cli/command.h"
#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

using Json = nlohmann::ordered_json;

// What is measured unless --problem says otherwise: each kind of work that the kernels do.
constexpr std::array kDefaultProblems = {
    "q2048 k2048 d64 f32",
    "q2048 k2048 d128 f32",
    "q2048 k2048 d64 f32 causal",
    "q2048 k2048 d32 f32 p=0.1",
    "q2048 k2048 d64 f32 p=0.1",
    "q2048 k2048 d128 f32 p=0.1",
    "q2048 k2048 d64 f32 causal p=0.1",
    "q2048 k2048 d64 f32 empty_row=redraw p=0.1",
    "q2048 k2048 d64 f32 empty_row=keep_self p=0.1",
    "q2048 k2048 d64 f32 stage=logits p=0.1",
    "q2048 k2048 d64 f32 scheme=symmetric p=0.1",
    "q2048 k2048 d64 f32 scheme=shared p=0.1",
    "q2048 k2048 d64 f32 scheme=key p=0.5",
    "q2048 k2048 d64 f32 scheme=key stage=logits p=0.5",
    "q2048 k2048 d64 f32 scheme=block p=0.5",
    "q2048 k2048 d64 f32 scheme=query p=0.5",
    "h8 q2048 k2048 d64 f32 scheme=head p=0.5 seed=2",
    "q2048 k2048 d128 bf16",
    "q2048 k2048 d128 bf16 p=0.1",
    "b64 h4 q64 k64 d16 f32 causal p=0.1",
    "h8 kv2 q1 k4096 d64 f32",
};

// One line of the result.
struct Row {
  std::size_t index = 0;  // in the BenchSet
  std::size_t twin = 0;   // the same without dropout
};

double RatioToTwin(const Samples& samples, const Samples& twin) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < samples.seconds.size(); ++i) {
    ratios.push_back(samples.seconds[i] / twin.seconds[i]);
  }
  return Median(std::move(ratios));
}

// NaN without a yardstick.
double PeakFraction(const BenchCase& bench_case, const Samples& samples) {
  if (bench_case.plan().path() != Path::kFused) return std::numeric_limits<double>::quiet_NaN();
  const double flops = CountFlops(bench_case.problem(), bench_case.direction());
  std::vector<double> fractions;
  for (std::size_t i = 0; i < samples.seconds.size(); ++i) {
    fractions.push_back(flops / samples.seconds[i] / samples.peaks[i]);
  }
  return Median(std::move(fractions));
}

Json TargetJson(const Plan& plan) {
  if (plan.path() != Path::kFused) return nullptr;
  return std::string(TargetName(plan.target()));
}

Json ExplainJson(const Plan& plan, int threads) {
  return {{"problem", plan.problem().ToString()},
          {"path", std::string(PathName(plan.path()))},
          {"reason", plan.reason()},
          {"target", TargetJson(plan)},
          {"threads", threads},
          {"forward_scratch_bytes", plan.ForwardScratchBytes(threads)},
          {"backward_scratch_bytes", plan.BackwardScratchBytes(threads)}};
}

std::string Indented(std::string_view text) {
  std::string result = "  ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  return result;
}

class BenchCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "bench"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "time, % of the machine's peak, and what dropout costs";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop bench --problem 'q2048 k2048 d64 p=0.1' --direction both\n"
           "attndrop bench --explain --problem 'h8 kv2 q1 k4096 d64'";
  }

  void AddFlags(CLI::App& app) override {
    BeginGroup(app, "What");
    AddListFlag(app, lines_, "--problem", "one line; may be given many times; default: a list",
                "LINE");
    AddFlag(app, direction_, "--direction", "forward (default), backward or both", "DIR");
    AddSwitch(app, explain_, "--explain", "print how each problem would be computed, and why");
    AddSwitch(app, once_, "--once", "compute each problem once and measure nothing");
    BeginGroup(app, "How");
    AddFlag(app, repeats_, "--repeats", "1 to 1000; the median counts; default 9", "N");
    AddFlag(app, clock_, "--clock", "wall (default) or cpu: time on processors, one thread only",
            "CLOCK");
    AddFlag(app, run_flags_.threads, "--threads", "1 (default) to 4096; 0: one per processor", "N");
    AddPathFlag(app, run_flags_);
    AddTargetFlag(app, run_flags_);
    BeginGroup(app, "Run");
    AddJsonFlag(app, run_flags_);
  }

  [[nodiscard]] Status Check() override {
    if (!run_flags_.threads.given()) run_flags_.threads.text = "1";
    const Result<ThreadExecutor> executor = MakeExecutor(run_flags_);
    if (!executor.ok()) return executor.status();
    if (Status status = ReadPlanOptions(run_flags_).status(); !status.ok()) return status;
    FlagReader reader;
    num_repeats_ = reader.Integer(repeats_, 9, {1, 1000});
    if (!reader.ok()) return reader.status();
    if (Status status = ReadDirection(); !status.ok()) return status;
    if (Status status = ReadClock(executor->num_workers()); !status.ok()) return status;
    if (explain_ && once_) {
      return Status::InvalidArgument(
          "--explain computes nothing, so --once cannot stand beside it");
    }
    return ReadProblems();
  }

  [[nodiscard]] Status Run(const Streams& streams) override {
    const Result<PlanOptions> options = ReadPlanOptions(run_flags_);
    if (!options.ok()) return options.status();
    Result<ThreadExecutor> executor = MakeExecutor(run_flags_);
    if (!executor.ok()) return executor.status();
    if (explain_) return Explain(*options, executor->num_workers(), streams);
    BenchSet set(*executor, *options);
    const Result<std::vector<Row>> rows = AddCases(set);
    if (!rows.ok()) return rows.status();
    if (once_) return set.RunOnce();
    if (Status done = set.Measure(num_repeats_, wanted_clock_); !done.ok()) return done;
    run_flags_.json ? PrintAsJson(streams, set, *rows, *executor)
                    : PrintAsText(streams, set, *rows, *executor);
    return {};
  }

 private:
  [[nodiscard]] Status ReadDirection() {
    const std::string text = direction_.text.value_or("forward");
    directions_.clear();
    if (text == "forward" || text == "both") directions_.push_back(Direction::kForward);
    if (text == "backward" || text == "both") directions_.push_back(Direction::kBackward);
    if (!directions_.empty()) return {};
    return Status::InvalidArgument(
        fmt::format("--direction must be forward, backward or both, got \"{}\"", text));
  }

  [[nodiscard]] Status ReadClock(int num_threads) {
    const std::string text = clock_.text.value_or("wall");
    if (text != "wall" && text != "cpu") {
      return Status::InvalidArgument(fmt::format("--clock must be wall or cpu, got \"{}\"", text));
    }
    wanted_clock_ = text == "wall" ? Clock::kWall : Clock::kCpu;
    if (wanted_clock_ == Clock::kCpu && num_threads != 1) {
      return Status::InvalidArgument(fmt::format(
          "--clock cpu adds up the time of all threads, so it needs --threads 1, got {}",
          num_threads));
    }
    return {};
  }

  [[nodiscard]] Status ReadProblems() {
    std::vector<std::string> lines = lines_;
    if (lines.empty()) lines.assign(kDefaultProblems.begin(), kDefaultProblems.end());
    problems_.clear();
    for (const std::string& line : lines) {
      Result<Problem> problem = Problem::Parse(line);
      if (!problem.ok()) return problem.status();
      problems_.push_back(*std::move(problem));
    }
    return {};
  }

  [[nodiscard]] Status Explain(const PlanOptions& options, int threads,
                               const Streams& streams) const {
    Json json = Json::array();
    std::string text;
    for (const Problem& problem : problems_) {
      const Result<Plan> plan = Plan::Make(problem, options);
      if (!plan.ok()) return plan.status();
      json.push_back(ExplainJson(*plan, threads));
      text += fmt::format("{}\n{}\n", problem.ToString(), Indented(plan->ToString()));
    }
    run_flags_.json ? PrintJson(streams, json) : void(streams.out << text);
    return {};
  }

  [[nodiscard]] Result<std::vector<Row>> AddCases(BenchSet& set) const {
    std::vector<Row> rows;
    for (const Problem& problem : problems_) {
      for (const Direction direction : directions_) {
        const Result<std::size_t> index = set.Add(problem, direction);
        if (!index.ok()) return index.status();
        Row row{.index = *index, .twin = *index};
        if (!once_) {
          const Result<Problem> plain = WithoutDropout(problem);
          if (!plain.ok()) return plain.status();
          const Result<std::size_t> twin = set.Add(*plain, direction);
          if (!twin.ok()) return twin.status();
          row.twin = *twin;
        }
        rows.push_back(row);
      }
    }
    return rows;
  }

  static void PrintAsJson(const Streams& streams, const BenchSet& set, const std::vector<Row>& rows,
                          const Executor& executor) {
    Json json = Json::array();
    for (const Row& row : rows) {
      const BenchCase& bench_case = set.at(row.index);
      const Samples& samples = set.samples(row.index);
      const double peak = Median(samples.peaks);
      json.push_back({{"problem", bench_case.problem().ToString()},
                      {"direction", std::string(DirectionName(bench_case.direction()))},
                      {"target", TargetJson(bench_case.plan())},
                      {"threads", executor.num_workers()},
                      {"median_s", Median(samples.seconds)},
                      {"peak_fraction", JsonNumber(PeakFraction(bench_case, samples))},
                      {"ratio_to_p0", RatioToTwin(samples, set.samples(row.twin))},
                      {"scratch_bytes", bench_case.ScratchBytes(executor)},
                      {"peak_flops", peak > 0 ? Json(peak) : Json(nullptr)}});
    }
    PrintJson(streams, json);
  }

  void PrintAsText(const Streams& streams, const BenchSet& set, const std::vector<Row>& rows,
                   const Executor& executor) const {
    std::size_t width = 7;
    for (const Row& row : rows) {
      width = std::max(width, set.at(row.index).problem().ToString().size());
    }
    streams.out << fmt::format("{:<{}}  {:<8} {:<6} {:>9} {:>9} {:>11} {:>9} {:>10}\n", "problem",
                               width, "does", "target", "ms", "% of peak", "beside p=0",
                               "ns/weight", "scratch MB");
    for (const Row& row : rows) {
      const BenchCase& bench_case = set.at(row.index);
      const Samples& samples = set.samples(row.index);
      const double seconds = Median(samples.seconds);
      const double fraction = PeakFraction(bench_case, samples);
      const Plan& plan = bench_case.plan();
      streams.out << fmt::format(
          "{:<{}}  {:<8} {:<6} {:>9.3f} {:>9} {:>11.3f} {:>9.3f} {:>10.2f}\n",
          plan.problem().ToString(), width, DirectionName(bench_case.direction()),
          plan.path() == Path::kFused ? TargetName(plan.target()) : "-", 1e3 * seconds,
          std::isnan(fraction) ? "-" : fmt::format("{:.1f}", 100 * fraction),
          RatioToTwin(samples, set.samples(row.twin)),
          1e9 * seconds / CountVisibleWeights(plan.problem()),
          1e-6 * static_cast<double>(bench_case.ScratchBytes(executor)));
    }
    streams.out << fmt::format(
        "\nmedians of {} repeats, {} thread{}, {} time; the peak is that of float32 "
        "multiply-adds\nin the vectors of the target, measured before and after each figure\n",
        num_repeats_, executor.num_workers(), executor.num_workers() == 1 ? "" : "s",
        wanted_clock_ == Clock::kWall ? "wall" : "processor");
  }

  RunFlags run_flags_;
  std::vector<std::string> lines_;
  Flag direction_, repeats_, clock_;
  bool explain_ = false;
  bool once_ = false;
  std::int64_t num_repeats_ = 9;
  Clock wanted_clock_ = Clock::kWall;
  std::vector<Direction> directions_;
  std::vector<Problem> problems_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace attndrop::cli
