// SPDX-License-Identifier: Apache-2.0
// New tensors through the C functions of PyTorch, which cost half of what its operators do.
#include "allocate.h"

#include <array>
#include <cstddef>
#include <limits>
#include <string>

#include "errors.h"

namespace attndrop::python {
namespace {

using torch::headeronly::ScalarType;

constexpr std::size_t kMaxAxes = 8;
constexpr std::int32_t kAnyIndex = -1;
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void RefuseMemory(std::span<const std::int64_t> sizes) {
  std::string shape;
  for (const std::int64_t size : sizes) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  Refuse("memory", "there is no memory for a result of shape (" + shape + ')');
}

Tensor AllocateStrided(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                       ScalarType type) {
  const auto type_code = torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(type));
  AtenTensorHandle handle = nullptr;
  const AOTITorchError error = aoti_torch_empty_strided(
      static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(), type_code,
      aoti_torch_device_type_cpu(), kAnyIndex, &handle);
  if (error != AOTI_TORCH_SUCCESS) RefuseMemory(sizes);
  return Tensor(handle);
}

// The next stride outwards; the largest number where it does not exist, which no memory holds.
std::int64_t Times(std::int64_t stride, std::int64_t size) {
  if (size <= 1) return stride;
  return stride > kLargest / size ? kLargest : stride * size;
}

}  // namespace

Tensor Allocate(std::span<const std::int64_t> sizes, ScalarType type) {
  std::array<std::int64_t, kMaxAxes> strides{};
  std::int64_t stride = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0; stride = Times(stride, sizes[axis])) {
    strides[axis] = stride;
  }
  return AllocateStrided(sizes, std::span(strides).first(sizes.size()), type);
}

Tensor AllocateInOrderOf(const Tensor& like, std::int64_t columns) {
  const std::array<std::int64_t, 4> sizes{like.size(0), like.size(1), like.size(2), columns};
  if (like.stride(1) >= like.stride(2)) return Allocate(sizes, like.scalar_type());
  const std::int64_t head = Times(1, columns);
  const std::int64_t row = Times(head, sizes[1]);
  const std::array<std::int64_t, 4> strides{Times(row, sizes[2]), head, row, 1};
  return AllocateStrided(sizes, strides, like.scalar_type());
}

}  // namespace attndrop::python
