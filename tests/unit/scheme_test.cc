// SPDX-License-Identifier: Apache-2.0
// The registered schemes: what each declares against what it does, for every file of src/schemes.
#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/schemes.h"

#include "core/scheme_text.h"
#include "support/random.h"
#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::RefusesArgument;

SchemeParamValues DefaultParams(const SchemeInfo& info) {
  SchemeParamValues params{};
  for (std::size_t i = 0; i < info.num_params; ++i) params[i] = info.params[i].default_value;
  return params;
}

// Ordinary parameters and the ends of their ranges.
std::vector<SchemeParamValues> SomeParams(const SchemeInfo& info) {
  std::vector<SchemeParamValues> all{DefaultParams(info)};
  for (std::size_t i = 0; i < info.num_params; ++i) {
    for (const std::uint32_t value :
         {info.params[i].min, info.params[i].max, info.params[i].min + 2}) {
      all.push_back(DefaultParams(info));
      all.back()[i] = value;
    }
  }
  return all;
}

std::vector<Coord> SomeCoords() {
  std::vector<Coord> coords;
  testing::Random random(3);
  const auto coordinate = [&random] {
    const auto word = static_cast<std::uint32_t>(random.Next());
    return random.Pick({word, word % 300, word % 5, 0xFFFFFFFFU, 0x80000000U});
  };
  for (int i = 0; i < 3000; ++i) {
    coords.push_back({coordinate(), coordinate(), coordinate(), coordinate()});
  }
  return coords;
}

// What a declared axis must be; `own` is the query for r and the key for c.
std::uint32_t Declared(AxisMap axis, const Coord& at, std::uint32_t own, std::uint32_t divisor) {
  switch (axis) {
    case AxisMap::kIdentity:
      return own;
    case AxisMap::kConstant:
      return 0;
    case AxisMap::kDiv:
      return own / divisor;
    case AxisMap::kMaxOfPair:
      return std::max(at.query, at.key);
    case AxisMap::kMinOfPair:
      return std::min(at.query, at.key);
    case AxisMap::kUndeclared:
      break;
  }
  ADD_FAILURE() << "not a declared axis";
  return 0;
}

// A scheme by its name: names of tests would show the bytes otherwise.
struct NamedScheme {
  Scheme scheme;
  friend void PrintTo(const NamedScheme& named, std::ostream* out) {
    *out << named.scheme.info.name;
  }
};

std::vector<NamedScheme> NamedSchemes() {
  std::vector<NamedScheme> named;
  for (const Scheme& scheme : Schemes()) named.push_back({scheme});
  return named;
}

class SchemeTest : public ::testing::TestWithParam<NamedScheme> {};

INSTANTIATE_TEST_SUITE_P(Schemes, SchemeTest, ::testing::ValuesIn(NamedSchemes()),
                         [](const auto& i) { return std::string(i.param.scheme.info.name); });

TEST_P(SchemeTest, DeclaredAxesMatchTheMap) {
  const SchemeInfo& info = GetParam().scheme.info;
  for (const SchemeParamValues& params : SomeParams(info)) {
    for (const Coord& at : SomeCoords()) {
      const FieldPoint point = GetParam().scheme.point_of(params, at);
      if (info.query_axis != AxisMap::kUndeclared) {
        ASSERT_EQ(point.r, Declared(info.query_axis, at, at.query, params[0]));
      }
      if (info.key_axis != AxisMap::kUndeclared) {
        ASSERT_EQ(point.c, Declared(info.key_axis, at, at.key, params[1]));
      }
      ASSERT_TRUE(point.h == 0 || point.h == at.head);
      ASSERT_TRUE(point.b == 0 || point.b == at.batch);
    }
  }
}

TEST_P(SchemeTest, MapIsAFunctionOfItsArguments) {
  for (const Coord& at : SomeCoords()) {
    const SchemeParamValues params = DefaultParams(GetParam().scheme.info);
    ASSERT_EQ(GetParam().scheme.point_of(params, at), GetParam().scheme.point_of(params, at));
  }
}

// Drawing a row again must not touch what another row of the same head reads.
TEST_P(SchemeTest, RowsThatCanBeDrawnAgainShareNothing) {
  if (!GetParam().scheme.info.row_redraw) return;
  const SchemeParamValues params = DefaultParams(GetParam().scheme.info);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> owner;
  for (std::uint32_t query = 0; query < 40; ++query) {
    for (std::uint32_t key = 0; key < 40; ++key) {
      const FieldPoint point = GetParam().scheme.point_of(params, {1, 2, query, key});
      const auto [entry, is_new] = owner.try_emplace({point.r, point.c}, query);
      ASSERT_EQ(entry->second, query) << "queries share a draw";
      ASSERT_TRUE(is_new) << "two keys of a row share a draw";
    }
  }
}

TEST_P(SchemeTest, DescribesItself) {
  const SchemeInfo& info = GetParam().scheme.info;
  EXPECT_FALSE(info.summary.empty());
  EXPECT_LE(info.summary.size(), 70U);
  EXPECT_EQ(info.summary.find('\n'), std::string_view::npos);
  ASSERT_LE(info.num_params, kMaxSchemeParams);
  for (std::size_t i = 0; i < info.num_params; ++i) {
    EXPECT_FALSE(info.params[i].name.empty());
    EXPECT_LE(info.params[i].min, info.params[i].default_value);
    EXPECT_LE(info.params[i].default_value, info.params[i].max);
  }
  EXPECT_EQ(FindScheme(info.name)->info.name, info.name);
}

