// SPDX-License-Identifier: Apache-2.0
// batch_index: the masks and the reference path of entries that are anywhere in the whole batch.
#include <cstdint>

#include <gtest/gtest.h>

#include "support/naive_attention.h"
#include "support/strided_batch.h"

namespace attndrop::testing {
namespace {

TEST(BatchIndexProperty, MaskEqualsTheOracle) {
  ForRandomProblems({510001, 1500}, {.max_work = 60000, .batch_index = true},
                    [](const ProblemArgs& args, std::uint64_t seed) {
                      ProblemArrays arrays = MakeArrays(args, seed);
                      const LibraryMask got = RunKeepMask(args, arrays);
                      const OracleMask want = ComputeOracleMask(args, arrays);
                      ASSERT_EQ(got.keep.size(), want.keep.size());
                      for (std::size_t k = 0; k < want.keep.size(); ++k) {
                        ASSERT_EQ(got.keep[k], want.keep[k]) << "cell " << k;
                      }
                    });
}

// The array without factors comes from the words of the kernels.
TEST(BatchIndexProperty, CellsAndBytesOfStridedPartsAreThoseOfTheWhole) {
  ForRandomProblems({520001, 200}, kStridedBatches, [](ProblemArgs args, std::uint64_t) {
    args.alibi = false;
    args.attn_mask = {};
    const LibraryMask whole = RunKeepMask(args);
    const StridedBatch odd(args, args.shape.batch > 1 ? 1 : 0, 2);
    const Problem part = MustMake(odd.args());
    const std::int64_t rows = part.shape().num_heads * part.shape().seqlen_q;
    const std::int64_t cells = rows * part.shape().seqlen_k;
    std::vector<std::uint8_t> keep(static_cast<std::size_t>(part.shape().batch * cells));
    SerialExecutor executor;
    ASSERT_TRUE(KeepMask(part, {.keep = keep.data()}, executor).ok());
    for (std::int64_t k = 0; k < part.shape().batch * cells; ++k) {
      const std::int64_t b = k / cells;
      const auto at = static_cast<std::size_t>(odd.WholeEntry(b) * cells + k % cells);
      ASSERT_EQ(keep[static_cast<std::size_t>(k)], whole.keep[at]) << "cell " << k;
      const std::int64_t row = k % cells / part.shape().seqlen_k;
      const LocalIndex index{.batch = b,
                             .head = row / part.shape().seqlen_q,
                             .query = row % part.shape().seqlen_q,
                             .key = k % part.shape().seqlen_k};
      ASSERT_EQ(KeepAt(part, {}, index)->keep, whole.keep[at] != 0) << "cell " << k;
    }
  });
}

TEST(BatchIndexProperty, StridedPartsChangeNoBit) {
  ForRandomProblems(
      {530001, 200}, kStridedBatches,
      [](const ProblemArgs& args, std::uint64_t seed) { CheckStridedParts(args, seed, {}); });
}

}  // namespace
}  // namespace attndrop::testing
