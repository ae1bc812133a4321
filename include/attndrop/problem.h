// SPDX-License-Identifier: Apache-2.0
// Problem: an attention call as a value, legal by construction, printable on one line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attndrop/dropout.h"
#include "attndrop/dtype.h"
#include "attndrop/export.h"
#include "attndrop/schemes.h"
#include "attndrop/status.h"

namespace attndrop {

struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t num_heads = 1;     // query heads
  std::int64_t num_kv_heads = 0;  // divides num_heads; 0 means num_heads
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = -1;  // -1 means head_dim
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// Where query i stands: at key i (kTopLeft, as PyTorch), or so that the last query stands at the
// last key (kBottomRight, as flash-attention).
enum class CausalAlign : std::uint8_t { kTopLeft, kBottomRight };

// Keys seen around the query's position, both ends included; -1 means unlimited.
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
  friend bool operator==(const Window&, const Window&) = default;
};

enum class MaskKind : std::uint8_t {
  kNone,
  kBool,   // uint8; not 0: the weight takes part
  kFloat,  // added to the logits; exactly -inf: the weight takes no part
};

// The form of attn_mask; its numbers are an input of the call. An axis it does not vary over has
// length 1 there.
struct MaskForm {
  MaskKind kind = MaskKind::kNone;
  DType dtype = DType::kFloat32;  // kFloat only
  bool per_batch = false;
  bool per_head = false;
  bool per_query = false;
  bool per_key = false;
  friend ATTNDROP_EXPORT bool operator==(const MaskForm& a, const MaskForm& b);
};

// Sequences of different lengths behind one another along the rows of one array. Sequence s owns
// rows cu_seqlens[s] .. cu_seqlens[s+1]; of these it uses the first used[s] (empty: all).
struct RaggedLengths {
  std::vector<std::int64_t> cu_seqlens_q{};  // batch + 1 entries, from 0, not decreasing
  std::vector<std::int64_t> cu_seqlens_k{};
  std::vector<std::int64_t> used_q{};  // batch entries or none
  std::vector<std::int64_t> used_k{};
  friend bool operator==(const RaggedLengths&, const RaggedLengths&) = default;
};

// The whole sequence lengths that a shard is a part of.
struct TotalLengths {
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  friend bool operator==(const TotalLengths&, const TotalLengths&) = default;
};

// How programs that allocate arrays for a problem lay them out (benchmarks, tests). The computation
// itself reads the strides of the views that it is given.
enum class Layout : std::uint8_t {
  kBhsd,      // (batch, heads, seqlen, head_dim), dense
  kBshd,      // (batch, seqlen, heads, head_dim), dense
  kPadded,    // kBhsd with unused elements behind each row
  kExpanded,  // key and value repeated over the batch with stride 0
  kReversed,  // rows stored last to first: negative strides
};

// What a caller has; nothing here is trusted.
struct ProblemArgs {
  AttentionShape shape{};
  DType dtype = DType::kFloat32;
  bool is_causal = false;
  CausalAlign causal_align = CausalAlign::kTopLeft;
  Window window{};
  std::optional<double> scale{};  // default 1/sqrt(head_dim); 1 for head_dim 0
  MaskForm attn_mask{};
  bool alibi = false;  // bias -slope[head] * |i + shift - j|; the slopes are an input of the call
  std::optional<RaggedLengths> ragged{};  // sets batch, seqlen_q and seqlen_k (the longest)
  DropoutConfig dropout{};
  Coord origin{};  // where this shard starts in the whole problem
  // Global batch of each batch entry, or of each sequence of a ragged batch, where they are not
  // consecutive; batch numbers below 2^32, or none: origin.batch + 0, 1, ...
  std::vector<std::int64_t> batch_index{};
  std::optional<TotalLengths> total{};  // whole lengths; default: origin + lengths
  Layout layout = Layout::kBhsd;
};

// One sequence of the batch, as the rows present here and as the whole it belongs to.
struct Sequence {
  std::int64_t first_row_q = 0;  // row of its query 0 in the arrays (ragged batches)
  std::int64_t first_row_k = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t origin_q = 0;  // global index of its first query here
  std::int64_t origin_k = 0;
  std::int64_t total_k = 0;  // keys of the whole sequence
  std::int64_t shift = 0;    // query i (global) stands at key i + shift
};

// 1/sqrt(head_dim), and 1 for head_dim 0, whose logits are 0 anyway.
[[nodiscard]] ATTNDROP_EXPORT double DefaultScale(std::int64_t head_dim) noexcept;

