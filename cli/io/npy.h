// SPDX-License-Identifier: Apache-2.0
// Reading of NumPy's .npy files, strict: what is not exactly right is refused, with its byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attndrop/status.h"

namespace attndrop::cli {

// The element types that are read; anything else in a file is refused.
enum class NpyType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBool,
  kUint8,
  kInt64,
  kInt32,
};

// Bytes of one element.
[[nodiscard]] std::size_t SizeOf(NpyType type) noexcept;

// NumPy's name: "float64", "bool", ...
[[nodiscard]] std::string_view NpyTypeName(NpyType type) noexcept;

// "(2, 3, 5)", "(4,)", "()".
[[nodiscard]] std::string ShapeText(std::span<const std::int64_t> shape);

struct NpyHeader {
  NpyType type = NpyType::kFloat32;
  std::vector<std::int64_t> shape;
  std::uint64_t num_elements = 0;
  std::uint64_t data_offset = 0;
  // Where the file says it, for messages about a wrong type or shape.
  std::uint64_t descr_offset = 0;
  std::uint64_t shape_offset = 0;
};

// A whole array in memory, in C order.
struct NpyArray {
  std::string name;  // of the file
  NpyHeader header;
  std::unique_ptr<std::byte[]> data;

  [[nodiscard]] std::size_t rank() const noexcept { return header.shape.size(); }
  [[nodiscard]] std::int64_t dim(std::size_t axis) const noexcept { return header.shape[axis]; }
  // The elements; T must be the type that the header names.
  template <class T>
  [[nodiscard]] std::span<const T> values() const noexcept {
    const void* elements = data.get();
    return {static_cast<const T*>(elements), static_cast<std::size_t>(header.num_elements)};
  }
  // Where element `index` lies in the file.
  [[nodiscard]] std::uint64_t OffsetOf(std::uint64_t index) const noexcept {
    return header.data_offset + index * SizeOf(header.type);
  }
};

// Where the bytes of a .npy come from.
class ByteSource {
 public:
  virtual ~ByteSource();
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
  // offset + into.size() <= size().
  [[nodiscard]] virtual Status Read(std::uint64_t offset, std::span<std::byte> into) = 0;
};

// Bytes in memory, borrowed.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
  [[nodiscard]] Status Read(std::uint64_t offset, std::span<std::byte> into) override;

 private:
  std::span<const std::byte> bytes_;
};

inline constexpr std::uint64_t kMaxNpyHeaderBytes = 1U << 20;

// `name` goes into the messages.
[[nodiscard]] Result<NpyArray> ReadNpy(ByteSource& source, const std::string& name);
[[nodiscard]] Result<NpyArray> ReadNpyFile(const std::string& path);

// What is written in front of the elements of a C-order array.
[[nodiscard]] std::string NpyPreamble(NpyType type, std::span<const std::int64_t> shape);

}  // namespace attndrop::cli
