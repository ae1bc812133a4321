// SPDX-License-Identifier: Apache-2.0
// torch.randn on the CPU against known answers: both paths, the tail rule, the cached value.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
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

template <class T>
std::vector<T> Normals(TorchCpuGenerator& generator, std::size_t count) {
  std::vector<T> values(count);
  RandN(generator, values);
  return values;
}

template <class T>
void CheckNormalRow(const GoldenRow& row) {
  TorchCpuGenerator generator(std::stoull(row[0]));
  const std::vector<T> values = Normals<T>(generator, std::stoull(row[2]));
  EXPECT_EQ(BitsOf(values), Words(row, 4)) << row[1] << " count " << row[2];
  EXPECT_EQ(Bits(Uniform32(generator)), row[3]) << row[1] << " count " << row[2];
}

TEST(RandNTest, MatchesPyTorchBitForBit) {
  std::set<std::string> kinds;
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_normal.txt")) {
    kinds.insert(row[1]);
    if (row[1] == "float32") CheckNormalRow<float>(row);
    if (row[1] == "float64") CheckNormalRow<double>(row);
    if (row[1] != "float32_sha256") continue;
    TorchCpuGenerator generator(std::stoull(row[0]));
    EXPECT_EQ(testing::Sha256OfValues(Normals<float>(generator, std::stoull(row[2]))), row[4]);
    EXPECT_EQ(Bits(Uniform32(generator)), row[3]);
  }
  EXPECT_EQ(kinds.size(), 3U);
}

TEST(RandNTest, TailIsDrawnAgainWhenTheCountIsNoMultipleOf16) {
  TorchCpuGenerator whole(8);
  const std::vector<float> sixteen = Normals<float>(whole, 16);
  TorchCpuGenerator odd(8);
  const std::vector<float> seventeen = Normals<float>(odd, 17);
  EXPECT_EQ(seventeen[0], sixteen[0]);
  // Elements 1 .. 16 are the block made of outputs 17 .. 32.
  TorchCpuGenerator skipped(8);
  for (int i = 0; i < 17; ++i) static_cast<void>(skipped.Random32());
  const std::vector<float> tail = Normals<float>(skipped, 16);
  EXPECT_EQ(std::vector<float>(seventeen.begin() + 1, seventeen.end()), tail);
  EXPECT_TRUE(odd.SameState(skipped));
}

TEST(RandNTest, CachedValueCrossesTypesAndSurvivesOtherDraws) {
  TorchCpuGenerator pair(11);
  const double first = pair.Normal();
  const double second = pair.Normal();

  TorchCpuGenerator generator(11);
  EXPECT_EQ(Normals<float>(generator, 1)[0], static_cast<float>(first));
  std::vector<float> uniforms(5);
  Rand(generator, uniforms);
  static_cast<void>(Normals<float>(generator, 16));
  static_cast<void>(Normals<double>(generator, 32));
  const TorchCpuGenerator before = generator;
  EXPECT_EQ(Normals<double>(generator, 1)[0], second);
  EXPECT_FALSE(generator.SameState(before));  // the cache is used up
  TorchCpuGenerator engine_only = before;
  EXPECT_EQ(generator.Random32(), engine_only.Random32());  // and the engine did not move
}

TEST(RandNTest, SeedingForgetsTheCachedValue) {
  TorchCpuGenerator generator(11);
  static_cast<void>(generator.Normal());
  generator.Seed(11);
  EXPECT_TRUE(generator.SameState(TorchCpuGenerator(11)));
}

// Newer releases take log1p(-u), 1.13 took log(1 - u): its bits here end in ...dcb and ...a7b.
TEST(RandNTest, Float64FollowsTheReleasesWithLog1p) {
  TorchCpuGenerator generator(9);
  const std::vector<double> values = Normals<double>(generator, 15);
  EXPECT_EQ(Bits(values[12]), "bfead651a4e33dca");
  EXPECT_EQ(Bits(values[13]), "bfdb10c75318aa7a");
}

// What an x86 build without AVX2 prints for manual_seed(0); randn(16): the promise to other builds.
TEST(RandNTest, BuildsWithoutAvx2AreWithinOneMillionth) {
  constexpr std::array<std::uint32_t, 16> kPlain = {0xbf901b85, 0xbf93808a, 0xbe804bd6, 0xbede255e,
                                                    0x3f594515, 0x3f312784, 0xbea1cc6d, 0xc0075fc2,
                                                    0x3ea50138, 0xbfa1b4f4, 0x3eb330ff, 0x3e9dc3ba,
                                                    0x3df56f77, 0x3f9e6b93, 0x3f8ef28e, 0xbe7d365a};
  TorchCpuGenerator generator(0);
  const std::vector<float> values = Normals<float>(generator, 16);
  int different = 0;
  for (std::size_t i = 0; i < kPlain.size(); ++i) {
    const float plain = std::bit_cast<float>(kPlain[i]);
    EXPECT_LT(std::abs(values[i] - plain), 1e-6F) << i;
    different += values[i] != plain ? 1 : 0;
  }
  EXPECT_EQ(different, 5);
}

// The polynomials approximate the exact transform of the same uniforms.
TEST(RandNTest, Float32StaysCloseToTheExactTransform) {
  constexpr std::size_t kCount = 16000;
  TorchCpuGenerator generator(12);
  TorchCpuGenerator uniform_generator = generator;
  const std::vector<float> values = Normals<float>(generator, kCount);
  std::vector<float> u(kCount);
  Rand(uniform_generator, u);
  double worst = 0.0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t j = i % 16 < 8 ? i : i - 8;
    const double radius = std::sqrt(-2.0 * std::log1p(-static_cast<double>(u[j])));
    const double theta = 2.0 * 3.14159265358979323846 * static_cast<double>(u[j + 8]);
    const double exact = radius * (i == j ? std::cos(theta) : std::sin(theta));
    worst = std::max(worst, std::abs(static_cast<double>(values[i]) - exact));
  }
  // theta carries an error of up to 2^-22 (half a unit in the last place of 2 pi, plus the rounding
  // of 2 pi itself), times a radius of at most 5.8; the rest is a few units in the last place.
  EXPECT_LT(worst, 2e-6);
}

}  // namespace
}  // namespace attndrop::compat
