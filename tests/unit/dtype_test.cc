// SPDX-License-Identifier: Apache-2.0
// Conversions of the 16-bit types, against an independent computation: the sorted list of all
// numbers of the type, and the nearest of two neighbours by comparison with their midpoint.
#include "attndrop/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/element.h"
#include "support/random.h"

namespace attndrop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A 16-bit type by its parameters.
struct Sixteen {
  std::string_view name;
  DType dtype;
  int mantissa_bits;
  int bias;
  std::uint16_t infinity;
  std::uint16_t (*from_double)(double);

  // The value of a pattern by the definition of the format.
  [[nodiscard]] double ValueOf(std::uint16_t bits) const {
    const int exponent = (bits & 0x7FFF) >> mantissa_bits;
    const int fraction = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if ((bits & 0x7FFF) > infinity) return std::numeric_limits<double>::quiet_NaN();
    if ((bits & 0x7FFF) == infinity) return sign * kInfinity;
    const int steps = exponent == 0 ? fraction : fraction + (1 << mantissa_bits);
    return sign * std::ldexp(steps, std::max(exponent, 1) - bias - mantissa_bits);
  }

  // The pattern nearest to a value >= 0, ties to the even pattern.
  [[nodiscard]] std::uint16_t Nearest(double value) const {
    std::uint16_t low = 0;  // the last pattern whose value is not above
    std::uint16_t high = infinity;
    while (high - low > 1) {
      const auto middle = static_cast<std::uint16_t>((low + high) / 2);
      (ValueOf(middle) <= value ? low : high) = middle;
    }
    // Above the largest finite number the next one would lie a step further.
    const double step = ValueOf(low) - ValueOf(static_cast<std::uint16_t>(low - (low > 0 ? 1 : 0)));
    const double above = high == infinity ? ValueOf(low) + step : ValueOf(high);
    const double midpoint = ValueOf(low) + (above - ValueOf(low)) / 2;
    if (value != midpoint) return value > midpoint ? high : low;
    return low % 2 == 0 ? low : high;
  }
};

std::uint16_t ToFloat16(double value) { return DoubleToFloat16(value); }
std::uint16_t ToBFloat16(double value) { return DoubleToBFloat16(value); }

const Sixteen kSixteens[] = {
    {"float16", DType::kFloat16, 10, 15, 0x7C00, ToFloat16},
    {"bfloat16", DType::kBFloat16, 7, 127, 0x7F80, ToBFloat16},
};

// Names of tests would show the bytes otherwise.
void PrintTo(const Sixteen& sixteen, std::ostream* out) { *out << sixteen.name; }

class SixteenTest : public ::testing::TestWithParam<Sixteen> {};

INSTANTIATE_TEST_SUITE_P(DTypes, SixteenTest, ::testing::ValuesIn(kSixteens),
                         [](const auto& i) { return std::string(i.param.name); });

double Load(DType dtype, std::uint16_t bits) { return LoadElement(dtype, &bits, 0); }

TEST_P(SixteenTest, EveryPatternHasTheValueOfItsDefinition) {
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const double want = GetParam().ValueOf(bits);
    const double got = Load(GetParam().dtype, bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << pattern;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(want)) << pattern;
    }
  }
}

TEST_P(SixteenTest, EveryPatternRoundTrips) {
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const double value = Load(GetParam().dtype, bits);
    const std::uint16_t back = GetParam().from_double(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Load(GetParam().dtype, back))) << pattern;
      ASSERT_EQ(back & 0x8000, bits & 0x8000) << pattern;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST_P(SixteenTest, MidpointsAndTheirNeighboursRoundToNearestEven) {
  const Sixteen& type = GetParam();
  for (std::uint16_t low = 0; low < type.infinity - 1; ++low) {
    const double midpoint =
        (type.ValueOf(low) + type.ValueOf(static_cast<std::uint16_t>(low + 1))) / 2;
    for (const double value :
         {midpoint, std::nextafter(midpoint, 0.0), std::nextafter(midpoint, kInfinity)}) {
      const std::uint16_t want = type.Nearest(value);
      ASSERT_EQ(type.from_double(value), want) << value;
      ASSERT_EQ(type.from_double(-value), want | 0x8000) << -value;
    }
  }
}

