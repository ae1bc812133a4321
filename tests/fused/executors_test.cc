// SPDX-License-Identifier: Apache-2.0
// The fused path on executors of every kind: none can deadlock it or change a bit. Each call here
// ends within a time limit or the program ends with a message.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fused/bound.h"

namespace attndrop::testing {
namespace {

using std::chrono::seconds;

// Ends the program when a scope takes longer than the limit: a deadlock has no other end.
class TimeLimit {
 public:
  explicit TimeLimit(seconds limit) : thread_([this, limit] { Watch(limit); }) {}
  ~TimeLimit() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  void Watch(seconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, limit, [this] { return done_; })) return;
    std::fprintf(stderr, "a call has not ended after %lld s: deadlock?\n",
                 static_cast<long long>(limit.count()));
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

constexpr seconds kLimit{120};

// Starts one thread a worker, each with a fixed share of the tasks.
class StaticExecutor : public Executor {
 public:
  enum class Split : std::uint8_t {
    kRanges,       // worker w runs tasks w n/W .. (w+1) n/W - 1, ascending
    kInterleaved,  // worker w runs tasks w, w + W, ...
  };
  StaticExecutor(int num_workers, Split split) : num_workers_(num_workers), split_(split) {}
  [[nodiscard]] int num_workers() const noexcept override { return num_workers_; }

