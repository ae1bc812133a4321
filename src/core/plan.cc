// SPDX-License-Identifier: Apache-2.0
// Choice of the path and its tiles, and the memory that they take.
#include "attndrop/plan.h"

#include <algorithm>

#include "core/text.h"
#include "kernels/fused.h"
#include "kernels/one_query.h"
#include "reference/reference.h"

namespace attndrop {
namespace {

constexpr std::int64_t kMaxFusedHeadDim = 512;
// Keys and values of a head beyond this do not stay in a core's cache between two blocks of
// queries; then several blocks share each tile that is read.
constexpr std::int64_t kCacheBytes = std::int64_t{512} << 10;

// Why the fused path cannot serve a problem; empty when it can.
std::string WhyNotFused(const Problem& problem) {
  const AttentionShape& shape = problem.shape();
  if (problem.dtype() == DType::kFloat64) {
    return "float64 is computed by the reference path, in double precision";
  }
  if (std::max(shape.head_dim, shape.head_dim_v) > kMaxFusedHeadDim) {
    return "the tile kernels take head_dim up to " + FormatNumber(kMaxFusedHeadDim) + ", got " +
           FormatNumber(std::max(shape.head_dim, shape.head_dim_v));
  }
  if (problem.attn_mask().kind == MaskKind::kFloat &&
      problem.attn_mask().dtype == DType::kFloat64) {
    return "a float64 attn_mask is added in double precision, by the reference path";
  }
  if (shape.head_dim == 0) return "head_dim 0 has no products to tile";
  return {};
}

TileShape ChooseTiles(const Problem& problem) {
  const AttentionShape& shape = problem.shape();
  const std::int64_t bytes = 4 * shape.seqlen_k * (shape.head_dim + shape.head_dim_v);
  TileShape tiles;
  for (std::int64_t limit = kCacheBytes; bytes > limit && tiles.blocks_per_task < kMaxBlocksPerTask;
       limit *= 2) {
    tiles.blocks_per_task *= 2;
  }
  return tiles;
}

Status CheckTiles(const TileShape& tiles) {
  const auto key_limit = static_cast<std::int64_t>(kTileKeys);
  const auto in = [](std::int64_t x, std::int64_t limit) { return x >= 1 && x <= limit; };
  if (in(tiles.blocks_per_task, kMaxBlocksPerTask) && in(tiles.forward_keys, key_limit) &&
      in(tiles.backward_keys, key_limit)) {
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "tiles must have blocks_per_task in 1 .. " + FormatNumber(kMaxBlocksPerTask) +
      " and forward_keys and backward_keys in 1 .. " + FormatNumber(key_limit) + ", got " +
      FormatNumber(tiles.blocks_per_task) + ", " + FormatNumber(tiles.forward_keys) + " and " +
      FormatNumber(tiles.backward_keys) + "; leave them out for the plan's own choice");
}

Result<Target> ChooseTarget(const PlanOptions& options) {
  const std::vector<Target> supported = SupportedTargets();
  if (!options.target) {
    if (!supported.empty()) return supported.back();
    return Status::Unsupported(
        "this machine has none of the instruction sets that the tile kernels were built for; use "
        "the reference path");
  }
  if (std::find(supported.begin(), supported.end(), *options.target) != supported.end()) {
    return *options.target;
  }
  std::vector<std::string_view> names;
  for (const Target target : supported) names.push_back(TargetName(target));
  return Status::Unsupported("target " + std::string(TargetName(*options.target)) +
                             " is not supported by this machine or build; supported: " +
                             (names.empty() ? "none" : JoinNames(names)));
}

}  // namespace

std::string_view PathName(Path path) noexcept {
  switch (path) {
    case Path::kReference:
      return "reference";
    case Path::kFused:
      return "fused";
  }
  return "unknown";
}

Result<Plan> Plan::Make(const Problem& problem, const PlanOptions& options) {
  Plan plan(problem);
  if (options.tiles) {
    if (Status status = CheckTiles(*options.tiles); !status.ok()) return status;
  }
  if (options.path == Path::kReference) {
    plan.reason_ = "the reference path was asked for";
    return plan;
  }
  const bool forced = options.path.has_value();
  plan.reason_ = WhyNotFused(problem);
  if (!plan.reason_.empty()) {
    if (forced)
      return Status::Unsupported("the fused path cannot serve this problem: " + plan.reason_);
    return plan;
  }
  Result<Target> target = ChooseTarget(options);
  if (!target.ok()) {
    if (forced || options.target) return target.status();
    plan.reason_ = target.status().message();
    return plan;
  }
  plan.path_ = Path::kFused;
  plan.target_ = *target;
  plan.heads_as_queries_ = HeadsAsQueries(problem);
  plan.native_bf16_ = problem.dtype() == DType::kBFloat16 && *target == Target::kAvx512 &&
                      problem.shape().head_dim % 2 == 0 && FindBf16Kernels() != nullptr;
  plan.tiles_ = options.tiles.value_or(ChooseTiles(problem));
  plan.reason_ = forced ? "the fused path was asked for" : "the tile kernels serve this problem";
  return plan;
}

std::size_t Plan::ForwardScratchBytes(int num_workers) const noexcept {
  if (path_ == Path::kReference) return ReferenceForwardScratchBytes(problem_, num_workers);
  return FusedForwardScratchBytes(heads_as_queries_ ? *heads_as_queries_ : problem_,
                                  MakeTiling(*this), num_workers);
}

std::size_t Plan::BackwardScratchBytes(int num_workers, const BackwardWork& work) const noexcept {
  if (path_ == Path::kReference) {
    return ReferenceBackwardScratchBytes(problem_, num_workers, work.grad_attn_mask);
  }
  return FusedBackwardScratchBytes(problem_, MakeTiling(*this), work, num_workers);
}

std::string Plan::ToString() const {
  std::string text = "path: " + std::string(PathName(path_)) + "\nreason: " + reason_;
  if (path_ == Path::kFused) {
    text += "\ntarget: " + std::string(TargetName(target_)) +
            "\nforward tiles: " + FormatNumber(tiles_.blocks_per_task) + " x 64 queries by " +
            FormatNumber(tiles_.forward_keys) + " keys\nbackward tiles: 64 queries by " +
            FormatNumber(tiles_.backward_keys) + " keys";
  }
  if (native_bf16_) text += "\nforward multiplies pairs of bfloat16, with sums in float32";
  if (heads_as_queries_) text += "\nforward computes the heads of a group as queries of one head";
  text += "\nscratch, one worker: forward " + FormatNumber(ForwardScratchBytes(1)) +
          " bytes, backward " + FormatNumber(BackwardScratchBytes(1)) + " bytes";
  return text;
}

}  // namespace attndrop
