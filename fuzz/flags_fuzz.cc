// SPDX-License-Identifier: Apache-2.0
// Fuzzes the command line: words between line ends are parsed and checked; nothing is opened or
// written.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cli/app.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return words;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attndrop::cli;
  const std::vector<std::string> words = Words({reinterpret_cast<const char*>(data), size});
  const CommandList commands = MakeCommands();
  const attndrop::Result<Parsed> parsed = ParseCommandLine(words, commands);
  if (!parsed.ok()) {
    if (parsed.status().message().empty()) std::abort();
    return 0;
  }
  if (parsed->command == nullptr) {
    if (parsed->text.empty()) std::abort();
    return 0;
  }
  const attndrop::Status checked = parsed->command->Check();
  if (!checked.ok() && checked.message().empty()) std::abort();
  return 0;
}
