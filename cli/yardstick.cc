// SPDX-License-Identifier: Apache-2.0
// Chains of multiply-adds in registers, compiled once for each instruction set by Highway.
#define HWY_DISABLED_TARGETS HWY_SSSE3

#include "cli/yardstick.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/yardstick.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attndrop::cli {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// More chains than latency times throughput of any multiply-add unit (4 x 2; a multiplication and
// an addition where there is none: 5 x 2), few enough for the 16 registers of AVX2.
inline constexpr int kChains = 12;
using DF = hn::CappedTag<float, 16>;

// x = x * factor + term in each chain, `rounds` times. Sets *flops; the result keeps the chains
// from being optimised away.
inline float MultiplyAdds(std::uint64_t rounds, float factor, double* flops) {
  const DF d;
  const auto a = hn::Set(d, factor);
  const auto b = hn::Set(d, 1.0F - factor);
  // Chains that start alike would be one chain for the compiler.
  auto x0 = hn::Iota(d, 0.0F), x1 = hn::Iota(d, 1.0F), x2 = hn::Iota(d, 2.0F);
  auto x3 = hn::Iota(d, 3.0F), x4 = hn::Iota(d, 4.0F), x5 = hn::Iota(d, 5.0F);
  auto x6 = hn::Iota(d, 6.0F), x7 = hn::Iota(d, 7.0F), x8 = hn::Iota(d, 8.0F);
  auto x9 = hn::Iota(d, 9.0F), x10 = hn::Iota(d, 10.0F), x11 = hn::Iota(d, 11.0F);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    x0 = hn::MulAdd(x0, a, b);
    x1 = hn::MulAdd(x1, a, b);
    x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b);
    x4 = hn::MulAdd(x4, a, b);
    x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b);
    x7 = hn::MulAdd(x7, a, b);
    x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
    x10 = hn::MulAdd(x10, a, b);
    x11 = hn::MulAdd(x11, a, b);
  }
  *flops = 2.0 * kChains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
  const auto low = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  const auto high = hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11));
  return hn::GetLane(hn::Add(low, high));
}

}  // namespace HWY_NAMESPACE
}  // namespace attndrop::cli
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <atomic>
#include <ctime>

namespace attndrop::cli {
namespace {

using MultiplyAddsFunction = float (*)(std::uint64_t, float, double*);

MultiplyAddsFunction FunctionFor(Target target) noexcept {
  switch (target) {
#if HWY_TARGETS & HWY_NEON
    case Target::kNeon:
      return &N_NEON::MultiplyAdds;
#endif
#if HWY_TARGETS & HWY_SSE4
    case Target::kSse4:
      return &N_SSE4::MultiplyAdds;
#endif
#if HWY_TARGETS & HWY_AVX2
    case Target::kAvx2:
      return &N_AVX2::MultiplyAdds;
#endif
#if HWY_TARGETS & HWY_AVX3
    case Target::kAvx512:
      return &N_AVX3::MultiplyAdds;
#endif
    default:
      return nullptr;
  }
}

}  // namespace

double Seconds(Clock clock) noexcept {
  std::timespec time{};
  ::clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double MeasurePeak(Target target, Executor& executor, Clock clock) {
  const MultiplyAddsFunction function = FunctionFor(target);
  if (function == nullptr) return 0.0;
  constexpr int kRuns = 5;
  // Some 0.6 ms; longer where threads must be started.
  const std::uint64_t rounds = executor.num_workers() == 1 ? 400'000 : 2'000'000;
  std::atomic<float> sink = 0.0F;
  std::atomic<double> total_flops = 0.0;
  auto body = [&](std::int64_t, int) {
    double flops = 0.0;
    sink.store(function(rounds, 0.5F, &flops), std::memory_order_relaxed);
    total_flops.fetch_add(flops, std::memory_order_relaxed);
  };
  double best = 0.0;
  for (int run = 0; run < kRuns; ++run) {
    total_flops = 0.0;
    const double begin = Seconds(clock);
    executor.Run(executor.num_workers(), body);
    best = std::max(best, total_flops / (Seconds(clock) - begin));
  }
  return best;
}

}  // namespace attndrop::cli

#endif  // HWY_ONCE
