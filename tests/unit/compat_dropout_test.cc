// SPDX-License-Identifier: Apache-2.0
// PyTorch's Bernoulli draw and F.dropout in both builds: masks, draws, scales, refusals.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/compat.h"

#include "support/golden.h"
#include "support/sha256.h"

namespace attndrop::compat {
namespace {

using testing::Bits;
using testing::GoldenRow;
using testing::ReadGoldenRows;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr TorchBuild kBuilds[] = {TorchBuild::kNoMkl, TorchBuild::kMkl};

std::string FlagText(const std::vector<std::uint8_t>& keep) {
  std::string text;
  for (const std::uint8_t flag : keep) text += static_cast<char>('0' + flag);
  return text;
}

TorchCpuGenerator After(std::uint64_t seed, int outputs) {
  TorchCpuGenerator generator(seed);
  for (int i = 0; i < outputs; ++i) static_cast<void>(generator.Random32());
  return generator;
}

TEST(DropoutKeepTest, FlagsOfTheFirstCall) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_keep.txt")) {
    const auto build = ParseTorchBuild(row[0]);
    ASSERT_TRUE(build.has_value());
    TorchCpuGenerator generator(std::stoull(row[1]));
    std::vector<std::uint8_t> keep(row[3].size());
    ASSERT_TRUE(DropoutKeep(generator, *build, std::stod(row[2]), keep).ok());
    EXPECT_EQ(FlagText(keep), row[3]) << row[0] << " seed " << row[1] << " p " << row[2];
  }
}

TEST(DropoutKeepTest, LongMasksWithoutMkl) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_dropout_sha256.txt")) {
    TorchCpuGenerator generator(std::stoull(row[0]));
    std::vector<std::uint8_t> keep(std::stoull(row[2]));
    const double dropout_p = std::stod(row[1]);
    ASSERT_TRUE(DropoutKeep(generator, TorchBuild::kNoMkl, dropout_p, keep).ok());
    std::uint64_t kept = 0;
    for (const std::uint8_t flag : keep) kept += flag;
    EXPECT_EQ(kept, std::stoull(row[3])) << "p " << row[1];
    if (row[4] != "-") {
      EXPECT_EQ(Bits(DropoutScale32(dropout_p)), row[4]) << "p " << row[1];
    }
    EXPECT_EQ(Bits(Uniform32(generator)), row[5]) << "p " << row[1];
    EXPECT_EQ(testing::Sha256OfFlags(keep), row[6]) << "p " << row[1];
  }
}

TEST(DropoutKeepTest, LongMasksWithMkl) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_mkl_sha256.txt")) {
    TorchCpuGenerator generator(std::stoull(row[0]));
    std::vector<std::uint8_t> keep(std::stoull(row[2]));
    ASSERT_TRUE(DropoutKeep(generator, TorchBuild::kMkl, std::stod(row[1]), keep).ok());
    EXPECT_EQ(testing::Sha256OfFlags(keep), row[4]) << "seed " << row[0];
    EXPECT_TRUE(generator.SameState(After(std::stoull(row[0]), 1)));
  }
}

TEST(BernoulliTest, OneOutputPerCallWithMklAndTwoPerElementWithout) {
  for (const double keep_prob : {0.0, 0.3, 1.0}) {
    std::vector<std::uint8_t> keep(9);
    TorchCpuGenerator mkl(5);
    ASSERT_TRUE(Bernoulli(mkl, TorchBuild::kMkl, keep_prob, keep).ok());
    EXPECT_TRUE(mkl.SameState(After(5, 1))) << keep_prob;
    TorchCpuGenerator no_mkl(5);
    ASSERT_TRUE(Bernoulli(no_mkl, TorchBuild::kNoMkl, keep_prob, keep).ok());
    EXPECT_TRUE(no_mkl.SameState(After(5, 18))) << keep_prob;
  }
}

TEST(BernoulliTest, CertainProbabilities) {
  for (const TorchBuild build : kBuilds) {
    TorchCpuGenerator generator(5);
    std::vector<std::uint8_t> keep(9);
    ASSERT_TRUE(Bernoulli(generator, build, 0.0, keep).ok());
    EXPECT_EQ(FlagText(keep), "000000000");
    ASSERT_TRUE(Bernoulli(generator, build, 1.0, keep).ok());
    EXPECT_EQ(FlagText(keep), "111111111");
  }
}

TEST(DropoutTest, NothingIsDrawnWhereNothingIsRandom) {
  const std::vector<float> input = {1.0F, -2.0F, kInfinity, 0.5F};
  for (const TorchBuild build : kBuilds) {
    TorchCpuGenerator generator(5);
    std::vector<float> output(4);
    std::vector<std::uint8_t> keep(4);
    ASSERT_TRUE(Dropout(generator, build, 0.0, true, input, output).ok());
    EXPECT_EQ(output, input);
    ASSERT_TRUE(Dropout(generator, build, 0.5, false, input, output).ok());
    EXPECT_EQ(output, input);
    ASSERT_TRUE(Dropout(generator, build, 1.0, false, input, output).ok());
    EXPECT_EQ(output, input);
    ASSERT_TRUE(Dropout(generator, build, 1.0, true, input, output).ok());
    EXPECT_EQ(Bits(output[0]), "00000000");
    EXPECT_EQ(Bits(output[1]), "80000000");
    EXPECT_TRUE(std::isnan(output[2]));
    ASSERT_TRUE(DropoutKeep(generator, build, 0.0, keep).ok());
    EXPECT_EQ(FlagText(keep), "1111");
    ASSERT_TRUE(DropoutKeep(generator, build, 1.0, keep).ok());
    EXPECT_EQ(FlagText(keep), "0000");
    ASSERT_TRUE(Dropout(generator, build, 0.5, true, std::span<const float>(), {}).ok());
    ASSERT_TRUE(DropoutKeep(generator, build, 0.5, {}).ok());
    EXPECT_TRUE(generator.SameState(TorchCpuGenerator(5)));
  }
}

