// SPDX-License-Identifier: Apache-2.0
// The oracle's mask and the naive attention for whole problems: batches, grouped heads, ragged
// sequences, shards, attn_mask and ALiBi.
#include <cmath>
#include <cstdlib>
#include <limits>

#include "support/mask_oracle.h"
#include "support/naive_attention.h"

namespace attndrop::testing {
namespace {

// attn_mask at local indices; broadcast axes have length 1.
double MaskNumber(const MaskForm& form, const Array& mask, const OracleWeight& at) {
  const auto index = [](bool varies, std::uint64_t x) {
    return varies ? static_cast<std::int64_t>(x) : 0;
  };
  return mask.Get(index(form.per_batch, at.b), index(form.per_head, at.h),
                  index(form.per_query, at.i), index(form.per_key, at.j));
}

bool MaskShows(const MaskForm& form, const Array& mask, const OracleWeight& at) {
  if (form.kind == MaskKind::kNone) return true;
  const double number = MaskNumber(form, mask, at);
  return form.kind == MaskKind::kBool ? number != 0.0
                                      : number != -std::numeric_limits<double>::infinity();
}

// Causal and window, all global.
bool PositionShows(const ProblemArgs& args, std::int64_t position, std::int64_t j) {
  if (args.is_causal && j > position) return false;
  if (args.window.left >= 0 && j < position - args.window.left) return false;
  return args.window.right < 0 || j <= position + args.window.right;
}

bool NeedsWholeRow(const ProblemArgs& args) {
  const EmptyRow kind = args.dropout.empty_row.kind;
  return kind == EmptyRow::kAtLeastOne || kind == EmptyRow::kUndropped;
}

class MaskComputation {
 public:
  MaskComputation(const ProblemArgs& args, const ProblemArrays& arrays)
      : args_(args), arrays_(arrays), oracle_(args.dropout) {}

  OracleMask Run() {
    mask_.batch = args_.ragged ? static_cast<std::int64_t>(args_.ragged->cu_seqlens_q.size()) - 1
                               : args_.shape.batch;
    mask_.heads = args_.shape.num_heads;
    mask_.seqlen_q = args_.ragged ? 0 : args_.shape.seqlen_q;
    mask_.seqlen_k = args_.ragged ? 0 : args_.shape.seqlen_k;
    for (std::int64_t b = 0; b < mask_.batch && args_.ragged; ++b) {
      mask_.seqlen_q = std::max(mask_.seqlen_q, ViewSequence(args_, b).seqlen_q);
      mask_.seqlen_k = std::max(mask_.seqlen_k, ViewSequence(args_, b).seqlen_k);
    }
    const auto cells =
        static_cast<std::size_t>(mask_.batch * mask_.heads * mask_.seqlen_q * mask_.seqlen_k);
    mask_.visible.assign(cells, 0);
    mask_.keep.assign(cells, 0);
    mask_.factor.assign(cells, 0.0);
    for (std::int64_t b = 0; b < mask_.batch; ++b) {
      const SequenceView view = ViewSequence(args_, b);
      for (std::int64_t h = 0; h < mask_.heads; ++h) {
        for (std::int64_t i = 0; i < view.seqlen_q; ++i) ComputeRow(view, b, h, i);
      }
    }
    return std::move(mask_);
  }

