// SPDX-License-Identifier: Apache-2.0
// An executor that shows on a terminal how far long work is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "attndrop/executor.h"

#include "cli/command.h"

namespace attndrop::cli {

// Passes everything to `inner`. Prints a percentage on stderr once work has taken two seconds, at
// most ten times a second, and only when stderr is a terminal; clears the line at the end.
class ProgressExecutor final : public Executor {
 public:
  ProgressExecutor(Executor& inner, const Streams& streams) : inner_(inner), streams_(streams) {}
  [[nodiscard]] int num_workers() const noexcept override { return inner_.num_workers(); }
  void Run(std::int64_t num_tasks, TaskBody body) override;

 private:
  Executor& inner_;
  const Streams& streams_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace attndrop::cli
