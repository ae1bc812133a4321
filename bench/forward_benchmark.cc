// SPDX-License-Identifier: Apache-2.0
// How does the forward depend on head_dim, seqlen, causal and dropout?
#include <string>

#include <fmt/format.h>

#include "bench/case.h"

namespace {

using attndrop::cli::Direction;

void Forward(benchmark::State& state, const std::string& words) {
  attndrop::bench::RunLine(state,
                           fmt::format("q{0} k{0} d{1} {2}", state.range(0), state.range(1), words),
                           Direction::kForward);
}

void Shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"seqlen", "head_dim"})
      ->ArgsProduct({{128, 512, 2048}, {32, 64, 128}})
      ->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(Forward, plain, "f32")->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, dropout, "f32 p=0.1")->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, causal_dropout, "f32 causal p=0.1")->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, bf16_dropout, "bf16 p=0.1")->Apply(Shapes);

}  // namespace
