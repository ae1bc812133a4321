// SPDX-License-Identifier: Apache-2.0
// Scratch memory on the C++ heap or from the caller's allocator.
#include "attndrop/scratch.h"

#include <limits>
#include <new>
#include <string>

namespace attndrop {

Allocator::~Allocator() = default;

Scratch::~Scratch() { Release(); }

Status Scratch::Reserve(std::size_t bytes) {
  if (bytes <= size_) return Status::Ok();
  Release();
  void* memory = nullptr;
  // Beyond this the heap's own rounding of sizes would wrap.
  if (bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / 2) {
    memory = allocator_ != nullptr
                 ? allocator_->Allocate(bytes)
                 : ::operator new(bytes, std::align_val_t{kScratchAlignment}, std::nothrow);
  }
  if (memory == nullptr) {
    return Status::OutOfMemory("no memory for " + std::to_string(bytes) +
                               " bytes of scratch; use fewer threads or a shorter sequence");
  }
  data_ = static_cast<std::byte*>(memory);
  size_ = bytes;
  return Status::Ok();
}

void Scratch::Release() noexcept {
  if (data_ == nullptr) return;
  if (allocator_ != nullptr) {
    allocator_->Free(data_, size_);
  } else {
    ::operator delete(data_, std::align_val_t{kScratchAlignment});
  }
  data_ = nullptr;
  size_ = 0;
}

}  // namespace attndrop
