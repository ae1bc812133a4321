// SPDX-License-Identifier: Apache-2.0
// Generation: one query a head, and several heads that share keys. Those heads become the queries
// of one head, so that they fill the lanes and each key is read once.
#pragma once

#include <optional>

#include "attndrop/attention.h"
#include "attndrop/problem.h"

namespace attndrop {

// The same computation with the heads of a group as queries; nothing where that is not possible: a
// head has more queries than one, draws are made per head, or a mask tells heads apart.
[[nodiscard]] std::optional<Problem> HeadsAsQueries(const Problem& problem);

// Buffers of `problem` as those of HeadsAsQueries(problem).
[[nodiscard]] ForwardBuffers HeadsAsQueries(const Problem& problem,
                                            const ForwardBuffers& buffers) noexcept;

}  // namespace attndrop
