// SPDX-License-Identifier: Apache-2.0
// Executors: each task once, ascending starts, workers that exclude each other.
#include "attndrop/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::RefusesArgument;

ThreadExecutor Threads(std::int64_t count) {
  Result<ThreadExecutor> executor = ThreadExecutor::Make(count);
  EXPECT_TRUE(executor.ok());
  return *std::move(executor);
}

// Counts how often each task runs, and notices two tasks at once on one worker.
class Ledger {
 public:
  Ledger(std::int64_t num_tasks, int num_workers)
      : runs_(static_cast<std::size_t>(num_tasks)), busy_(static_cast<std::size_t>(num_workers)) {}

  void Run(std::int64_t task, int worker) {
    if (worker < 0 || static_cast<std::size_t>(worker) >= busy_.size()) {
      bad_worker_ = true;
      return;
    }
    std::atomic<bool>& busy = busy_[static_cast<std::size_t>(worker)];
    if (busy.exchange(true)) bad_worker_ = true;
    if (task < 0 || static_cast<std::size_t>(task) >= runs_.size()) {
      bad_task_ = true;
    } else {
      ++runs_[static_cast<std::size_t>(task)];
    }
    if (task % 7 == 0) std::this_thread::yield();
    busy = false;
  }

  [[nodiscard]] bool EachOnce() const {
    return !bad_task_ && !bad_worker_ &&
           std::all_of(runs_.begin(), runs_.end(), [](const auto& runs) { return runs == 1; });
  }

 private:
  std::vector<std::atomic<int>> runs_;
  std::vector<std::atomic<bool>> busy_;
  std::atomic<bool> bad_task_{false};
  std::atomic<bool> bad_worker_{false};
};

bool RunsEachTaskOnce(Executor& executor, std::int64_t num_tasks) {
  Ledger ledger(num_tasks, executor.num_workers());
  auto body = [&ledger](std::int64_t task, int worker) { ledger.Run(task, worker); };
  executor.Run(num_tasks, body);
  return ledger.EachOnce();
}

TEST(SerialExecutorTest, RunsInOrderOnTheCallersThread) {
  SerialExecutor executor;
  EXPECT_EQ(executor.num_workers(), 1);
  std::vector<std::int64_t> order;
  const std::thread::id caller = std::this_thread::get_id();
  auto body = [&](std::int64_t task, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(task);
  };
  executor.Run(4, body);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3}));
  executor.Run(0, body);
  EXPECT_EQ(order.size(), 4U);
}

TEST(ThreadExecutorTest, EachTaskRunsOnce) {
  for (const std::int64_t threads : {1, 2, 3, 8}) {
    ThreadExecutor executor = Threads(threads);
    EXPECT_EQ(executor.num_workers(), threads);
    for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) {
      EXPECT_TRUE(RunsEachTaskOnce(executor, tasks)) << threads << " threads, " << tasks;
    }
  }
}

TEST(ThreadExecutorTest, MoreThreadsThanProcessorsOrTasks) {
  ThreadExecutor executor = Threads(64);
  EXPECT_TRUE(RunsEachTaskOnce(executor, 3));
  EXPECT_TRUE(RunsEachTaskOnce(executor, 500));
}

TEST(ThreadExecutorTest, ZeroMeansOnePerHardwareThread) {
  const int workers = Threads(0).num_workers();
  const auto hardware = static_cast<int>(std::thread::hardware_concurrency());
  EXPECT_EQ(workers, std::max(hardware, 1));
}

TEST(ThreadExecutorTest, RefusesOtherNumbers) {
  for (const std::int64_t threads :
       {std::int64_t{-1}, std::int64_t{4097}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_TRUE(
        RefusesArgument(ThreadExecutor::Make(threads).status(),
                        {"threads must be in 1 .. 4096, or 0 for one per hardware thread, got ",
                         std::to_string(threads)}));
  }
  EXPECT_TRUE(ThreadExecutor::Make(4096).ok());
}

// A task may wait for lower-numbered ones: with starts in another order this would never end.
TEST(ThreadExecutorTest, TasksStartInAscendingOrder) {
  ThreadExecutor executor = Threads(4);
  constexpr std::int64_t kTasks = 400;
  std::atomic<std::int64_t> ended{0};
  std::atomic<bool> late{false};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  auto body = [&](std::int64_t task, int /*worker*/) {
    while (ended < task && !late) {
      if (std::chrono::steady_clock::now() > deadline) late = true;
      std::this_thread::yield();
    }
    ++ended;
  };
  executor.Run(kTasks, body);
  EXPECT_FALSE(late);
  EXPECT_EQ(ended, kTasks);
}

TEST(ThreadExecutorTest, UsesMoreThanOneThread) {
  ThreadExecutor executor = Threads(2);
  std::atomic<int> started{0};
  std::atomic<bool> met{false};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  auto body = [&](std::int64_t /*task*/, int /*worker*/) {
    ++started;
    while (!met && std::chrono::steady_clock::now() < deadline) {
      if (started == 2) met = true;
      std::this_thread::yield();
    }
  };
  executor.Run(2, body);
  EXPECT_TRUE(met) << "two tasks never ran at once";
}

TEST(ThreadExecutorTest, RunsInsideARun) {
  ThreadExecutor outer = Threads(3);
  std::atomic<int> good{0};
  auto body = [&good](std::int64_t /*task*/, int /*worker*/) {
    ThreadExecutor inner = Threads(2);
    good += RunsEachTaskOnce(inner, 20) ? 1 : 0;
  };
  outer.Run(9, body);
  EXPECT_EQ(good, 9);
}

TEST(ThreadExecutorTest, OneExecutorServesSeveralThreads) {
  ThreadExecutor executor = Threads(2);
  std::atomic<int> good{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&executor, &good] {
      for (int k = 0; k < 10; ++k) good += RunsEachTaskOnce(executor, 25) ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(good, 60);
}

// With the address space used up no thread gets a stack; the caller's own does the work.
[[noreturn]] void RunWithoutRoomForThreads() {
  ThreadExecutor executor = Threads(4096);
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = rlim_t{1} << 27;
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
  std::_Exit(RunsEachTaskOnce(executor, 10000) ? 0 : 1);
}

TEST(ThreadExecutorDeathTest, WorksOnTheThreadsThatTheSystemGives) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
#endif
  EXPECT_EXIT(RunWithoutRoomForThreads(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace attndrop
