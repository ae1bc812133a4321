// SPDX-License-Identifier: Apache-2.0
// Bugs that users of other libraries reported, tried here: dropout and random numbers (B26 to B43).
//
// Left to the PyTorch package, because they are about modules and autograd: the module sides of B26
// (train() and eval()) and B39 (activation checkpointing). Left to the command line: the
// explanation that B28 asks for (`attndrop analyze`). B32's foreign formats are tested with
// src/compat; here is its other half, the mask that can be asked for.
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reports/fixture.h"
#include "support/mask_oracle.h"
#include "support/statistics.h"

namespace attndrop::testing {
namespace {

ProblemArgs Dropped(std::int64_t queries, std::int64_t keys, double p) {
  ProblemArgs args = Args(queries, keys, 4, DType::kFloat64);
  args.dropout.dropout_p = p;
  args.dropout.seed = 9;
  return args;
}

TEST(Reports, B26_EvaluationDropsNothing) {
  ProblemArgs evaluation = Dropped(8, 8, 0.5), plain = Dropped(8, 8, 0.0);
  evaluation.dropout.training = false;
  ProblemArrays a = MakeArrays(evaluation, 1), b = MakeArrays(plain, 1);
  RunForward(evaluation, a);
  RunForward(plain, b);
  EXPECT_TRUE(SameBits(a.out, b.out));
}

TEST(Reports, B27_OneKeyIsZeroOrScaled) {
  std::set<double> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    ProblemArgs args = Dropped(1, 1, 0.2);
    args.dropout.seed = seed;
    ProblemArrays arrays = MakeArrays(args, 1);
    arrays.value.FillAll(1.0);
    RunForward(args, arrays);
    seen.insert(arrays.out.Get(0, 0, 0, 0));
    EXPECT_NEAR(
        arrays.logsumexp.Get(0, 0, 0, 0),
        RunNaive(args, arrays, ComputeOracleMask(args, arrays)).value.logsumexp.at(0, 0, 0, 0),
        1e-12);
  }
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(*seen.begin(), 0.0);
  EXPECT_NEAR(*seen.rbegin(), 1.25, 1e-9);
}

TEST(Reports, B28_RowsThatSumToOneAreOffered) {
  ProblemArgs args = Dropped(16, 16, 0.5);
  args.dropout.stage = Stage::kLogits;
  args.dropout.empty_row = *ParseEmptyRow("redraw");
  ProblemArrays arrays = MakeArrays(args, 1);
  arrays.value.FillAll(1.0);
  RunForward(args, arrays);
  for (std::int64_t r = 0; r < 16; ++r) EXPECT_NEAR(arrays.out.Get(0, 0, r, 0), 1.0, 1e-14);
}

TEST(Reports, B29_BackwardUsesTheScaleOfForward) {
  ProblemArgs args = Dropped(4, 4, 0.1);
  ProblemArrays arrays = MakeArrays(args, 1);
  ExpectNaive(args, arrays);
  const double at = arrays.value.Get(0, 0, 1, 0), step = 0.5;
  double loss[2];
  for (int side = 0; side < 2; ++side) {
    arrays.value.Set(0, 0, 1, 0, at + (side == 0 ? step : -step));
    RunForward(args, arrays);
    loss[side] = 0.0;
    for (std::int64_t r = 0; r < 4; ++r)
      loss[side] += arrays.out.Get(0, 0, r, 0) * arrays.grad_out.Get(0, 0, r, 0);
  }
  EXPECT_NEAR(arrays.grad_value.Get(0, 0, 1, 0), (loss[0] - loss[1]) / (2 * step), 1e-13);
}

TEST(Reports, B30_BackwardMasksTheGradientOfTheWeights) {
  for (const double p : {0.1, 0.5, 0.9}) {
    ProblemArgs args = Dropped(17, 33, p);
    ProblemArrays arrays = MakeArrays(args, 30);
    ExpectNaive(args, arrays);
  }
}

TEST(Reports, B31_CausalWithDropoutBeyondSixtyFourKeys) {
  ProblemArgs args = Dropped(128, 128, 0.1);
  args.is_causal = true;
  ProblemArrays arrays = MakeArrays(args, 31);
  ExpectNaive(args, arrays);
}

TEST(Reports, B32_TheMaskCanBeAskedFor) {
  ProblemArgs args = Dropped(32, 32, 0.17);
  args.dropout.seed = 0;
  const LibraryMask mask = RunKeepMask(args);
  ProblemArrays none;
  const OracleMask oracle = ComputeOracleMask(args, none);
  EXPECT_EQ(mask.keep, oracle.keep);
}

TEST(Reports, B33_TheMaskIsTheOneApplied) {
  ProblemArgs args = Dropped(16, 16, 0.5);
  args.shape.head_dim_v = 16;
  ProblemArrays arrays = MakeArrays(args, 1);
  arrays.value.Fill(Identity);
  RunForward(args, arrays);
  const LibraryMask mask = RunKeepMask(args, arrays);
  for (std::int64_t cell = 0; cell < 256; ++cell) {
    EXPECT_EQ(arrays.out.Get(0, 0, cell / 16, cell % 16) != 0.0,
              mask.keep[static_cast<std::size_t>(cell)] != 0);
  }
}

TEST(Reports, B34_EarlierCallsDoNotMatter) {
  const ProblemArgs args = Dropped(16, 16, 0.5);
  const LibraryMask first = RunKeepMask(args);
  for (int calls = 1; calls < 5; ++calls) {
    for (int call = 0; call < calls; ++call)
      static_cast<void>(RunKeepMask(Dropped(3 + call, 7, 0.3)));
    EXPECT_EQ(RunKeepMask(args).keep, first.keep);
  }
}

TEST(Reports, B35_B37_TheRateChangesTheOutput) {
  std::set<std::string> outputs;
  for (const double p : {0.0, 0.5, 0.9}) {
    const ProblemArgs args = Dropped(16, 16, p);
    ProblemArrays arrays = MakeArrays(args, 1);
    RunForward(args, arrays);
    std::string bytes;
    for (const std::byte byte : arrays.out.ElementBytes()) bytes += static_cast<char>(byte);
    outputs.insert(bytes);
  }
  EXPECT_EQ(outputs.size(), 3U);
}

TEST(Reports, B36_RateOneIsZerosNotNaN) {
  for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
    ProblemArgs args = Dropped(8, 8, 1.0);
    args.dropout.stage = stage;
    ProblemArrays arrays = MakeArrays(args, 1, {.grad_logsumexp = false});
    RunForward(args, arrays);
    RunBackward(args, arrays);
    for (Array* array : {&arrays.out, &arrays.grad_query, &arrays.grad_key, &arrays.grad_value}) {
      for (const double x : array->ToDouble().values) EXPECT_EQ(x, 0.0);
    }
  }
}

