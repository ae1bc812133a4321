// SPDX-License-Identifier: Apache-2.0
// The serial executor and the one that starts threads for each run.
#include "attndrop/executor.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace attndrop {
namespace {

constexpr std::int64_t kMaxThreads = 4096;

// A thread running `body`, or none where the system has no thread or no memory left for it.
template <class F>
bool TryStart(std::vector<std::thread>& threads, F body) {
#if defined(__cpp_exceptions)
  try {
    threads.emplace_back(body);
  } catch (...) {
    return false;
  }
#else
  threads.emplace_back(body);
#endif
  return true;
}

}  // namespace

Executor::~Executor() = default;

void SerialExecutor::Run(std::int64_t num_tasks, TaskBody body) {
  for (std::int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

Result<ThreadExecutor> ThreadExecutor::Make(std::int64_t num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return Status::InvalidArgument("threads must be in 1 .. " + std::to_string(kMaxThreads) +
                                   ", or 0 for one per hardware thread, got " +
                                   std::to_string(num_threads));
  }
  if (num_threads == 0) {
    num_threads = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
  }
  return ThreadExecutor(static_cast<int>(num_threads));
}

void ThreadExecutor::Run(std::int64_t num_tasks, TaskBody body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&next, num_tasks, body](int worker) {
    for (std::int64_t task = next++; task < num_tasks; task = next++) body(task, worker);
  };
  const auto helpers = static_cast<int>(std::min<std::int64_t>(num_threads_, num_tasks)) - 1;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(std::max(helpers, 0)));
  for (int worker = 1; worker <= helpers; ++worker) {
    if (!TryStart(threads, [&work, worker] { work(worker); })) break;
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace attndrop
