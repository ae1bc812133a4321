// SPDX-License-Identifier: Apache-2.0
// Attention with dropout by the formulas of docs/math/attention.md, dense, in double, one loop per
// sum, from explicit arrays of what is visible and kept; and the same for the arrays of a Problem.
#pragma once

#include <cstdint>
#include <vector>

#include "attndrop/problem.h"

#include "support/arrays.h"

namespace attndrop::testing {

// One head of one sequence. Matrices are row-major: query rows_q x dim, bias and the three after it
// rows_q x rows_k, and so on.
struct NaiveHead {
  std::int64_t rows_q = 0, rows_k = 0, dim = 0, dim_v = 0;
  double scale = 1.0;
  bool stage_logits = false;
  std::vector<double> query, key, value, bias;
  std::vector<std::uint8_t> visible, keep;
  std::vector<double> factor;  // of kept weights at stage weights
  std::vector<double> grad_out, grad_logsumexp;
};

// A result and, for each of its numbers, the sum of the absolute values of the terms that it was
// summed from: what rounding errors are proportional to.
struct NaiveNumbers {
  std::vector<double> value, bound;
  void Resize(std::int64_t size) {
    value.assign(static_cast<std::size_t>(size), 0.0);
    bound.assign(static_cast<std::size_t>(size), 0.0);
  }
};
struct NaiveOutput {
  NaiveNumbers out, logsumexp;
  NaiveNumbers grad_query, grad_key, grad_value, grad_logits;
  std::vector<double> weights;  // (A3), 0 where not visible
};
[[nodiscard]] NaiveOutput RunNaiveHead(const NaiveHead& head);

// Which weights of a problem are visible and kept, (batch, num_heads, seqlen_q, seqlen_k).
struct OracleMask {
  std::int64_t batch = 0, heads = 0, seqlen_q = 0, seqlen_k = 0;
  std::vector<std::uint8_t> visible, keep;
  std::vector<double> factor;  // at stage weights; 0 where not kept
  [[nodiscard]] std::size_t Index(std::int64_t b, std::int64_t h, std::int64_t i,
                                  std::int64_t j) const {
    return static_cast<std::size_t>(((b * heads + h) * seqlen_q + i) * seqlen_k + j);
  }
};
// By the oracle of mask_oracle.h and the text of section 5. At most a few million cells.
[[nodiscard]] OracleMask ComputeOracleMask(const ProblemArgs& args, const ProblemArrays& arrays);

// Everything Forward and Backward should write, in the shapes of the arrays.
struct NaiveResult {
  Dense4 out, logsumexp, grad_query, grad_key, grad_value, grad_attn_mask;
};
struct NaiveProblem {
  NaiveResult value, bound;
};
[[nodiscard]] NaiveProblem RunNaive(const ProblemArgs& args, const ProblemArrays& arrays,
                                    const OracleMask& mask);

// scale of a problem: 1/sqrt(head_dim) unless given.
[[nodiscard]] double ScaleOf(const ProblemArgs& args);

}  // namespace attndrop::testing
