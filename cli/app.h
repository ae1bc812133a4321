// SPDX-License-Identifier: Apache-2.0
// The command line tool as a function.
#pragma once

#include <span>
#include <string>

#include "attndrop/status.h"

#include "cli/command.h"

namespace attndrop::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// args without the program's name.
[[nodiscard]] int RunCli(std::span<const std::string> args, const Streams& streams);

// What the words ask for: a command with its flags read, or a text to print.
struct Parsed {
  Command* command = nullptr;  // of the list given to ParseCommandLine
  std::string text;            // help or version; empty with a command
};
// Opens and writes no file.
[[nodiscard]] Result<Parsed> ParseCommandLine(std::span<const std::string> args,
                                              const CommandList& commands);

}  // namespace attndrop::cli
