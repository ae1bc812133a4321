// SPDX-License-Identifier: Apache-2.0
// The refusals of Problem::Make: each says what was given, what is allowed and what to do.
#include "core/problem_checks.h"

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/text.h"

namespace attndrop {
namespace {

Status CheckSize(std::string_view name, std::int64_t value) {
  if (value >= 0 && value <= kMaxCoordinate) return Status::Ok();
  return Status::InvalidArgument(std::string(name) + " must be in 0 .. 2^32, got " +
                                 FormatNumber(value));
}

Status CheckCumulative(std::string_view name, const std::vector<std::int64_t>& cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0) {
    return Status::InvalidArgument(
        std::string(name) + " must hold batch + 1 numbers that start with 0, got " +
        (cu_seqlens.empty() ? std::string("none") : "first number " + FormatNumber(cu_seqlens[0])));
  }
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] >= cu_seqlens[i - 1]) continue;
    return Status::InvalidArgument(std::string(name) + " must not decrease, got " +
                                   FormatNumber(cu_seqlens[i - 1]) + " and then " +
                                   FormatNumber(cu_seqlens[i]) + " at entry " + FormatNumber(i));
  }
  return CheckSize(std::string(name) + " (its last entry)", cu_seqlens.back());
}

Status CheckUsed(std::string_view name, const std::vector<std::int64_t>& used,
                 const std::vector<std::int64_t>& cu_seqlens) {
  if (used.empty()) return Status::Ok();
  if (used.size() + 1 != cu_seqlens.size()) {
    return Status::InvalidArgument(std::string(name) + " must hold one length for each of the " +
                                   FormatNumber(cu_seqlens.size() - 1) + " sequences, got " +
                                   FormatNumber(used.size()));
  }
  for (std::size_t s = 0; s < used.size(); ++s) {
    const std::int64_t room = cu_seqlens[s + 1] - cu_seqlens[s];
    if (used[s] >= 0 && used[s] <= room) continue;
    return Status::InvalidArgument(std::string(name) + " of sequence " + FormatNumber(s) +
                                   " must be in 0 .. " + FormatNumber(room) +
                                   " (its rows in cu_seqlens), got " + FormatNumber(used[s]));
  }
  return Status::Ok();
}

Status CheckWindowSide(std::string_view side, std::int64_t value) {
  if (value >= -1 && value <= kMaxCoordinate) return Status::Ok();
  return Status::InvalidArgument("window " + std::string(side) +
                                 " must be 0 .. 2^32 keys, or -1 for no limit, got " +
                                 FormatNumber(value));
}

template <class Enum>
Status CheckEnum(std::string_view name, Enum value, Enum last) {
  if (value <= last) return Status::Ok();
  return Status::InvalidArgument(std::string(name) +
                                 " must be one of its enumerators (numbers 0 .. " +
                                 FormatNumber(static_cast<int>(last)) + "), got number " +
                                 FormatNumber(static_cast<int>(value)));
}

Status CheckEnums(const ProblemArgs& args) {
  Status status = CheckEnum("dtype", args.dtype, DType::kFloat16);
  if (status.ok()) {
    status = CheckEnum("causal_align", args.causal_align, CausalAlign::kBottomRight);
  }
  if (status.ok()) status = CheckEnum("attn_mask kind", args.attn_mask.kind, MaskKind::kFloat);
  if (status.ok()) status = CheckEnum("attn_mask dtype", args.attn_mask.dtype, DType::kFloat16);
  if (status.ok()) status = CheckEnum("stage", args.dropout.stage, Stage::kLogits);
  if (status.ok()) {
    status = CheckEnum("empty_row", args.dropout.empty_row.kind, EmptyRow::kUndropped);
  }
  return status.ok() ? CheckEnum("layout", args.layout, Layout::kReversed) : status;
}

// One axis of a shard: origin + length within total, total within the coordinates.
Status CheckAxis(std::string_view name, std::int64_t origin, std::int64_t length,
                 std::int64_t total) {
  const std::int64_t end = origin + length;
  if (end > kMaxCoordinate) {
    return Status::InvalidArgument("origin " + std::string(name) +
                                   " + its length must be at most 2^32, got " +
                                   FormatNumber(origin) + " + " + FormatNumber(length) + " = " +
                                   FormatNumber(end) + "; coordinates of the mask are 32-bit");
  }
  if (total >= end && total <= kMaxCoordinate) return Status::Ok();
  return Status::InvalidArgument(
      "total " + std::string(name) + " must be in " + FormatNumber(end) +
      " (origin + length here) .. 2^32, got " + FormatNumber(total) +
      "; it is the length of the whole sequence that this problem is a part of");
}

