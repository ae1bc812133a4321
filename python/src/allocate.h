// SPDX-License-Identifier: Apache-2.0
// New tensors on the CPU, uninitialised.
#pragma once

#include <cstdint>
#include <span>

#include <torch/csrc/stable/tensor.h>

#include "stack.h"

namespace attndrop::python {

// A dense tensor; refuses where there is no memory.
Tensor Allocate(std::span<const std::int64_t> sizes, torch::headeronly::ScalarType type);

// A dense tensor (batch, heads, rows, columns) of the type of `like` whose heads lie inside or
// outside its rows in memory as they do in `like`: a projection that is viewed as heads gets its
// result in its own order.
Tensor AllocateInOrderOf(const Tensor& like, std::int64_t columns);

}  // namespace attndrop::python
