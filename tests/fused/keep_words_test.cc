// SPDX-License-Identifier: Apache-2.0
// The words that the kernels read, bit for bit the published mask: every scheme, stage, policy and
// target, any cut of the keys into tiles, blocks that start anywhere.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"
#include "kernels/tile_words.h"
#include "support/mask_oracle.h"
#include "support/random_problem.h"

namespace attndrop::testing {
namespace {

// keep and factors of a whole problem, put together from the words of its tiles.
class WordMask {
 public:
  WordMask(const Problem& problem, const MaskBuffers& mask, Target target)
      : problem_(problem),
        tables_(MakeFieldTables(problem)),
        source_(problem, mask, *KernelsFor(target), tables_) {
    const AttentionShape& shape = problem.shape();
    const auto cells =
        static_cast<std::size_t>(shape.batch * shape.num_heads * shape.seqlen_q * shape.seqlen_k);
    keep_.assign(cells, 0);
    factors_.assign(cells, 0.0);
  }

  // Tiles of random lengths up to 256 keys.
  void Fill(Random& random) {
    const AttentionShape& shape = problem_.shape();
    for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
      for (std::int64_t head = 0; head < shape.num_heads; ++head) {
        const std::int64_t blocks = NumBlocks(problem_.sequence(batch));
        for (std::int64_t i = 0; i < blocks; ++i) {
          FillBlock(source_.Block(batch, head, i), random);
        }
      }
    }
  }

  [[nodiscard]] const std::vector<std::uint8_t>& keep() const { return keep_; }
  [[nodiscard]] const std::vector<double>& factors() const { return factors_; }

 private:
  void FillBlock(const QueryBlock& block, Random& random) {
    source_.FindBlockState(block, state_);
    const std::int64_t most = random.Pick<std::int64_t>({1, 7, 64, 128, 256});
    for (std::int64_t begin = block.keys.begin; begin < block.keys.end;) {
      const std::int64_t end = std::min(begin + random.Between(1, most), block.keys.end);
      source_.Fill(block, state_, {begin, end}, *words_);
      for (std::int64_t key = begin; key < end; ++key) {
        for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
          Store(block, lane, key, static_cast<std::size_t>(key - begin));
        }
      }
      CheckLists(block);
      begin = end;
    }
  }

  void Store(const QueryBlock& block, std::size_t lane, std::int64_t key, std::size_t index) {
    const AttentionShape& shape = problem_.shape();
    const auto cell = static_cast<std::size_t>(
        ((block.batch * shape.num_heads + block.head) * shape.seqlen_q + block.local_query(lane)) *
            shape.seqlen_k +
        key);
    const TileWords& words = *words_;
    const std::uint64_t part = words.all_part ? ~std::uint64_t{0} : words.part[index];
    const std::uint64_t kept = words.has_kept ? words.kept[index] : part;
    if (((kept >> lane) & 1U) == 0) return;
    EXPECT_NE((part >> lane) & 1U, 0U) << "kept but not visible";
    keep_[cell] = 1;
    const bool special = words.has_special && ((words.special[index] >> lane) & 1U) != 0;
    const double ratio = special ? static_cast<double>(source_.special_ratio()) : 1.0;
    factors_[cell] = static_cast<double>(state_.factor[lane]) * ratio;
  }

  // Keys that a list leaves out keep nothing.
  void CheckLists(const QueryBlock& block) const {
    const TileWords& words = *words_;
    const std::uint64_t* const kept = words.has_kept ? words.kept : words.part;
    const std::uint16_t* const end = words.kept_keys + words.kept_count;
    EXPECT_TRUE(std::is_sorted(words.kept_keys, end));
    for (std::uint16_t key = 0; key < words.count; ++key) {
      if (std::find(words.kept_keys, end, key) != end) continue;
      for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
        EXPECT_EQ((kept[key] >> lane) & 1U, 0U) << "key " << key << " is kept but not listed";
      }
    }
  }

  const Problem& problem_;
  KeepWordsTables tables_;
  TileWordSource source_;
  BlockState state_;
  std::unique_ptr<TileWords> words_ = std::make_unique<TileWords>();
  std::vector<std::uint8_t> keep_;
  std::vector<double> factors_;
};

