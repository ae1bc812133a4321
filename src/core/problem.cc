// SPDX-License-Identifier: Apache-2.0
// Problem: defaults and derived values.
#include "attndrop/problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/problem_checks.h"
#include "core/scheme_text.h"
#include "rng/field.h"

namespace attndrop {
namespace {

std::int64_t UsedLength(const std::vector<std::int64_t>& cu_seqlens,
                        const std::vector<std::int64_t>& used, std::size_t sequence) noexcept {
  return used.empty() ? cu_seqlens[sequence + 1] - cu_seqlens[sequence] : used[sequence];
}

std::int64_t LongestSequence(const std::vector<std::int64_t>& cu_seqlens,
                             const std::vector<std::int64_t>& used) noexcept {
  std::int64_t longest = 0;
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    longest = std::max(longest, UsedLength(cu_seqlens, used, s));
  }
  return longest;
}

// What a ragged batch says of its own sizes.
void SetRaggedShape(const RaggedLengths& ragged, AttentionShape& shape) noexcept {
  shape.batch = static_cast<std::int64_t>(ragged.cu_seqlens_q.size()) - 1;
  shape.seqlen_q = LongestSequence(ragged.cu_seqlens_q, ragged.used_q);
  shape.seqlen_k = LongestSequence(ragged.cu_seqlens_k, ragged.used_k);
}

void FillDefaults(ProblemArgs& args) noexcept {
  AttentionShape& shape = args.shape;
  if (shape.num_kv_heads == 0) shape.num_kv_heads = shape.num_heads;
  if (shape.head_dim_v < 0) shape.head_dim_v = shape.head_dim;
  if (!args.scale) args.scale = DefaultScale(shape.head_dim);
  if (args.attn_mask.kind == MaskKind::kNone) args.attn_mask = {};
  if (args.attn_mask.kind == MaskKind::kBool) args.attn_mask.dtype = DType::kFloat32;
  const TotalLengths here{args.origin.query + shape.seqlen_q, args.origin.key + shape.seqlen_k};
  if (!args.total) args.total = here;
}

}  // namespace

double DefaultScale(std::int64_t head_dim) noexcept {
  return head_dim == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

Result<Problem> Problem::Make(const ProblemArgs& given) {
  Problem problem;
  ProblemArgs& args = problem.args_;
  args = given;
  Status status = args.ragged ? CheckRagged(*args.ragged) : Status::Ok();
  if (!status.ok()) return status;
  if (args.ragged) SetRaggedShape(*args.ragged, args.shape);
  status = CheckShape(args.shape);
  if (status.ok()) status = CheckValues(args);
  if (status.ok()) status = CheckShard(args);
  if (!status.ok()) return status;

  Result<ParsedScheme> scheme = ParseScheme(args.dropout.scheme);
  if (!scheme.ok()) return scheme.status();
  problem.scheme_ = scheme->scheme;
  problem.scheme_params_ = scheme->params;
  args.dropout.scheme = SchemeText(*scheme);
  problem.keep_q32_ =
      args.dropout.training ? KeepQ32(args.dropout.dropout_p) : std::uint64_t{1} << 32;
  FillDefaults(args);
  status = CheckLegality(problem);
  if (!status.ok()) return status;
  return problem;
}

std::int64_t Problem::rows_q() const noexcept {
  return is_ragged() ? args_.ragged->cu_seqlens_q.back() : args_.shape.seqlen_q;
}

std::int64_t Problem::rows_k() const noexcept {
  return is_ragged() ? args_.ragged->cu_seqlens_k.back() : args_.shape.seqlen_k;
}

Sequence Problem::sequence(std::int64_t batch) const noexcept {
  Sequence sequence;
  std::int64_t total_q = 0;
  if (is_ragged()) {
    const auto s = static_cast<std::size_t>(batch);
    const RaggedLengths& ragged = *args_.ragged;
    sequence.first_row_q = ragged.cu_seqlens_q[s];
    sequence.first_row_k = ragged.cu_seqlens_k[s];
    sequence.seqlen_q = UsedLength(ragged.cu_seqlens_q, ragged.used_q, s);
    sequence.seqlen_k = UsedLength(ragged.cu_seqlens_k, ragged.used_k, s);
    sequence.total_k = sequence.seqlen_k;
    total_q = sequence.seqlen_q;
  } else {
    sequence.seqlen_q = args_.shape.seqlen_q;
    sequence.seqlen_k = args_.shape.seqlen_k;
    sequence.origin_q = args_.origin.query;
    sequence.origin_k = args_.origin.key;
    sequence.total_k = total().seqlen_k;
    total_q = total().seqlen_q;
  }
  if (args_.causal_align == CausalAlign::kBottomRight) sequence.shift = sequence.total_k - total_q;
  return sequence;
}

bool Problem::covers_part_of_keys() const noexcept {
  return !is_ragged() && args_.shape.seqlen_k != total().seqlen_k;
}

bool operator==(const MaskForm& a, const MaskForm& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == MaskKind::kNone) return true;
  return (a.kind == MaskKind::kBool || a.dtype == b.dtype) && a.per_batch == b.per_batch &&
         a.per_head == b.per_head && a.per_query == b.per_query && a.per_key == b.per_key;
}

bool operator==(const Problem& a, const Problem& b) {
  const ProblemArgs& x = a.args_;
  const ProblemArgs& y = b.args_;
  const DropoutConfig& c = x.dropout;
  const DropoutConfig& d = y.dropout;
  const bool same_dropout = c.dropout_p == d.dropout_p && c.scheme == d.scheme &&
                            c.stage == d.stage && c.empty_row == d.empty_row && c.seed == d.seed &&
                            c.offset == d.offset && c.training == d.training;
  return same_dropout && x.shape == y.shape && x.dtype == y.dtype && x.is_causal == y.is_causal &&
         x.causal_align == y.causal_align && x.window == y.window && x.scale == y.scale &&
         x.attn_mask == y.attn_mask && x.alibi == y.alibi && x.ragged == y.ragged &&
         x.origin == y.origin && x.batch_index == y.batch_index && x.total == y.total &&
         x.layout == y.layout;
}

}  // namespace attndrop
