// SPDX-License-Identifier: Apache-2.0
// attndrop demo: the forum post reproduced, computed and answered.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/post.h"
#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> kPolicies = {"zero",      "keep_one",   "redraw",
                                                       "keep_self", "keep_first", "undropped"};
constexpr std::array<std::string_view, 8> kSchemes = {
    "element", "shared", "key", "word", "query", "head", "block:block_q=2,block_k=2", "symmetric"};

struct NamedFigures {
  std::string name;
  PostFigures figures;
};

// Everything that is printed.
struct Demo {
  PostTable table;
  PostRun plain;
  PostRun dropped;
  std::string problem;
  std::vector<NamedFigures> policies;  // scheme element
  std::vector<NamedFigures> schemes;   // policy zero
};

Status AddFigures(const PostHead& head, std::string_view scheme, std::string_view policy,
                  std::string_view name, std::vector<NamedFigures>& into) {
  const Result<Problem> problem = PostProblem(scheme, policy, kPostDropoutP);
  if (!problem.ok()) return problem.status();
  const Result<PostFigures> figures = AnalyzePostHead(head, *problem);
  if (!figures.ok()) return figures.status();
  into.push_back({.name = std::string(name), .figures = *figures});
  return {};
}

Status AddRun(const PostHead& head, const Result<Problem>& problem, PostRun& into) {
  if (!problem.ok()) return problem.status();
  Result<PostRun> run = RunPostHead(head, *problem);
  if (!run.ok()) return run.status();
  into = *std::move(run);
  return {};
}

Result<Demo> MakeDemo() {
  Demo demo;
  Result<PostTable> table = ReplayPostTable();
  if (!table.ok()) return table.status();
  demo.table = *std::move(table);
  const Result<PostHead> head = MakePostHead();
  if (!head.ok()) return head.status();
  const Result<Problem> problem = PostProblem("element", "zero", kPostDropoutP);
  if (Status ran = AddRun(*head, PostProblem("element", "zero", 0.0), demo.plain); !ran.ok()) {
    return ran;
  }
  if (Status ran = AddRun(*head, problem, demo.dropped); !ran.ok()) return ran;
  demo.problem = problem->ToString();
  for (const std::string_view policy : kPolicies) {
    Status added = AddFigures(*head, "element", policy, policy, demo.policies);
    if (!added.ok()) return added;
  }
  for (const std::string_view scheme : kSchemes) {
    Status added = AddFigures(*head, scheme, "zero", scheme, demo.schemes);
    if (!added.ok()) return added;
  }
  return demo;
}

// ---- Text
// ----------------------------------------------------------------------------------------

std::string Number(double value) { return fmt::format("{:.2f}", value); }
std::string Percent(double chance) {
  return chance == 0.0 ? "never" : fmt::format("{:g} %", 100.0 * chance);
}

template <class T>
void PrintMatrix(const Streams& streams, const std::array<std::string, kPostRows>& keep,
                 const PostMatrix<T>& matrix) {
  for (std::size_t row = 0; row < kPostRows; ++row) {
    streams.out << fmt::format("  row {}  {:<4} ", row, keep[row]);
    for (std::size_t col = 0; col < kPostHeadSize; ++col) {
      streams.out << fmt::format(" {:7.4f}", matrix[row * kPostHeadSize + col]);
    }
    streams.out << '\n';
  }
}

void PrintFigures(const Streams& streams, std::string_view title,
                  const std::vector<NamedFigures>& all) {
  streams.out << fmt::format("  {:<12} {:>27}   {:>23}   {:>23}\n", title, "chance of a zero row",
                             "mean", "standard deviation");
  streams.out << fmt::format("  {:<12} {:>6} {:>6} {:>6} {:>6}", "", "row 0", "row 1", "row 2",
                             "row 3");
  for (int group = 0; group < 2; ++group) {
    streams.out << fmt::format("   {:>5} {:>5} {:>5} {:>5}", "row 0", "1", "2", "3");
  }
  streams.out << '\n';
  for (const auto& [name, figures] : all) {
    streams.out << fmt::format("  {:<12} ", name.substr(0, name.find(':')));
    for (const PostRowFigures& row : figures) {
      streams.out << fmt::format(" {:>6}", Percent(row.p_zero));
    }
    streams.out << "  ";
    for (const PostRowFigures& row : figures)
      streams.out << fmt::format(" {:>5}", Number(row.mean));
    streams.out << "  ";
    for (const PostRowFigures& row : figures) {
      streams.out << fmt::format(" {:>5}", Number(row.std_dev));
    }
    streams.out << '\n';
  }
}

double LargestBias(const Demo& demo) {
  double bias = 0.0;
  for (const auto* all : {&demo.policies, &demo.schemes}) {
    for (const NamedFigures& named : *all) {
      for (const PostRowFigures& row : named.figures) bias = std::max(bias, row.out_bias);
    }
  }
  return bias;
}

const PostFigures& FiguresOf(const Demo& demo, std::string_view policy) {
  return std::ranges::find_if(demo.policies,
                              [policy](const NamedFigures& named) { return named.name == policy; })
      ->figures;
}

