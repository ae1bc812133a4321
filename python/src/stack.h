// SPDX-License-Identifier: Apache-2.0
// The arguments of a boxed operator, taken one after the other, and its results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

namespace attndrop::python {

using torch::stable::Tensor;

// PyTorch passes ownership of every argument: each must be taken, in the order of the schema,
// before anything can fail.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) noexcept : next_(stack) {}

  template <class T>
  T Take() {
    return torch::stable::detail::to<T>(*next_++);
  }
  // Not through the conversion of PyTorch's headers, which leaves a copy on the heap.
  std::string TakeString();

 private:
  StableIValue* next_;
};

template <class... T>
void Return(StableIValue* stack, const T&... results) {
  ((*stack++ = torch::stable::detail::from(results)), ...);
}

}  // namespace attndrop::python
