// SPDX-License-Identifier: Apache-2.0
// A parser for the small part of Python's literals that a .npy dictionary is written in.
#include "cli/io/npy_header.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace attndrop::cli {
namespace {

constexpr std::size_t kMaxRank = 64;

struct DescrName {
  std::string_view descr;
  NpyType type;
};
constexpr std::array<DescrName, 7> kDescrNames = {{
    {"<f8", NpyType::kFloat64},
    {"<f4", NpyType::kFloat32},
    {"<f2", NpyType::kFloat16},
    {"|b1", NpyType::kBool},
    {"|u1", NpyType::kUint8},
    {"<i8", NpyType::kInt64},
    {"<i4", NpyType::kInt32},
}};

// Control and non-ASCII bytes of a damaged file do not reach the terminal.
std::string Printable(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 40)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", byte);
    }
  }
  return text.size() > 40 ? shown + "..." : shown;
}

std::string DescrComplaint(std::string_view descr) {
  const std::string shown = Printable(descr);
  if (descr.starts_with('>')) {
    return fmt::format(
        "the elements are big-endian (descr '{}'), little-endian ones are read; save it again with "
        "array.astype(array.dtype.newbyteorder('<'))",
        shown);
  }
  if (descr.starts_with("|O")) {
    return fmt::format(
        "the elements are Python objects (descr '{}'), which are never read; save it again with "
        "array.astype(numpy.float32)",
        shown);
  }
  return fmt::format(
      "descr '{}' is not a type that is read; float64, float32, float16, bool, uint8, int64 and "
      "int32 are; save it again with array.astype of one of them",
      shown);
}

// Reads forward through the dictionary; the first error stays.
class Cursor {
 public:
  Cursor(std::string_view text, std::uint64_t offset, const std::string& name)
      : text_(text), offset_(offset), name_(name) {}

  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] std::uint64_t byte() const { return offset_ + position_; }
  [[nodiscard]] bool AtEnd() {
    SkipSpace();
    return position_ == text_.size();
  }

  void Fail(std::uint64_t byte, std::string what) {
    if (ok()) status_ = NpyError(name_, byte, std::move(what));
  }

  [[nodiscard]] char Peek() {
    SkipSpace();
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  bool Accept(char wanted) {
    if (!ok() || Peek() != wanted) return false;
    ++position_;
    return true;
  }

  void Expect(char wanted) {
    if (ok() && !Accept(wanted)) {
      Fail(byte(),
           fmt::format("found {}, expected '{}' of the header's dictionary", Found(), wanted));
    }
  }

  std::string_view QuotedString() {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') {
      Fail(byte(), fmt::format("found {}, expected a string in quotes", Found()));
      return {};
    }
    const std::size_t begin = position_ + 1;
    const std::size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) {
      Fail(byte(), "a string of the header has no closing quote");
      return {};
    }
    position_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  bool Boolean() {
    SkipSpace();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (text_.substr(position_).starts_with(word)) {
        position_ += std::string_view(word).size();
        return value;
      }
    }
    Fail(byte(), fmt::format("found {}, expected True or False", Found()));
    return false;
  }

  std::int64_t Length() {
    const std::uint64_t begin = offset_ + (SkipSpace(), position_);
    if (Peek() == '-') {
      Fail(begin, "the shape has a negative length; lengths are 0 or more");
      return 0;
    }
    std::int64_t value = 0;
    std::size_t digits = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9';
         ++position_, ++digits) {
      const std::int64_t digit = text_[position_] - '0';
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) {
        Fail(begin, "the shape has a length over 2^63 - 1");
        return 0;
      }
      value = value * 10 + digit;
    }
    if (digits == 0) Fail(begin, fmt::format("found {}, expected a length of the shape", Found()));
    return value;
  }

 private:
  void SkipSpace() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) {
      ++position_;
    }
  }

  [[nodiscard]] std::string Found() const {
    if (position_ >= text_.size()) return "the end of the header";
    return fmt::format("'{}'", Printable(text_.substr(position_, 1)));
  }

  std::string_view text_;
  std::uint64_t offset_;
  const std::string& name_;
  std::size_t position_ = 0;
  Status status_;
};

// What the three keys of the dictionary say.
struct Entries {
  std::optional<NpyType> type;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
  std::uint64_t descr_offset = 0;
  std::uint64_t fortran_offset = 0;
  std::uint64_t shape_offset = 0;
};

