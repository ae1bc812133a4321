// SPDX-License-Identifier: Apache-2.0
// The mask that forward and backward really use, read off their results, is byte for byte the one
// that KeepMask writes.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"

namespace attndrop::testing {
namespace {

constexpr std::int64_t kLength = 130;  // three blocks of queries, two tiles of keys

// value and grad_out are the unit matrix: out_ij and grad_value_ji are f_ij w_ij.
std::vector<std::uint8_t> NonZeros(const Array& array, bool transposed) {
  std::vector<std::uint8_t> bits;
  for (std::int64_t i = 0; i < kLength; ++i) {
    for (std::int64_t j = 0; j < kLength; ++j) {
      const double x = transposed ? array.Get(0, 0, j, i) : array.Get(0, 0, i, j);
      bits.push_back(x != 0.0 ? 1 : 0);
    }
  }
  return bits;
}

void CheckMask(const ProblemArgs& args) {
  SCOPED_TRACE(MustMake(args).ToString());
  ProblemArrays arrays = MakeArrays(args, 1);
  for (Array* array : {&arrays.value, &arrays.grad_out}) {
    array->Fill([](auto, auto, std::int64_t r, std::int64_t c) { return r == c ? 1.0 : 0.0; });
  }
  const std::vector<std::uint8_t> want = RunKeepMask(args, arrays).keep;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(TargetName(target));
    RunForward(args, arrays, Fused(target));
    RunBackward(args, arrays, Fused(target));
    EXPECT_TRUE(NonZeros(arrays.out, false) == want) << "forward";
    EXPECT_TRUE(NonZeros(arrays.grad_value, true) == want) << "backward";
  }
}

TEST(FusedRecoveredMask, EverySchemeStageAndPolicy) {
  for (const Scheme& scheme : Schemes()) {
    for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
      for (const char* policy :
           {"zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped"}) {
        for (const bool is_causal : {false, true}) {
          ProblemArgs args;
          args.shape = {.seqlen_q = kLength, .seqlen_k = kLength, .head_dim = 4};
          args.shape.head_dim_v = kLength;
          args.is_causal = is_causal;
          args.dropout = {.dropout_p = 0.8,
                          .scheme = std::string(scheme.info.name),
                          .stage = stage,
                          .empty_row = *ParseEmptyRow(policy),
                          .seed = 3};
          if (Problem::Make(args).ok()) CheckMask(args);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attndrop::testing
