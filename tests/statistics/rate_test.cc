// SPDX-License-Identifier: Apache-2.0
// How often the library keeps a weight, with exact binomial limits, and controls that must fail.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/run.h"
#include "support/statistics.h"

namespace attndrop::testing {
namespace {

ProblemArgs Square(std::int64_t heads, std::int64_t length) {
  ProblemArgs args;
  args.shape = {
      .batch = 1, .num_heads = heads, .seqlen_q = length, .seqlen_k = length, .head_dim = 1};
  return args;
}

std::uint64_t CountKept(const ProblemArgs& args) {
  std::uint64_t kept = 0;
  for (const std::uint8_t bit : RunKeepMask(args).keep) kept += bit;
  return kept;
}

// 64 M cells at each rate.
TEST(Rate, FractionKept) {
  for (const double p : {0.1, 0.2, 0.3, 0.5, 0.9, 0.001, 1.0 / 3.0}) {
    ProblemArgs args = Square(4, 1024);
    args.dropout.dropout_p = p;
    const double keep_prob = MustMake(args).keep_prob();
    std::uint64_t kept = 0, cells = 0;
    for (args.dropout.seed = 100; args.dropout.seed < 116; ++args.dropout.seed) {
      kept += CountKept(args);
      cells += 4 * 1024 * 1024;
    }
    EXPECT_GE(cells, std::uint64_t{64} << 20);
    EXPECT_TRUE(Consistent(kept, cells, keep_prob)) << "dropout_p " << p;
  }
}

// The control: a mask that compares 8 random bits with a threshold keeps 230 of 256, not .9.
TEST(Rate, AnEightBitThresholdIsCaught) {
  Random random(1);
  std::uint64_t kept = 0;
  const std::uint64_t cells = std::uint64_t{64} << 20;
  for (std::uint64_t k = 0; k < cells; k += 8) {
    std::uint64_t bits = random.Next();
    for (int byte = 0; byte < 8; ++byte, bits >>= 8) kept += (bits & 0xFF) < 230 ? 1 : 0;
  }
  EXPECT_TRUE(Consistent(kept, cells, 230.0 / 256.0));
  EXPECT_FALSE(Consistent(kept, cells, 0.9));
}

// Each of the other schemes over many of its own draws.
TEST(Rate, FractionKeptByEveryScheme) {
  struct Case {
    const char* scheme;
    AttentionShape shape;
    std::uint64_t draws;  // distinct field points of one mask
  };
  const std::vector<Case> cases = {
      {"shared", {1, 1, 0, 1024, 1024, 1, -1}, 1024 * 1024},
      {"symmetric", {1, 2, 0, 512, 512, 1, -1}, 2 * 512 * 513 / 2},
      {"key", {64, 64, 0, 1, 256, 1, -1}, 64 * 64 * 256},
      {"word", {1024, 1, 0, 1, 1024, 1, -1}, 1024 * 1024},
      {"query", {64, 64, 0, 256, 1, 1, -1}, 64 * 64 * 256},
      {"head", {1024, 1024, 0, 1, 1, 1, -1}, 1024 * 1024},
      {"block:block_q=1,block_k=1", {1, 1, 0, 1024, 1024, 1, -1}, 1024 * 1024}};
  for (const Case& c : cases) {
    ProblemArgs args;
    args.shape = c.shape;
    args.dropout.scheme = c.scheme;
    args.dropout.dropout_p = 0.3;
    args.is_causal = args.dropout.scheme == "symmetric";  // one cell for each point
    const double keep_prob = MustMake(args).keep_prob();
    std::uint64_t kept = 0;
    for (args.dropout.seed = 0; args.dropout.seed < 4; ++args.dropout.seed) kept += CountKept(args);
    EXPECT_TRUE(Consistent(kept, 4 * c.draws, keep_prob)) << c.scheme;
  }
}

// Each cell of a 64 x 64 mask over 4096 seeds, and all of them together, too even included.
TEST(Rate, EveryCellOverManySeeds) {
  for (const double p : {0.1, 0.5}) {
    ProblemArgs args = Square(1, 64);
    args.dropout.dropout_p = p;
    const double q = MustMake(args).keep_prob();
    std::vector<std::uint64_t> counts(64 * 64, 0);
    constexpr std::uint64_t kSeeds = 4096;
    for (args.dropout.seed = 0; args.dropout.seed < kSeeds; ++args.dropout.seed) {
      const LibraryMask mask = RunKeepMask(args);
      for (std::size_t k = 0; k < counts.size(); ++k) counts[k] += mask.keep[k];
    }
    double chi_square = 0.0;
    for (const std::uint64_t count : counts) {
      EXPECT_TRUE(Consistent(count, kSeeds, q, kAlpha / 4096));
      const double excess = static_cast<double>(count) - q * kSeeds;
      chi_square += excess * excess / (kSeeds * q * (1.0 - q));
    }
    EXPECT_TRUE(ConsistentChiSquare(chi_square, static_cast<double>(counts.size())));
  }
}

// Row i of a causal matrix loses all of its i + 1 keys with probability p^(i + 1).
TEST(Rate, ZeroRowsOfACausalMatrix) {
  for (const double p : {0.5, 0.3}) {
    ProblemArgs args = Square(16384, 8);
    args.is_causal = true;
    args.dropout.dropout_p = p;
    const double drop = 1.0 - MustMake(args).keep_prob();
    std::vector<std::uint64_t> zero_rows(8, 0);
    std::uint64_t matrices = 0;
    for (args.dropout.seed = 7; args.dropout.seed < 39; ++args.dropout.seed) {
      const LibraryMask mask = RunKeepMask(args);
      for (std::size_t row = 0; row < mask.keep.size() / 8; ++row) {
        std::uint64_t kept = 0;
        for (std::size_t j = 0; j < 8; ++j) kept += mask.keep[row * 8 + j];
        zero_rows[row % 8] += kept == 0 ? 1 : 0;
      }
      matrices += 16384;
    }
    for (std::size_t row = 0; row < 8; ++row) {
      const double chance = std::pow(drop, static_cast<double>(row + 1));
      EXPECT_GE(chance * static_cast<double>(matrices), 30.0);
      EXPECT_TRUE(Consistent(zero_rows[row], matrices, chance)) << "row " << row << ", p " << p;
    }
  }
}

// A key of a row of n visible ones is kept with the probability whose inverse is its factor.
TEST(Rate, InclusionUnderEveryPolicy) {
  for (const char* policy :
       {"keep_one", "at_least_one:attempts=2", "redraw", "keep_self", "keep_first", "undropped"}) {
    for (const std::int64_t keys : {1, 2, 3, 5}) {
      ProblemArgs args;
      args.shape = {.batch = 16, .num_heads = 4096, .seqlen_q = 1, .seqlen_k = keys, .head_dim = 1};
      args.dropout.dropout_p = 0.6;
      args.dropout.empty_row = *ParseEmptyRow(policy);
      const double q = MustMake(args).keep_prob();
      const double p = 1.0 - q, n = static_cast<double>(keys);
      const double attempts = args.dropout.empty_row.attempts;
      const LibraryMask mask = RunKeepMask(args);
      for (std::int64_t key = 0; key < keys; ++key) {
        std::uint64_t kept = 0, rows = 0;
        for (std::size_t cell = static_cast<std::size_t>(key); cell < mask.keep.size();
             cell += static_cast<std::size_t>(keys), ++rows) {
          kept += mask.keep[cell];
        }
        double want = q;
        const std::string name = policy;
        if (name == "keep_self" || name == "keep_first") want = key == 0 ? 1.0 : q;
        if (name == "undropped") want = q + std::pow(p, n);
        if (args.dropout.empty_row.kind == EmptyRow::kAtLeastOne) {
          want = q * (1.0 - std::pow(p, n * attempts)) / (1.0 - std::pow(p, n)) +
                 std::pow(p, n * attempts) / n;
        }
        EXPECT_TRUE(Consistent(kept, rows, std::fmin(want, 1.0)))
            << policy << ", key " << key << " of " << keys;
      }
    }
  }
}

}  // namespace
}  // namespace attndrop::testing
