// SPDX-License-Identifier: Apache-2.0
// Who runs the tasks of a call: the caller's thread, threads of our own, or a host's pool.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "attndrop/export.h"
#include "attndrop/status.h"

namespace attndrop {

// A borrowed callable `void(std::int64_t task, int worker)`; it must outlive the call it is given
// to.
class TaskBody {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, TaskBody>)
  TaskBody(F& body) noexcept  // NOLINT(google-explicit-constructor): borrows like a reference
      : object_(static_cast<const void*>(&body)),
        call_([](const void* object, std::int64_t task, int worker) {
          (*static_cast<F*>(const_cast<void*>(object)))(task, worker);
        }) {}

  void operator()(std::int64_t task, int worker) const { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, int);
};

// Runs tasks 0 .. num_tasks-1, each once and in any order, and returns when all have ended. What
// the caller wrote before Run is visible to the tasks, and what they wrote is visible after it. A
// task waits only for tasks that have started, so no executor can deadlock. `worker` is in [0,
// num_workers()) and no two tasks run at once with the same worker. Tasks do not throw.
class ATTNDROP_EXPORT Executor {
 public:
  virtual ~Executor();
  [[nodiscard]] virtual int num_workers() const noexcept = 0;
  virtual void Run(std::int64_t num_tasks, TaskBody body) = 0;
};

// Everything on the caller's thread.
class ATTNDROP_EXPORT SerialExecutor final : public Executor {
 public:
  [[nodiscard]] int num_workers() const noexcept override { return 1; }
  void Run(std::int64_t num_tasks, TaskBody body) override;
};

// The caller's thread and num_threads-1 more, started for each Run: no state between calls, so it
// is safe from many threads, inside other pools and after fork. Starting a thread costs some 20 us.
// Where the system refuses more threads the tasks run on those it gave.
class ATTNDROP_EXPORT ThreadExecutor final : public Executor {
 public:
  // num_threads in [1, 4096]; 0 means one per hardware thread.
  [[nodiscard]] static Result<ThreadExecutor> Make(std::int64_t num_threads);
  [[nodiscard]] int num_workers() const noexcept override { return num_threads_; }
  void Run(std::int64_t num_tasks, TaskBody body) override;

 private:
  explicit ThreadExecutor(int num_threads) : num_threads_(num_threads) {}
  int num_threads_;
};

}  // namespace attndrop
