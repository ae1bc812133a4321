// SPDX-License-Identifier: Apache-2.0
// The frame of a .npy file: magic, version, length of the header, header, elements, nothing else.
#include "cli/io/npy.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/io/npy_header.h"

namespace attndrop::cli {
namespace {

constexpr std::array<unsigned char, 6> kMagic = {0x93, 'N', 'U', 'M', 'P', 'Y'};
constexpr std::uint64_t kVersionOffset = 6;
constexpr std::uint64_t kLengthOffset = 8;

// A file, read with pread so that a source has no position.
class FileSource final : public ByteSource {
 public:
  FileSource(int descriptor, std::uint64_t size, std::string name)
      : descriptor_(descriptor), size_(size), name_(std::move(name)) {}
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { ::close(descriptor_); }

  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }

  [[nodiscard]] Status Read(std::uint64_t offset, std::span<std::byte> into) override {
    while (!into.empty()) {
      const ssize_t got =
          ::pread(descriptor_, into.data(), into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        return Status::Internal(
            fmt::format("{}, byte {}: cannot be read: {}", name_, offset,
                        got < 0 ? std::strerror(errno) : "the file became shorter meanwhile"));
      }
      into = into.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

 private:
  int descriptor_;
  std::uint64_t size_;
  std::string name_;
};

struct HeaderPlace {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

Result<HeaderPlace> FindHeader(ByteSource& source, const std::string& name) {
  std::array<std::byte, 12> front{};
  const std::uint64_t size = source.size();
  const std::uint64_t got = std::min<std::uint64_t>(front.size(), size);
  if (size == 0) {
    return NpyError(name, 0, "the file is empty, expected a .npy array (numpy.save)");
  }
  if (Status read = source.Read(0, std::span(front).first(got)); !read.ok()) return read;
  const auto byte = [&front](std::uint64_t at) { return std::to_integer<unsigned>(front[at]); };
  for (std::uint64_t i = 0; i < kMagic.size(); ++i) {
    if (i >= got || byte(i) != kMagic[i]) {
      return NpyError(name, i,
                      "the file does not begin with \\x93NUMPY, so it is no .npy array; write one "
                      "with numpy.save (an .npz archive must be unpacked first)");
    }
  }
  if (got < 10) return NpyError(name, got, "the file ends inside its first ten bytes");
  const unsigned major = byte(kVersionOffset);
  const unsigned minor = byte(kVersionOffset + 1);
  if (major < 1 || major > 3 || minor != 0) {
    return NpyError(
        name, kVersionOffset,
        fmt::format("the format version is {}.{}; 1.0, 2.0 and 3.0 are read", major, minor));
  }
  const std::uint64_t length_bytes = major == 1 ? 2 : 4;
  HeaderPlace place{.offset = kLengthOffset + length_bytes, .length = 0};
  if (size < place.offset) return NpyError(name, size, "the file ends inside the header's length");
  for (std::uint64_t i = 0; i < length_bytes; ++i) {
    place.length |= std::uint64_t{byte(kLengthOffset + i)} << (8 * i);
  }
  if (place.length > kMaxNpyHeaderBytes) {
    return NpyError(name, kLengthOffset,
                    fmt::format("the header's length is {} bytes; at most {} are read",
                                place.length, kMaxNpyHeaderBytes));
  }
  if (size - place.offset < place.length) {
    return NpyError(
        name, size,
        fmt::format("the file ends inside the header, which takes {} bytes from byte {}",
                    place.length, place.offset));
  }
  return place;
}

// The elements fill the rest of the file exactly; checked before anything is allocated for them.
Status CheckDataSize(const NpyHeader& header, std::uint64_t file_size, const std::string& name) {
  const std::uint64_t wanted = header.num_elements * SizeOf(header.type);
  const std::uint64_t there = file_size - header.data_offset;
  if (there == wanted) return {};
  const std::string elements = fmt::format("{} elements of {}, shape {}", header.num_elements,
                                           NpyTypeName(header.type), ShapeText(header.shape));
  if (there < wanted) {
    return NpyError(
        name, file_size,
        fmt::format("the file ends here, {} bytes after its header; {} take {} bytes: it "
                    "is truncated, save it again",
                    there, elements, wanted));
  }
  return NpyError(name, header.data_offset + wanted,
                  fmt::format("{} bytes follow the last element ({}); a file holds one array and "
                              "nothing after it",
                              there - wanted, elements));
}

}  // namespace

ByteSource::~ByteSource() = default;

Status MemorySource::Read(std::uint64_t offset, std::span<std::byte> into) {
  std::ranges::copy(bytes_.subspan(offset, into.size()), into.begin());
  return {};
}

std::size_t SizeOf(NpyType type) noexcept {
  switch (type) {
    case NpyType::kFloat64:
    case NpyType::kInt64:
      return 8;
    case NpyType::kFloat32:
    case NpyType::kInt32:
      return 4;
    case NpyType::kFloat16:
      return 2;
    case NpyType::kBool:
    case NpyType::kUint8:
      return 1;
  }
  return 1;
}

std::string_view NpyTypeName(NpyType type) noexcept {
  switch (type) {
    case NpyType::kFloat64:
      return "float64";
    case NpyType::kFloat32:
      return "float32";
    case NpyType::kFloat16:
      return "float16";
    case NpyType::kBool:
      return "bool";
    case NpyType::kUint8:
      return "uint8";
    case NpyType::kInt64:
      return "int64";
    case NpyType::kInt32:
      return "int32";
  }
  return "";
}

std::string ShapeText(std::span<const std::int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

Result<NpyArray> ReadNpy(ByteSource& source, const std::string& name) {
  const Result<HeaderPlace> place = FindHeader(source, name);
  if (!place.ok()) return place.status();
  std::string text(place->length, '\0');
  if (Status read = source.Read(place->offset, std::as_writable_bytes(std::span(text)));
      !read.ok()) {
    return read;
  }
  Result<NpyHeader> header = ParseNpyDictionary(text, place->offset, name);
  if (!header.ok()) return header.status();
  header->data_offset = place->offset + place->length;
  if (Status size = CheckDataSize(*header, source.size(), name); !size.ok()) return size;

  const std::size_t bytes = header->num_elements * SizeOf(header->type);
  NpyArray array{.name = name,
                 .header = *std::move(header),
                 .data = std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes])};
  if (array.data == nullptr) {
    return Status::OutOfMemory(fmt::format("{}: no memory for its {} bytes", name, bytes));
  }
  if (Status read = source.Read(array.header.data_offset, {array.data.get(), bytes}); !read.ok()) {
    return read;
  }
  return array;
}

Result<NpyArray> ReadNpyFile(const std::string& path) {
  // Not blocking: opening a pipe must not wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return Status::InvalidArgument(
        fmt::format("{}: cannot be opened: {}; expected a .npy file", path, std::strerror(errno)));
  }
  struct stat about{};
  if (::fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode)) {
    ::close(descriptor);
    return Status::InvalidArgument(
        fmt::format("{}: is {}; expected a .npy file", path,
                    S_ISDIR(about.st_mode) ? "a folder" : "no regular file"));
  }
  FileSource source(descriptor, static_cast<std::uint64_t>(about.st_size), path);
  return ReadNpy(source, path);
}

std::string NpyPreamble(NpyType type, std::span<const std::int64_t> shape) {
  constexpr std::array<std::string_view, 7> kDescr = {"<f8", "<f4", "<f2", "|b1",
                                                      "|u1", "<i8", "<i4"};
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                 kDescr[static_cast<std::size_t>(type)], ShapeText(shape));
  // The elements begin at a multiple of 64 bytes, so that the file can be mapped into memory.
  constexpr std::size_t kFront = 10;
  constexpr std::size_t kAlignment = 64;
  const std::size_t total = (kFront + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  text.resize(total - kFront - 1, ' ');
  text += '\n';
  std::string preamble(kMagic.begin(), kMagic.end());
  preamble += '\x01';
  preamble += '\x00';
  preamble += static_cast<char>(text.size() & 0xFF);
  preamble += static_cast<char>(text.size() >> 8);
  return preamble + text;
}

}  // namespace attndrop::cli
