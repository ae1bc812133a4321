// SPDX-License-Identifier: Apache-2.0
// Words to commands: help, version, unknown and doubled flags, exit codes.
#include "cli/app.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "attndrop/target.h"
#include "attndrop/version.h"

#include "cli/flags.h"

namespace attndrop::cli {
namespace {

constexpr std::string_view kSummary =
    "attndrop: softmax attention with dropout, exact, on CPUs. Arrays are .npy files.";
constexpr std::string_view kExamples =
    "attndrop demo\n"
    "attndrop forward --query q.npy --key k.npy --value v.npy --dropout-p 0.1 --out out.npy";

// Puts the examples in front of the flags.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override {
    std::string text = app->get_description() + "\n\nExamples:\n";
    std::string_view examples = examples_(app);
    while (!examples.empty()) {
      const std::size_t end = examples.find('\n');
      text += fmt::format("  {}\n", examples.substr(0, end));
      examples.remove_prefix(end == std::string_view::npos ? examples.size() : end + 1);
    }
    return text + "\n";
  }

  explicit HelpFormatter(std::function<std::string_view(const CLI::App*)> examples)
      : examples_(std::move(examples)) {
    column_width(26);
    label("OPTIONS", "FLAGS");
    label("SUBCOMMAND", "COMMAND");
  }

 private:
  std::function<std::string_view(const CLI::App*)> examples_;
};

std::string CompilerText() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

std::vector<std::string> TargetNames() {
  std::vector<std::string> names;
  for (const Target target : SupportedTargets()) names.emplace_back(TargetName(target));
  return names;
}

std::string VersionText(bool json) {
  if (json) {
    return nlohmann::ordered_json{{"version", std::string(kVersion)},
                                  {"mask_format", kMaskFormat},
                                  {"compiler", CompilerText()},
                                  {"targets", TargetNames()}}
               .dump(2) +
           "\n";
  }
  return fmt::format("attndrop {}\nmask format {}\ncompiler {}\ntargets {}\n", kVersion,
                     kMaskFormat, CompilerText(), fmt::join(TargetNames(), " "));
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// "attndrop" or "attndrop mask".
std::string FullName(const CLI::App& app) {
  const std::string prefix = app.get_parent() == nullptr ? "" : "attndrop ";
  return prefix + app.get_name();
}

Status UnknownWord(const CLI::App& app, const std::string& given,
                   const std::vector<std::string>& commands) {
  const std::string word = given.substr(0, given.find('='));
  if (word.starts_with('-')) {
    const std::string nearest = NearestName(word, FlagNames(app));
    return Status::InvalidArgument(fmt::format(
        "flag {} is unknown{}; {} --help lists the flags", word,
        nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest), FullName(app)));
  }
  if (app.get_parent() == nullptr) {
    const std::string nearest = NearestName(word, commands);
    return Status::InvalidArgument(
        fmt::format("command {} is unknown{}; attndrop --help lists the commands", word,
                    nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  }
  return Status::InvalidArgument(fmt::format(
      "the word {} belongs to no flag; {} takes flags that begin with --", word, FullName(app)));
}

Status CheckDoubled(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll) continue;
    if (option->count() > 1) {
      return Status::InvalidArgument(
          fmt::format("{} is given {} times; give it once", option->get_name(), option->count()));
    }
  }
  return {};
}

// CLI11 says `NAME: ...` for a missing value and `NAME was given ...` for one too many.
Status MismatchRefusal(std::string_view what) {
  const std::size_t colon = what.find(':');
  if (colon != std::string_view::npos) {
    return Status::InvalidArgument(fmt::format("{} needs a value after it", what.substr(0, colon)));
  }
  return Status::InvalidArgument(fmt::format("--{} takes no value; give it alone or leave it out",
                                             what.substr(0, what.find(' '))));
}

// One empty line between the groups of flags.
std::string WithoutDoubleGaps(std::string text) {
  for (std::size_t gap = text.find("\n\n\n"); gap != std::string::npos; gap = text.find("\n\n\n")) {
    text.erase(gap, 1);
  }
  return text;
}

