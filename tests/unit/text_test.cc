// SPDX-License-Identifier: Apache-2.0
// Numbers and names as text.
#include "core/text.h"

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "support/random.h"

namespace attndrop {
namespace {

TEST(TextTest, ParseNumberTakesTheWholeTextOnly) {
  EXPECT_EQ(ParseNumber<int>("42"), 42);
  EXPECT_EQ(ParseNumber<int>("-42"), -42);
  EXPECT_EQ(ParseNumber<double>("1e-3"), 1e-3);
  EXPECT_EQ(ParseNumber<std::uint64_t>("18446744073709551615"),
            std::numeric_limits<std::uint64_t>::max());
  for (const std::string_view bad : {"", " 1", "1 ", "+1", "1x", "0x10", "1,0"}) {
    EXPECT_FALSE(ParseNumber<int>(bad).has_value()) << bad;
    EXPECT_FALSE(ParseNumber<double>(bad).has_value()) << bad;
  }
  EXPECT_FALSE(ParseNumber<std::uint32_t>("-1").has_value());
  EXPECT_FALSE(ParseNumber<std::uint32_t>("4294967296").has_value());
  EXPECT_FALSE(ParseNumber<std::uint64_t>("18446744073709551616").has_value());
  EXPECT_FALSE(ParseNumber<double>("50%").has_value());
}

TEST(TextTest, FormatNumberReadsBackExactly) {
  testing::Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<double>(random.Next());
    if (value != value) continue;
    const std::string text = FormatNumber(value);
    ASSERT_EQ(ParseNumber<double>(text), value) << text;
  }
  EXPECT_EQ(FormatNumber(0.1), "0.1");
  EXPECT_EQ(FormatNumber(1.0 / 3.0), "0.3333333333333333");
  EXPECT_EQ(FormatNumber(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
}

TEST(TextTest, SplitKeepsEmptyPieces) {
  using Pieces = std::vector<std::string_view>;
  EXPECT_EQ(Split("", ','), Pieces{});
  EXPECT_EQ(Split("a", ','), Pieces{"a"});
  EXPECT_EQ(Split("a,b", ','), (Pieces{"a", "b"}));
  EXPECT_EQ(Split(",a,", ','), (Pieces{"", "a", ""}));
}

TEST(TextTest, Joins) {
  EXPECT_EQ(JoinNumbers(std::array{1, -2, 3}), "1,-2,3");
  EXPECT_EQ(JoinNumbers(std::array<int, 0>{}), "");
  const std::array<std::string_view, 2> names{"a", "b"};
  EXPECT_EQ(JoinNames(names), "a, b");
}

TEST(TextTest, NearestNameTakesFewEdits) {
  const std::array<std::string_view, 4> names{"element", "shared", "key", "symmetric"};
  EXPECT_EQ(NearestName("elment", names), "element");
  EXPECT_EQ(NearestName("Element", names), "element");
  EXPECT_EQ(NearestName("simetric", names), "symmetric");
  EXPECT_EQ(NearestName("kye", names), "key");
  EXPECT_EQ(NearestName("qqk", names), "");  // three edits of three letters
  EXPECT_EQ(NearestName("ke", names), "key");
  EXPECT_EQ(NearestName("banana", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(10000, 'e'), names), "");
}

TEST(TextTest, SuggestionNamesTheNearestAndAll) {
  const std::array<std::string_view, 2> names{"weights", "logits"};
  EXPECT_EQ(Suggestion("logit", names), "; did you mean \"logits\"? known: weights, logits");
  EXPECT_EQ(Suggestion("zzz", names), "; known: weights, logits");
}

}  // namespace
}  // namespace attndrop
