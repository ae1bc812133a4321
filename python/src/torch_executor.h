// SPDX-License-Identifier: Apache-2.0
// Runs the tasks of a call on PyTorch's threads.
#pragma once

#include <cstdint>

#include "attndrop/executor.h"

namespace attndrop::python {

// As many workers as torch.get_num_threads(). Each takes the next task from a shared counter, so
// tasks start in ascending order; inside another parallel region the caller does them all.
class TorchExecutor final : public Executor {
 public:
  TorchExecutor();
  [[nodiscard]] int num_workers() const noexcept override { return num_workers_; }
  void Run(std::int64_t num_tasks, TaskBody body) override;

 private:
  int num_workers_ = 1;
};

}  // namespace attndrop::python
