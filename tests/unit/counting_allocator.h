// SPDX-License-Identifier: Apache-2.0
// An allocator that counts, and that fails from a chosen call on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <new>

#include "attndrop/scratch.h"

namespace attndrop::testing {

class CountingAllocator final : public Allocator {
 public:
  // The next `successes` calls succeed, all later ones fail.
  void FailFromNow(int successes) { successes_left_ = successes; }

  [[nodiscard]] void* Allocate(std::size_t bytes) noexcept override {
    ++calls_;
    if (successes_left_ <= 0) return nullptr;
    --successes_left_;
    live_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    return ::operator new(bytes, std::align_val_t{kScratchAlignment}, std::nothrow);
  }
  void Free(void* memory, std::size_t bytes) noexcept override {
    live_bytes_ -= bytes;
    ::operator delete(memory, std::align_val_t{kScratchAlignment});
  }

  [[nodiscard]] int calls() const { return calls_; }
  [[nodiscard]] std::size_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::size_t peak_bytes() const { return peak_bytes_; }

 private:
  int successes_left_ = std::numeric_limits<int>::max();
  int calls_ = 0;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace attndrop::testing
