// SPDX-License-Identifier: Apache-2.0
// Samples: a yardstick, some calls of one case, a yardstick.
#include "cli/bench_measure.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace attndrop::cli {
namespace {

// A sample takes at least so long; shorter calls are repeated in it.
constexpr double kSampleSeconds = 0.004;
// Calls up to here are preceded by an untimed one, so that they find the caches as their own
// predecessors left them.
constexpr double kWarmUpSeconds = 0.05;

Status RunCalls(BenchCase& bench_case, Executor& executor, std::int64_t calls) {
  for (std::int64_t call = 0; call < calls; ++call) {
    if (Status done = bench_case.Run(executor); !done.ok()) return done;
  }
  return {};
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t half = values.size() / 2;
  std::ranges::sort(values);
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Result<std::size_t> BenchSet::Add(const Problem& problem, Direction direction) {
  const std::string name = fmt::format("{} {}", DirectionName(direction), problem.ToString());
  const auto found = std::ranges::find(names_, name);
  if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
  const Result<Plan> plan = Plan::Make(problem, options_);
  if (!plan.ok()) return plan.status();
  Result<BenchCase> made = BenchCase::Make(*plan, direction, executor_);
  if (!made.ok()) return made.status();
  cases_.push_back(*std::move(made));
  names_.push_back(name);
  samples_.emplace_back();
  return cases_.size() - 1;
}

Status BenchSet::RunOnce() {
  for (BenchCase& bench_case : cases_) {
    if (Status done = bench_case.Run(executor_); !done.ok()) return done;
  }
  return {};
}

Status BenchSet::Measure(std::int64_t repeats, Clock clock) {
  calls_.clear();
  for (BenchCase& bench_case : cases_) {
    if (Status done = bench_case.Run(executor_); !done.ok()) return done;
    const double begin = Seconds(clock);
    if (Status done = bench_case.Run(executor_); !done.ok()) return done;
    const double seconds = std::max(1e-7, Seconds(clock) - begin);
    calls_.push_back(1 + static_cast<std::int64_t>(kSampleSeconds / seconds));
  }
  for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t index = 0; index < cases_.size(); ++index) {
      if (Status done = MeasureCase(index, clock); !done.ok()) return done;
    }
  }
  return {};
}

Status BenchSet::MeasureCase(std::size_t index, Clock clock) {
  BenchCase& bench_case = cases_[index];
  Samples& samples = samples_[index];
  const std::int64_t calls = calls_[index];
  const double last = samples.seconds.empty() ? 0.0 : samples.seconds.back();
  const double before = Peak(bench_case, clock);
  if (last < kWarmUpSeconds) {
    if (Status done = bench_case.Run(executor_); !done.ok()) return done;
  }
  const double begin = Seconds(clock);
  if (Status done = RunCalls(bench_case, executor_, calls); !done.ok()) return done;
  const double seconds = (Seconds(clock) - begin) / static_cast<double>(calls);
  samples.seconds.push_back(seconds);
  samples.peaks.push_back(std::max(before, Peak(bench_case, clock)));
  return {};
}

double BenchSet::Peak(const BenchCase& bench_case, Clock clock) {
  if (bench_case.plan().path() != Path::kFused) return 0.0;
  return MeasurePeak(bench_case.plan().target(), executor_, clock);
}

}  // namespace attndrop::cli
