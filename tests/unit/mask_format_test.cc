// SPDX-License-Identifier: Apache-2.0
// The known answers of mask format 1, asked of the library and of the oracle that judges it.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/attention.h"

#include "rng/field.h"
#include "rng/philox.h"
#include "support/golden.h"
#include "support/mask_oracle.h"
#include "support/naive_attention.h"
#include "support/random_problem.h"

namespace attndrop::testing {
namespace {

std::uint32_t Hex32(const std::string& word) {
  return static_cast<std::uint32_t>(std::strtoull(word.c_str(), nullptr, 16));
}
std::uint64_t Hex64(const std::string& word) { return std::strtoull(word.c_str(), nullptr, 16); }
std::uint64_t Number(const std::string& word) { return std::strtoull(word.c_str(), nullptr, 10); }
double Rate(const std::string& word) {
  return word == "third" ? 1.0 / 3.0 : std::strtod(word.c_str(), nullptr);
}

// Rows of a file that start with `kind`, without that word.
std::vector<GoldenRow> RowsOf(const std::string& file, const std::string& kind) {
  std::vector<GoldenRow> rows;
  for (const GoldenRow& row : ReadGoldenRows(file)) {
    if (row.front() == kind) rows.push_back(Words(row, 1));
  }
  EXPECT_FALSE(rows.empty()) << kind << " in " << file;
  return rows;
}

TEST(MaskFormat, Philox) {
  for (const GoldenRow& row : ReadGoldenRows("mask_format_philox.txt")) {
    ASSERT_EQ(row.size(), 10U);
    const PhiloxWords counter{Hex32(row[2]), Hex32(row[3]), Hex32(row[4]), Hex32(row[5])};
    const PhiloxWords want{Hex32(row[6]), Hex32(row[7]), Hex32(row[8]), Hex32(row[9])};
    EXPECT_EQ(Philox({Hex32(row[0]), Hex32(row[1])}, counter), want);
    EXPECT_EQ(OraclePhilox({Hex32(row[0]), Hex32(row[1])}, counter), want);
  }
}

TEST(MaskFormat, Tags) {
  std::size_t count = 0;
  for (const GoldenRow& row : RowsOf("mask_format_keys.txt", "tag")) {
    EXPECT_EQ(Fnv1a(row[0]), Hex32(row[1]));
    EXPECT_EQ(OracleFnv1a(row[0]), Hex32(row[1]));
    EXPECT_NE(FindScheme(row[0]), nullptr) << row[0];
    ++count;
  }
  EXPECT_EQ(count, 8U);
}

TEST(MaskFormat, CallKeys) {
  for (const GoldenRow& row : RowsOf("mask_format_keys.txt", "call")) {
    const std::uint64_t seed = Number(row[0]), offset = Number(row[1]);
    const PhiloxKey want{Hex32(row[3]), Hex32(row[4])};
    EXPECT_EQ(CallKey({seed, offset, Fnv1a(row[2])}, 0), want);
    EXPECT_EQ(OracleCallKey({seed, offset, row[2]}, 0), (OracleKey{want.k0, want.k1}));
  }
}

TEST(MaskFormat, RealisedKeepProbability) {
  for (const GoldenRow& row : RowsOf("mask_format_rates.txt", "q32")) {
    EXPECT_EQ(KeepQ32(Rate(row[0])), Hex64(row[1])) << row[0];
    EXPECT_EQ(OracleKeepQ32(Rate(row[0])), Hex64(row[1])) << row[0];
  }
}

TEST(MaskFormat, Outcomes) {
  for (const GoldenRow& row : RowsOf("mask_format_rates.txt", "outcomes")) {
    const std::uint64_t q32 = OracleKeepQ32(Rate(row[0]));
    for (std::size_t k = 0; k < 5; ++k) {
      EXPECT_EQ(OutcomeProbabilities(q32)[k], Hex64(row[1 + k])) << k;
      EXPECT_EQ(OracleOutcomes(q32)[k], Hex64(row[1 + k])) << k;
    }
  }
}

TEST(MaskFormat, AliasTables) {
  for (const GoldenRow& row : RowsOf("mask_format_rates.txt", "threshold")) {
    const std::uint64_t q32 = OracleKeepQ32(Rate(row[0]));
    for (std::size_t k = 0; k < 16; ++k) {
      EXPECT_EQ(MakeAliasTable(q32).threshold[k], Hex64(row[1 + k])) << k;
      EXPECT_EQ(OracleAliasTable(q32).threshold[k], Hex64(row[1 + k])) << k;
    }
  }
  for (const GoldenRow& row : RowsOf("mask_format_rates.txt", "alias")) {
    const std::uint64_t q32 = OracleKeepQ32(Rate(row[0]));
    for (std::size_t k = 0; k < 16; ++k) {
      EXPECT_EQ(MakeAliasTable(q32).alias[k], Number(row[1 + k])) << k;
      EXPECT_EQ(OracleAliasTable(q32).alias[k], Number(row[1 + k])) << k;
    }
  }
}

// The promises of section 3 at every size of q32: the sum, the marginal of every bit, and the two
// implementations of the table.
TEST(MaskFormat, EveryRateIsExact) {
  Random random(3);
  std::vector<std::uint64_t> rates{1,          2,          3,          0x7FFFFFFF,
                                   0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE};
  for (int k = 0; k < 300; ++k) rates.push_back(1 + (random.Next() >> 32) % 0xFFFFFFFF);
  for (const std::uint64_t q32 : rates) {
    SCOPED_TRACE("q32 = " + std::to_string(q32));
    const auto a = OutcomeProbabilities(q32);
    EXPECT_EQ(a, OracleOutcomes(q32));
    EXPECT_EQ(a[0] + 4 * a[1] + 6 * a[2] + 4 * a[3] + a[4], std::uint64_t{1} << 48);
    EXPECT_EQ(a[1] + 3 * a[2] + 3 * a[3] + a[4], q32 << 16);
    const AliasTable table = MakeAliasTable(q32);
    const OracleTable oracle = OracleAliasTable(q32);
    std::array<std::uint64_t, 16> mass{};
    for (std::size_t o = 0; o < 16; ++o) {
      ASSERT_EQ(table.threshold[o], oracle.threshold[o]);
      ASSERT_EQ(table.alias[o], oracle.alias[o]);
      mass[o] += table.threshold[o];
      mass[table.alias[o]] += (std::uint64_t{1} << 44) - table.threshold[o];
    }
    for (unsigned o = 0; o < 16; ++o) {
      ASSERT_EQ(mass[o], a[static_cast<std::size_t>(__builtin_popcount(o))]);
    }
  }
}

// A threshold put exactly at, below and above what a point draws: the first 12 bits, then the 32
// that decide a tie. By chance such a tie of all 44 bits is never met.
TEST(MaskFormat, DrawsThatMeetTheirThreshold) {
  Random random(6);
  for (int k = 0; k < 200; ++k) {
    const PhiloxKey key{static_cast<std::uint32_t>(random.Next()), 5};
    const FieldPoint at{static_cast<std::uint32_t>(random.Next()),
                        static_cast<std::uint32_t>(random.Next()) & ~3U, 7, 8};
    const std::uint32_t row = at.r % 4, group = (at.c / 4) % 2;
    const OracleKey oracle_key{key.k0, key.k1};
    const OracleWords words = OraclePhilox(oracle_key, {at.r / 4, at.c / 8, at.h, at.b});
    const std::uint32_t half = (words[(4 * group + row) / 2] >> (16 * (row % 2))) & 0xFFFF;
    const std::uint64_t tie =
        OraclePhilox(oracle_key, {at.r / 4 + ((1 + group) << 30), at.c / 8, at.h, at.b})[row];
    const std::uint64_t draw = (std::uint64_t{half / 16} << 32) + tie;
    for (const std::int64_t above : {-1, 0, 1}) {
      AliasTable table;
      OracleTable oracle;
      for (std::size_t o = 0; o < 16; ++o) {
        table.threshold[o] = oracle.threshold[o] = draw + static_cast<std::uint64_t>(above);
        table.alias[o] = static_cast<std::uint8_t>(15 - o);
        oracle.alias[o] = static_cast<unsigned>(15 - o);
      }
      const unsigned want = above > 0 ? half % 16 : 15 - half % 16;
      EXPECT_EQ(FieldNibble(table, key, at), want) << above;
      for (std::uint32_t bit = 0; bit < 4; ++bit) {
        EXPECT_EQ(OracleFieldBit(oracle, oracle_key, {at.r, at.c + bit, at.h, at.b}),
                  ((want >> bit) & 1U) != 0);
      }
    }
  }
}

ProblemArgs ArgsOf(const std::string& scheme, std::int64_t queries, std::int64_t keys) {
  ProblemArgs args;
  args.shape = {.batch = 4, .num_heads = 16, .seqlen_q = queries, .seqlen_k = keys, .head_dim = 1};
  args.dropout.scheme = scheme;
  args.dropout.dropout_p = 0.3;
  args.dropout.seed = 42;
  args.dropout.offset = 7;
  return args;
}

std::vector<std::uint8_t> LibraryMask(const ProblemArgs& args, ProblemArrays* arrays = nullptr) {
  const Problem problem = MustMake(args);
  const AttentionShape& shape = problem.shape();
  std::vector<std::uint8_t> keep(
      static_cast<std::size_t>(shape.batch * shape.num_heads * shape.seqlen_q * shape.seqlen_k));
  SerialExecutor executor;
  const Status status = KeepMask(
      problem, {.mask = arrays == nullptr ? MaskBuffers{} : arrays->Mask(), .keep = keep.data()},
      executor);
  EXPECT_TRUE(status.ok()) << status.message();
  return keep;
}

TEST(MaskFormat, MasksOfEveryScheme) {
  for (const GoldenRow& row : RowsOf("mask_format_masks.txt", "mask")) {
    SCOPED_TRACE(row[0]);
    const ProblemArgs args = ArgsOf(row[0], 32, 32);
    const std::vector<std::uint8_t> keep = LibraryMask(args);
    const MaskOracle oracle(args.dropout);
    for (std::uint64_t i = 0; i < 8; ++i) {
      std::uint32_t library_word = 0, oracle_word = 0;
      for (std::uint64_t j = 0; j < 32; ++j) {
        const std::size_t cell = ((1 * 16 + 2) * 32 + i) * 32 + j;
        library_word |= static_cast<std::uint32_t>(keep[cell]) << j;
        oracle_word |= static_cast<std::uint32_t>(oracle.Drawn({1, 2, i, j}, 0)) << j;
      }
      EXPECT_EQ(library_word, Hex32(row[1 + i])) << "library, row " << i;
      EXPECT_EQ(oracle_word, Hex32(row[1 + i])) << "oracle, row " << i;
    }
  }
}

TEST(MaskFormat, HeadScheme) {
  for (const GoldenRow& row : RowsOf("mask_format_masks.txt", "heads")) {
    const ProblemArgs args = ArgsOf(row[0], 1, 1);
    const std::vector<std::uint8_t> keep = LibraryMask(args);
    const MaskOracle oracle(args.dropout);
    for (std::uint64_t b = 0; b < 4; ++b) {
      std::uint32_t library_word = 0, oracle_word = 0;
      for (std::uint64_t h = 0; h < 16; ++h) {
        library_word |= static_cast<std::uint32_t>(keep[b * 16 + h]) << h;
        oracle_word |= static_cast<std::uint32_t>(oracle.Drawn({b, h, 0, 0}, 0)) << h;
      }
      EXPECT_EQ(library_word, Hex32(row[1 + b]));
      EXPECT_EQ(oracle_word, Hex32(row[1 + b]));
    }
  }
}

// Cells far out, read alone: by origin, and as local indices of a problem too large to allocate.
TEST(MaskFormat, SingleCells) {
  for (const GoldenRow& row : ReadGoldenRows("mask_format_cells.txt")) {
    for (std::uint64_t k = 0; k < row[4].size(); ++k) {
      const OracleWeight at{Number(row[0]), Number(row[1]), Number(row[2]), Number(row[3]) + k};
      ProblemArgs args = ArgsOf("element", 1, 1);
      args.shape.batch = args.shape.num_heads = 1;
      args.dropout.dropout_p = 0.1;
      const bool want = row[4][k] == '1';
      EXPECT_EQ(MaskOracle(args.dropout).Drawn(at, 0), want) << row[3];
      args.origin = {static_cast<std::uint32_t>(at.b), static_cast<std::uint32_t>(at.h),
                     static_cast<std::uint32_t>(at.i), static_cast<std::uint32_t>(at.j)};
      const Result<KeepCell> cell = KeepAt(MustMake(args), {}, {});
      ASSERT_TRUE(cell.ok()) << cell.status().message();
      EXPECT_EQ(cell->keep, want) << row[3];

      const std::int64_t all = std::int64_t{1} << 32;
      args.origin = {};
      args.shape = {.batch = all,
                    .num_heads = all,
                    .num_kv_heads = all,
                    .seqlen_q = all,
                    .seqlen_k = all,
                    .head_dim = 1};
      const Result<KeepCell> huge =
          KeepAt(MustMake(args), {},
                 {static_cast<std::int64_t>(at.b), static_cast<std::int64_t>(at.h),
                  static_cast<std::int64_t>(at.i), static_cast<std::int64_t>(at.j)});
      ASSERT_TRUE(huge.ok()) << huge.status().message();
      EXPECT_EQ(huge->keep, want) << row[3];
    }
  }
}

// The bits of the visible keys of each row, by `keep_of(i, j)`.
template <class F>
void ExpectRows(const GoldenRow& want, const OracleMask& mask, F&& keep_of, const char* who) {
  for (std::int64_t i = 0; i < mask.seqlen_q; ++i) {
    std::string bits;
    for (std::int64_t j = 0; j < mask.seqlen_k; ++j) {
      if (mask.visible[mask.Index(0, 0, i, j)] != 0) bits += keep_of(i, j) != 0 ? '1' : '0';
    }
    EXPECT_EQ(bits.empty() ? "-" : bits, want[1 + static_cast<std::size_t>(i)])
        << who << ", row " << i;
  }
}

void ExpectPolicyRows(const GoldenRow& row, ProblemArgs args) {
  SCOPED_TRACE(row[0]);
  const Result<EmptyRowPolicy> policy = ParseEmptyRow(row[0]);
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  args.dropout.empty_row = *policy;
  args.dropout.dropout_p = 0.7;
  args.dropout.seed = 1;
  args.dropout.offset = 0;
  args.shape.batch = args.shape.num_heads = 1;
  ProblemArrays arrays = Allocate(args, {});
  const OracleMask mask = ComputeOracleMask(args, arrays);
  const std::vector<std::uint8_t> keep = LibraryMask(args);
  ExpectRows(
      row, mask, [&](std::int64_t i, std::int64_t j) { return mask.keep[mask.Index(0, 0, i, j)]; },
      "oracle");
  ExpectRows(
      row, mask, [&](std::int64_t i, std::int64_t j) { return keep[mask.Index(0, 0, i, j)]; },
      "library");
}

TEST(MaskFormat, PoliciesCausal) {
  for (const GoldenRow& row : RowsOf("mask_format_policies.txt", "causal")) {
    ProblemArgs args = ArgsOf("element", 6, 6);
    args.is_causal = true;
    ExpectPolicyRows(row, args);
  }
}

TEST(MaskFormat, KeepSelfBottomRight) {
  for (const GoldenRow& row : RowsOf("mask_format_policies.txt", "bottom_right")) {
    ProblemArgs args = ArgsOf("element", 6, 4);
    args.is_causal = true;
    args.causal_align = CausalAlign::kBottomRight;
    ExpectPolicyRows(row, args);
  }
}

TEST(MaskFormat, KeepSelfNotCausal) {
  for (const GoldenRow& row : RowsOf("mask_format_policies.txt", "all")) {
    ProblemArgs args = ArgsOf("element", 3, 5);
    args.causal_align = CausalAlign::kBottomRight;
    ExpectPolicyRows(row, args);
  }
}

TEST(MaskFormat, KeepFirstWhereKeyZeroIsHidden) {
  for (const GoldenRow& row : RowsOf("mask_format_policies.txt", "from_2")) {
    ProblemArgs args = ArgsOf("element", 1, 5);
    args.origin.query = 4;
    args.total = TotalLengths{5, 5};
    args.window = {2, 0};
    ExpectPolicyRows(row, args);
  }
}

TEST(MaskFormat, InclusionOfAtLeastOne) {
  for (const GoldenRow& row : RowsOf("mask_format_factors.txt", "pi")) {
    ProblemArgs args = ArgsOf("element", 1, static_cast<std::int64_t>(Number(row[0])));
    args.dropout.dropout_p = 0.5;
    args.dropout.empty_row = {EmptyRow::kAtLeastOne, static_cast<std::uint32_t>(Number(row[1]))};
    const double want = std::strtod(row[2].c_str(), nullptr);
    const MaskOracle oracle(args.dropout);
    EXPECT_NEAR(oracle.Inclusion(Number(row[0]), args.dropout.empty_row.attempts), want, 5.1e-7);
    bool any = false;
    for (std::int64_t j = 0; j < args.shape.seqlen_k; ++j) {
      const Result<KeepCell> cell = KeepAt(MustMake(args), {}, {0, 0, 0, j});
      ASSERT_TRUE(cell.ok()) << cell.status().message();
      any = any || cell->keep;
      if (cell->keep) EXPECT_NEAR(1.0 / cell->factor, want, 5.1e-7);
    }
    EXPECT_TRUE(any);
  }
}

TEST(MaskFormat, FactorsOfUndropped) {
  for (const GoldenRow& row : RowsOf("mask_format_factors.txt", "undropped")) {
    ProblemArgs args = ArgsOf(row[0], 64, static_cast<std::int64_t>(Number(row[1])));
    args.dropout.dropout_p = 0.5;
    args.dropout.empty_row = {EmptyRow::kUndropped, 1};
    int empty_rows = 0;
    for (std::int64_t i = 0; i < args.shape.seqlen_q; ++i) {
      bool drawn = false;
      for (std::uint64_t j = 0; j < Number(row[1]); ++j) {
        drawn =
            drawn || MaskOracle(args.dropout).Drawn({0, 0, static_cast<std::uint64_t>(i), j}, 0);
      }
      empty_rows += drawn ? 0 : 1;
      for (std::int64_t j = 0; j < args.shape.seqlen_k; ++j) {
        const Result<KeepCell> cell = KeepAt(MustMake(args), {}, {0, 0, i, j});
        ASSERT_TRUE(cell.ok()) << cell.status().message();
        if (!cell->keep) continue;
        EXPECT_NEAR(cell->factor, std::strtod(row[drawn ? 2 : 3].c_str(), nullptr), 5.1e-7);
      }
    }
    EXPECT_GT(empty_rows, 0);
  }
}

// Section 4's declared dependence of r and c on query and key is what the map does.
TEST(MaskFormat, DeclaredAxesMatchTheMaps) {
  Random random(4);
  for (const Scheme& scheme : Schemes()) {
    SCOPED_TRACE(std::string(scheme.info.name));
    for (int k = 0; k < 500; ++k) {
      SchemeParamValues params{};
      for (std::size_t n = 0; n < kMaxSchemeParams; ++n) {
        params[n] =
            static_cast<std::uint32_t>(random.Pick<std::int64_t>({1, 2, 3, 64, 1000, 4294967295}));
      }
      const auto coordinate = [&random] {
        return static_cast<std::uint32_t>(random.Chance(0.5) ? random.Below(300)
                                                             : random.Below(std::int64_t{1} << 32));
      };
      const Coord at{coordinate(), coordinate(), coordinate(), coordinate()};
      const FieldPoint point = scheme.point_of(params, at);
      const auto declared = [&](AxisMap map, std::uint32_t own, std::uint32_t param,
                                std::uint32_t actual) -> std::uint32_t {
        switch (map) {
          case AxisMap::kIdentity:
            return own;
          case AxisMap::kConstant:
            return 0;
          case AxisMap::kDiv:
            return own / param;
          case AxisMap::kMaxOfPair:
            return std::max(at.query, at.key);
          case AxisMap::kMinOfPair:
            return std::min(at.query, at.key);
          case AxisMap::kUndeclared:
            break;
        }
        return actual;
      };
      EXPECT_EQ(point.r, declared(scheme.info.query_axis, at.query, params[0], point.r));
      EXPECT_EQ(point.c, declared(scheme.info.key_axis, at.key, params[1], point.c));
    }
  }
}

TEST(MaskFormat, PointsOfEverySchemeMatchTheOracle) {
  Random random(5);
  for (const char* text : {"element", "shared", "key", "word", "query", "head", "symmetric",
                           "block", "block:block_q=3,block_k=5"}) {
    const OracleScheme oracle = ParseOracleScheme(text);
    const Scheme* scheme = FindScheme(oracle.name);
    ASSERT_NE(scheme, nullptr) << text;
    for (int k = 0; k < 200; ++k) {
      const Coord at{
          static_cast<std::uint32_t>(random.Next()), static_cast<std::uint32_t>(random.Next()),
          static_cast<std::uint32_t>(random.Next()), static_cast<std::uint32_t>(random.Next())};
      const FieldPoint got = scheme->point_of(
          {static_cast<std::uint32_t>(oracle.block_q), static_cast<std::uint32_t>(oracle.block_k)},
          at);
      const OraclePoint want = OraclePointOf(oracle, {at.batch, at.head, at.query, at.key});
      EXPECT_EQ((OraclePoint{got.r, got.c, got.h, got.b}), want) << text;
    }
  }
}

}  // namespace
}  // namespace attndrop::testing
