// SPDX-License-Identifier: Apache-2.0
// The keep mask of random problems against the oracle, and what it must not depend on.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/naive_attention.h"
#include "support/run.h"

namespace attndrop::testing {
namespace {

// At stage logits every factor of a kept weight is 1.
void ExpectSameMask(Stage stage, const LibraryMask& got, const OracleMask& want) {
  ASSERT_EQ(got.keep.size(), want.keep.size());
  for (std::size_t k = 0; k < want.keep.size(); ++k) {
    ASSERT_EQ(got.keep[k], want.keep[k])
        << "cell " << k << " of " << want.seqlen_q << " x " << want.seqlen_k << " matrices";
    const double factor = stage == Stage::kWeights ? want.factor[k] : want.keep[k];
    ASSERT_LE(std::fabs(got.factors[k] - factor), 1e-15 * factor)
        << "cell " << k << ": " << got.factors[k] << ", expected " << factor;
  }
}

TEST(MaskProperty, EqualsTheOracle) {
  ForRandomProblems({1, 6000}, {.max_work = 200000},
                    [](const ProblemArgs& args, std::uint64_t seed) {
                      ProblemArrays arrays = MakeArrays(args, seed);
                      ExpectSameMask(args.dropout.stage, RunKeepMask(args, arrays),
                                     ComputeOracleMask(args, arrays));
                      EXPECT_TRUE(arrays.Intact());
                    });
}

// Rates near 0 and 1 make policies and factors work hardest.
TEST(MaskProperty, EqualsTheOracleAtExtremeRates) {
  ForRandomProblems(
      {10001, 600}, {.max_work = 60000}, [](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        Random random(seed);
        args.dropout.dropout_p =
            random.Pick({1e-9, 1e-6, 0.95, 0.99, 0.999, 1.0 - 0x1p-24, 1.0 - 0x1p-32});
        args.dropout.empty_row.attempts = random.Pick<std::uint32_t>({1, 2, 64});
        ProblemArrays arrays = MakeArrays(args, seed);
        ExpectSameMask(args.dropout.stage, RunKeepMask(args, arrays),
                       ComputeOracleMask(args, arrays));
      });
}

TEST(MaskProperty, CellByIndexEqualsArray) {
  ForRandomProblems(
      {20001, 400}, {.max_work = 40000}, [](const ProblemArgs& args, std::uint64_t seed) {
        ProblemArrays arrays = MakeArrays(args, seed);
        const LibraryMask mask = RunKeepMask(args, arrays);
        const OracleMask index = ComputeOracleMask(args, arrays);
        const Problem problem = MustMake(args);
        Random random(seed);
        const auto cells = static_cast<std::int64_t>(mask.keep.size());
        for (int draw = 0; draw < 60 && cells > 0; ++draw) {
          const std::int64_t cell = random.Below(cells);
          const std::int64_t row = cell / index.seqlen_k;
          const LocalIndex at{row / index.seqlen_q / index.heads,
                              row / index.seqlen_q % index.heads, row % index.seqlen_q,
                              cell % index.seqlen_k};
          const Result<KeepCell> got = KeepAt(problem, arrays.Mask(), at);
          const SequenceView view = ViewSequence(args, at.batch);
          if (!got.ok()) {
            // Only the padding of a ragged batch may be refused.
            ASSERT_TRUE(at.query >= view.seqlen_q || at.key >= view.seqlen_k)
                << got.status().message();
            continue;
          }
          ASSERT_EQ(got->keep, mask.keep[static_cast<std::size_t>(cell)] != 0) << "cell " << cell;
          ASSERT_EQ(got->factor, mask.factors[static_cast<std::size_t>(cell)]) << "cell " << cell;
        }
      });
}

TEST(MaskProperty, DoesNotDependOnThreadsTypeLayoutStageOrEarlierCalls) {
  ForRandomProblems(
      {30001, 400}, {.max_work = 60000}, [](const ProblemArgs& args, std::uint64_t seed) {
        ProblemArrays arrays = MakeArrays(args, seed);
        const LibraryMask mask = RunKeepMask(args, arrays);
        for (const int threads : {2, 3, 4}) {
          const LibraryMask again = RunKeepMask(args, arrays, threads);
          EXPECT_EQ(again.keep, mask.keep) << threads << " threads";
          EXPECT_EQ(again.factors, mask.factors) << threads << " threads";
        }
        ProblemArgs other = args;
        other.dtype = args.dtype == DType::kFloat64 ? DType::kBFloat16 : DType::kFloat64;
        other.layout = args.layout == Layout::kBhsd ? Layout::kReversed : Layout::kBhsd;
        other.shape.head_dim = 7;
        other.scale = 3.0;
        other.dropout.stage =
            args.dropout.stage == Stage::kWeights ? Stage::kLogits : Stage::kWeights;
        ProblemArrays shuffled = MakeArrays(other, seed, {.shuffle_seed = seed});
        // The same mask numbers in other places.
        CopyElements(arrays.attn_mask, shuffled.attn_mask);
        EXPECT_EQ(RunKeepMask(other, shuffled).keep, mask.keep);
        EXPECT_EQ(RunKeepMask(args, arrays).factors, mask.factors) << "second call";
      });
}

// Another batch entry or head at the end changes no earlier cell; nor does another key for the
// policies that do not look at the whole row.
TEST(MaskProperty, DoesNotDependOnWhatStandsBehind) {
  const GeneratorOptions options{.max_work = 30000, .ragged = false, .shards = false};
  ForRandomProblems({40001, 400}, options, [](const ProblemArgs& given, std::uint64_t) {
    ProblemArgs args = given;
    args.attn_mask = {};
    args.alibi = false;
    args.causal_align = CausalAlign::kTopLeft;
    args.shape.num_kv_heads = args.shape.num_heads;
    const LibraryMask mask = RunKeepMask(args);
    ProblemArgs padded = args;
    padded.shape.batch += 1;
    padded.shape.num_heads += 2;
    padded.shape.num_kv_heads += 2;
    const EmptyRow kind = args.dropout.empty_row.kind;
    if (kind != EmptyRow::kAtLeastOne && kind != EmptyRow::kUndropped) {
      padded.shape.seqlen_q += 3;
      padded.shape.seqlen_k += args.dropout.scheme == "symmetric" ? 3 : 5;
    }
    const LibraryMask larger = RunKeepMask(padded);
    const AttentionShape &small = args.shape, &large = padded.shape;
    for (std::int64_t b = 0; b < small.batch; ++b) {
      for (std::int64_t h = 0; h < small.num_heads; ++h) {
        for (std::int64_t i = 0; i < small.seqlen_q; ++i) {
          for (std::int64_t j = 0; j < small.seqlen_k; ++j) {
            const auto from = ((b * small.num_heads + h) * small.seqlen_q + i) * small.seqlen_k + j;
            const auto to = ((b * large.num_heads + h) * large.seqlen_q + i) * large.seqlen_k + j;
            ASSERT_EQ(mask.keep[static_cast<std::size_t>(from)],
                      larger.keep[static_cast<std::size_t>(to)]);
          }
        }
      }
    }
  });
}

TEST(MaskProperty, AtLeastOneKeepsAVisibleKeyOfEveryRow) {
  ForRandomProblems(
      {50001, 600}, {.max_work = 60000}, [](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        Random random(seed);
        args.dropout.scheme = random.Pick({"element", "shared"});
        args.dropout.dropout_p = random.Pick({0.5, 0.9, 0.99});
        args.dropout.training = true;
        args.dropout.empty_row = {random.Pick({EmptyRow::kAtLeastOne, EmptyRow::kUndropped}),
                                  random.Pick<std::uint32_t>({1, 2, 64})};
        args.origin = {};
        args.total.reset();
        ProblemArrays arrays = MakeArrays(args, seed);
        const LibraryMask mask = RunKeepMask(args, arrays);
        const OracleMask oracle = ComputeOracleMask(args, arrays);
        for (std::size_t row = 0;
             row * static_cast<std::size_t>(oracle.seqlen_k) < mask.keep.size(); ++row) {
          int visible = 0, kept = 0;
          for (std::size_t j = 0; j < static_cast<std::size_t>(oracle.seqlen_k); ++j) {
            const std::size_t cell = row * static_cast<std::size_t>(oracle.seqlen_k) + j;
            visible += oracle.visible[cell];
            kept += mask.keep[cell];
            EXPECT_LE(mask.keep[cell], oracle.visible[cell]);
          }
          EXPECT_EQ(visible > 0, kept > 0) << "row " << row;
        }
      });
}

}  // namespace
}  // namespace attndrop::testing