Status CheckBatchIndex(const ProblemArgs& args) {
  const std::vector<std::int64_t>& index = args.batch_index;
  if (index.empty()) return Status::Ok();
  if (static_cast<std::int64_t>(index.size()) != args.shape.batch) {
    return Status::InvalidArgument("batch_index must hold one number for each of the " +
                                   FormatNumber(args.shape.batch) + " entries of the batch, got " +
                                   FormatNumber(index.size()));
  }
  if (args.origin.batch != 0) {
    return Status::InvalidArgument(
        "batch_index gives the place of every entry in the whole batch: origin batch must be 0 "
        "beside it, got " +
        FormatNumber(args.origin.batch) + "; add it to the numbers of batch_index");
  }
  for (std::size_t b = 0; b < index.size(); ++b) {
    if (index[b] >= 0 && index[b] < kMaxCoordinate) continue;
    return Status::InvalidArgument("batch_index must hold numbers in 0 .. 2^32 - 1, got " +
                                   FormatNumber(index[b]) + " at entry " + FormatNumber(b));
  }
  return Status::Ok();
}

Status CheckSquare(const Problem& problem, std::int64_t total_q, std::int64_t total_k) {
  if (!problem.scheme().info.requires_square || total_q == total_k) return Status::Ok();
  return Status::InvalidArgument("scheme \"" + std::string(problem.scheme().info.name) +
                                 "\" needs seqlen_q == seqlen_k, got " + FormatNumber(total_q) +
                                 " and " + FormatNumber(total_k) +
                                 "; use \"element\" for cross attention");
}