  void Run(std::int64_t num_tasks, TaskBody body) override {
    std::vector<std::thread> threads;
    for (int worker = 0; worker < num_workers_; ++worker) {
      threads.emplace_back([=, this] { RunShare(num_tasks, worker, body); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void RunShare(std::int64_t num_tasks, int worker, const TaskBody& body) const {
    const bool ranges = split_ == Split::kRanges;
    const std::int64_t first = ranges ? num_tasks * worker / num_workers_ : worker;
    const std::int64_t end = ranges ? num_tasks * (worker + 1) / num_workers_ : num_tasks;
    for (std::int64_t task = first; task < end; task += ranges ? 1 : num_workers_) {
      body(task, worker);
    }
  }

  int num_workers_;
  Split split_;
};

// One counter, as ThreadExecutor has, but the workers start in reverse order, each when the one
// before it has taken a task or found none.
class ReverseExecutor : public Executor {
 public:
  explicit ReverseExecutor(int num_workers) : num_workers_(num_workers) {}
  [[nodiscard]] int num_workers() const noexcept override { return num_workers_; }

  void Run(std::int64_t num_tasks, TaskBody body) override {
    std::atomic<std::int64_t> next{0};
    std::vector<std::thread> threads;
    for (int worker = num_workers_ - 1; worker >= 0; --worker) {
      std::atomic<bool> started{false};
      threads.emplace_back([&, worker] {
        std::int64_t task = next.fetch_add(1);
        started = true;
        started.notify_one();
        for (; task < num_tasks; task = next.fetch_add(1)) body(task, worker);
      });
      started.wait(false);
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int num_workers_;
};

// All tasks on the caller's thread, last to first: no order is promised to a driver but that of its
// own waiting.
class BackToFrontExecutor : public Executor {
 public:
  [[nodiscard]] int num_workers() const noexcept override { return 1; }
  void Run(std::int64_t num_tasks, TaskBody body) override {
    for (std::int64_t task = num_tasks - 1; task >= 0; --task) body(task, 0);
  }
};

ProblemArgs OneHead() {
  ProblemArgs args;
  args.shape = {.seqlen_q = 260, .seqlen_k = 600, .head_dim = 16};
  args.dropout.dropout_p = 0.3;
  return args;
}

std::vector<ProblemArgs> Problems() {
  ProblemArgs heads = OneHead();
  heads.shape = {.batch = 2,
                 .num_heads = 4,
                 .num_kv_heads = 2,
                 .seqlen_q = 150,
                 .seqlen_k = 300,
                 .head_dim = 16};
  heads.is_causal = true;
  ProblemArgs masked = heads;
  masked.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, false, true, true};
  return {OneHead(), heads, masked};
}

void RunBoth(const ProblemArgs& args, ProblemArrays& arrays, Executor& executor) {
  const Result<Plan> plan = Plan::Make(MustMake(args), {.path = Path::kFused});
  ASSERT_TRUE(plan.ok());
  Scratch scratch;
  const Status forward = Forward(*plan, arrays.ForForward(), executor, scratch);
  EXPECT_TRUE(forward.ok()) << forward.message();
  const Status backward = Backward(*plan, arrays.ForBackward(), executor, scratch);
  EXPECT_TRUE(backward.ok()) << backward.message();
}

[[nodiscard]] bool SameResults(ProblemArrays& a, ProblemArrays& b) {
  return SameBits(a.out, b.out) && SameBits(a.logsumexp, b.logsumexp) &&
         SameBits(a.grad_query, b.grad_query) && SameBits(a.grad_key, b.grad_key) &&
         SameBits(a.grad_value, b.grad_value) &&
         (!a.has_grad_attn_mask || SameBits(a.grad_attn_mask, b.grad_attn_mask));
}

ProblemArrays Serial(const ProblemArgs& args) {
  ProblemArrays arrays = MakeArrays(args, 1);
  SerialExecutor serial;
  RunBoth(args, arrays, serial);
  return arrays;
}

void ExpectSerialResults(Executor& executor) {
  const TimeLimit limit(kLimit);
  for (const ProblemArgs& args : Problems()) {
    SCOPED_TRACE(MustMake(args).ToString());
    ProblemArrays want = Serial(args), got = MakeArrays(args, 1);
    RunBoth(args, got, executor);
    EXPECT_TRUE(SameResults(want, got));
  }
}

ThreadExecutor Threads(int count) {
  Result<ThreadExecutor> executor = ThreadExecutor::Make(count);
  EXPECT_TRUE(executor.ok());
  return *std::move(executor);
}

TEST(FusedExecutors, OneWorker) {
  ThreadExecutor one = Threads(1);
  ExpectSerialResults(one);
  StaticExecutor fixed(1, StaticExecutor::Split::kRanges);
  ExpectSerialResults(fixed);
}

TEST(FusedExecutors, OneWorkerBackToFront) {
  BackToFrontExecutor executor;
  ExpectSerialResults(executor);
}

TEST(FusedExecutors, StaticRanges) {
  for (const int workers : {2, 3, 7}) {
    StaticExecutor executor(workers, StaticExecutor::Split::kRanges);
    ExpectSerialResults(executor);
  }
}

TEST(FusedExecutors, StaticInterleaved) {
  for (const int workers : {2, 5}) {
    StaticExecutor executor(workers, StaticExecutor::Split::kInterleaved);
    ExpectSerialResults(executor);
  }
}

TEST(FusedExecutors, WorkersInReverseOrder) {
  for (const int workers : {2, 4}) {
    ReverseExecutor executor(workers);
    ExpectSerialResults(executor);
  }
}

TEST(FusedExecutors, MoreWorkersThanTasks) {
  ThreadExecutor many = Threads(64);
  ExpectSerialResults(many);
}

// Every task of an outer pool is a whole call that has a pool of its own.
TEST(FusedExecutors, InsideAnotherPool) {
  const TimeLimit limit(kLimit);
  const ProblemArgs args = OneHead();
  ProblemArrays want = Serial(args);
  std::atomic<int> good{0};
  auto body = [&](std::int64_t /*task*/, int /*worker*/) {
    ProblemArrays got = MakeArrays(args, 1);
    ThreadExecutor inner = Threads(2);
    RunBoth(args, got, inner);
    if (SameResults(want, got)) ++good;
  };
  ThreadExecutor outer = Threads(3);
  outer.Run(6, body);
  EXPECT_EQ(good, 6);
}

// Callers that share inputs, problem and executor, but neither outputs nor scratch.
TEST(FusedExecutors, SeveralCallersAtOnce) {
  const TimeLimit limit(kLimit);
  for (const ProblemArgs& args : Problems()) {
    ProblemArrays want = Serial(args);
    ThreadExecutor shared = Threads(2);
    std::atomic<int> good{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] {
        for (int k = 0; k < 3; ++k) {
          ProblemArrays got = MakeArrays(args, 1);
          RunBoth(args, got, shared);
          if (SameResults(want, got)) ++good;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(good, 12);
  }
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#else
constexpr bool kThreadSanitizer = false;
#endif

// The parent has used its pool; the child uses the same executor.
TEST(FusedExecutors, AfterFork) {
  if (kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork";
  const TimeLimit limit(kLimit);
  const ProblemArgs args = OneHead();
  ThreadExecutor executor = Threads(3);
  ProblemArrays want = MakeArrays(args, 1);
  RunBoth(args, want, executor);
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      ProblemArrays got = MakeArrays(args, 1);
      RunBoth(args, got, executor);
      std::_Exit(SameResults(want, got) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
}

}  // namespace
}  // namespace attndrop::testing
