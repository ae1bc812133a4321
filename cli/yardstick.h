// SPDX-License-Identifier: Apache-2.0
// The multiply-add peak of this machine: what the kernels are measured against.
#pragma once

#include <cstdint>

#include "attndrop/executor.h"
#include "attndrop/target.h"

namespace attndrop::cli {

// Time on the wall, or time that this process spent on processors.
enum class Clock : std::uint8_t { kWall, kCpu };
[[nodiscard]] double Seconds(Clock clock) noexcept;

// float32 operations a second (a multiply-add counts as two) of independent multiply-adds in the
// vectors of the target, on all workers of the executor: the best of a few runs, some 3 ms in all.
// 0 when this program was not built for the target. The machine must have it.
[[nodiscard]] double MeasurePeak(Target target, Executor& executor, Clock clock);

}  // namespace attndrop::cli
