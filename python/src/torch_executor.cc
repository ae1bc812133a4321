// SPDX-License-Identifier: Apache-2.0
// Runs the tasks of a call on PyTorch's threads.
#include "torch_executor.h"

#include <algorithm>
#include <atomic>

#include <torch/csrc/stable/ops.h>

namespace attndrop::python {

TorchExecutor::TorchExecutor()
    : num_workers_(std::max(1, static_cast<int>(torch::stable::get_num_threads()))) {}

void TorchExecutor::Run(std::int64_t num_tasks, TaskBody body) {
  std::atomic<std::int64_t> next_task = 0;
  // A range of workers may come as one piece; its first one then does the work of all.
  const auto work = [&](std::int64_t first_worker, std::int64_t /*end*/) {
    for (std::int64_t task = next_task++; task < num_tasks; task = next_task++) {
      body(task, static_cast<int>(first_worker));
    }
  };
  const std::int64_t workers = std::min<std::int64_t>(num_workers_, num_tasks);
  if (workers <= 1) {
    work(0, 1);
  } else {
    torch::stable::parallel_for(0, workers, 1, work);
  }
}

}  // namespace attndrop::python
