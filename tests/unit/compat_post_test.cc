// SPDX-License-Identifier: Apache-2.0
// The forum post's table from its seed, number by number.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/compat.h"

#include "support/golden.h"

namespace attndrop::compat {
namespace {

using testing::GoldenRow;

constexpr std::uint64_t kSeed = 1367149;
constexpr std::size_t kRows = 4;
constexpr std::size_t kCols = 10;

// The lower triangle of the keep flags, row by row.
std::vector<std::string> TriangleRows(const std::vector<std::uint8_t>& keep) {
  std::vector<std::string> rows(kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j <= i; ++j) rows[i] += static_cast<char>('0' + keep[i * kRows + j]);
  }
  return rows;
}

std::vector<std::uint8_t> PostKeep(TorchBuild build) {
  TorchCpuGenerator generator(kSeed);
  std::vector<float> weights(kRows * kRows);
  Rand(generator, weights);
  std::vector<std::uint8_t> keep(weights.size());
  EXPECT_TRUE(DropoutKeep(generator, build, 0.5, keep).ok());
  return keep;
}

TEST(CompatPostTest, DropoutSeedAndFirstState) {
  TorchCpuGenerator generator(kSeed);
  for (int i = 0; i < 16; ++i) static_cast<void>(generator.Random32());
  const std::uint32_t seed32 = generator.Random32();
  EXPECT_EQ(seed32, 4206513055U);
  EXPECT_EQ(MklBernoulliStream(seed32, 0.5).StateAt(0), 2059029408U);
}

TEST(CompatPostTest, KeepFlags) {
  std::string flags;
  for (const std::uint8_t keep : PostKeep(TorchBuild::kMkl)) flags += keep != 0 ? '1' : '0';
  EXPECT_EQ(flags, "0001000010000111");
  EXPECT_EQ(TriangleRows(PostKeep(TorchBuild::kMkl)),
            (std::vector<std::string>{"0", "00", "100", "0111"}));
  EXPECT_EQ(TriangleRows(PostKeep(TorchBuild::kNoMkl)),
            (std::vector<std::string>{"0", "00", "101", "0010"}));
}

TEST(CompatPostTest, ProductBitForBit) {
  TorchCpuGenerator generator(kSeed);
  std::vector<float> weights(kRows * kRows);
  Rand(generator, weights);
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = i + 1; j < kRows; ++j) weights[i * kRows + j] *= 0.0F;
  }
  ASSERT_TRUE(Dropout(generator, TorchBuild::kMkl, 0.5, true, weights, weights).ok());
  std::vector<float> value(kRows * kCols);
  Rand(generator, value);
  for (const GoldenRow& row : testing::ReadGoldenRows("torch_cpu_post.txt")) {
    const std::size_t i = std::stoull(row[0]);
    std::vector<float> product(kCols, 0.0F);
    for (std::size_t j = 0; j < kRows; ++j) {
      for (std::size_t c = 0; c < kCols; ++c) {
        // Two statements: the product is rounded before the sum, also where a compiler may fuse.
        const volatile float term = weights[i * kRows + j] * value[j * kCols + c];
        product[c] += term;
      }
    }
    EXPECT_EQ(testing::BitsOf(product), testing::Words(row, 1)) << "row " << i;
  }
}

}  // namespace
}  // namespace attndrop::compat
