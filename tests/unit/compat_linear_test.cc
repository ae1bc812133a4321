// SPDX-License-Identifier: Apache-2.0
// Initial values of nn.Linear against PyTorch's own, bit for bit.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/compat.h"

#include "support/golden.h"
#include "support/sha256.h"

namespace attndrop::compat {
namespace {

using testing::GoldenRow;

TEST(LinearInitTest, MatchesPyTorchBitForBit) {
  for (const GoldenRow& row : testing::ReadGoldenRows("torch_cpu_linear.txt")) {
    TorchCpuGenerator generator(std::stoull(row[0]));
    const std::size_t out_features = std::stoull(row[1]);
    const std::size_t in_features = std::stoull(row[2]);
    std::vector<float> weight(out_features * in_features);
    std::vector<float> bias(row[3] == "1" ? out_features : 0);
    ASSERT_TRUE(LinearInit(generator, out_features, in_features, weight, bias).ok());
    EXPECT_EQ(testing::BitsOf(std::span<const float>(weight).first(4)), testing::Words(row, 7));
    EXPECT_EQ(testing::Sha256OfValues(weight), row[5]) << row[1] << " x " << row[2];
    if (!bias.empty()) {
      EXPECT_EQ(testing::Sha256OfValues(bias), row[6]) << row[1] << " x " << row[2];
    }
    EXPECT_EQ(testing::Bits(Uniform32(generator)), row[4]) << row[1] << " x " << row[2];
  }
}

TEST(LinearInitTest, FusedMultiplyAddIsWhatTellsTheBuildsApart) {
  // Without fusing, the first two weights of this layer are badb6d80 3df5a9a0.
  TorchCpuGenerator generator(0);
  std::vector<float> weight(200);
  ASSERT_TRUE(LinearInit(generator, 10, 20, weight, {}).ok());
  EXPECT_EQ(testing::BitsOf(std::span<const float>(weight).first(4)),
            (std::vector<std::string>{"badb6d9b", "3df5a99f", "be3c7496", "be2882ac"}));
}

TEST(LinearInitTest, RefusesSizesThatDoNotFit) {
  TorchCpuGenerator generator(1);
  std::vector<float> weight(6, 5.0F);
  std::vector<float> one_too_many(7);
  std::vector<float> bias(2, 5.0F);
  EXPECT_EQ(LinearInit(generator, 0, 3, {}, {}).message(),
            "LinearInit: out_features and in_features must be at least 1, got 0 and 3; 10 and 20 "
            "give a 10 x 20 weight");
  EXPECT_FALSE(LinearInit(generator, 3, 0, {}, {}).ok());
  EXPECT_EQ(LinearInit(generator, 2, 4, weight, bias).message(),
            "LinearInit: weight has 6 elements; it must have 2 x 4");
  EXPECT_FALSE(LinearInit(generator, 2, 5, weight, bias).ok());
  EXPECT_FALSE(LinearInit(generator, 2, 3, one_too_many, bias).ok());
  // The product of these sizes wraps to 6 in 64 bits and must not be taken for it.
  EXPECT_FALSE(LinearInit(generator, (std::size_t{1} << 63) + 3, 2, weight, bias).ok());
  EXPECT_EQ(LinearInit(generator, 3, 2, weight, bias).message(),
            "LinearInit: bias has 2 elements; it must have 3, or none for bias=False");
  EXPECT_TRUE(generator.SameState(TorchCpuGenerator(1)));
  EXPECT_EQ(weight, std::vector<float>(6, 5.0F));
  EXPECT_TRUE(LinearInit(generator, 2, 3, weight, bias).ok());
}

}  // namespace
}  // namespace attndrop::compat
