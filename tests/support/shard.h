// SPDX-License-Identifier: Apache-2.0
// Parts of a problem: the arguments of a shard and views of its arrays inside those of the whole.
#pragma once

#include <cstdint>

#include "support/arrays.h"

namespace attndrop::testing {

struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// heads is aligned to the groups that share a key head.
struct Cut {
  Range batch, heads, queries, keys;
};
[[nodiscard]] Cut WholeCut(const ProblemArgs& args);

// args is not ragged.
[[nodiscard]] ProblemArgs ShardArgs(const ProblemArgs& args, const Cut& cut);
[[nodiscard]] MaskBuffers ShardMask(const ProblemArgs& args, const Cut& cut, ProblemArrays& arrays);
// Reads the inputs of `arrays`; writes into their part of the outputs.
[[nodiscard]] ForwardBuffers ShardForward(const ProblemArgs& args, const Cut& cut,
                                          ProblemArrays& arrays);
[[nodiscard]] BackwardBuffers ShardBackward(const ProblemArgs& args, const Cut& cut,
                                            ProblemArrays& arrays);

}  // namespace attndrop::testing