void CheckWords(const ProblemArgs& args, std::uint64_t seed) {
  ProblemArrays arrays = MakeArrays(args, seed);
  const Problem problem = MustMake(args);
  const LibraryMask mask = RunKeepMask(args, arrays);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(TargetName(target));
    Random random(seed);
    WordMask words(problem, arrays.Mask(), target);
    words.Fill(random);
    const auto differs = std::mismatch(words.keep().begin(), words.keep().end(), mask.keep.begin());
    ASSERT_EQ(differs.first, words.keep().end())
        << "cell " << differs.first - words.keep().begin() << " of " << mask.keep.size();
    if (problem.stage() == Stage::kLogits) continue;
    for (std::size_t cell = 0; cell < mask.factors.size(); ++cell) {
      ASSERT_NEAR(words.factors()[cell], mask.factors[cell], 2e-7 * mask.factors[cell])
          << "cell " << cell;
    }
  }
}

TEST(FusedKeepWords, RandomProblems) {
  ForRandomProblems(
      {.first_seed = 300001, .count = 800}, {.max_work = 400000},
      [](const ProblemArgs& args, std::uint64_t seed) { CheckWords(ForFused(args), seed); });
}

struct Combination {
  std::string scheme;
  Stage stage;
  std::string empty_row;
};

std::vector<Combination> Combinations() {
  std::vector<Combination> all;
  for (const Scheme& scheme : Schemes()) {
    for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
      for (const char* policy :
           {"zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped"}) {
        all.push_back({std::string(scheme.info.name), stage, policy});
      }
    }
  }
  all.push_back({"block:block_q=3,block_k=5", Stage::kWeights, "zero"});
  all.push_back({"block:block_q=100,block_k=1", Stage::kWeights, "keep_self"});
  return all;
}

// Every combination on lengths beyond one block and one tile, and on a shard whose queries and keys
// start inside a block, a group of eight and a group of four. p = .97 empties many rows.
TEST(FusedKeepWords, EveryCombination) {
  int checked = 0;
  for (const Combination& combination : Combinations()) {
    for (const double dropout_p : {0.3, 0.97}) {
      for (const bool shard : {false, true}) {
        ProblemArgs args;
        args.shape = {.num_heads = 2, .seqlen_q = 150, .seqlen_k = 300, .head_dim = 1};
        if (combination.scheme == "symmetric") args.shape.seqlen_k = 150;
        args.is_causal = shard;
        args.dropout = {.dropout_p = dropout_p,
                        .scheme = combination.scheme,
                        .stage = combination.stage,
                        .empty_row = *ParseEmptyRow(combination.empty_row),
                        .seed = 31};
        if (shard) {
          args.origin = {.batch = 3, .head = 5, .query = 103, .key = 39};
          args.total = TotalLengths{700, 700};
        }
        if (!Problem::Make(args).ok()) continue;  // only element and shared redraw
        SCOPED_TRACE(MustMake(args).ToString());
        CheckWords(args, 1);
        ++checked;
      }
    }
  }
  EXPECT_EQ(checked, (8 * 2 * 4 + 2 * 2 * 2 + 2) * 2 * 2);
}

// ---- known cells ----

struct KnownRow {
  std::uint32_t row;
  std::uint32_t column;
  std::string_view bits;  // first key first
};

// With and without what the processor has beyond the target.
std::vector<KeepWordsFunction> WaysToDraw(Target target) {
  std::vector<KeepWordsFunction> ways{PlainKernelsFor(target)->keep_words};
  if (KernelsFor(target)->keep_words != ways[0]) ways.push_back(KernelsFor(target)->keep_words);
  return ways;
}

