// SPDX-License-Identifier: Apache-2.0
// Interleaved measurement of many cases: all in turn, again and again, so that what slows the
// machine down for a while slows all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attndrop/executor.h"
#include "attndrop/plan.h"
#include "attndrop/problem.h"
#include "attndrop/status.h"

#include "cli/bench_case.h"
#include "cli/yardstick.h"

namespace attndrop::cli {

// One entry per repeat.
struct Samples {
  std::vector<double> seconds;  // of one call
  std::vector<double> peaks;    // the larger of the yardsticks before and after; 0: no yardstick
};

[[nodiscard]] double Median(std::vector<double> values);  // NaN without values

class BenchSet {
 public:
  BenchSet(Executor& executor, const PlanOptions& options)
      : executor_(executor), options_(options) {}

  // The index of the case; a case that is there already is found again.
  [[nodiscard]] Result<std::size_t> Add(const Problem& problem, Direction direction);
  // Each case once, untimed.
  [[nodiscard]] Status RunOnce();
  [[nodiscard]] Status Measure(std::int64_t repeats, Clock clock);

  [[nodiscard]] const BenchCase& at(std::size_t index) const { return cases_[index]; }
  [[nodiscard]] const Samples& samples(std::size_t index) const { return samples_[index]; }

 private:
  [[nodiscard]] Status MeasureCase(std::size_t index, Clock clock);
  [[nodiscard]] double Peak(const BenchCase& bench_case, Clock clock);

  Executor& executor_;
  PlanOptions options_;
  std::vector<BenchCase> cases_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> calls_;  // in one sample
  std::vector<Samples> samples_;
};

}  // namespace attndrop::cli