Status CheckSquareEverywhere(const Problem& problem) {
  if (!problem.is_ragged()) {
    const TotalLengths total = problem.total();
    return CheckSquare(problem, total.seqlen_q, total.seqlen_k);
  }
  for (std::int64_t batch = 0; batch < problem.shape().batch; ++batch) {
    const Sequence sequence = problem.sequence(batch);
    Status status = CheckSquare(problem, sequence.seqlen_q, sequence.seqlen_k);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace

Status CheckShape(const AttentionShape& shape) {
  const std::pair<std::string_view, std::int64_t> sizes[] = {
      {"batch", shape.batch},
      {"num_heads", shape.num_heads},
      {"num_kv_heads", shape.num_kv_heads},
      {"seqlen_q", shape.seqlen_q},
      {"seqlen_k", shape.seqlen_k},
      {"head_dim", shape.head_dim},
      {"head_dim_v",
       shape.head_dim_v < -1 ? shape.head_dim_v : std::max<std::int64_t>(shape.head_dim_v, 0)}};
  for (const auto& [name, value] : sizes) {
    if (Status status = CheckSize(name, value); !status.ok()) return status;
  }
  if (shape.num_kv_heads != 0 && shape.num_heads % shape.num_kv_heads != 0) {
    return Status::InvalidArgument("num_heads must be a multiple of num_kv_heads, got " +
                                   FormatNumber(shape.num_heads) + " query heads over " +
                                   FormatNumber(shape.num_kv_heads) + " key/value heads");
  }
  return Status::Ok();
}

Status CheckRagged(const RaggedLengths& ragged) {
  Status status = CheckCumulative("cu_seqlens_q", ragged.cu_seqlens_q);
  if (status.ok()) status = CheckCumulative("cu_seqlens_k", ragged.cu_seqlens_k);
  if (!status.ok()) return status;
  if (ragged.cu_seqlens_q.size() != ragged.cu_seqlens_k.size()) {
    return Status::InvalidArgument(
        "cu_seqlens_q and cu_seqlens_k must have batch + 1 entries each, got " +
        FormatNumber(ragged.cu_seqlens_q.size()) + " and " +
        FormatNumber(ragged.cu_seqlens_k.size()));
  }
  status = CheckUsed("used_q", ragged.used_q, ragged.cu_seqlens_q);
  return status.ok() ? CheckUsed("used_k", ragged.used_k, ragged.cu_seqlens_k) : status;
}

Status CheckValues(const ProblemArgs& args) {
  Status status = CheckEnums(args);
  if (status.ok()) status = CheckWindowSide("left", args.window.left);
  if (status.ok()) status = CheckWindowSide("right", args.window.right);
  if (!status.ok()) return status;
  if (args.scale && !std::isfinite(*args.scale)) {
    return Status::InvalidArgument(
        "scale must be a finite number (0 and negative ones are allowed), got " +
        FormatNumber(*args.scale) + "; leave it out for 1/sqrt(head_dim)");
  }
  const double p = args.dropout.dropout_p;
  if (!(p >= 0.0 && p <= 1.0)) {
    return Status::InvalidArgument("dropout_p must be a finite number in [0, 1], got " +
                                   FormatNumber(p) + "; 0.5 drops half of the weights");
  }
  const EmptyRowPolicy& policy = args.dropout.empty_row;
  if (policy.kind == EmptyRow::kAtLeastOne &&
      (policy.attempts < 1 || policy.attempts > kMaxAttempts)) {
    return Status::InvalidArgument("empty_row at_least_one needs attempts in 1 .. " +
                                   FormatNumber(kMaxAttempts) + ", got " +
                                   FormatNumber(policy.attempts));
  }
  return Status::Ok();
}

Status CheckShard(const ProblemArgs& args) {
  const Coord& origin = args.origin;
  const AttentionShape& shape = args.shape;
  if (args.ragged && (origin.query != 0 || origin.key != 0 || args.total)) {
    return Status::InvalidArgument(
        "a ragged batch holds whole sequences: origin query and key must be 0 and total lengths "
        "left out, got origin query " +
        FormatNumber(origin.query) + ", key " + FormatNumber(origin.key) +
        (args.total ? " and total lengths" : "") +
        "; split it by batch or heads, or pass each sequence as a problem of its own");
  }
  Status status = CheckAxis("batch", origin.batch, shape.batch, kMaxCoordinate);
  if (status.ok()) status = CheckAxis("head", origin.head, shape.num_heads, kMaxCoordinate);
  const TotalLengths total =
      args.total.value_or(TotalLengths{origin.query + shape.seqlen_q, origin.key + shape.seqlen_k});
  if (status.ok()) status = CheckAxis("query", origin.query, shape.seqlen_q, total.seqlen_q);
  if (status.ok()) status = CheckAxis("key", origin.key, shape.seqlen_k, total.seqlen_k);
  return status.ok() ? CheckBatchIndex(args) : status;
}

Status CheckLegality(const Problem& problem) {
  if (Status status = CheckSquareEverywhere(problem); !status.ok()) return status;
  const EmptyRowPolicy& policy = problem.empty_row();
  const std::string policy_name = EmptyRowName(policy);
  const SchemeInfo& scheme = problem.scheme().info;
  if (policy.kind == EmptyRow::kAtLeastOne && !scheme.row_redraw) {
    return Status::InvalidArgument(
        "empty_row " + policy_name + " draws one row again, and with scheme \"" +
        std::string(scheme.name) +
        "\" other rows share its draws; use empty_row keep_self, keep_first or undropped, or "
        "scheme element or shared");
  }
  if (problem.drops_everything() && policy.kind != EmptyRow::kZero) {
    return Status::InvalidArgument(
        "empty_row " + policy_name + " needs dropout_p below 1 - 2^-33, got " +
        FormatNumber(problem.dropout().dropout_p) + "; only empty_row zero can drop everything");
  }
  const bool reads_whole_row =
      policy.kind == EmptyRow::kAtLeastOne || policy.kind == EmptyRow::kUndropped;
  if (reads_whole_row && !problem.drops_nothing() && problem.covers_part_of_keys() &&
      problem.attn_mask().kind != MaskKind::kNone) {
    return Status::InvalidArgument("empty_row " + policy_name +
                                   " looks at all keys of a row, and an attn_mask of a part of "
                                   "the keys (" +
                                   FormatNumber(problem.shape().seqlen_k) + " of " +
                                   FormatNumber(problem.total().seqlen_k) +
                                   ") does not tell which of the others are visible; "
                                   "use empty_row zero, keep_self or keep_first, or pass all keys");
  }
  return Status::Ok();
}

}  // namespace attndrop
