// SPDX-License-Identifier: Apache-2.0
// How many cells of the keep mask are written a second, as bytes into memory?
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/case.h"

namespace {

using attndrop::Problem;
using attndrop::Result;
using attndrop::Status;

void KeepMask(benchmark::State& state, const std::string& words) {
  const auto seqlen = state.range(0);
  const Result<Problem> problem =
      Problem::Parse(fmt::format("q{0} k{0} d64 p=0.1 {1}", seqlen, words));
  if (!problem.ok()) return state.SkipWithError(problem.status().message().c_str());
  std::vector<std::uint8_t> keep(static_cast<std::size_t>(seqlen * seqlen));
  attndrop::SerialExecutor executor;
  attndrop::KeepMaskBuffers buffers;
  buffers.keep = keep.data();
  for (auto _ : state) {
    const Status done = attndrop::KeepMask(*problem, buffers, executor);
    if (!done.ok()) return state.SkipWithError(done.message().c_str());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * seqlen * seqlen);
}

BENCHMARK_CAPTURE(KeepMask, element, "scheme=element")->Arg(2048)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(KeepMask, key, "scheme=key")->Arg(2048)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(KeepMask, block, "scheme=block")->Arg(2048)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(KeepMask, symmetric, "scheme=symmetric")
    ->Arg(2048)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
