// SPDX-License-Identifier: Apache-2.0
// Plan: how a Problem will be computed, and why; immutable, reusable, printable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "attndrop/export.h"
#include "attndrop/problem.h"
#include "attndrop/status.h"
#include "attndrop/target.h"

namespace attndrop {

enum class Path : std::uint8_t {
  kReference,  // double precision, row by row
  kFused,      // tile kernels in float32
};

[[nodiscard]] ATTNDROP_EXPORT std::string_view PathName(Path path) noexcept;

// Tiles of the fused path. Results do not depend on them beyond rounding; masks not at all.
struct TileShape {
  std::int64_t blocks_per_task = 1;  // blocks of 64 queries that share each tile of keys: 1 .. 8
  std::int64_t forward_keys = 128;   // keys of a tile: 1 .. 256
  std::int64_t backward_keys = 128;  // likewise
};

// What a caller may force; by default the plan takes the fastest path that serves the problem.
struct PlanOptions {
  std::optional<Path> path{};
  std::optional<Target> target{};    // fused path only; default: the widest that this machine has
  std::optional<TileShape> tiles{};  // fused path only
};

// What a backward call does beside the gradients of query, key and value.
struct BackwardWork {
  bool grad_attn_mask = false;
  bool recompute_forward = false;  // out or logsumexp was not kept
};

class ATTNDROP_EXPORT Plan {
 public:
  // Errors: kUnsupported when a forced path or target cannot serve the problem or the machine.
  [[nodiscard]] static Result<Plan> Make(const Problem& problem, const PlanOptions& options = {});

  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }
  [[nodiscard]] Path path() const noexcept { return path_; }
  // One sentence: why this path.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  // Meaningful on the fused path.
  [[nodiscard]] Target target() const noexcept { return target_; }
  [[nodiscard]] const TileShape& tiles() const noexcept { return tiles_; }
  // Forward multiplies bfloat16 pairs, where the machine has an instruction for it; weights are
  // then rounded to bfloat16 before they meet the values.
  [[nodiscard]] bool native_bf16() const noexcept { return native_bf16_; }
  // One query a head and heads that share keys (generation): the problem that forward computes,
  // with heads as queries.
  [[nodiscard]] const std::optional<Problem>& heads_as_queries() const noexcept {
    return heads_as_queries_;
  }

  // Scratch that a call takes with so many workers. A fused backward call that meets a logsumexp
  // beyond 65536 takes what the reference path needs instead (docs/math/accuracy.md).
  [[nodiscard]] std::size_t ForwardScratchBytes(int num_workers) const noexcept;
  [[nodiscard]] std::size_t BackwardScratchBytes(int num_workers,
                                                 const BackwardWork& work = {}) const noexcept;

  // Several lines for people: path, reason, target, tiles, scratch.
  [[nodiscard]] std::string ToString() const;

 private:
  explicit Plan(Problem problem) : problem_(std::move(problem)) {}

  Problem problem_;
  Path path_ = Path::kReference;
  Target target_ = Target::kSse4;
  TileShape tiles_;
  bool native_bf16_ = false;
  std::optional<Problem> heads_as_queries_;
  std::string reason_;
};

}  // namespace attndrop