TEST(Reports, B38_BatchesAndHeadsHaveTheirOwnMasks) {
  ProblemArgs args = Dropped(32, 32, 0.5);
  args.shape.batch = args.shape.num_heads = args.shape.num_kv_heads = 3;
  const auto distinct = [&] {
    const LibraryMask mask = RunKeepMask(args);
    std::set<std::string> matrices;
    for (std::size_t k = 0; k < 9; ++k) {
      matrices.emplace(mask.keep.begin() + static_cast<std::ptrdiff_t>(k * 1024),
                       mask.keep.begin() + static_cast<std::ptrdiff_t>((k + 1) * 1024));
    }
    return matrices.size();
  };
  EXPECT_EQ(distinct(), 9U);
  args.dropout.scheme = "shared";
  EXPECT_EQ(distinct(), 1U);
}

TEST(Reports, B39_ForwardComputedAgainDrawsTheSameMask) {
  const ProblemArgs args = Dropped(16, 16, 0.5);
  ProblemArrays stored = MakeArrays(args, 1), again = MakeArrays(args, 1);
  RunForward(args, stored);
  RunBackward(args, stored);
  BackwardBuffers buffers = again.ForBackward();
  buffers.out = {};
  buffers.logsumexp = {};
  ExpectBackward(args, buffers);
  EXPECT_TRUE(SameBits(stored.grad_query, again.grad_query));
  EXPECT_TRUE(SameBits(stored.grad_value, again.grad_value));
}