NpyType ReadDescr(Cursor& cursor) {
  const char first = cursor.Peek();
  const std::uint64_t byte = cursor.byte();
  if (first == '[' || first == '(' || first == '{') {
    cursor.Fail(
        byte,
        "the elements are structured (several fields); one number per element is read: save "
        "one field, for example array['name']");
    return NpyType::kFloat32;
  }
  const std::string_view descr = cursor.QuotedString();
  for (const DescrName& known : kDescrNames) {
    if (known.descr == descr) return known.type;
  }
  cursor.Fail(byte, DescrComplaint(descr));
  return NpyType::kFloat32;
}

std::vector<std::int64_t> ReadShape(Cursor& cursor) {
  std::vector<std::int64_t> shape;
  cursor.Expect('(');
  while (cursor.ok() && cursor.Peek() != ')') {
    shape.push_back(cursor.Length());
    if (shape.size() > kMaxRank) {
      cursor.Fail(cursor.byte(), fmt::format("the shape has more than {} axes", kMaxRank));
    }
    // A single length is a tuple only with its comma.
    if (!cursor.Accept(',')) {
      if (shape.size() == 1) cursor.Expect(',');
      break;
    }
  }
  cursor.Expect(')');
  return shape;
}

void ReadEntry(Cursor& cursor, Entries& entries) {
  (void)cursor.Peek();
  const std::uint64_t key_byte = cursor.byte();
  const std::string_view key = cursor.QuotedString();
  cursor.Expect(':');
  if (!cursor.ok()) return;
  (void)cursor.Peek();
  const std::uint64_t value_byte = cursor.byte();
  if (key == "descr" && !entries.type) {
    entries.descr_offset = value_byte;
    entries.type = ReadDescr(cursor);
  } else if (key == "fortran_order" && !entries.fortran_order) {
    entries.fortran_offset = value_byte;
    entries.fortran_order = cursor.Boolean();
  } else if (key == "shape" && !entries.shape) {
    entries.shape_offset = value_byte;
    entries.shape = ReadShape(cursor);
  } else {
    cursor.Fail(key_byte, fmt::format("key '{}' of the header is unknown or there twice; descr, "
                                      "fortran_order and shape are expected, once each",
                                      Printable(key)));
  }
}

Entries ReadEntries(Cursor& cursor) {
  Entries entries;
  cursor.Expect('{');
  while (cursor.ok() && cursor.Peek() != '}') {
    ReadEntry(cursor, entries);
    if (!cursor.Accept(',')) break;
  }
  cursor.Expect('}');
  if (cursor.ok() && !cursor.AtEnd()) {
    cursor.Fail(cursor.byte(),
                "the header goes on after its dictionary; spaces and a new line may");
  }
  return entries;
}

// Elements of the shape, if their bytes can be counted.
std::optional<std::uint64_t> CountElements(std::span<const std::int64_t> shape, std::size_t size) {
  constexpr std::uint64_t kMax = std::uint64_t{1} << 62;
  std::uint64_t count = 1;
  bool is_empty = false;
  for (const std::int64_t length : shape) {
    const auto axis = static_cast<std::uint64_t>(length);
    is_empty = is_empty || axis == 0;
    if (axis != 0 && count > kMax / size / axis) return std::nullopt;
    if (axis != 0) count *= axis;
  }
  return is_empty ? 0 : count;
}

}  // namespace

Status NpyError(const std::string& name, std::uint64_t offset, std::string what) {
  return Status::InvalidArgument(fmt::format("{}, byte {}: {}", name, offset, what));
}

Result<NpyHeader> ParseNpyDictionary(std::string_view text, std::uint64_t offset,
                                     const std::string& name) {
  Cursor cursor(text, offset, name);
  Entries entries = ReadEntries(cursor);
  if (!cursor.ok()) return cursor.status();
  if (!entries.type || !entries.fortran_order || !entries.shape) {
    return NpyError(name, offset,
                    "the header's dictionary lacks one of descr, fortran_order and shape");
  }
  if (*entries.fortran_order && entries.shape->size() > 1) {
    return NpyError(name, entries.fortran_offset,
                    "the array is in Fortran order, C order is read; save it again with "
                    "numpy.ascontiguousarray(array)");
  }
  const auto count = CountElements(*entries.shape, SizeOf(*entries.type));
  if (!count) {
    return NpyError(name, entries.shape_offset,
                    fmt::format("shape {} has more bytes than can be counted in 62 bits",
                                ShapeText(*entries.shape)));
  }
  NpyHeader header;
  header.type = *entries.type;
  header.shape = std::move(*entries.shape);
  header.num_elements = *count;
  header.descr_offset = entries.descr_offset;
  header.shape_offset = entries.shape_offset;
  return header;
}

}  // namespace attndrop::cli
