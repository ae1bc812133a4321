// SPDX-License-Identifier: Apache-2.0
// Every second or third entry of a batch as a problem whose batch_index names the entries.
#pragma once

#include <algorithm>
#include <cstdint>

#include "support/run.h"
#include "support/shard.h"

namespace attndrop::testing {

// Entries first, first + step, ... of a problem that is not ragged and has no ALiBi.
class StridedBatch {
 public:
  StridedBatch(const ProblemArgs& args, std::int64_t first, std::int64_t step)
      : whole_(args), step_(step), cut_(WholeCut(args)), part_(args) {
    cut_.batch = {first, (args.shape.batch - first + step - 1) / step};
    part_ = ShardArgs(args, cut_);
    part_.origin.batch = 0;
    part_.batch_index.clear();
    for (std::int64_t b = 0; b < cut_.batch.count; ++b) {
      part_.batch_index.push_back(MustMake(args).global_batch(first + b * step));
    }
  }

  [[nodiscard]] const ProblemArgs& args() const { return part_; }
  [[nodiscard]] std::int64_t WholeEntry(std::int64_t b) const {
    return cut_.batch.first + b * step_;
  }

  // Reads the inputs of the whole's arrays; writes this part of their outputs.
  void Run(ProblemArrays& arrays, const RunOptions& options) const {
    ForwardBuffers forward = ShardForward(whole_, cut_, arrays);
    Spread(forward.query, forward.key, forward.value, forward.mask.attn_mask, forward.out,
           forward.logsumexp);
    ExpectForward(part_, forward, options);
    BackwardBuffers backward = ShardBackward(whole_, cut_, arrays);
    Spread(backward.query, backward.key, backward.value, backward.mask.attn_mask, backward.grad_out,
           backward.grad_logsumexp, backward.grad_query, backward.grad_key, backward.grad_value);
    ExpectBackward(part_, backward, options);
  }

 private:
  template <class... View>
  void Spread(View&... views) const {
    ((views.batch_stride *= step_), ...);
  }

  ProblemArgs whole_;
  std::int64_t step_;
  Cut cut_;
  ProblemArgs part_;
};

// Random problems with a batch_index whose batch can be taken apart.
inline constexpr GeneratorOptions kStridedBatches{
    .max_work = 60000, .ragged = false, .empty = false, .batch_index = true};

inline void ExpectSameResults(ProblemArrays& a, ProblemArrays& b) {
  EXPECT_TRUE(SameBits(a.out, b.out)) << "out";
  EXPECT_TRUE(SameBits(a.logsumexp, b.logsumexp)) << "logsumexp";
  EXPECT_TRUE(SameBits(a.grad_query, b.grad_query)) << "grad_query";
  EXPECT_TRUE(SameBits(a.grad_key, b.grad_key)) << "grad_key";
  EXPECT_TRUE(SameBits(a.grad_value, b.grad_value)) << "grad_value";
}

// The entries of a batch taken apart into `step` strided parts write the bits of the whole.
inline void CheckStridedParts(ProblemArgs args, std::uint64_t seed, const RunOptions& options) {
  args.alibi = false;
  ArrayOptions without_mask_grad;
  without_mask_grad.grad_attn_mask = false;
  ProblemArrays whole = MakeArrays(args, seed, without_mask_grad);
  RunForward(args, whole, options);
  // As the parts do it: from the inputs alone.
  BackwardBuffers backward = ShardBackward(args, WholeCut(args), whole);
  ExpectBackward(args, backward, options);
  ProblemArrays parts = MakeArrays(args, seed, without_mask_grad);
  const std::int64_t step = 1 + static_cast<std::int64_t>(seed % 3);
  for (std::int64_t first = 0; first < std::min(step, args.shape.batch); ++first) {
    StridedBatch(args, first, step).Run(parts, options);
  }
  ExpectSameResults(whole, parts);
  EXPECT_TRUE(parts.Intact());
}

}  // namespace attndrop::testing
