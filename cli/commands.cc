// SPDX-License-Identifier: Apache-2.0
// The list of subcommands.
#include "cli/command.h"

namespace attndrop::cli {

CommandList MakeCommands() {
  CommandList commands;
  commands.push_back(MakeDemoCommand());
  commands.push_back(MakeForwardCommand());
  commands.push_back(MakeBackwardCommand());
  commands.push_back(MakeMaskCommand());
  commands.push_back(MakeSchemesCommand());
  commands.push_back(MakeAnalyzeCommand());
  commands.push_back(MakeRngCommand());
  commands.push_back(MakeBenchCommand());
  return commands;
}

}  // namespace attndrop::cli