// The parser with all commands in it.
class Parser {
 public:
  explicit Parser(const CommandList& commands) : commands_(commands), app_("", "attndrop") {
    app_.description(std::string(kSummary));
    app_.formatter(
        std::make_shared<HelpFormatter>([this](const CLI::App* app) { return ExamplesOf(app); }));
    app_.option_defaults()->group("Flags");
    app_.set_help_flag("-h,--help", "this text, or that of a command, and exit");
    app_.add_flag("--version", version_, "version, mask format, compiler, targets");
    app_.add_flag("--json", json_, "with --version: as JSON");
    app_.get_help_ptr()->group("Flags");
    app_.require_subcommand(0, 1);
    app_.allow_extras();
    for (const auto& command : commands_) {
      CLI::App* sub =
          app_.add_subcommand(std::string(command->name()), std::string(command->summary()));
      sub->group("Commands");
      sub->get_help_ptr()->group("Run");
      sub->allow_extras();
      command->AddFlags(*sub);
      names_.emplace_back(command->name());
    }
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() = default;

  Result<Parsed> Parse(std::span<const std::string> args) {
    try {
      app_.parse(std::vector<std::string>(args.rbegin(), args.rend()));
    } catch (const CLI::CallForHelp&) {
      return Parsed{.command = nullptr, .text = WithoutDoubleGaps(app_.help())};
    } catch (const CLI::ArgumentMismatch& error) {
      return MismatchRefusal(error.what());
    } catch (const CLI::ParseError& error) {
      return Status::InvalidArgument(error.what());
    }
    return Chosen();
  }

 private:
  Result<Parsed> Chosen() {
    const std::vector<CLI::App*> chosen = app_.get_subcommands();
    const std::vector<std::string> top_extras = app_.remaining(/*recurse=*/false);
    if (!top_extras.empty()) return UnknownWord(app_, top_extras.front(), names_);
    if (Status doubled = CheckDoubled(app_); !doubled.ok()) return doubled;
    if (version_) return Parsed{.command = nullptr, .text = VersionText(json_)};
    if (chosen.empty()) {
      return Status::InvalidArgument("a command is missing; attndrop --help lists them");
    }
    const CLI::App& app = *chosen.front();
    const std::vector<std::string> extras = app.remaining();
    if (!extras.empty()) return UnknownWord(app, extras.front(), names_);
    if (Status doubled = CheckDoubled(app); !doubled.ok()) return doubled;
    return Parsed{.command = Find(app.get_name()), .text = ""};
  }

  [[nodiscard]] Command* Find(std::string_view name) const {
    const auto found = std::ranges::find_if(
        commands_, [name](const auto& command) { return command->name() == name; });
    return found == commands_.end() ? nullptr : found->get();
  }

  [[nodiscard]] std::string_view ExamplesOf(const CLI::App* app) const {
    const Command* command = Find(app->get_name());
    return command == nullptr ? kExamples : command->examples();
  }

  const CommandList& commands_;
  CLI::App app_;
  std::vector<std::string> names_;
  bool version_ = false;
  bool json_ = false;
};

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return kExitUsage;
    case StatusCode::kOutOfMemory:
    case StatusCode::kInternal:
      return kExitFailed;
  }
  return kExitFailed;
}

void PrintLine(const Streams& streams, std::string_view kind, std::string_view color,
               std::string_view text) {
  if (streams.use_color) {
    streams.err << fmt::format("attndrop: \x1b[{}m{}\x1b[0m: {}\n", color, kind, text);
  } else {
    streams.err << fmt::format("attndrop: {}: {}\n", kind, text);
  }
}

Status RunParsed(const Parsed& parsed, const Streams& streams) {
  if (parsed.command != nullptr) {
    if (Status checked = parsed.command->Check(); !checked.ok()) return checked;
    if (Status ran = parsed.command->Run(streams); !ran.ok()) return ran;
  } else {
    streams.out << parsed.text;
  }
  streams.out.flush();
  if (!streams.out) return Status::Internal("standard output cannot be written; is the disk full?");
  return {};
}

}  // namespace

Command::~Command() = default;

void PrintNote(const Streams& streams, std::string_view text) {
  PrintLine(streams, "note", "1", text);
}

void PrintWarning(const Streams& streams, std::string_view text) {
  PrintLine(streams, "warning", "1;33", text);
}

Result<Parsed> ParseCommandLine(std::span<const std::string> args, const CommandList& commands) {
  return Parser(commands).Parse(args);
}

int RunCli(std::span<const std::string> args, const Streams& streams) {
  Status status;
  try {
    const CommandList commands = MakeCommands();
    const Result<Parsed> parsed = ParseCommandLine(args, commands);
    status = parsed.ok() ? RunParsed(*parsed, streams) : parsed.status();
  } catch (const std::bad_alloc&) {
    status = Status::OutOfMemory("there is not enough memory for this command");
  } catch (const std::exception& error) {
    status = Status::Internal(error.what());
  }
  if (!status.ok()) PrintLine(streams, "error", "1;31", status.message());
  return ExitCodeOf(status);
}

}  // namespace attndrop::cli
