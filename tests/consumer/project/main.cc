// SPDX-License-Identifier: Apache-2.0
// The smallest program that uses the library: one query, two keys, no dropout, a known result.
#include <array>
#include <cmath>
#include <cstdio>

#include <attndrop/attndrop.h>

int main() {
  attndrop::ProblemArgs args;
  args.shape = {.seqlen_q = 1, .seqlen_k = 2, .head_dim = 1};
  args.dtype = attndrop::DType::kFloat64;
  const auto problem = attndrop::Problem::Make(args);
  if (!problem.ok()) return std::puts(problem.status().message().c_str()), 1;
  const auto plan = attndrop::Plan::Make(*problem);
  if (!plan.ok()) return std::puts(plan.status().message().c_str()), 1;

  const std::array<double, 1> query{0.0};
  const std::array<double, 2> key{1.0, 2.0};
  const std::array<double, 2> value{3.0, 5.0};
  std::array<double, 1> out{};
  attndrop::ForwardBuffers buffers;
  buffers.query = attndrop::Dense<const void>(query.data(), 1, 1, 1);
  buffers.key = attndrop::Dense<const void>(key.data(), 1, 2, 1);
  buffers.value = attndrop::Dense<const void>(value.data(), 1, 2, 1);
  buffers.out = attndrop::Dense<void>(out.data(), 1, 1, 1);

  attndrop::SerialExecutor executor;
  attndrop::Scratch scratch;
  const attndrop::Status status = attndrop::Forward(*plan, buffers, executor, scratch);
  if (!status.ok()) return std::puts(status.message().c_str()), 1;

  // Both keys weigh one half: the mean of the values.
  std::printf("%s %g\n", problem->ToString().c_str(), out[0]);
  return std::abs(out[0] - 4.0) < 1e-15 ? 0 : 1;
}
