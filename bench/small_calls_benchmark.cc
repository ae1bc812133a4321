// SPDX-License-Identifier: Apache-2.0
// What does a call cost when there is little to compute?
#include <string>

#include "bench/case.h"

namespace {

using attndrop::cli::Direction;

void Forward(benchmark::State& state, const std::string& line) {
  attndrop::bench::RunLine(state, line, Direction::kForward);
}
void Backward(benchmark::State& state, const std::string& line) {
  attndrop::bench::RunLine(state, line, Direction::kBackward);
}

constexpr const char* kLanguageModel = "b64 h4 q64 k64 d16 f32 causal p=0.1";
constexpr const char* kTiny = "b64 h4 q4 k4 d10 f32 causal p=0.1";
constexpr const char* kOneRow = "q1 k1 d16 f32 p=0.1";
constexpr const char* kGeneration = "h8 kv2 q1 k4096 d64 f32";

BENCHMARK_CAPTURE(Forward, language_model, kLanguageModel)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Backward, language_model, kLanguageModel)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Forward, tiny, kTiny)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Backward, tiny, kTiny)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Forward, one_row, kOneRow)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Backward, one_row, kOneRow)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Forward, generation, kGeneration)->Unit(benchmark::kMicrosecond);

}  // namespace
