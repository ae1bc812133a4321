// SPDX-License-Identifier: Apache-2.0
// Counts finished tasks; worker 0 prints.
#include "cli/progress.h"

#include <fmt/format.h>

namespace attndrop::cli {

void ProgressExecutor::Run(std::int64_t num_tasks, TaskBody body) {
  if (!streams_.err_is_terminal) {
    inner_.Run(num_tasks, body);
    return;
  }
  using Clock = std::chrono::steady_clock;
  std::atomic<std::int64_t> num_done = 0;
  Clock::time_point next_line = begin_ + std::chrono::seconds(2);
  bool has_line = false;
  auto counted = [&](std::int64_t task, int worker) {
    body(task, worker);
    const std::int64_t done = num_done.fetch_add(1, std::memory_order_relaxed) + 1;
    // Only one worker has number 0, so what follows needs no lock.
    if (worker != 0 || Clock::now() < next_line) return;
    next_line = Clock::now() + std::chrono::milliseconds(100);
    has_line = true;
    streams_.err << fmt::format("\rattndrop: {:3.0f} %",
                                100.0 * static_cast<double>(done) / static_cast<double>(num_tasks))
                 << std::flush;
  };
  inner_.Run(num_tasks, counted);
  if (has_line) streams_.err << "\r               \r" << std::flush;
}

}  // namespace attndrop::cli
