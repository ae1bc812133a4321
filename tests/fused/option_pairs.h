// SPDX-License-Identifier: Apache-2.0
// Which options of a problem a test has met, pair by pair.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fused/bound.h"
#include "support/random_problem.h"

namespace attndrop::testing {

// One value of each option, such as "stage logits".
inline constexpr std::size_t kNumOptions = 19;
using Options = std::array<std::string, kNumOptions>;

inline std::string LengthClass(std::int64_t length) {
  for (const std::int64_t multiple : {16, 32, 64}) {
    if (length >= multiple - 1 && length <= multiple + 1) return "near " + std::to_string(multiple);
  }
  return length <= 2 ? std::to_string(length) : "other";
}

inline std::string RateClass(const DropoutConfig& dropout) {
  if (!dropout.training) return "training off";
  const double p = dropout.dropout_p;
  return p == 0.0 ? "0" : p == 1.0 ? "1" : p < 1e-6 ? "tiny" : p > 0.999 ? "near 1" : "ordinary";
}

inline std::string PolicyClass(const EmptyRowPolicy& policy) {
  if (policy.kind != EmptyRow::kAtLeastOne) return EmptyRowName(policy);
  return policy.attempts == 1 ? "keep_one" : "at_least_one";
}

inline std::string CausalClass(const ProblemArgs& args) {
  if (!args.is_causal) return "no";
  return args.causal_align == CausalAlign::kTopLeft ? "top-left" : "bottom-right";
}

inline std::string WindowClass(const Window& window) {
  if (window.left < 0) return window.right < 0 ? "none" : "right";
  return window.right < 0 ? "left" : "both";
}

inline std::string MaskClass(const MaskForm& mask) {
  if (mask.kind == MaskKind::kNone) return "none";
  return mask.kind == MaskKind::kBool ? "bool" : std::string(DTypeName(mask.dtype));
}

inline std::string PartClass(const ProblemArgs& args) {
  return args.ragged ? "ragged" : args.total ? "shard" : "whole";
}

inline Options OptionsOf(const ProblemArgs& args) {
  const DropoutConfig& dropout = args.dropout;
  const auto yes_no = [](bool yes) { return std::string(yes ? "yes" : "no"); };
  const bool has_mask = args.attn_mask.kind != MaskKind::kNone;
  return {"scheme " + dropout.scheme.substr(0, dropout.scheme.find(':')),
          "stage " + std::string(StageName(dropout.stage)),
          "empty_row " + PolicyClass(dropout.empty_row),
          "dropout_p " + RateClass(dropout),
          "dtype " + std::string(DTypeName(args.dtype)),
          "causal " + CausalClass(args),
          "window " + WindowClass(args.window),
          "attn_mask " + MaskClass(args.attn_mask),
          "mask rows " + (has_mask ? yes_no(args.attn_mask.per_query) : "none"),
          "mask batch " + (has_mask ? yes_no(args.attn_mask.per_batch) : "none"),
          "mask heads " + (has_mask ? yes_no(args.attn_mask.per_head) : "none"),
          "alibi " + yes_no(args.alibi),
          "grouped " + yes_no(args.shape.num_heads != KvHeads(args)),
          "part " + PartClass(args),
          "layout " + std::to_string(static_cast<int>(args.layout)),
          "head_dim_v given " + yes_no(args.shape.head_dim_v >= 0),
          "scale given " + yes_no(args.scale.has_value()),
          "seqlen_q " + (args.ragged ? "ragged" : LengthClass(args.shape.seqlen_q)),
          "seqlen_k " + (args.ragged ? "ragged" : LengthClass(args.shape.seqlen_k))};
}

inline bool Begins(const std::string& text, std::string_view with) {
  return text.starts_with(with);
}

// Pairs that no problem can have; first is an earlier option than second.
inline bool IsImpossible(const std::string& first, const std::string& second) {
  const bool redraws = second == "empty_row keep_one" || second == "empty_row at_least_one";
  if (redraws && Begins(first, "scheme ")) {
    return first != "scheme element" && first != "scheme shared";
  }
  // Everything dropped goes with zero rows alone.
  if (Begins(first, "empty_row ") && second == "dropout_p 1") return first != "empty_row zero";
  // An attn_mask has its axes, no attn_mask has none.
  if (first == "attn_mask none" && Begins(second, "mask ")) return !second.ends_with(" none");
  if (Begins(first, "attn_mask ") && Begins(second, "mask ")) return second.ends_with(" none");
  if (Begins(first, "mask ") && Begins(second, "mask ")) {
    return first.ends_with(" none") != second.ends_with(" none");
  }
  if (Begins(first, "part ") && Begins(second, "seqlen_")) {
    return (first == "part ragged") != second.ends_with(" ragged");
  }
  if (Begins(first, "seqlen_q ") && Begins(second, "seqlen_k ")) {
    return first.ends_with(" ragged") != second.ends_with(" ragged");
  }
  return false;
}

// The pairs of option values that were met.
class PairCover {
 public:
  // Whether the problem has a pair that none before it had.
  bool Add(const ProblemArgs& args) {
    const Options options = OptionsOf(args);
    std::array<std::size_t, kNumOptions> index{};
    for (std::size_t i = 0; i < kNumOptions; ++i) index[i] = Index(i, options[i]);
    bool added = false;
    for (std::size_t i = 0; i < kNumOptions; ++i) {
      for (std::size_t j = i + 1; j < kNumOptions; ++j) {
        bool& seen = seen_[i][j][index[i]][index[j]];
        added = added || !seen;
        seen = true;
      }
    }
    return added;
  }

