// SPDX-License-Identifier: Apache-2.0
// What the benchmark programs share: running one problem under Google Benchmark.
#pragma once

#include <string>

#include <benchmark/benchmark.h>

#include "attndrop/executor.h"

#include "cli/bench_case.h"

namespace attndrop::bench {

// Runs the problem in one direction on one thread; reports floating point operations a second and
// nanoseconds per weight.
inline void RunLine(benchmark::State& state, const std::string& line, cli::Direction direction) {
  const Result<Problem> problem = Problem::Parse(line);
  if (!problem.ok()) return state.SkipWithError(problem.status().message().c_str());
  const Result<Plan> plan = Plan::Make(*problem);
  if (!plan.ok()) return state.SkipWithError(plan.status().message().c_str());
  SerialExecutor executor;
  Result<cli::BenchCase> bench_case = cli::BenchCase::Make(*plan, direction, executor);
  if (!bench_case.ok()) return state.SkipWithError(bench_case.status().message().c_str());
  for (auto _ : state) {
    const Status done = bench_case->Run(executor);
    if (!done.ok()) return state.SkipWithError(done.message().c_str());
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["flops"] =
      benchmark::Counter(calls * cli::CountFlops(*problem, direction), benchmark::Counter::kIsRate);
  state.counters["weights"] =
      benchmark::Counter(calls * cli::CountVisibleWeights(*problem), benchmark::Counter::kIsRate);
}

}  // namespace attndrop::bench
