// SPDX-License-Identifier: Apache-2.0
// Threads, overwriting, JSON, and what is printed beside the data.
#include "cli/run_flags.h"

#include <cmath>

#include <fmt/format.h>
#include <unistd.h>

namespace attndrop::cli {

void AddThreadsFlag(CLI::App& app, RunFlags& flags) {
  AddFlag(app, flags.threads, "--threads",
          "1 to 4096; 0 (default): one per processor. Results never differ", "N");
}

void AddPathFlag(CLI::App& app, RunFlags& flags) {
  AddFlag(app, flags.path, "--path", "fused (fast) or reference (in double); default: the fastest",
          "NAME");
}

void AddTargetFlag(CLI::App& app, RunFlags& flags) {
  AddFlag(app, flags.target, "--target",
          "sse4, avx2, avx512 or neon (see --version); default: the widest", "NAME");
}

void AddForceFlag(CLI::App& app, RunFlags& flags) {
  AddSwitch(app, flags.force, "--force", "replace existing output files");
}

void AddJsonFlag(CLI::App& app, RunFlags& flags) {
  AddSwitch(app, flags.json, "--json", "print results as JSON");
}

void AddVerboseFlag(CLI::App& app, RunFlags& flags) {
  AddSwitch(app, flags.verbose, "--verbose", "print the problem as one line on stderr");
}

Result<ThreadExecutor> MakeExecutor(const RunFlags& flags) {
  FlagReader reader;
  const std::int64_t threads = reader.Integer(flags.threads, 0, {0, 4096});
  if (!reader.ok()) return reader.status();
  return ThreadExecutor::Make(threads);
}

Result<PlanOptions> ReadPlanOptions(const RunFlags& flags) {
  PlanOptions options;
  if (flags.target.given()) {
    const Result<Target> target = ParseTarget(*flags.target.text);
    if (!target.ok()) return target.status();
    options.target = *target;
  }
  if (!flags.path.given()) return options;
  for (const Path path : {Path::kReference, Path::kFused}) {
    if (*flags.path.text != PathName(path)) continue;
    options.path = path;
    return options;
  }
  return Status::InvalidArgument(fmt::format(
      "--path must be fused (fast) or reference (in double), got \"{}\"", *flags.path.text));
}

void PrintProblem(const Streams& streams, const RunFlags& flags, const Problem& problem) {
  if (flags.verbose) PrintNote(streams, fmt::format("problem: {}", problem.ToString()));
}

void PrintJson(const Streams& streams, const nlohmann::ordered_json& value) {
  streams.out << value.dump(2, ' ', /*ensure_ascii=*/false,
                            nlohmann::ordered_json::error_handler_t::replace)
              << '\n';
}

nlohmann::ordered_json JsonNumber(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

Status RequireFlag(const Flag& flag, std::string_view what) {
  if (flag.given()) return {};
  return Status::InvalidArgument(fmt::format("{} is missing: {}", flag.name, what));
}

Status CheckMemory(double bytes, std::string_view what, std::string_view advice) {
  const double there = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (bytes <= there) return {};
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  return Status::OutOfMemory(fmt::format("{} takes {:.1f} GiB, this machine has {:.1f} GiB; {}",
                                         what, bytes / kGiB, there / kGiB, advice));
}

}  // namespace attndrop::cli
