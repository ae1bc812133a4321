// SPDX-License-Identifier: Apache-2.0
// PyTorch's CPU engine, its seeding rules, uniform values and integers against known answers.
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/compat.h"

#include "support/golden.h"
#include "support/sha256.h"

namespace attndrop::compat {
namespace {

using testing::Bits;
using testing::BitsOf;
using testing::GoldenRow;
using testing::ReadGoldenRows;
using testing::Words;

constexpr std::uint64_t kTwoTo32 = std::uint64_t{1} << 32;

TEST(Sha256Test, KnownDigests) {
  EXPECT_EQ(testing::Sha256({}),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(testing::Sha256({'a', 'b', 'c'}),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TorchCpuGeneratorTest, FirstOutputsOfTheEngine) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_engine.txt")) {
    TorchCpuGenerator generator(std::stoull(row[0]));
    for (const std::string& word : Words(row, 1)) {
      EXPECT_EQ(testing::Hex(generator.Random32(), 8), word) << "seed " << row[0];
    }
  }
}

TEST(TorchCpuGeneratorTest, WideDrawHasTheFirstOutputHigh) {
  TorchCpuGenerator generator(0);
  EXPECT_EQ(generator.Random64(), 0x8c7f0aac97c4aa2fULL);
}

TEST(TorchCpuGeneratorTest, OnlyTheLow32BitsOfTheSeedCount) {
  const TorchCpuGenerator five(5);
  const TorchCpuGenerator five_and_more(kTwoTo32 + 5);
  EXPECT_TRUE(five.SameState(five_and_more));
  EXPECT_EQ(five_and_more.InitialSeed(), kTwoTo32 + 5);
  EXPECT_TRUE(TorchCpuGenerator(~std::uint64_t{0}).SameState(TorchCpuGenerator(kTwoTo32 - 1)));
  EXPECT_FALSE(five.SameState(TorchCpuGenerator(6)));
}

TEST(TorchCpuGeneratorTest, FreshGeneratorHasTheFixedSeed) {
  EXPECT_EQ(TorchCpuGenerator().InitialSeed(), 67280421310721U);
  EXPECT_TRUE(TorchCpuGenerator().SameState(TorchCpuGenerator(67280421310721U)));
}

TEST(TorchCpuGeneratorTest, CopyContinuesWithTheSameNumbers) {
  TorchCpuGenerator original(3);
  static_cast<void>(original.Normal());
  TorchCpuGenerator copy = original;
  EXPECT_TRUE(copy.SameState(original));
  EXPECT_EQ(copy.Normal(), original.Normal());
  EXPECT_EQ(copy.Random32(), original.Random32());
  static_cast<void>(copy.Random32());
  EXPECT_FALSE(copy.SameState(original));
}

TEST(TorchBuildTest, NamesGoBothWays) {
  EXPECT_EQ(TorchBuildName(TorchBuild::kNoMkl), "torch-cpu");
  EXPECT_EQ(TorchBuildName(TorchBuild::kMkl), "torch-cpu-mkl");
  EXPECT_EQ(ParseTorchBuild("torch-cpu"), TorchBuild::kNoMkl);
  EXPECT_EQ(ParseTorchBuild("torch-cpu-mkl"), TorchBuild::kMkl);
  EXPECT_EQ(ParseTorchBuild("torch"), std::nullopt);
}

template <class T>
void CheckUniformRow(const GoldenRow& row) {
  TorchCpuGenerator generator(std::stoull(row[0]));
  std::vector<T> values(row.size() - 2);
  Rand(generator, values);
  EXPECT_EQ(BitsOf(values), Words(row, 2)) << "seed " << row[0];
}

template <class T>
void CheckLongUniformRow(const GoldenRow& row) {
  TorchCpuGenerator generator(std::stoull(row[0]));
  std::vector<T> values(std::stoull(row[2]));
  Rand(generator, values);
  EXPECT_EQ(testing::Sha256OfValues(values), row[3]) << row[1];
  EXPECT_EQ(Bits(Uniform32(generator)), row[4]) << row[1];
}

TEST(RandTest, MatchesPyTorch) {
  std::set<std::string> kinds;
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_uniform.txt")) {
    kinds.insert(row[1]);
    if (row[1] == "float32") CheckUniformRow<float>(row);
    if (row[1] == "float64") CheckUniformRow<double>(row);
    if (row[1] == "float32_sha256") CheckLongUniformRow<float>(row);
    if (row[1] == "float64_sha256") CheckLongUniformRow<double>(row);
  }
  EXPECT_EQ(kinds.size(), 4U);
}

TEST(RandTest, DecimalValuesOfSeeds0And42) {
  TorchCpuGenerator zero(0);
  for (const float value : {0.49625659F, 0.768221796F, 0.0884774327F, 0.132030487F}) {
    EXPECT_EQ(Uniform32(zero), value);
  }
  TorchCpuGenerator forty_two(42);
  for (const float value : {0.882269263F, 0.915003955F, 0.38286376F, 0.959305644F}) {
    EXPECT_EQ(Uniform32(forty_two), value);
  }
}

std::vector<std::int64_t> Integers(const GoldenRow& row, std::size_t first) {
  std::vector<std::int64_t> values;
  for (const std::string& word : Words(row, first)) values.push_back(std::stoll(word));
  return values;
}

TEST(RandIntTest, MatchesPyTorch113) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_integer.txt")) {
    if (row[0] != "randint") continue;
    TorchCpuGenerator generator(std::stoull(row[1]));
    std::vector<std::int64_t> values(row.size() - 5);
    ASSERT_TRUE(RandInt(generator, std::stoll(row[2]), std::stoll(row[3]),
                        RandIntRule::kWideFrom2Pow32, values)
                    .ok());
    EXPECT_EQ(values, Integers(row, 5)) << "low " << row[2] << ", high " << row[3];
    EXPECT_EQ(Bits(Uniform32(generator)), row[4]) << "low " << row[2] << ", high " << row[3];
  }
}