 private:
  void ComputeRow(const SequenceView& view, std::int64_t b, std::int64_t h, std::int64_t i) {
    OracleRow row;
    row.b = args_.batch_index.empty()
                ? static_cast<std::uint64_t>(b) + args_.origin.batch
                : static_cast<std::uint64_t>(args_.batch_index[static_cast<std::size_t>(b)]);
    row.h = static_cast<std::uint64_t>(h) + args_.origin.head;
    row.i = static_cast<std::uint64_t>(i + view.origin_q);
    row.self = i + view.origin_q + view.shift;
    if (row.self >= view.total_k) row.self = -1;
    const bool whole = NeedsWholeRow(args_);
    const std::int64_t first = whole ? 0 : view.origin_k;
    const std::int64_t last = whole ? view.total_k : view.origin_k + view.seqlen_k;
    for (std::int64_t j = first; j < last; ++j) {
      const std::int64_t local = j - view.origin_k;
      const bool here = local >= 0 && local < view.seqlen_k;
      bool shows = PositionShows(args_, i + view.origin_q + view.shift, j);
      if (shows && here) {
        shows = MaskShows(args_.attn_mask, arrays_.attn_mask,
                          {static_cast<std::uint64_t>(b), static_cast<std::uint64_t>(h),
                           static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(local)});
      }
      if (shows) row.visible.push_back(static_cast<std::uint64_t>(j));
    }
    const std::vector<OracleCell> cells = oracle_.Row(row);
    for (std::size_t k = 0; k < cells.size(); ++k) {
      const std::int64_t local = static_cast<std::int64_t>(row.visible[k]) - view.origin_k;
      if (local < 0 || local >= view.seqlen_k) continue;
      const std::size_t index = mask_.Index(b, h, i, local);
      mask_.visible[index] = 1;
      mask_.keep[index] = cells[k].keep ? 1 : 0;
      mask_.factor[index] = cells[k].factor;
    }
  }

  const ProblemArgs& args_;
  const ProblemArrays& arrays_;
  MaskOracle oracle_;
  OracleMask mask_;
};

class ProblemComputation {
 public:
  ProblemComputation(const ProblemArgs& args, const ProblemArrays& arrays, const OracleMask& mask)
      : args_(args), arrays_(arrays), mask_(mask) {
    for (NaiveResult* result : {&problem_.value, &problem_.bound}) {
      result->out = Dense4(arrays.out.shape());
      result->logsumexp = Dense4(arrays.logsumexp.shape());
      result->grad_query = Dense4(arrays.query.shape());
      result->grad_key = Dense4(arrays.key.shape());
      result->grad_value = Dense4(arrays.value.shape());
      result->grad_attn_mask = Dense4(arrays.attn_mask.shape());
    }
    for (double& x : problem_.value.logsumexp.values) x = -std::numeric_limits<double>::infinity();
  }

  NaiveProblem Run() {
    for (std::int64_t b = 0; b < mask_.batch; ++b) {
      for (std::int64_t h = 0; h < mask_.heads; ++h) {
        const SequenceView view = ViewSequence(args_, b);
        Scatter(view, b, h, RunNaiveHead(Gather(view, b, h)));
      }
    }
    return std::move(problem_);
  }

 private:
  std::int64_t KvHead(std::int64_t h) const { return h / (args_.shape.num_heads / KvHeads(args_)); }

  static std::vector<double> Rows(const Array& array, std::int64_t b, std::int64_t h,
                                  std::int64_t first, std::int64_t count) {
    std::vector<double> rows;
    for (std::int64_t r = first; r < first + count; ++r) {
      for (std::int64_t c = 0; c < array.shape().cols; ++c) rows.push_back(array.Get(b, h, r, c));
    }
    return rows;
  }

  double Bias(const SequenceView& view, std::int64_t b, std::int64_t h, std::int64_t i,
              std::int64_t j) const {
    double bias = 0.0;
    if (args_.attn_mask.kind == MaskKind::kFloat) {
      bias += MaskNumber(args_.attn_mask, arrays_.attn_mask,
                         {static_cast<std::uint64_t>(b), static_cast<std::uint64_t>(h),
                          static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(j)});
    }
    if (args_.alibi) {
      const std::int64_t distance = std::abs(i + view.origin_q + view.shift - j - view.origin_k);
      const float slope = arrays_.slopes[static_cast<std::size_t>(b * args_.shape.num_heads + h)];
      bias -= static_cast<double>(slope) * static_cast<double>(distance);
    }
    return bias;
  }

