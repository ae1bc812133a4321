// SPDX-License-Identifier: Apache-2.0
// Masks have no pattern: inside one, and between heads, batches, seeds, offsets and schemes.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/run.h"
#include "support/statistics.h"

namespace attndrop::testing {
namespace {

ProblemArgs Square(std::int64_t length, double dropout_p) {
  ProblemArgs args;
  args.shape = {.batch = 1, .num_heads = 1, .seqlen_q = length, .seqlen_k = length, .head_dim = 1};
  args.dropout.dropout_p = dropout_p;
  args.dropout.seed = 2024;
  return args;
}

BitMatrix MaskBits(const ProblemArgs& args) {
  const auto rows = static_cast<std::size_t>(args.shape.seqlen_q);
  const auto cols = static_cast<std::size_t>(args.shape.seqlen_k);
  BitMatrix bits(rows, cols);
  const LibraryMask mask = RunKeepMask(args);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) bits.Set(r, c, mask.keep[r * cols + c] != 0);
  }
  return bits;
}

constexpr int kReach = 64;
const double kLagLimit = ZLimit(64.0 + 64 * 129);

TEST(Independence, NoLagCorrelates) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const ProblemArgs args = Square(1024, p);
    EXPECT_LT(LargestLagZ(MaskBits(args), MustMake(args).keep_prob(), kReach), kLagLimit) << p;
  }
}

TEST(Independence, NoLagCorrelatesFarOut) {
  ProblemArgs args = Square(512, 0.3);
  args.origin = {4000000000, 7, 2147483648 - 256, 3000000000};
  EXPECT_LT(LargestLagZ(MaskBits(args), MustMake(args).keep_prob(), kReach), kLagLimit);
}

// Controls: defects of real generators, which the same test must see.
TEST(Independence, EqualGroupsOfFourAreCaught) {
  BitMatrix bits(1024, 1024);
  Random random(1);
  for (std::size_t r = 0; r < 1024; ++r) {
    for (std::size_t c = 0; c < 1024; c += 4) {
      const bool bit = random.Chance(0.9);
      for (std::size_t k = 0; k < 4; ++k) bits.Set(r, c + k, bit);
    }
  }
  EXPECT_GT(LargestLagZ(bits, 0.9, kReach), kLagLimit);
}

TEST(Independence, ARepeatedTileIsCaught) {
  BitMatrix bits(1024, 1024);
  Random random(2);
  for (std::size_t r = 0; r < 1024; ++r) {
    for (std::size_t c = 0; c < 1024; ++c) {
      const bool again = c % 32 >= 16 && r % 512 < 16;  // 1.6 % of the cells copy their neighbour
      bits.Set(r, c, again ? bits.Get(r, c - 16) : random.Chance(0.9));
    }
  }
  EXPECT_GT(LargestLagZ(bits, 0.9, kReach), kLagLimit);
}

TEST(Independence, ACongruentialGeneratorIsCaught) {
  BitMatrix bits(1024, 1024);
  std::uint32_t state = 1;
  for (std::size_t r = 0; r < 1024; ++r) {
    for (std::size_t c = 0; c < 1024; ++c) {
      state = (state * 75 + 74) % 65537;
      bits.Set(r, c, state < 65537 * 9 / 10);
    }
  }
  EXPECT_GT(LargestLagZ(bits, 0.9, kReach), kLagLimit);
}

// Two calls that differ in one thing agree as often as two coins.
void ExpectIndependent(const ProblemArgs& a, const ProblemArgs& b, const std::string& what) {
  const BitMatrix x = MaskBits(a), y = MaskBits(b);
  const double q = MustMake(a).keep_prob();
  EXPECT_TRUE(Consistent(Agreement(x, y), x.rows * x.cols, q * q + (1.0 - q) * (1.0 - q))) << what;
}

TEST(Independence, CallsThatDifferInOneBit) {
  const ProblemArgs base = Square(128, 0.3);
  for (int bit = 0; bit < 64; ++bit) {
    ProblemArgs seed = base, offset = base;
    seed.dropout.seed ^= std::uint64_t{1} << bit;
    offset.dropout.offset ^= std::uint64_t{1} << bit;
    ExpectIndependent(base, seed, "seed bit " + std::to_string(bit));
    ExpectIndependent(base, offset, "offset bit " + std::to_string(bit));
    ExpectIndependent(seed, offset, "seed and offset bit " + std::to_string(bit));
  }
  for (int bit = 0; bit < 31; ++bit) {
    ProblemArgs batch = base, head = base, query = base, key = base;
    batch.origin.batch = head.origin.head = std::uint32_t{1} << bit;
    ExpectIndependent(base, batch, "batch bit " + std::to_string(bit));
    ExpectIndependent(base, head, "head bit " + std::to_string(bit));
    ExpectIndependent(batch, head, "batch and head bit " + std::to_string(bit));
    if (bit < 7) continue;  // else the masks overlap
    query.origin.query = key.origin.key = std::uint32_t{1} << bit;
    ExpectIndependent(base, query, "query bit " + std::to_string(bit));
    ExpectIndependent(base, key, "key bit " + std::to_string(bit));
    ExpectIndependent(query, key, "query and key bit " + std::to_string(bit));
  }
}

TEST(Independence, SeedAndOffsetSwapped) {
  for (std::uint64_t k = 1; k < 40; ++k) {
    ProblemArgs a = Square(128, 0.5), b = Square(128, 0.5);
    a.dropout.seed = b.dropout.offset = k;
    a.dropout.offset = b.dropout.seed = k + 1;
    ExpectIndependent(a, b, std::to_string(k));
  }
}

