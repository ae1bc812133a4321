// SPDX-License-Identifier: Apache-2.0
// Carves one block of scratch into arrays; the same code measures the block and hands it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "attndrop/scratch.h"

namespace attndrop {

// Sizes that saturate instead of wrapping: too large stays too large.
[[nodiscard]] inline std::int64_t SaturatingProduct(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}
[[nodiscard]] inline std::size_t SaturatingTimes(std::size_t bytes, int count) noexcept {
  std::size_t product = 0;
  return __builtin_mul_overflow(bytes, static_cast<std::size_t>(count), &product)
             ? std::numeric_limits<std::size_t>::max()
             : product;
}
[[nodiscard]] inline std::size_t SaturatingSum(std::size_t a, std::size_t b) noexcept {
  std::size_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::size_t>::max() : sum;
}

// With a null base it only measures: bytes() then says what the block must hold, or the largest
// size when no block could.
class Arena {
 public:
  explicit Arena(std::byte* base = nullptr) noexcept : base_(base) {}

  // An array of count elements, aligned to kScratchAlignment; nullptr while measuring.
  template <class T>
  [[nodiscard]] T* Take(std::int64_t count) noexcept {
    std::byte* const start = base_ == nullptr ? nullptr : base_ + bytes_;
    Grow(static_cast<std::size_t>(count), sizeof(T));
    return reinterpret_cast<T*>(start);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void Grow(std::size_t count, std::size_t element) noexcept {
    std::size_t size = 0;
    if (__builtin_mul_overflow(count, element, &size) ||
        __builtin_add_overflow(size, kScratchAlignment - 1, &size) ||
        __builtin_add_overflow(bytes_, size / kScratchAlignment * kScratchAlignment, &bytes_)) {
      bytes_ = std::numeric_limits<std::size_t>::max();
    }
  }

  std::byte* base_;
  std::size_t bytes_ = 0;
};

}  // namespace attndrop
