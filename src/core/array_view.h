// SPDX-License-Identifier: Apache-2.0
// A named array of a call: its shape, its strides and the bytes that it can reach.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "attndrop/attention.h"
#include "attndrop/dtype.h"
#include "attndrop/strided.h"

namespace attndrop {

struct ArrayView {
  std::string_view name;
  const void* data = nullptr;
  std::size_t element_bytes = 0;
  std::array<std::int64_t, 4> sizes{};    // batch, heads, rows, columns
  std::array<std::int64_t, 4> strides{};  // in elements

  [[nodiscard]] bool is_empty() const noexcept {
    return sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0 || sizes[3] == 0;
  }
};

// First and one past the last byte that an array touches, as addresses.
struct ByteRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// Nothing when some element lies beyond the address space. The view is not empty.
[[nodiscard]] std::optional<ByteRange> BytesOf(const ArrayView& view) noexcept;

// Two different indices may be the same element: some stride is too small for what lies inside it.
[[nodiscard]] bool OverlapsItself(const ArrayView& view) noexcept;

// Proves that two views share no element although their byte ranges meet: slices of one array, such
// as query and key inside a packed projection, step equally along every axis that both have and lie
// a distance apart that no index difference makes up. False means "not proven". Views not empty.
[[nodiscard]] bool Interleaved(const ArrayView& a, const ArrayView& b) noexcept;

// The arrays of a problem.
enum class Role { kQuery, kKey, kValue, kOut, kLogsumexp, kAttnMask };

[[nodiscard]] std::array<std::int64_t, 4> ShapeOf(const Problem& problem, Role role) noexcept;
[[nodiscard]] DType DTypeOf(const Problem& problem, Role role) noexcept;

template <class T>
[[nodiscard]] ArrayView MakeView(const Problem& problem, Role role, std::string_view name,
                                 const Strided<T>& array) noexcept {
  return {.name = name,
          .data = array.data,
          .element_bytes = role == Role::kAttnMask && problem.attn_mask().kind == MaskKind::kBool
                               ? 1
                               : SizeOf(DTypeOf(problem, role)),
          .sizes = ShapeOf(problem, role),
          .strides = {array.batch_stride, array.head_stride, array.row_stride, array.col_stride}};
}

}  // namespace attndrop
