// SPDX-License-Identifier: Apache-2.0
// Replays the post call by call and hands its Head to the library.
#include "cli/post.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "attndrop/analytics.h"
#include "attndrop/attention.h"
#include "attndrop/compat.h"

namespace attndrop::cli {
namespace {

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

// weight: (head_size, n_embd); x: (rows, n_embd).
PostMatrix<double> Project(std::span<const float> x, std::span<const float> weight) {
  PostMatrix<double> projected{};
  for (std::size_t at = 0; at < projected.size(); ++at) {
    projected[at] = Dot(x.subspan(at / kPostHeadSize * kPostEmbd, kPostEmbd),
                        weight.subspan(at % kPostHeadSize * kPostEmbd, kPostEmbd));
  }
  return projected;
}

// d @ v in float32, from left to right.
PostMatrix<float> Multiply(std::span<const float> d, const PostMatrix<float>& v) {
  PostMatrix<float> product{};
  for (std::size_t at = 0; at < product.size(); ++at) {
    for (std::size_t j = 0; j < kPostRows; ++j) {
      product[at] +=
          d[at / kPostHeadSize * kPostRows + j] * v[j * kPostHeadSize + at % kPostHeadSize];
    }
  }
  return product;
}

template <class T>
Strided<T> PostView(T* data) {
  return Dense<T>(data, 1, kPostRows, kPostHeadSize);
}

std::array<std::string, kPostRows> TriangleRows(std::span<const std::uint8_t> keep) {
  std::array<std::string, kPostRows> rows;
  for (std::size_t i = 0; i < kPostRows; ++i) {
    for (std::size_t j = 0; j <= i; ++j) rows[i] += keep[i * kPostRows + j] != 0 ? '1' : '0';
  }
  return rows;
}

}  // namespace

Result<PostTable> ReplayPostTable() {
  compat::TorchCpuGenerator generator(kPostSeed);
  std::array<float, kPostRows * kPostRows> s{};
  compat::Rand(generator, std::span<float>(s));
  for (std::size_t i = 0; i < kPostRows; ++i) {
    for (std::size_t j = i + 1; j < kPostRows; ++j) s[i * kPostRows + j] = 0.0F;
  }
  std::array<std::uint8_t, s.size()> keep{};
  Status drawn = compat::DropoutKeep(generator, compat::TorchBuild::kMkl, kPostDropoutP, keep);
  if (!drawn.ok()) return drawn;
  for (std::size_t at = 0; at < s.size(); ++at) {
    s[at] = keep[at] != 0 ? s[at] * compat::DropoutScale32(kPostDropoutP) : 0.0F;
  }
  PostMatrix<float> v{};
  compat::Rand(generator, std::span<float>(v));
  return PostTable{.keep = TriangleRows(keep), .out = Multiply(s, v)};
}

Result<PostHead> MakePostHead() {
  compat::TorchCpuGenerator generator(kPostSeed);
  std::array<std::array<float, kPostHeadSize * kPostEmbd>, 3> weights{};  // key, query, value
  for (auto& weight : weights) {
    Status made = compat::LinearInit(generator, kPostHeadSize, kPostEmbd, weight, {});
    if (!made.ok()) return made;
  }
  std::array<float, kPostRows * kPostEmbd> x{};
  compat::RandN(generator, std::span<float>(x));
  return PostHead{.query = Project(x, weights[1]),
                  .key = Project(x, weights[0]),
                  .value = Project(x, weights[2])};
}

Result<Problem> PostProblem(std::string_view scheme, std::string_view empty_row, double dropout_p) {
  const Result<EmptyRowPolicy> policy = ParseEmptyRow(empty_row);
  if (!policy.ok()) return policy.status();
  ProblemArgs args;
  args.shape.seqlen_q = kPostRows;
  args.shape.seqlen_k = kPostRows;
  args.shape.head_dim = kPostHeadSize;
  args.dtype = DType::kFloat64;
  args.is_causal = true;
  args.scale = 1.0 / std::sqrt(static_cast<double>(kPostEmbd));
  args.dropout.dropout_p = dropout_p;
  args.dropout.scheme = scheme;
  args.dropout.empty_row = *policy;
  args.dropout.seed = kPostSeed;
  return Problem::Make(args);
}

Result<PostRun> RunPostHead(const PostHead& head, const Problem& problem) {
  PostRun run;
  const Result<Plan> plan = Plan::Make(problem);
  if (!plan.ok()) return plan.status();
  ForwardBuffers buffers;
  buffers.query = PostView<const void>(head.query.data());
  buffers.key = PostView<const void>(head.key.data());
  buffers.value = PostView<const void>(head.value.data());
  buffers.out = PostView<void>(run.out.data());
  SerialExecutor executor;
  Scratch scratch;
  if (Status done = Forward(*plan, buffers, executor, scratch); !done.ok()) return done;
  std::array<std::uint8_t, kPostRows * kPostRows> keep{};
  KeepMaskBuffers mask;
  mask.keep = keep.data();
  if (Status done = KeepMask(problem, mask, executor); !done.ok()) return done;
  run.keep = TriangleRows(keep);
  return run;
}

Result<PostFigures> AnalyzePostHead(const PostHead& head, const Problem& problem) {
  const Result<Problem> undropped = PostProblem("element", "zero", 0.0);
  if (!undropped.ok()) return undropped.status();
  const Result<PostRun> plain = RunPostHead(head, *undropped);
  if (!plain.ok()) return plain.status();
  AnalyzeOptions options;
  options.query = PostView<const void>(head.query.data());
  options.key = PostView<const void>(head.key.data());
  options.value = PostView<const void>(head.value.data());
  const Result<HeadAnalysis> analysis = Analyze(problem, options);
  if (!analysis.ok()) return analysis.status();
  PostFigures figures;
  for (std::size_t row = 0; row < kPostRows; ++row) {
    const RowStatistics& statistics = analysis->rows[row];
    PostRowFigures& figure = figures[row];
    figure.p_zero = statistics.p_zero;
    figure.mean = statistics.mean_row_sum;
    figure.std_dev = std::sqrt(statistics.var_row_sum);
    double var = 0.0;
    for (std::size_t col = 0; col < kPostHeadSize; ++col) {
      const std::size_t at = row * kPostHeadSize + col;
      figure.out_bias =
          std::max(figure.out_bias, std::abs(analysis->out_mean[at] - plain->out[at]));
      var += analysis->out_var[at];
    }
    figure.out_std = std::sqrt(var / static_cast<double>(kPostHeadSize));
  }
  return figures;
}

}  // namespace attndrop::cli