  NaiveHead Gather(const SequenceView& view, std::int64_t b, std::int64_t h) const {
    NaiveHead head;
    head.rows_q = view.seqlen_q;
    head.rows_k = view.seqlen_k;
    head.dim = args_.shape.head_dim;
    head.dim_v = HeadDimV(args_);
    head.scale = ScaleOf(args_);
    head.stage_logits = args_.dropout.stage == Stage::kLogits;
    const std::int64_t a = view.array_batch, kv = KvHead(h);
    head.query = Rows(arrays_.query, a, h, view.first_row_q, view.seqlen_q);
    head.key = Rows(arrays_.key, a, kv, view.first_row_k, view.seqlen_k);
    head.value = Rows(arrays_.value, a, kv, view.first_row_k, view.seqlen_k);
    head.grad_out = Rows(arrays_.grad_out, a, h, view.first_row_q, view.seqlen_q);
    head.grad_logsumexp.assign(static_cast<std::size_t>(view.seqlen_q), 0.0);
    if (arrays_.has_grad_logsumexp) {
      head.grad_logsumexp = Rows(arrays_.grad_logsumexp, a, h, view.first_row_q, view.seqlen_q);
    }
    for (std::int64_t i = 0; i < view.seqlen_q; ++i) {
      for (std::int64_t j = 0; j < view.seqlen_k; ++j) {
        const std::size_t cell = mask_.Index(b, h, i, j);
        head.visible.push_back(mask_.visible[cell]);
        head.keep.push_back(mask_.keep[cell]);
        head.factor.push_back(mask_.factor[cell]);
        head.bias.push_back(Bias(view, b, h, i, j));
      }
    }
    return head;
  }

  static void AddRows(const NaiveNumbers& numbers, std::int64_t b, std::int64_t h,
                      std::int64_t first, Dense4& value, Dense4& bound) {
    const std::int64_t cols = value.shape.cols;
    for (std::size_t k = 0; k < numbers.value.size(); ++k) {
      const auto index = static_cast<std::int64_t>(k);
      value.at(b, h, first + index / cols, index % cols) += numbers.value[k];
      bound.at(b, h, first + index / cols, index % cols) += numbers.bound[k];
    }
  }

  void Scatter(const SequenceView& view, std::int64_t b, std::int64_t h,
               const NaiveOutput& output) {
    NaiveResult& value = problem_.value;
    NaiveResult& bound = problem_.bound;
    const std::int64_t a = view.array_batch, kv = KvHead(h);
    const std::int64_t q = view.first_row_q, k = view.first_row_k;
    for (std::int64_t i = 0; i < view.seqlen_q; ++i) value.logsumexp.at(a, h, q + i, 0) = 0.0;
    AddRows(output.logsumexp, a, h, q, value.logsumexp, bound.logsumexp);
    AddRows(output.out, a, h, q, value.out, bound.out);
    AddRows(output.grad_query, a, h, q, value.grad_query, bound.grad_query);
    AddRows(output.grad_key, a, kv, k, value.grad_key, bound.grad_key);
    AddRows(output.grad_value, a, kv, k, value.grad_value, bound.grad_value);
    const MaskForm& form = args_.attn_mask;
    if (form.kind != MaskKind::kFloat) return;
    for (std::int64_t i = 0; i < view.seqlen_q; ++i) {
      for (std::int64_t j = 0; j < view.seqlen_k; ++j) {
        const auto cell = static_cast<std::size_t>(i * view.seqlen_k + j);
        const std::size_t index =
            value.grad_attn_mask.Index(form.per_batch ? b : 0, form.per_head ? h : 0,
                                       form.per_query ? i : 0, form.per_key ? j : 0);
        value.grad_attn_mask.values[index] += output.grad_logits.value[cell];
        bound.grad_attn_mask.values[index] += output.grad_logits.bound[cell];
      }
    }
  }

  const ProblemArgs& args_;
  const ProblemArrays& arrays_;
  const OracleMask& mask_;
  NaiveProblem problem_;
};

}  // namespace

double ScaleOf(const ProblemArgs& args) {
  if (args.scale) return *args.scale;
  return args.shape.head_dim == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(args.shape.head_dim));
}

OracleMask ComputeOracleMask(const ProblemArgs& args, const ProblemArrays& arrays) {
  return MaskComputation(args, arrays).Run();
}

NaiveProblem RunNaive(const ProblemArgs& args, const ProblemArrays& arrays,
                      const OracleMask& mask) {
  return ProblemComputation(args, arrays, mask).Run();
}

}  // namespace attndrop::testing