  [[nodiscard]] const std::vector<std::string>& values(std::size_t option) const {
    return values_[option];
  }

  // Legal pairs of values, both met, but never in one problem.
  [[nodiscard]] std::vector<std::string> Missing() const {
    std::vector<std::string> missing;
    ForEachLegal([&](const std::string& first, const std::string& second, bool seen) {
      if (!seen) missing.push_back(first + ", " + second);
    });
    return missing;
  }
  [[nodiscard]] int NumLegal() const {
    int count = 0;
    ForEachLegal([&count](const std::string&, const std::string&, bool) { ++count; });
    return count;
  }

 private:
  static constexpr std::size_t kMaxValues = 16;

  std::size_t Index(std::size_t option, const std::string& value) {
    std::vector<std::string>& values = values_[option];
    const auto found = std::find(values.begin(), values.end(), value);
    const auto index = static_cast<std::size_t>(found - values.begin());
    if (found == values.end()) values.push_back(value);
    return std::min(index, kMaxValues - 1);
  }

  template <class F>
  void ForEachLegal(const F& body) const {
    for (std::size_t i = 0; i < kNumOptions; ++i) {
      for (std::size_t j = i + 1; j < kNumOptions; ++j) {
        for (std::size_t a = 0; a < values_[i].size(); ++a) {
          for (std::size_t b = 0; b < values_[j].size(); ++b) {
            if (IsImpossible(values_[i][a], values_[j][b])) continue;
            body(values_[i][a], values_[j][b], seen_[i][j][a][b]);
          }
        }
      }
    }
  }

  std::array<std::vector<std::string>, kNumOptions> values_;
  using Seen = std::array<std::array<bool, kMaxValues>, kMaxValues>;
  std::array<std::array<Seen, kNumOptions>, kNumOptions> seen_{};
};

// A random problem whose rare options are not rare.
inline ProblemArgs RareProblemArgs(Random& random) {
  ProblemArgs args = ForFused(RandomProblemArgs(random));
  DropoutConfig& dropout = args.dropout;
  if (random.Chance(0.5)) dropout.dropout_p = random.Pick({0.0, 1e-16, 0.5, 1.0 - 0x1p-24, 1.0});
  if (random.Chance(0.2)) dropout.training = false;
  if (dropout.empty_row.kind == EmptyRow::kAtLeastOne && random.Chance(0.5)) {
    dropout.empty_row.attempts = 1;
  }
  if (dropout.dropout_p == 1.0) dropout.empty_row = {};
  if (args.ragged || args.total) return args;
  const auto length = [&random] { return random.Pick<std::int64_t>({0, 1, 2, 5, 16, 32, 64}); };
  if (random.Chance(0.5)) args.shape.seqlen_q = length();
  if (random.Chance(0.5)) args.shape.seqlen_k = length();
  if (dropout.scheme == "symmetric") args.shape.seqlen_k = args.shape.seqlen_q;
  return args;
}

}  // namespace attndrop::testing
