// SPDX-License-Identifier: Apache-2.0
// The forum post "Attention dropout": its printed table, its Head, and the exact figures about it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attndrop/problem.h"
#include "attndrop/status.h"

namespace attndrop::cli {

inline constexpr std::uint64_t kPostSeed = 1367149;
inline constexpr double kPostDropoutP = 0.5;
inline constexpr std::size_t kPostRows = 4;  // block_size
inline constexpr std::size_t kPostEmbd = 20;
inline constexpr std::size_t kPostHeadSize = 10;

// (4, 10), row-major.
template <class T>
using PostMatrix = std::array<T, kPostRows * kPostHeadSize>;

// s = rand(4, 4) lower triangle; d = dropout(s, .5); out = d @ rand(4, 10), as PyTorch on an Intel
// processor computes it.
struct PostTable {
  std::array<std::string, kPostRows> keep;  // of the lower triangle, 1 = kept
  PostMatrix<float> out{};
};
[[nodiscard]] Result<PostTable> ReplayPostTable();

// The post's causal Head after manual_seed: query, key and value of x = randn(4, 20), drawn after
// the three Linear layers.
struct PostHead {
  PostMatrix<double> query{}, key{}, value{};
};
[[nodiscard]] Result<PostHead> MakePostHead();

// The Head's attention: its scale is that of n_embd, not of head_size.
[[nodiscard]] Result<Problem> PostProblem(std::string_view scheme, std::string_view empty_row,
                                          double dropout_p);

// One run of the Head.
struct PostRun {
  std::array<std::string, kPostRows> keep;
  PostMatrix<double> out{};
};
[[nodiscard]] Result<PostRun> RunPostHead(const PostHead& head, const Problem& problem);

// Exact figures of one row under a problem.
struct PostRowFigures {
  double p_zero = 0.0;
  double mean = 0.0;      // of the sum of the row's weights
  double std_dev = 0.0;   // likewise
  double out_bias = 0.0;  // largest |mean of an output - output without dropout|
  double out_std = 0.0;   // root mean square of the outputs' standard deviations
};
using PostFigures = std::array<PostRowFigures, kPostRows>;
[[nodiscard]] Result<PostFigures> AnalyzePostHead(const PostHead& head, const Problem& problem);

}  // namespace attndrop::cli