class ATTNDROP_EXPORT Problem {
 public:
  // Every check and every default is here. Errors: kInvalidArgument, kUnsupported.
  [[nodiscard]] static Result<Problem> Make(const ProblemArgs& args);

  // The one-line form, for example
  //   b2 h8 kv2 q1024 k1024 d64 f32 causal scheme=element empty_row=redraw p=0.1 seed=7
  // ToString leaves defaults out and prints doubles so that they read back exactly:
  // Parse(p.ToString()) == p. The words are listed in docs/guide/problem-line.md.
  [[nodiscard]] static Result<Problem> Parse(std::string_view text);
  [[nodiscard]] std::string ToString() const;

  [[nodiscard]] const AttentionShape& shape() const noexcept { return args_.shape; }
  [[nodiscard]] DType dtype() const noexcept { return args_.dtype; }
  [[nodiscard]] bool is_causal() const noexcept { return args_.is_causal; }
  [[nodiscard]] CausalAlign causal_align() const noexcept { return args_.causal_align; }
  [[nodiscard]] const Window& window() const noexcept { return args_.window; }
  [[nodiscard]] double scale() const noexcept { return *args_.scale; }
  [[nodiscard]] const MaskForm& attn_mask() const noexcept { return args_.attn_mask; }
  [[nodiscard]] bool alibi() const noexcept { return args_.alibi; }
  [[nodiscard]] bool is_ragged() const noexcept { return args_.ragged.has_value(); }
  [[nodiscard]] const std::optional<RaggedLengths>& ragged() const noexcept { return args_.ragged; }
  [[nodiscard]] const DropoutConfig& dropout() const noexcept { return args_.dropout; }
  [[nodiscard]] Stage stage() const noexcept { return args_.dropout.stage; }
  [[nodiscard]] const EmptyRowPolicy& empty_row() const noexcept { return args_.dropout.empty_row; }
  [[nodiscard]] const Coord& origin() const noexcept { return args_.origin; }
  [[nodiscard]] const std::vector<std::int64_t>& batch_index() const noexcept {
    return args_.batch_index;
  }
  // The batch of entry `batch` in the coordinates of the mask.
  [[nodiscard]] std::uint32_t global_batch(std::int64_t batch) const noexcept {
    return args_.batch_index.empty()
               ? args_.origin.batch + static_cast<std::uint32_t>(batch)
               : static_cast<std::uint32_t>(args_.batch_index[static_cast<std::size_t>(batch)]);
  }
  // The lengths of the whole sequence; of a ragged batch, those of the longest.
  [[nodiscard]] const TotalLengths& total() const noexcept { return *args_.total; }
  [[nodiscard]] Layout layout() const noexcept { return args_.layout; }

  [[nodiscard]] const Scheme& scheme() const noexcept { return *scheme_; }
  [[nodiscard]] const SchemeParamValues& scheme_params() const noexcept { return scheme_params_; }

  // The realised keep probability is keep_q32 / 2^32 (mask format 1, section 3); 2^32 when
  // training is off.
  [[nodiscard]] std::uint64_t keep_q32() const noexcept { return keep_q32_; }
  [[nodiscard]] double keep_prob() const noexcept {
    return static_cast<double>(keep_q32_) / 4294967296.0;
  }
  [[nodiscard]] bool drops_nothing() const noexcept {
    return keep_q32_ == (std::uint64_t{1} << 32);
  }
  [[nodiscard]] bool drops_everything() const noexcept { return keep_q32_ == 0; }

  // Rows of the arrays: seqlen_q and seqlen_k, or the sum over a ragged batch.
  [[nodiscard]] std::int64_t rows_q() const noexcept;
  [[nodiscard]] std::int64_t rows_k() const noexcept;
  // First index of the arrays: the batch, or 1 for a ragged batch.
  [[nodiscard]] std::int64_t array_batch() const noexcept {
    return is_ragged() ? 1 : args_.shape.batch;
  }
  [[nodiscard]] Sequence sequence(std::int64_t batch) const noexcept;
  // The keys here are not all keys of the whole sequence.
  [[nodiscard]] bool covers_part_of_keys() const noexcept;

  friend ATTNDROP_EXPORT bool operator==(const Problem& a, const Problem& b);

 private:
  Problem() = default;

  ProblemArgs args_;  // defaults filled in
  const Scheme* scheme_ = nullptr;
  SchemeParamValues scheme_params_{};
  std::uint64_t keep_q32_ = 0;
};

}  // namespace attndrop
