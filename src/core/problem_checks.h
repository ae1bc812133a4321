// SPDX-License-Identifier: Apache-2.0
// What makes a Problem legal: the only place where arguments are refused.
#pragma once

#include "attndrop/problem.h"
#include "attndrop/status.h"

namespace attndrop {

// Coordinates and lengths end here (mask format 1, section 4).
inline constexpr std::int64_t kMaxCoordinate = std::int64_t{1} << 32;

// Sizes, before defaults: signs, limits, grouped heads.
[[nodiscard]] Status CheckShape(const AttentionShape& shape);
// cu_seqlens and used lengths.
[[nodiscard]] Status CheckRagged(const RaggedLengths& ragged);
// Enumerators, window, scale, dropout_p, attempts: values that are wrong on their own.
[[nodiscard]] Status CheckValues(const ProblemArgs& args);
// origin, batch_index and total lengths against the shape.
[[nodiscard]] Status CheckShard(const ProblemArgs& args);

// The legality table of mask format 1, sections 3 to 5: which scheme, policy, rate and shard go
// together.
[[nodiscard]] Status CheckLegality(const Problem& problem);

}  // namespace attndrop
