// SPDX-License-Identifier: Apache-2.0
// Attention written plainly in float32, every intermediate matrix in memory: the computation that
// the fused path is measured against. Products are summed as matrix libraries sum them, in blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/naive_attention.h"

namespace attndrop::testing {

struct Unfused {
  std::vector<float> out, grad_query, grad_key, grad_value;
};

namespace unfused_internal {

using Floats = std::vector<float>;
inline constexpr std::size_t kBlock = 256;  // terms of a partial sum

inline Floats ToFloats(const std::vector<double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

// Sum of term(0) .. term(count - 1).
template <class Term>
float Sum(std::size_t count, const Term& term) {
  float total = 0.0F;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    float block = 0.0F;
    for (std::size_t k = begin; k < std::min(begin + kBlock, count); ++k) block += term(k);
    total += block;
  }
  return total;
}

// c[i][j] = sum over k of a(i, k) * b(k, j)
struct Matrix {
  const Floats& data;
  std::size_t row_step, col_step;
  [[nodiscard]] float at(std::size_t r, std::size_t c) const {
    return data[r * row_step + c * col_step];
  }
};
struct ProductSize {
  std::size_t rows, cols, terms;
};
inline Floats Product(const Matrix& a, const Matrix& b, const ProductSize& size) {
  Floats c(size.rows * size.cols);
  for (std::size_t i = 0; i < size.rows; ++i) {
    for (std::size_t j = 0; j < size.cols; ++j) {
      c[i * size.cols + j] =
          Sum(size.terms, [&](std::size_t k) { return a.at(i, k) * b.at(k, j); });
    }
  }
  return c;
}

}  // namespace unfused_internal

// Stage weights; the mask and its factors come with the head.
inline Unfused RunUnfused(const NaiveHead& head) {
  using namespace unfused_internal;
  const auto n = static_cast<std::size_t>(head.rows_q), m = static_cast<std::size_t>(head.rows_k);
  const auto d = static_cast<std::size_t>(head.dim), dv = static_cast<std::size_t>(head.dim_v);
  const auto scale = static_cast<float>(head.scale);
  const Floats query = ToFloats(head.query), key = ToFloats(head.key);
  const Floats value = ToFloats(head.value), grad_out = ToFloats(head.grad_out);

  Floats weights = Product({query, d, 1}, {key, 1, d}, {n, m, d});
  Floats factors(n * m);
  for (std::size_t i = 0; i < n; ++i) {
    float* const row = weights.data() + i * m;
    float largest = -INFINITY;
    for (std::size_t j = 0; j < m; ++j) {
      row[j] = head.visible[i * m + j] != 0 ? row[j] * scale : -INFINITY;
      largest = std::max(largest, row[j]);
      factors[i * m + j] =
          head.keep[i * m + j] != 0 ? static_cast<float>(head.factor[i * m + j]) : 0.0F;
    }
    for (std::size_t j = 0; j < m; ++j) row[j] = std::exp(row[j] - largest);
    const float sum = Sum(m, [&](std::size_t j) { return row[j]; });
    for (std::size_t j = 0; j < m; ++j) row[j] /= sum;
  }
  Floats dropped(n * m);
  for (std::size_t k = 0; k < n * m; ++k) dropped[k] = weights[k] * factors[k];

  Unfused result;
  result.out = Product({dropped, m, 1}, {value, dv, 1}, {n, dv, m});
  result.grad_value = Product({dropped, 1, m}, {grad_out, dv, 1}, {m, dv, n});
  Floats grad = Product({grad_out, dv, 1}, {value, 1, dv}, {n, m, dv});
  for (std::size_t i = 0; i < n; ++i) {
    const float delta =
        Sum(dv, [&](std::size_t c) { return grad_out[i * dv + c] * result.out[i * dv + c]; });
    for (std::size_t j = 0; j < m; ++j) {
      float& g = grad[i * m + j];
      g = weights[i * m + j] * (g * factors[i * m + j] - delta) * scale;
    }
  }
  result.grad_query = Product({grad, m, 1}, {key, d, 1}, {n, d, m});
  result.grad_key = Product({grad, 1, m}, {query, d, 1}, {m, d, n});
  return result;
}

}  // namespace attndrop::testing