void PrintAnswer(const Streams& streams, const Demo& demo) {
  const PostFigures& zero = FiguresOf(demo, "zero");
  const PostFigures& redraw = FiguresOf(demo, "redraw");
  double expected = 0.0;
  for (const PostRowFigures& row : zero) expected += row.p_zero;
  streams.out << "The answer\n";
  streams.out << fmt::format(
      "  1. Zero rows are real but few: row n is zero with chance p^(n+1), here {}, {}, {}\n"
      "     and {}: {:.4f} rows per head with 4 words, and never more than p/(1-p) = {:g} however\n"
      "     long the text.\n",
      Percent(zero[0].p_zero), Percent(zero[1].p_zero), Percent(zero[2].p_zero),
      Percent(zero[3].p_zero), expected, kPostDropoutP / (1.0 - kPostDropoutP));
  streams.out << fmt::format(
      "  2. They bias nothing: the mean of every output is the output without dropout (largest\n"
      "     difference here {:.0e}); they add noise, most of it to the first row, whose sum of 1\n"
      "     has standard deviation {:.2f} against {:.2f} in row 3.\n",
      LargestBias(demo), zero[0].std_dev, zero[3].std_dev);
  streams.out << fmt::format(
      "  3. Sampling can keep at least one weight: with --empty-row redraw no row is zero, the\n"
      "     means stay exact, and the standard deviation of row 0 falls from {:.2f} to {:.2f}, "
      "that\n"
      "     of row 3 from {:.2f} to {:.2f}.\n",
      zero[0].std_dev, redraw[0].std_dev, zero[3].std_dev, redraw[3].std_dev);
}

void PrintAsText(const Streams& streams, const Demo& demo) {
  streams.out
      << "The question: with dropout p = 0.5 on causal attention, the first word's output is "
         "the zero\nvector every other time. Does it matter, and why not keep at least one "
         "weight?\n\n";
  streams.out
      << "The post's table, d @ rand(4, 10) with d = dropout(tril(rand(4, 4)), 0.5); second "
         "column: kept\n";
  PrintMatrix(streams, demo.table.keep, demo.table.out);
  streams.out << "\nThe post's Head, with the initial values and the x = randn(4, 20) that "
                 "manual_seed(1367149)\ngives: without dropout, then as `attndrop forward` drops\n";
  PrintMatrix(streams, demo.plain.keep, demo.plain.out);
  streams.out << fmt::format("  {}\n", demo.problem);
  PrintMatrix(streams, demo.dropped.keep, demo.dropped.out);
  streams.out << "\nThe sum of a row's weights after dropout in this Head, exactly (1 without "
                 "dropout)\n";
  PrintFigures(streams, "--empty-row", demo.policies);
  streams.out << '\n';
  PrintFigures(streams, "--scheme", demo.schemes);
  streams.out << '\n';
  PrintAnswer(streams, demo);
}

// ---- JSON
// ----------------------------------------------------------------------------------------

template <class T>
Json ToJson(const PostMatrix<T>& matrix) {
  Json rows = Json::array();
  for (std::size_t row = 0; row < kPostRows; ++row) {
    const auto begin = matrix.begin() + static_cast<std::ptrdiff_t>(row * kPostHeadSize);
    rows.push_back(std::vector<T>(begin, begin + kPostHeadSize));
  }
  return rows;
}

Json ToJson(const std::vector<NamedFigures>& all) {
  Json array = Json::array();
  for (const auto& [name, figures] : all) {
    Json rows = Json::array();
    for (std::size_t row = 0; row < kPostRows; ++row) {
      rows.push_back({{"row", row},
                      {"p_zero", figures[row].p_zero},
                      {"mean_row_sum", figures[row].mean},
                      {"std_row_sum", figures[row].std_dev},
                      {"out_bias", figures[row].out_bias},
                      {"out_std", figures[row].out_std}});
    }
    array.push_back({{"name", name}, {"rows", std::move(rows)}});
  }
  return array;
}

Json ToJson(const Demo& demo) {
  return {
      {"post", {{"seed", kPostSeed}, {"keep", demo.table.keep}, {"out", ToJson(demo.table.out)}}},
      {"head",
       {{"problem", demo.problem},
        {"out_without_dropout", ToJson(demo.plain.out)},
        {"keep", demo.dropped.keep},
        {"out", ToJson(demo.dropped.out)}}},
      {"policies", ToJson(demo.policies)},
      {"schemes", ToJson(demo.schemes)}};
}

class DemoCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "demo"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "the forum post, reproduced digit for digit and answered exactly";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop demo\nattndrop demo --json";
  }
  void AddFlags(CLI::App& app) override {
    BeginGroup(app, "Run");
    AddJsonFlag(app, run_flags_);
  }
  [[nodiscard]] Status Check() override { return {}; }

  [[nodiscard]] Status Run(const Streams& streams) override {
    const Result<Demo> demo = MakeDemo();
    if (!demo.ok()) return demo.status();
    if (run_flags_.json) {
      PrintJson(streams, ToJson(*demo));
    } else {
      PrintAsText(streams, *demo);
    }
    return {};
  }

 private:
  RunFlags run_flags_;
};

}  // namespace

std::unique_ptr<Command> MakeDemoCommand() { return std::make_unique<DemoCommand>(); }

}  // namespace attndrop::cli