// One mask, written down: it must come out on every machine.
TEST(Reports, B40_TheMaskOfASeedIsTheSameEverywhere) {
  ProblemArgs args = Dropped(6, 6, 0.5);
  args.dropout.seed = 123;
  const LibraryMask mask = RunKeepMask(args);
  const MaskOracle oracle(args.dropout);
  std::string library, independent;
  for (std::uint64_t k = 0; k < 36; ++k) {
    library += mask.keep[k] != 0 ? '1' : '0';
    independent += oracle.Drawn({0, 0, k / 6, k % 6}, 0) ? '1' : '0';
  }
  EXPECT_EQ(library, "011101111000110010110000100110111010");
  EXPECT_EQ(independent, "011101111000110010110000100110111010");
}

// 1e5 small calls: with 64 bits of mask each, no two are equal.
TEST(Reports, B41_ManySmallCallsDoNotRepeat) {
  std::set<std::uint64_t> masks;
  ProblemArgs args = Dropped(8, 8, 0.5);
  constexpr std::uint64_t kCalls = 100000;
  for (args.dropout.offset = 0; args.dropout.offset < kCalls; ++args.dropout.offset) {
    std::uint64_t bits = 0;
    for (const std::uint8_t bit : RunKeepMask(args).keep) bits = bits << 1 | bit;
    masks.insert(bits);
  }
  EXPECT_EQ(masks.size(), kCalls);
}

TEST(Reports, B42_EqualSeedsInDifferentPlaces) {
  const auto first = std::make_unique<ProblemArgs>(Dropped(16, 16, 0.5));
  const auto second = std::make_unique<ProblemArgs>(Dropped(16, 16, 0.5));
  EXPECT_EQ(RunKeepMask(*first).keep, RunKeepMask(*second).keep);
}

// Seeds and offsets that a sum or an exclusive-or would confuse.
TEST(Reports, B43_CompensatingSeedsAndOffsets) {
  std::set<std::string> masks;
  const std::uint64_t high = std::uint64_t{1} << 32;
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> calls = {{5, 7},
                                                                      {7, 5},
                                                                      {6, 6},
                                                                      {12, 0},
                                                                      {0, 12},
                                                                      {5 ^ 7, 0},
                                                                      {5 * high, 7},
                                                                      {5, 7 * high},
                                                                      {5 + 7 * high, 0},
                                                                      {0, 5 + 7 * high},
                                                                      {5 + high, 7 - 1},
                                                                      {4, 8}};
  for (const auto& [seed, offset] : calls) {
    ProblemArgs args = Dropped(16, 16, 0.5);
    args.dropout.seed = seed;
    args.dropout.offset = offset;
    const LibraryMask mask = RunKeepMask(args);
    masks.emplace(mask.keep.begin(), mask.keep.end());
  }
  EXPECT_EQ(masks.size(), calls.size());
}

// The key that is kept when all draws of a row are empty is uniform over 100 keys.
TEST(Reports, B43_TheChosenKeyIsUniform) {
  ProblemArgs args = Dropped(1000, 100, 1.0 - 0x1p-32);
  args.shape.num_heads = args.shape.num_kv_heads = 200;
  args.dropout.empty_row = *ParseEmptyRow("keep_one");
  const LibraryMask mask = RunKeepMask(args);
  std::vector<double> counts(100, 0.0);
  for (std::size_t k = 0; k < mask.keep.size(); ++k) counts[k % 100] += mask.keep[k];
  double chi_square = 0.0;
  for (const double count : counts) chi_square += (count - 2000.0) * (count - 2000.0) / 2000.0;
  EXPECT_TRUE(ConsistentChiSquare(chi_square, 99.0));
}

}  // namespace
}  // namespace attndrop::testing