TEST(DropoutTest, ScaleIsRoundedTwice) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_scale.txt")) {
    const double dropout_p = std::stod(row[0]);
    EXPECT_EQ(Bits(DropoutScale32(dropout_p)), row[1]) << "p " << row[0];
    EXPECT_NE(Bits(static_cast<float>(1.0 / (1.0 - dropout_p))), row[1]) << "p " << row[0];
  }
  EXPECT_EQ(DropoutScale64(0.3), 1.0 / (1.0 - 0.3));
}

// Longer than any internal chunk, so that values and flags must stay aligned.
template <class T>
void CheckValues(TorchBuild build, T scale) {
  constexpr std::size_t kCount = 9001;
  std::vector<T> input(kCount);
  TorchCpuGenerator input_generator(1);
  RandN(input_generator, input);
  TorchCpuGenerator generator(6);
  TorchCpuGenerator keep_generator(6);
  std::vector<T> output(kCount);
  std::vector<std::uint8_t> keep(kCount);
  ASSERT_TRUE(Dropout(generator, build, 0.3, true, std::span<const T>(input), output).ok());
  ASSERT_TRUE(DropoutKeep(keep_generator, build, 0.3, keep).ok());
  EXPECT_TRUE(generator.SameState(keep_generator));
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(Bits(output[i]), Bits(input[i] * (keep[i] != 0 ? scale : T{0}))) << i;
  }
  TorchCpuGenerator again(6);
  ASSERT_TRUE(Dropout(again, build, 0.3, true, std::span<const T>(input), std::span(input)).ok());
  EXPECT_EQ(input, output);
}

TEST(DropoutTest, ValuesAreInputTimesKeepTimesScale) {
  for (const TorchBuild build : kBuilds) {
    CheckValues<float>(build, DropoutScale32(0.3));
    CheckValues<double>(build, DropoutScale64(0.3));
  }
}

TEST(DropoutTest, InfinityStaysWhereKeptAndBecomesNanWhereDropped) {
  const std::vector<float> input(16, kInfinity);
  for (const TorchBuild build : kBuilds) {
    TorchCpuGenerator generator(6);
    TorchCpuGenerator keep_generator(6);
    std::vector<float> output(16);
    std::vector<std::uint8_t> keep(16);
    ASSERT_TRUE(Dropout(generator, build, 0.5, true, input, output).ok());
    ASSERT_TRUE(DropoutKeep(keep_generator, build, 0.5, keep).ok());
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(std::isnan(output[i]), keep[i] == 0) << i;
      EXPECT_EQ(std::isinf(output[i]), keep[i] == 1) << i;
    }
  }
}

TEST(DropoutTest, ALargerPDropsASuperset) {
  for (const TorchBuild build : kBuilds) {
    std::vector<std::uint8_t> few(5000);
    std::vector<std::uint8_t> many(5000);
    TorchCpuGenerator generator(6);
    TorchCpuGenerator same(6);
    ASSERT_TRUE(DropoutKeep(generator, build, 0.2, few).ok());
    ASSERT_TRUE(DropoutKeep(same, build, 0.6, many).ok());
    for (std::size_t i = 0; i < few.size(); ++i) ASSERT_LE(many[i], few[i]) << i;
    EXPECT_NE(few, many);
  }
}

TEST(DropoutTest, RefusalsNameTheValueAndChangeNothing) {
  const std::vector<float> input(3, 1.0F);
  std::vector<float> output(3, 7.0F);
  std::vector<std::uint8_t> keep(3, 7);
  for (const TorchBuild build : kBuilds) {
    TorchCpuGenerator generator(5);
    EXPECT_EQ(
        Dropout(generator, build, 1.5, true, input, output).message(),
        "dropout_p must be a finite number in [0, 1], got 1.5; 0.5 drops half of the elements");
    EXPECT_EQ(DropoutKeep(generator, build, -0.25, keep).message(),
              "dropout_p must be a finite number in [0, 1], got -0.25; 0.5 drops half of the "
              "elements");
    EXPECT_EQ(
        Bernoulli(generator, build, std::nan(""), keep).message(),
        "keep_prob must be a finite number in [0, 1], got nan; 0.5 keeps half of the elements");
    EXPECT_FALSE(Dropout(generator, build, std::nan(""), false, input, output).ok());
    EXPECT_EQ(Dropout(generator, build, 0.5, true, input, std::span(output).first(2)).message(),
              "output must have as many elements as input, got 2 and 3; give them the same size");
    EXPECT_TRUE(generator.SameState(TorchCpuGenerator(5)));
  }
  EXPECT_EQ(output, std::vector<float>(3, 7.0F));
  EXPECT_EQ(keep, std::vector<std::uint8_t>(3, 7));
}

}  // namespace
}  // namespace attndrop::compat
