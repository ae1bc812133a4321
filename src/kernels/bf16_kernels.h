// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 pairs, on machines that have an instruction for them: the two products of
// forward with bfloat16 inputs, sums in float32. Everything else of a tile stays in kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace attndrop {

// Two bfloat16 numbers, the first in the low half.
using Bf16Pair = std::uint32_t;

// Rows of key or value as bfloat16; row j begins at data + j * stride, its columns are adjacent.
struct Bf16Rows {
  const std::uint16_t* data = nullptr;
  std::ptrdiff_t stride = 0;

  [[nodiscard]] const std::uint16_t* Row(std::size_t row) const noexcept {
    return data + static_cast<std::ptrdiff_t>(row) * stride;
  }
  [[nodiscard]] Bf16Rows From(std::size_t skipped) const noexcept { return {Row(skipped), stride}; }
};

// As LogitsArgs; head_dim is even.
struct Bf16LogitsArgs {
  const Bf16Pair* query = nullptr;  // [head_dim / 2][width], neighbouring dims
  std::size_t head_dim = 0;
  std::size_t width = 0;
  LaneRange lanes{};
  Bf16Rows key{};
  KeyList list{};
  float scale = 1.0F;        // of the products, in units of log2
  float* logits = nullptr;   // [i][width]
  float* largest = nullptr;  // [width], in and out
};

// As AccumulateArgs. Weights are rounded to bfloat16 once, here.
struct Bf16AccumulateArgs {
  const float* weights = nullptr;  // [i][width]
  std::size_t width = 0;
  LaneRange lanes{};
  Bf16Rows value{};
  std::size_t head_dim = 0;
  KeyList list{};
  const float* fold = nullptr;       // [width]
  float* out = nullptr;              // [head_dim][width]
  Bf16Pair* weight_pairs = nullptr;  // scratch: [ceil(list / 2)][width]
  Bf16Pair* value_pairs = nullptr;   // scratch: [ceil(list / 2)][head_dim]
};

struct Bf16Kernels {
  void (*logits)(const Bf16LogitsArgs&);
  void (*accumulate)(const Bf16AccumulateArgs&);
};

// Null when the program or the machine has no such kernels. To be called only where the target
// kAvx512 runs: the function itself is compiled with those instructions.
[[nodiscard]] const Bf16Kernels* FindBf16Kernels() noexcept;

}  // namespace attndrop