std::string KernelBits(KeepWordsFunction draw, KeepWordsArgs args, const KnownRow& known) {
  std::uint64_t words[8];
  args.row = known.row / 64 * 64;
  args.column = known.column / 8 * 8;
  args.count = 8;
  args.words = words;
  draw(args);
  std::string bits;
  for (std::size_t i = 0; i < 4; ++i) {
    bits += ((words[known.column % 8 + i] >> (known.row % 64)) & 1U) != 0 ? '1' : '0';
  }
  return bits;
}

// Draws that meet the threshold exactly, from docs/mask-format.md.
TEST(FusedKeepWords, KnownTies) {
  const KeepWordsTables tables =
      MakeKeepWordsTables(MakeAliasTable(KeepQ32(0.1)), CallKey({42, 7, Fnv1a("element")}, 0));
  const KeepWordsArgs args{.tables = &tables, .h = 2, .b = 1};
  const KnownRow ties[] = {{1, 2012, "0010"},  {9, 608, "0110"},   {10, 228, "0001"},
                           {14, 1748, "0001"}, {19, 1148, "1010"}, {46, 1624, "0011"}};
  for (const Target target : SupportedTargets()) {
    for (const KnownRow& tie : ties) {
      for (const KeepWordsFunction draw : WaysToDraw(target)) {
        EXPECT_EQ(KernelBits(draw, args, tie), tie.bits)
            << TargetName(target) << " row " << tie.row;
      }
    }
  }
}

// Bits of 64 rows from args.row on, by the scalar definition.
std::uint64_t ScalarWord(const KeepWordsArgs& args, std::size_t column) {
  std::uint64_t word = 0;
  for (std::uint32_t row = 0; row < 64; ++row) {
    const bool keep = FieldBit(args.tables->table, args.tables->key,
                               {.r = args.row + row,
                                .c = args.column + static_cast<std::uint32_t>(column),
                                .h = args.h,
                                .b = args.b});
    word |= static_cast<std::uint64_t>(keep ? 1 : 0) << row;
  }
  return word;
}

// A million cells of each rate hold some 60 ties of each column's kind. The count leaves every
// remainder of the groups that are drawn at once.
TEST(FusedKeepWords, KernelsAgreeWithTheScalarDefinition) {
  constexpr std::size_t kGuard = 8;
  for (const double dropout_p : {1e-9, 0.1, 1.0 / 3.0, 0.5, 0.75, 0.999999}) {
    const KeepWordsTables tables = MakeKeepWordsTables(MakeAliasTable(KeepQ32(dropout_p)),
                                                       CallKey({77, 5, Fnv1a("element")}, 0));
    KeepWordsArgs args{
        .tables = &tables, .row = 0xFFFFFFC0, .column = 0xFFFFF000, .h = 7, .b = 0xFFFFFFFF};
    std::vector<std::uint64_t> want(4096);
    for (std::size_t column = 0; column < want.size(); ++column) {
      want[column] = ScalarWord(args, column);
    }
    for (const Target target : SupportedTargets()) {
      for (const KeepWordsFunction draw : WaysToDraw(target)) {
        for (const std::size_t count : {4096U, 8U, 16U, 24U, 32U, 40U, 248U}) {
          std::vector<std::uint64_t> words(count + kGuard, 0x5A5A5A5A5A5A5A5A);
          args.count = count;
          args.words = words.data();
          draw(args);
          for (std::size_t column = 0; column < count; ++column) {
            ASSERT_EQ(words[column], want[column])
                << TargetName(target) << " count " << count << " column " << column;
          }
          for (std::size_t i = 0; i < kGuard; ++i) {
            ASSERT_EQ(words[count + i], 0x5A5A5A5A5A5A5A5A) << "written beyond the end";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attndrop::testing
