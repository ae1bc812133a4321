// SPDX-License-Identifier: Apache-2.0
// The torch-cpu-mkl mask stream: threshold, skip-ahead, wrap, and chunks.
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

using testing::GoldenRow;
using testing::ReadGoldenRows;

constexpr std::uint64_t kModulus = 2147483647;

std::vector<std::uint8_t> Filled(const MklBernoulliStream& stream, std::uint64_t first,
                                 std::size_t count) {
  std::vector<std::uint8_t> keep(count, 7);
  stream.Fill(first, keep);
  return keep;
}

TEST(MklBernoulliStreamTest, ThresholdsFoundWithIntelsLibrary) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_mkl_threshold.txt")) {
    const double keep_prob = std::stod(row[0]);
    const auto first_dropped = static_cast<std::uint32_t>(std::stoul(row[1]));
    EXPECT_FALSE(MklBernoulliStream(first_dropped, keep_prob).Keep(0)) << row[0];
    if (first_dropped > 1) {
      EXPECT_TRUE(MklBernoulliStream(first_dropped - 1, keep_prob).Keep(0)) << row[0];
    }
    EXPECT_EQ(MklBernoulliStream(1, keep_prob).Threshold(), first_dropped) << row[0];
  }
}

// States which a comparison in double precision would keep.
TEST(MklBernoulliStreamTest, DropsWhatADoubleComparisonKeeps) {
  struct Range {
    double keep_prob;
    std::uint32_t first;
    std::uint32_t last;
  };
  for (const Range& range :
       {Range{1.0 - 0.1, 1932735168, 1932735282}, Range{1.0 - 0.3, 1503238464, 1503238552},
        Range{1.0 - 0.2, 1717986880, 1717986917}, Range{1.0 - 0.37, 1352914624, 1352914697}}) {
    for (const std::uint32_t seed : {range.first, range.last}) {
      EXPECT_LT(static_cast<double>(seed) / static_cast<double>(kModulus), range.keep_prob);
      EXPECT_FALSE(MklBernoulliStream(seed, range.keep_prob).Keep(0)) << seed;
    }
    EXPECT_TRUE(MklBernoulliStream(range.first - 1, range.keep_prob).Keep(0));
    EXPECT_GE(static_cast<double>(range.last + 1) / static_cast<double>(kModulus), range.keep_prob);
  }
}

TEST(MklBernoulliStreamTest, SeedsWrapAndZeroBecomesOne) {
  EXPECT_EQ(MklBernoulliStream(1, 0.5).StateAt(0), 1U);
  EXPECT_EQ(MklBernoulliStream(0, 0.5).StateAt(0), 1U);
  EXPECT_EQ(MklBernoulliStream(2147483646, 0.5).StateAt(0), 2147483646U);
  EXPECT_EQ(MklBernoulliStream(2147483647, 0.5).StateAt(0), 1U);
  EXPECT_EQ(MklBernoulliStream(2147483648, 0.5).StateAt(0), 1U);
  EXPECT_EQ(MklBernoulliStream(2147483649, 0.5).StateAt(0), 2U);
  EXPECT_EQ(MklBernoulliStream(4294967293, 0.5).StateAt(0), 2147483646U);
  EXPECT_EQ(MklBernoulliStream(4294967294, 0.5).StateAt(0), 1U);
  EXPECT_EQ(MklBernoulliStream(4294967295, 0.5).StateAt(0), 1U);
  EXPECT_EQ(MklBernoulliStream(4206513055, 0.5).StateAt(0), 2059029408U);
}

TEST(MklBernoulliStreamTest, SkippingEqualsStepping) {
  const MklBernoulliStream stream(987654321, 0.37);
  std::uint64_t state = 987654321;
  for (std::uint64_t index = 0; index < 2000; ++index) {
    ASSERT_EQ(stream.StateAt(index), state) << index;
    ASSERT_EQ(stream.Keep(index), state < stream.Threshold()) << index;
    state = state * 1132489760 % kModulus;
  }
}

