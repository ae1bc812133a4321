// SPDX-License-Identifier: Apache-2.0
// batch_index on the fused path.
#include <cstdint>

#include <gtest/gtest.h>

#include "fused/bound.h"
#include "support/strided_batch.h"

namespace attndrop::testing {
namespace {

TEST(FusedBatchIndex, WithinTheBound) {
  ForRandomProblems({.first_seed = 540001, .count = 300}, {.batch_index = true},
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = ForFused(given);
                      for (const Target target : SupportedTargets()) {
                        ProblemArrays arrays = MakeArrays(args, seed);
                        CheckBothDirections(args, arrays, Fused(target));
                      }
                    });
}

TEST(FusedBatchIndex, StridedPartsChangeNoBit) {
  ForRandomProblems({.first_seed = 550001, .count = 300}, kStridedBatches,
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      ProblemArgs args = ForFused(given);
                      // Backward leaves the kernels when any entry's logsumexp is infinite, which
                      // lowest floats in an attn_mask can do.
                      if (args.attn_mask.kind == MaskKind::kFloat) args.attn_mask = {};
                      for (const Target target : SupportedTargets()) {
                        CheckStridedParts(args, seed, Fused(target));
                      }
                    });
}

}  // namespace
}  // namespace attndrop::testing