TEST(Independence, SchemesAndAttempts) {
  ProblemArgs element = Square(256, 0.3), shared = element, block = element, symmetric = element;
  shared.dropout.scheme = "shared";
  block.dropout.scheme = "block:block_q=1,block_k=1";
  symmetric.dropout.scheme = "symmetric";
  ExpectIndependent(element, shared, "element and shared");
  ExpectIndependent(element, block, "element and block of one weight");
  ExpectIndependent(shared, block, "shared and block");
  // Above the diagonal every cell of symmetric repeats one below, so count one half.
  const BitMatrix x = MaskBits(element), y = MaskBits(symmetric);
  std::uint64_t agree = 0, cells = 0;
  for (std::size_t r = 0; r < x.rows; ++r) {
    for (std::size_t c = 0; c <= r; ++c, ++cells) {
      agree += x.Get(r, c) == y.Get(r, c) ? 1U : 0U;
      ASSERT_EQ(y.Get(r, c), y.Get(c, r));
    }
  }
  const double q = MustMake(element).keep_prob();
  EXPECT_TRUE(Consistent(agree, cells, q * q + (1.0 - q) * (1.0 - q)));
}

// Masks of different rates are unrelated: not nested.
TEST(Independence, RatesAreNotNested) {
  const ProblemArgs few = Square(512, 0.1), many = Square(512, 0.11);
  const BitMatrix x = MaskBits(few), y = MaskBits(many);
  std::uint64_t kept_by_more = 0, dropped = 0;
  for (std::size_t k = 0; k < x.words.size(); ++k) {
    dropped += static_cast<std::uint64_t>(std::popcount(~x.words[k]));
    kept_by_more += static_cast<std::uint64_t>(std::popcount(~x.words[k] & y.words[k]));
  }
  EXPECT_GT(kept_by_more, 0U);
  EXPECT_LT(kept_by_more, dropped);
}

// Row and column sums are binomial, all together.
TEST(Independence, RowAndColumnSums) {
  const ProblemArgs args = Square(1024, 0.3);
  const BitMatrix bits = MaskBits(args);
  const double q = MustMake(args).keep_prob();
  std::vector<double> rows(1024, 0.0), cols(1024, 0.0);
  for (std::size_t r = 0; r < 1024; ++r) {
    for (std::size_t c = 0; c < 1024; ++c) {
      rows[r] += bits.Get(r, c) ? 1.0 : 0.0;
      cols[c] += bits.Get(r, c) ? 1.0 : 0.0;
    }
  }
  for (const std::vector<double>& sums : {rows, cols}) {
    double chi_square = 0.0;
    for (const double sum : sums) {
      chi_square += (sum - 1024 * q) * (sum - 1024 * q) / (1024 * q * (1.0 - q));
    }
    EXPECT_TRUE(ConsistentChiSquare(chi_square, 1024.0));
  }
}

// The sixteen patterns of four neighbouring keys, inside one draw and across two.
TEST(Independence, PatternsOfFourNeighbours) {
  const ProblemArgs args = Square(1024, 0.3);
  const BitMatrix bits = MaskBits(args);
  const double q = MustMake(args).keep_prob();
  for (const std::size_t phase : {0U, 2U}) {
    std::array<double, 16> counts{};
    double groups = 0.0;
    for (std::size_t r = 0; r < 1024; ++r) {
      for (std::size_t c = phase; c + 4 <= 1024; c += 4, groups += 1.0) {
        std::size_t pattern = 0;
        for (std::size_t k = 0; k < 4; ++k) pattern |= std::size_t{bits.Get(r, c + k)} << k;
        counts[pattern] += 1.0;
      }
    }
    double chi_square = 0.0;
    for (std::size_t pattern = 0; pattern < 16; ++pattern) {
      const int kept = std::popcount(pattern);
      const double want = groups * std::pow(q, kept) * std::pow(1.0 - q, 4 - kept);
      chi_square += (counts[pattern] - want) * (counts[pattern] - want) / want;
    }
    EXPECT_TRUE(ConsistentChiSquare(chi_square, 15.0)) << "phase " << phase;
  }
}

std::size_t RankOverTwo(std::vector<std::uint64_t> rows) {
  std::size_t rank = 0;
  for (int bit = 0; bit < 64; ++bit) {
    std::size_t pivot = rank;
    while (pivot < rows.size() && ((rows[pivot] >> bit) & 1U) == 0) ++pivot;
    if (pivot == rows.size()) continue;
    std::swap(rows[rank], rows[pivot]);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (r != rank && ((rows[r] >> bit) & 1U) != 0) rows[r] ^= rows[rank];
    }
    ++rank;
  }
  return rank;
}

// A random 64 x 64 matrix over GF(2) has full rank with probability prod (1 - 2^-k) = .2888.
TEST(Independence, RankOfBlocksOverTwo) {
  double full = 1.0;
  for (int k = 1; k <= 64; ++k) full *= 1.0 - std::ldexp(1.0, -k);
  ProblemArgs args = Square(1024, 0.5);
  std::uint64_t full_rank = 0, blocks = 0;
  for (args.dropout.seed = 0; args.dropout.seed < 4; ++args.dropout.seed) {
    const BitMatrix bits = MaskBits(args);
    for (std::size_t r = 0; r < 1024; r += 64) {
      for (std::size_t word = 0; word < 16; ++word, ++blocks) {
        std::vector<std::uint64_t> rows;
        for (std::size_t k = 0; k < 64; ++k) rows.push_back(bits.row(r + k)[word]);
        full_rank += RankOverTwo(rows) == 64 ? 1U : 0U;
      }
    }
  }
  EXPECT_TRUE(Consistent(full_rank, blocks, full));
}

}  // namespace
}  // namespace attndrop::testing