TEST(MklBernoulliStreamTest, ChunksGiveTheWholeMask) {
  const MklBernoulliStream stream(2024, 0.7);
  for (const std::size_t count : {799U, 800U, 801U, 1600U}) {
    const std::vector<std::uint8_t> whole = Filled(stream, 0, count);
    for (std::size_t chunks = 1; chunks <= 16; ++chunks) {
      std::vector<std::uint8_t> pieces;
      for (std::size_t c = 0; c < chunks; ++c) {
        const std::size_t begin = count * c / chunks;
        const std::vector<std::uint8_t> part =
            Filled(stream, begin, count * (c + 1) / chunks - begin);
        pieces.insert(pieces.end(), part.begin(), part.end());
      }
      EXPECT_EQ(pieces, whole) << count << " elements in " << chunks << " chunks";
    }
  }
}

TEST(MklBernoulliStreamTest, ElementsRepeatAfterThePeriod) {
  const MklBernoulliStream stream(12345, 0.5);
  constexpr std::uint64_t kPeriod = MklBernoulliStream::kPeriod;
  EXPECT_EQ(stream.StateAt(kPeriod), stream.StateAt(0));
  EXPECT_EQ(Filled(stream, kPeriod, 40), Filled(stream, 0, 40));
  EXPECT_EQ(Filled(stream, 3 * kPeriod + 5, 40), Filled(stream, 5, 40));
  // Half a period on, every state is the complement; nothing shorter divides the period.
  EXPECT_EQ(stream.StateAt(kPeriod / 2), kModulus - stream.StateAt(0));
  // As printed by Intel's library after skipping 2147483643 elements.
  const std::string across = "0101110100000111100101110011101101110101";
  std::string flags;
  for (const std::uint8_t keep : Filled(stream, kPeriod - 3, 40)) flags += keep != 0 ? '1' : '0';
  EXPECT_EQ(flags, across);
}

TEST(MklBernoulliStreamTest, AnyIndexIsDefined) {
  const MklBernoulliStream stream(77, 0.5);
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(stream.StateAt(kLast), stream.StateAt(kLast % MklBernoulliStream::kPeriod));
  // A chunk that runs past the last 64-bit index continues where the stream does.
  EXPECT_EQ(Filled(stream, kLast, 3)[0], Filled(stream, kLast % MklBernoulliStream::kPeriod, 3)[0]);
}

TEST(MklBernoulliStreamTest, ProbabilitiesOutsideTheRangeAreClamped) {
  EXPECT_EQ(MklBernoulliStream(1, -1.0).Threshold(), 1U);
  EXPECT_EQ(MklBernoulliStream(1, std::numeric_limits<double>::quiet_NaN()).Threshold(), 1U);
  EXPECT_EQ(MklBernoulliStream(1, 1e300).Threshold(), 2147483583U);
  EXPECT_EQ(MklBernoulliStream(1, std::numeric_limits<double>::infinity()).Threshold(),
            2147483583U);
}

TEST(MklBernoulliStreamTest, LongMasks) {
  for (const GoldenRow& row : ReadGoldenRows("torch_cpu_mkl_sha256.txt")) {
    TorchCpuGenerator generator(std::stoull(row[0]));
    const MklBernoulliStream stream(generator.Random32(), 1.0 - std::stod(row[1]));
    const std::vector<std::uint8_t> keep = Filled(stream, 0, std::stoull(row[2]));
    std::uint64_t kept = 0;
    for (const std::uint8_t flag : keep) kept += flag;
    EXPECT_EQ(kept, std::stoull(row[3])) << "seed " << row[0];
    EXPECT_EQ(testing::Sha256OfFlags(keep), row[4]) << "seed " << row[0];
  }
}

}  // namespace
}  // namespace attndrop::compat
