// SPDX-License-Identifier: Apache-2.0
// The program attndrop: the words of the command line to RunCli.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "cli/app.h"

namespace {

bool WantsColor() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

int main(int argc, char** argv) {
  // A file over its size limit is then an error of write, with a message, and not the end.
  std::signal(SIGXFSZ, SIG_IGN);
  const bool err_is_terminal = ::isatty(STDERR_FILENO) == 1;
  const attndrop::cli::Streams streams{.out = std::cout,
                                       .err = std::cerr,
                                       .err_is_terminal = err_is_terminal,
                                       .use_color = err_is_terminal && WantsColor()};
  const std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return attndrop::cli::RunCli(args, streams);
}