TEST(RandPermTest, MatchesPyTorch113) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_integer.txt")) {
    if (row[0] != "randperm") continue;
    TorchCpuGenerator generator(std::stoull(row[1]));
    std::vector<std::int64_t> values(std::stoull(row[2]));
    ASSERT_TRUE(RandPerm(generator, values).ok());
    EXPECT_EQ(values, Integers(row, 4)) << "n " << row[2];
    EXPECT_EQ(Bits(Uniform32(generator)), row[3]) << "n " << row[2];
  }
}

// The number of engine outputs that one randint value of this range takes.
int OutputsPerInteger(std::int64_t range, RandIntRule rule) {
  TorchCpuGenerator generator(1);
  std::vector<std::int64_t> value(1);
  EXPECT_TRUE(RandInt(generator, 0, range, rule, value).ok());
  TorchCpuGenerator one(1);
  static_cast<void>(one.Random32());
  if (generator.SameState(one)) return 1;
  static_cast<void>(one.Random32());
  return generator.SameState(one) ? 2 : -1;
}

TEST(RandIntTest, WideDrawsBeginAtTheLimitOfTheRule) {
  constexpr std::int64_t kTwoTo28 = std::int64_t{1} << 28;
  constexpr std::int64_t kTwoTo32Range = std::int64_t{1} << 32;
  constexpr RandIntRule kOld = RandIntRule::kWideFrom2Pow32;
  constexpr RandIntRule kNew = RandIntRule::kWideFrom2Pow28;
  EXPECT_EQ(OutputsPerInteger(kTwoTo28 - 1, kOld), 1);
  EXPECT_EQ(OutputsPerInteger(kTwoTo28, kOld), 1);
  EXPECT_EQ(OutputsPerInteger(kTwoTo32Range - 1, kOld), 1);
  EXPECT_EQ(OutputsPerInteger(kTwoTo32Range, kOld), 2);
  EXPECT_EQ(OutputsPerInteger(kTwoTo28 - 1, kNew), 1);
  EXPECT_EQ(OutputsPerInteger(kTwoTo28, kNew), 2);
  EXPECT_EQ(OutputsPerInteger(kTwoTo32Range - 1, kNew), 2);
  EXPECT_EQ(OutputsPerInteger(kTwoTo32Range, kNew), 2);
}

TEST(RandIntTest, RefusesAnEmptyRange) {
  TorchCpuGenerator generator(1);
  std::vector<std::int64_t> value = {7};
  const Status status = RandInt(generator, 3, 3, RandIntRule::kWideFrom2Pow32, value);
  EXPECT_EQ(status.message(),
            "low must be less than high, got low 3 and high 3; 0 and 10 give the digits");
  EXPECT_TRUE(generator.SameState(TorchCpuGenerator(1)));
  EXPECT_EQ(value[0], 7);
}

TEST(RandPermTest, RefusesSizesWhereReleasesDiffer) {
  TorchCpuGenerator generator(1);
  std::int64_t element = 7;
  // Never read or written: the size alone is refused.
  const Status status = RandPerm(generator, std::span<std::int64_t>(&element, kMaxRandPerm));
  EXPECT_EQ(
      status.message(),
      "a permutation must have fewer than 214748364 elements, got 214748364; PyTorch releases "
      "differ beyond that, so use a smaller one");
  EXPECT_TRUE(generator.SameState(TorchCpuGenerator(1)));
  EXPECT_EQ(element, 7);
}

}  // namespace
}  // namespace attndrop::compat
