// SPDX-License-Identifier: Apache-2.0
// The flags about how a command runs and reports, the same for every command that has them.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "attndrop/executor.h"
#include "attndrop/plan.h"
#include "attndrop/problem.h"
#include "attndrop/status.h"

#include "cli/command.h"
#include "cli/flags.h"

namespace attndrop::cli {

struct RunFlags {
  Flag threads;
  Flag target;
  Flag path;
  bool force = false;
  bool json = false;
  bool verbose = false;
};

void AddThreadsFlag(CLI::App& app, RunFlags& flags);
void AddPathFlag(CLI::App& app, RunFlags& flags);
void AddTargetFlag(CLI::App& app, RunFlags& flags);  // instruction set of the fused path
void AddForceFlag(CLI::App& app, RunFlags& flags);
void AddJsonFlag(CLI::App& app, RunFlags& flags);
void AddVerboseFlag(CLI::App& app, RunFlags& flags);

// 0 (all) .. 4096.
[[nodiscard]] Result<ThreadExecutor> MakeExecutor(const RunFlags& flags);

// What --path and --target force; whether this machine has them is for Plan::Make to say.
[[nodiscard]] Result<PlanOptions> ReadPlanOptions(const RunFlags& flags);

// With --verbose: the one-line form on stderr.
void PrintProblem(const Streams& streams, const RunFlags& flags, const Problem& problem);

// JSON on stdout; bytes of file names that are not UTF-8 are replaced.
void PrintJson(const Streams& streams, const nlohmann::ordered_json& value);

// A number as JSON has it: null for NaN and infinities.
[[nodiscard]] nlohmann::ordered_json JsonNumber(double value);

// Refuses a needed flag that is missing.
[[nodiscard]] Status RequireFlag(const Flag& flag, std::string_view what);

// Refuses what would need more than the machine's memory, before it is tried.
[[nodiscard]] Status CheckMemory(double bytes, std::string_view what, std::string_view advice);

}  // namespace attndrop::cli
