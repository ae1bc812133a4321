// SPDX-License-Identifier: Apache-2.0
// The reader of .npy files: what NumPy writes is read, everything else is refused with its byte.
#include "cli/io/npy.h"

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/cli/temp_folder.h"

namespace attndrop::cli {
namespace {

using attndrop::testing::TempFolder;
using attndrop::testing::WriteFile;

// A file of format 1.0 with this dictionary and so many bytes of elements.
std::string File(std::string_view dictionary, std::size_t data_bytes) {
  std::string text(dictionary);
  text += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(text.size() & 0xFF);
  file += static_cast<char>(text.size() >> 8);
  return file + text + std::string(data_bytes, '\0');
}

Result<NpyArray> Parse(std::string_view file) {
  MemorySource source(std::as_bytes(std::span(file)));
  return ReadNpy(source, "x.npy");
}

constexpr std::string_view kGood = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

TEST(Npy, ReadsWhatNumPyWrites) {
  std::string file = File(kGood, 24);
  const float third = 1.5F;
  std::memcpy(file.data() + file.size() - 16, &third, sizeof(third));
  const Result<NpyArray> array = Parse(file);
  ASSERT_TRUE(array.ok()) << array.status().message();
  EXPECT_EQ(array->header.type, NpyType::kFloat32);
  EXPECT_EQ(array->header.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(array->values<float>().size(), 6U);
  EXPECT_EQ(array->values<float>()[2], 1.5F);
  EXPECT_EQ(array->OffsetOf(2), file.size() - 16);
}

TEST(Npy, ReadsEveryTypeWithItsSize) {
  const struct {
    std::string_view descr;
    NpyType type;
    std::size_t size;
  } cases[] = {{"<f8", NpyType::kFloat64, 8}, {"<f4", NpyType::kFloat32, 4},
               {"<f2", NpyType::kFloat16, 2}, {"|b1", NpyType::kBool, 1},
               {"|u1", NpyType::kUint8, 1},   {"<i8", NpyType::kInt64, 8},
               {"<i4", NpyType::kInt32, 4}};
  for (const auto& one : cases) {
    const std::string dictionary =
        "{'descr': '" + std::string(one.descr) + "', 'fortran_order': False, 'shape': (3,), }";
    const Result<NpyArray> array = Parse(File(dictionary, 3 * one.size));
    ASSERT_TRUE(array.ok()) << one.descr << ": " << array.status().message();
    EXPECT_EQ(array->header.type, one.type);
    EXPECT_FALSE(Parse(File(dictionary, 3 * one.size - 1)).ok()) << one.descr;
    EXPECT_FALSE(Parse(File(dictionary, 3 * one.size + 1)).ok()) << one.descr;
  }
}

TEST(Npy, ReadsOtherWaysToWriteTheSame) {
  const std::string_view dictionaries[] = {
      "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3)}",
      "{'shape':(2,3,),'fortran_order':False,'descr':'<f4'}",
      "  { 'shape' : ( 2 , 3 ) , 'descr' : '<f4' , 'fortran_order' : False , }   ",
  };
  for (const std::string_view dictionary : dictionaries) {
    const Result<NpyArray> array = Parse(File(dictionary, 24));
    EXPECT_TRUE(array.ok()) << dictionary << array.status().message();
  }
}

TEST(Npy, ReadsVersionsTwoAndThree) {
  for (const char major : {'\x02', '\x03'}) {
    std::string file("\x93NUMPY", 6);
    file += {major, '\0', static_cast<char>(kGood.size()), '\0', '\0', '\0'};
    file += std::string(kGood) + std::string(24, '\0');
    EXPECT_TRUE(Parse(file).ok()) << Parse(file).status().message();
  }
}

TEST(Npy, ReadsEmptyScalarAndFortranOrderOfOneAxis) {
  EXPECT_TRUE(Parse(File("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }", 0)).ok());
  EXPECT_TRUE(Parse(File("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4)).ok());
  EXPECT_TRUE(Parse(File("{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }", 12)).ok());
}

TEST(Npy, WrittenPreambleIsReadBack) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{}, {5}, {2, 3}, {2, 0, 4}, {1, 1, 1, 1}}) {
    std::size_t count = 1;
    for (const std::int64_t length : shape) count *= static_cast<std::size_t>(length);
    const std::string preamble = NpyPreamble(NpyType::kFloat64, shape);
    EXPECT_EQ(preamble.size() % 64, 0U);
    const Result<NpyArray> array = Parse(preamble + std::string(8 * count, '\0'));
    ASSERT_TRUE(array.ok()) << array.status().message();
    EXPECT_EQ(array->header.shape, shape);
    EXPECT_EQ(array->header.type, NpyType::kFloat64);
  }
}

// Every refusal names the file and the byte; `piece` is the part of the sentence that tells it from
// the others.
struct BadFile {
  std::string what;
  std::string bytes;
  std::string piece;
};

std::vector<BadFile> BadFrames() {
  const std::string good = File(kGood, 24);
  std::string version = good;
  version[6] = 9;
  std::string minor = good;
  minor[7] = 1;
  std::string long_header = good;
  long_header[8] = '\xFF';
  std::string huge("\x93NUMPY\x02\x00\xFF\xFF\xFF\x7F", 12);
  return {
      {"empty", "", "byte 0: the file is empty"},
      {"one byte", good.substr(0, 1), "byte 1: the file does not begin"},
      {"text", "hello, world", "byte 0: the file does not begin with \\x93NUMPY"},
      {"zip archive", "PK\x03\x04 and so on", ".npz archive"},
      {"nine bytes", good.substr(0, 9), "byte 9: the file ends inside its first ten bytes"},
      {"no long length", std::string("\x93NUMPY\x02\x00\x10\x00", 10),
       "inside the header's length"},
      {"version 9.0", version, "byte 6: the format version is 9.0"},
      {"version 1.1", minor, "byte 6: the format version is 1.1"},
      {"header cut", good.substr(0, 40), "byte 40: the file ends inside the header"},
      {"header too long", long_header, "the file ends inside the header"},
      {"huge header", huge, "byte 8: the header's length is 2147483647 bytes; at most 1048576"},
      {"truncated", good.substr(0, good.size() - 1), "it is truncated"},
      {"no elements", good.substr(0, good.size() - 24), "0 bytes after its header"},
      {"trailing", good + "x", "1 bytes follow the last element"},
  };
}

std::vector<BadFile> BadDictionaries() {
  const auto with = [](std::string_view descr, std::string_view order, std::string_view shape) {
    return File("{'descr': " + std::string(descr) + ", 'fortran_order': " + std::string(order) +
                    ", 'shape': " + std::string(shape) + ", }",
                24);
  };
  std::string many = "(";
  for (int i = 0; i < 65; ++i) many += "1, ";
  return {
      {"big-endian", with("'>f4'", "False", "(2, 3)"), "byte 20: the elements are big-endian"},
      {"object", with("'|O'", "False", "(2, 3)"), "Python objects"},
      {"complex", with("'<c8'", "False", "(2, 3)"), "descr '<c8' is not a type that is read"},
      {"int16", with("'<i2'", "False", "(2, 3)"), "descr '<i2' is not a type that is read"},
      {"uint64", with("'<u8'", "False", "(2, 3)"), "descr '<u8' is not a type that is read"},
      {"control bytes", with("'\x1b[2J'", "False", "(2, 3)"), "descr '\\x1b[2J'"},
      {"structured", with("[('a', '<f4')]", "False", "(2, 3)"), "structured"},
      {"descr a number", with("4", "False", "(2, 3)"), "found '4', expected a string in quotes"},
      {"Fortran", with("'<f4'", "True", "(2, 3)"), "numpy.ascontiguousarray"},
      {"order a number", with("'<f4'", "0", "(2, 3)"), "expected True or False"},
      {"negative", with("'<f4'", "False", "(-2, 3)"), "negative length"},
      {"over 2^63", with("'<f4'", "False", "(9223372036854775808, 1)"), "over 2^63 - 1"},
      {"product overflows", with("'<f4'", "False", "(4294967296, 4294967296)"), "62 bits"},
      {"2^40 elements", with("'<f4'", "False", "(1048576, 1048576)"), "take 4398046511104 bytes"},
      {"shape a number", with("'<f4'", "False", "6"), "found '6', expected '('"},
      {"no tuple", with("'<f4'", "False", "(6)"), "expected ','"},
      {"float in shape", with("'<f4'", "False", "(2.0, 3)"), "found '.'"},
      {"word in shape", with("'<f4'", "False", "(a, 3)"), "expected a length of the shape"},
      {"65 axes", with("'<f4'", "False", many + ")"), "more than 64 axes"},
      {"key missing", File("{'descr': '<f4', 'shape': (2, 3), }", 24), "lacks one of"},
      {"key twice", File("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, }", 24),
       "key 'descr' of the header is unknown or there twice"},
      {"key unknown", File("{'extra': 1, }", 24), "key 'extra'"},
      {"no brace", File("'descr': '<f4'", 24), "byte 10: found ''', expected '{'"},
      {"no end", File("{'descr': '<f4'", 24), "found the end of the header"},
      {"no quote", File("{'descr", 24), "no closing quote"},
      {"more after it", File(std::string(kGood) + " 7", 24), "goes on after its dictionary"},
  };
}

TEST(Npy, RefusesWhatIsNotExactlyRight) {
  for (const std::vector<BadFile>& files : {BadFrames(), BadDictionaries()}) {
    for (const BadFile& bad : files) {
      const Result<NpyArray> array = Parse(bad.bytes);
      ASSERT_FALSE(array.ok()) << bad.what;
      EXPECT_EQ(array.status().code(), StatusCode::kInvalidArgument) << bad.what;
      EXPECT_EQ(array.status().message().find("x.npy, byte "), 0U) << array.status().message();
      EXPECT_NE(array.status().message().find(bad.piece), std::string::npos)
          << bad.what << ": " << array.status().message();
    }
  }
}

// Whatever is cut off or changed in one byte, the answer is an array that fills the file or a
// refusal; sanitizers watch.
TEST(Npy, SurvivesEveryCutAndEveryChangedByte) {
  const std::string good = File(kGood, 24);
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(Parse(good.substr(0, length)).ok()) << length;
  }
  for (std::size_t at = 0; at + 24 < good.size(); ++at) {
    for (const char byte : {'\0', '\xFF', '9', '(', '\'', '}', '-'}) {
      std::string changed = good;
      changed[at] = byte;
      const Result<NpyArray> array = Parse(changed);
      if (array.ok()) {
        EXPECT_EQ(array->header.num_elements * SizeOf(array->header.type), 24U);
      }
    }
  }
}

TEST(NpyFile, RefusesWhatIsNoFile) {
  const TempFolder folder;
  const auto message = [](const std::string& path) { return ReadNpyFile(path).status().message(); };
  EXPECT_NE(message(folder / "absent.npy").find("cannot be opened"), std::string::npos);
  EXPECT_NE(message(folder.path()).find("is a folder"), std::string::npos);
  EXPECT_NE(message("/dev/null").find("no regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(message(folder / "pipe").find("no regular file"), std::string::npos);
}

TEST(NpyFile, ReadsAFileWhoseNameIsNotText) {
  const TempFolder folder;
  const std::string path = folder / "\xff\xfe.npy";
  WriteFile(path, File(kGood, 24));
  EXPECT_TRUE(ReadNpyFile(path).ok());
}

// Eight TiB are promised by a file of a few bytes.
TEST(NpyFile, ASizeThatDoesNotFitTheFileIsRefusedBeforeMemoryIsTaken) {
  const TempFolder folder;
  const std::string path = folder / "big.npy";
  WriteFile(path, File("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }", 8));
  EXPECT_NE(ReadNpyFile(path).status().message().find("it is truncated"), std::string::npos);
}

}  // namespace
}  // namespace attndrop::cli