TEST_P(SixteenTest, RandomDoublesOfEveryExponentRoundToNearestEven) {
  testing::Random random(2);
  for (int i = 0; i < 200000; ++i) {
    const double value = std::abs(std::bit_cast<double>(random.Next()));
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(GetParam().from_double(value), GetParam().Nearest(value)) << value;
  }
  for (int i = 0; i < 200000; ++i) {
    const double value = std::ldexp(1.0 + random.Uniform(),
                                    random.Pick({-27, -25, -24, -20, -15, -14, -3, 0, 9, 15, 16}));
    ASSERT_EQ(GetParam().from_double(value), GetParam().Nearest(value)) << value;
  }
}

TEST_P(SixteenTest, OverflowGivesInfinity) {
  const Sixteen& type = GetParam();
  const auto largest_bits = static_cast<std::uint16_t>(type.infinity - 1);
  const double largest = type.ValueOf(largest_bits);
  const double step = largest - type.ValueOf(static_cast<std::uint16_t>(largest_bits - 1));
  EXPECT_EQ(type.from_double(largest), largest_bits);
  EXPECT_EQ(type.from_double(std::nextafter(largest + step / 2, 0.0)), largest_bits);
  EXPECT_EQ(type.from_double(largest + step / 2),
            type.infinity);  // a tie; the even one is infinity
  EXPECT_EQ(type.from_double(std::numeric_limits<double>::max()), type.infinity);
  EXPECT_EQ(type.from_double(-kInfinity), type.infinity | 0x8000);
}

TEST_P(SixteenTest, TinyNumbersKeepTheirSign) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(GetParam().from_double(0.0), 0);
  EXPECT_EQ(GetParam().from_double(-0.0), 0x8000);
  EXPECT_EQ(GetParam().from_double(tiny), 0);
  EXPECT_EQ(GetParam().from_double(-tiny), 0x8000);
}

TEST_P(SixteenTest, NanIsQuiet) {
  const double quiet = std::numeric_limits<double>::quiet_NaN();
  const auto signalling_bits = std::uint64_t{0x7FF0000000000001};
  for (const double value : {quiet, -quiet, std::bit_cast<double>(signalling_bits)}) {
    const std::uint16_t bits = GetParam().from_double(value);
    EXPECT_GT(bits & 0x7FFF, GetParam().infinity);
    EXPECT_NE(bits & (1 << (GetParam().mantissa_bits - 1)), 0);
  }
}

TEST(DTypeTest, NamesAndSizes) {
  const struct {
    DType dtype;
    std::string_view name;
    std::size_t bytes;
  } cases[] = {{DType::kFloat64, "f64", 8},
               {DType::kFloat32, "f32", 4},
               {DType::kBFloat16, "bf16", 2},
               {DType::kFloat16, "f16", 2}};
  for (const auto& c : cases) {
    EXPECT_EQ(DTypeName(c.dtype), c.name);
    EXPECT_EQ(ParseDType(c.name), c.dtype);
    EXPECT_EQ(SizeOf(c.dtype), c.bytes);
  }
  EXPECT_FALSE(ParseDType("F32").has_value());
  EXPECT_FALSE(ParseDType("").has_value());
  EXPECT_FALSE(ParseDType("float32").has_value());
}

TEST(ElementTest, LoadsWhatWasStoredInEveryType) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    double memory[3] = {-1.0, -1.0, -1.0};
    StoreElement(dtype, memory, 1, 1.5);
    EXPECT_EQ(LoadElement(dtype, memory, 1), 1.5);
  }
  float rounded = 0.0F;
  StoreElement(DType::kFloat32, &rounded, 0, 0.1);
  EXPECT_EQ(rounded, 0.1F);
}

}  // namespace
}  // namespace attndrop
