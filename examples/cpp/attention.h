// SPDX-License-Identifier: Apache-2.0
// Causal attention with dropout as an operation that libtorch can differentiate.
#pragma once

#include <cstdint>

#include <torch/torch.h>

// What a call draws: another offset, another mask.
struct AttentionDropout {
  double dropout_p = 0.0;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

// query, key, value: float32 on the CPU, (batch, heads, length, head_dim). Rows that lose all keys
// are drawn again. Errors: c10::Error with attndrop's sentence.
[[nodiscard]] torch::Tensor CausalAttention(const torch::Tensor& query, const torch::Tensor& key,
                                            const torch::Tensor& value, double scale,
                                            const AttentionDropout& dropout);
