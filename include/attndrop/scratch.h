// SPDX-License-Identifier: Apache-2.0
// The one place that sizeable memory comes from; an allocation that fails is a Status.
#pragma once

#include <cstddef>

#include "attndrop/export.h"
#include "attndrop/status.h"

namespace attndrop {

// A source of memory aligned to kScratchAlignment; nullptr when there is none.
class ATTNDROP_EXPORT Allocator {
 public:
  virtual ~Allocator();
  [[nodiscard]] virtual void* Allocate(std::size_t bytes) noexcept = 0;
  virtual void Free(void* memory, std::size_t bytes) noexcept = 0;
};

inline constexpr std::size_t kScratchAlignment = 128;

// A block of memory that grows when a call needs more and is reused by the next call. Not for two
// calls at once.
class ATTNDROP_EXPORT Scratch {
 public:
  // allocator (borrowed) must outlive the Scratch; nullptr means the C++ heap.
  explicit Scratch(Allocator* allocator = nullptr) noexcept : allocator_(allocator) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Afterwards data() holds at least `bytes` bytes; what was in it is lost.
  Status Reserve(std::size_t bytes);
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  void Release() noexcept;

  Allocator* allocator_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace attndrop
