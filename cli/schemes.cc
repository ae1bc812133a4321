// SPDX-License-Identifier: Apache-2.0
// attndrop schemes: the table of schemes, stages and policies.
#include "attndrop/schemes.h"

#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "attndrop/dropout.h"

#include "cli/command.h"
#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

struct StageInfo {
  Stage stage;
  std::string_view summary;
};
constexpr std::array<StageInfo, 2> kStages = {{
    {Stage::kWeights, "after the softmax: a dropped weight is zero, kept ones are scaled"},
    {Stage::kLogits, "before the softmax (DropKey): a dropped key leaves it, nothing is scaled"},
}};

std::string ParamText(const SchemeInfo& info) {
  std::string text;
  for (std::size_t i = 0; i < info.num_params; ++i) {
    const SchemeParam& param = info.params[i];
    text += fmt::format("{}{}={}", i == 0 ? ":" : ",", param.name, param.default_value);
  }
  return text;
}

void PrintSchemes(const Streams& streams) {
  streams.out
      << "--scheme NAME: which weights share a draw; + goes with --empty-row at_least_one\n";
  for (const Scheme& scheme : Schemes()) {
    const SchemeInfo& info = scheme.info;
    streams.out << fmt::format("{} {:<12}  {}{}\n", info.row_redraw ? '+' : ' ', info.name,
                               info.summary,
                               info.requires_square ? "; needs seqlen_q = seqlen_k" : "");
    if (info.num_params == 0) continue;
    streams.out << fmt::format("  {:<12}  {}{} unless given\n", "", info.name, ParamText(info));
  }
}

nlohmann::ordered_json ToJson() {
  nlohmann::ordered_json schemes = nlohmann::ordered_json::array();
  for (const Scheme& scheme : Schemes()) {
    const SchemeInfo& info = scheme.info;
    nlohmann::ordered_json params = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < info.num_params; ++i) {
      params.push_back({{"name", info.params[i].name},
                        {"default", info.params[i].default_value},
                        {"min", info.params[i].min},
                        {"max", info.params[i].max}});
    }
    schemes.push_back({{"name", info.name},
                       {"summary", info.summary},
                       {"params", params},
                       {"requires_square", info.requires_square},
                       {"row_redraw", info.row_redraw}});
  }
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageInfo& stage : kStages) {
    stages.push_back({{"name", StageName(stage.stage)}, {"summary", stage.summary}});
  }
  nlohmann::ordered_json policies = nlohmann::ordered_json::array();
  for (const EmptyRowInfo& policy : kEmptyRowInfos) {
    policies.push_back({{"name", policy.name}, {"summary", policy.summary}});
  }
  return {{"schemes", schemes}, {"stages", stages}, {"empty_row", policies}};
}

class SchemesCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "schemes"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "the table of schemes, stages and empty-row policies";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop schemes\nattndrop schemes --json";
  }
  void AddFlags(CLI::App& app) override {
    BeginGroup(app, "Run");
    AddJsonFlag(app, run_flags_);
  }
  [[nodiscard]] Status Check() override { return {}; }

  [[nodiscard]] Status Run(const Streams& streams) override {
    if (run_flags_.json) {
      PrintJson(streams, ToJson());
      return {};
    }
    PrintSchemes(streams);
    streams.out << "\n--stage NAME: where dropout acts\n";
    for (const StageInfo& stage : kStages) {
      streams.out << fmt::format("  {:<12}  {}\n", StageName(stage.stage), stage.summary);
    }
    streams.out << "\n--empty-row NAME: what a row that loses every visible key does\n";
    for (const EmptyRowInfo& policy : kEmptyRowInfos) {
      streams.out << fmt::format("  {:<12}  {}\n", policy.name, policy.summary);
    }
    return {};
  }

 private:
  RunFlags run_flags_;
};

}  // namespace

std::unique_ptr<Command> MakeSchemesCommand() { return std::make_unique<SchemesCommand>(); }

}  // namespace attndrop::cli
