// SPDX-License-Identifier: Apache-2.0
// What a subcommand is, and the list of all of them.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "attndrop/status.h"

namespace attndrop::cli {

// Where a command writes: data to `out`, everything else to `err`.
struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;
  bool use_color = false;  // on err
};

class Command {
 public:
  virtual ~Command();
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual std::string_view summary() const noexcept = 0;
  // Lines of shell, two at least.
  [[nodiscard]] virtual std::string_view examples() const noexcept = 0;
  virtual void AddFlags(CLI::App& app) = 0;
  // Reads the flags and the problem they describe, opens no file. kInvalidArgument and kUnsupported
  // end the program with 2.
  [[nodiscard]] virtual Status Check() = 0;
  // Called after Check. Other errors than those of Check end the program with 1.
  [[nodiscard]] virtual Status Run(const Streams& streams) = 0;
};

using CommandList = std::vector<std::unique_ptr<Command>>;

// In the order of the help text. A new subcommand is a file with a Make function named here.
[[nodiscard]] CommandList MakeCommands();

std::unique_ptr<Command> MakeAnalyzeCommand();
std::unique_ptr<Command> MakeBackwardCommand();
std::unique_ptr<Command> MakeBenchCommand();
std::unique_ptr<Command> MakeDemoCommand();
std::unique_ptr<Command> MakeForwardCommand();
std::unique_ptr<Command> MakeMaskCommand();
std::unique_ptr<Command> MakeRngCommand();
std::unique_ptr<Command> MakeSchemesCommand();

// `attndrop: note: ...` and `attndrop: warning: ...`, one line each.
void PrintNote(const Streams& streams, std::string_view text);
void PrintWarning(const Streams& streams, std::string_view text);

}  // namespace attndrop::cli