TEST_P(SchemeTest, TextIsInverse) {
  const SchemeInfo& info = GetParam().scheme.info;
  for (const SchemeParamValues& params : SomeParams(info)) {
    const ParsedScheme scheme{FindScheme(info.name), params};
    const std::string text = SchemeText(scheme);
    const Result<ParsedScheme> parsed = ParseScheme(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->scheme, scheme.scheme) << text;
    EXPECT_EQ(parsed->params, params) << text;
  }
  EXPECT_EQ(SchemeText({FindScheme(info.name), DefaultParams(info)}), info.name);
}

TEST(SchemesTest, AreSortedByNameWithoutDuplicates) {
  const auto before = [](const Scheme& a, const Scheme& b) { return a.info.name < b.info.name; };
  EXPECT_TRUE(std::is_sorted(Schemes().begin(), Schemes().end(), before));
  std::set<std::string_view> names;
  for (const Scheme& scheme : Schemes()) names.insert(scheme.info.name);
  EXPECT_EQ(names.size(), Schemes().size());
}

TEST(SchemesTest, AreTheFilesOfTheSchemesFolder) {
  const auto folder =
      std::filesystem::path(ATTNDROP_TEST_DATA_DIR).parent_path().parent_path() / "src/schemes";
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path().stem().string());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> names;
  for (const Scheme& scheme : Schemes()) names.emplace_back(scheme.info.name);
  EXPECT_EQ(names, files);
}

// The table of docs/mask-format.md, section 4.
TEST(SchemesTest, PublishedSchemesHaveTheirPublishedPoints) {
  const SchemeParamValues blocks{3, 5};
  const SchemeParamValues none{};
  const Coord at{7, 11, 100, 42};
  const struct {
    std::string_view name;
    SchemeParamValues params;
    FieldPoint point;
    bool row_redraw;
    bool requires_square;
  } table[] = {
      {"element", none, {100, 42, 11, 7}, true, false},
      {"shared", none, {100, 42, 0, 0}, true, false},
      {"key", none, {0, 42, 11, 7}, false, false},
      {"word", none, {0, 42, 0, 7}, false, false},
      {"query", none, {100, 0, 11, 7}, false, false},
      {"head", none, {0, 0, 11, 7}, false, false},
      {"block", blocks, {33, 8, 11, 7}, false, false},
      {"symmetric", none, {100, 42, 11, 7}, false, true},
  };
  for (const auto& row : table) {
    const Scheme* const scheme = FindScheme(row.name);
    ASSERT_NE(scheme, nullptr) << row.name;
    EXPECT_EQ(scheme->point_of(row.params, at), row.point) << row.name;
    EXPECT_EQ(scheme->info.row_redraw, row.row_redraw) << row.name;
    EXPECT_EQ(scheme->info.requires_square, row.requires_square) << row.name;
  }
  const Coord mirrored{7, 11, 42, 100};
  EXPECT_EQ(FindScheme("symmetric")->point_of(none, mirrored), (FieldPoint{100, 42, 11, 7}));
  EXPECT_EQ(FindScheme("nothing"), nullptr);
  EXPECT_EQ(FindScheme(""), nullptr);
}

TEST(SchemeTextTest, ReadsParametersInAnyOrder) {
  for (const std::string_view text : {"block:block_q=2,block_k=4", "block:block_k=4,block_q=2"}) {
    const Result<ParsedScheme> parsed = ParseScheme(text);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->params, (SchemeParamValues{2, 4}));
    EXPECT_EQ(SchemeText(*parsed), "block:block_q=2,block_k=4");
  }
  EXPECT_EQ(SchemeText(*ParseScheme("block:block_q=64,block_k=8")), "block:block_k=8");
}

TEST(SchemeTextTest, RefusesWithASentence) {
  const struct {
    std::string_view text;
    std::vector<std::string_view> pieces;
  } cases[] = {
      {"elment", {"scheme \"elment\" is unknown", "did you mean \"element\"?", "known: block,"}},
      {"", {"scheme \"\" is unknown; known: block,"}},
      {"Word", {"did you mean \"word\"?"}},
      {"key:block_q=2", {"scheme \"key\" has no parameters, got \"block_q\"", "only its name"}},
      {"key:", {"scheme \"key\" has no parameters", "only its name"}},
      {"block:", {"scheme \"block\" has no parameter \"\"", "known: block_q, block_k"}},
      {"block:blok_q=2", {"no parameter \"blok_q\"", "did you mean \"block_q\"?"}},
      {"block:block_q=0", {"needs block_q in 1 .. 4294967295, got \"block_q=0\""}},
      {"block:block_q=4294967296", {"block_q in 1 .. 4294967295", "\"block_q=4294967296\""}},
      {"block:block_q=-1", {"got \"block_q=-1\""}},
      {"block:block_q", {"needs block_q in 1 .. 4294967295, got \"block_q\""}},
      {"block:block_q=2,block_q=2", {"scheme \"block\" got block_q twice; give it once"}},
      {"block:block_q=2,", {"has no parameter \"\""}},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(RefusesArgument(ParseScheme(c.text).status(), c.pieces)) << c.text;
  }
}

}  // namespace
}  // namespace attndrop
