// SPDX-License-Identifier: Apache-2.0
// Problem: defaults, derived values, equality, and the table of what may go together.
#include "attndrop/problem.h"

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::RefusesArgument;
using testing::SmallArgs;

constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;

Problem MustMake(const ProblemArgs& args) {
  Result<Problem> problem = Problem::Make(args);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return *std::move(problem);
}

TEST(ProblemTest, FillsDefaults) {
  const Problem problem = MustMake(SmallArgs());
  EXPECT_EQ(problem.shape(), (AttentionShape{2, 4, 4, 3, 5, 8, 8}));
  EXPECT_EQ(problem.dtype(), DType::kFloat32);
  EXPECT_FALSE(problem.is_causal());
  EXPECT_EQ(problem.causal_align(), CausalAlign::kTopLeft);
  EXPECT_EQ(problem.window(), (Window{-1, -1}));
  EXPECT_EQ(problem.scale(), 1.0 / std::sqrt(8.0));
  EXPECT_EQ(problem.attn_mask().kind, MaskKind::kNone);
  EXPECT_FALSE(problem.alibi());
  EXPECT_FALSE(problem.is_ragged());
  EXPECT_EQ(problem.scheme().info.name, "element");
  EXPECT_EQ(problem.stage(), Stage::kWeights);
  EXPECT_EQ(problem.empty_row(), EmptyRowPolicy{});
  EXPECT_EQ(problem.dropout().dropout_p, 0.0);
  EXPECT_EQ(problem.origin(), Coord{});
  EXPECT_EQ(problem.total(), (TotalLengths{3, 5}));
  EXPECT_EQ(problem.layout(), Layout::kBhsd);
  EXPECT_EQ(problem.keep_q32(), static_cast<std::uint64_t>(kTwo32));
  EXPECT_EQ(problem.keep_prob(), 1.0);
  EXPECT_TRUE(problem.drops_nothing());
  EXPECT_FALSE(problem.drops_everything());
  EXPECT_FALSE(problem.covers_part_of_keys());
  EXPECT_EQ(problem.array_batch(), 2);
  EXPECT_EQ(problem.rows_q(), 3);
  EXPECT_EQ(problem.rows_k(), 5);
}

TEST(ProblemTest, DefaultScale) {
  EXPECT_EQ(DefaultScale(64), 0.125);
  EXPECT_EQ(DefaultScale(0), 1.0);
  ProblemArgs args = SmallArgs();
  args.shape.head_dim = 0;
  EXPECT_EQ(MustMake(args).scale(), 1.0);
  for (const double scale : {0.0, -2.5}) {
    args.scale = scale;
    EXPECT_EQ(MustMake(args).scale(), scale);
  }
}

TEST(ProblemTest, ZeroSizesAreLegal) {
  ProblemArgs args;
  args.shape = {.batch = 0, .num_heads = 0, .seqlen_q = 0, .seqlen_k = 0, .head_dim = 0};
  EXPECT_EQ(MustMake(args).shape(), (AttentionShape{0, 0, 0, 0, 0, 0, 0}));
}

TEST(ProblemTest, LargestSizesAreLegal) {
  ProblemArgs args;
  args.shape = {kTwo32, kTwo32, kTwo32, kTwo32, kTwo32, kTwo32, kTwo32};
  const Problem problem = MustMake(args);
  EXPECT_EQ(problem.total(), (TotalLengths{kTwo32, kTwo32}));
}

TEST(ProblemTest, RealisedKeepProbability) {
  ProblemArgs args = SmallArgs();
  args.dropout.dropout_p = 0.1;
  EXPECT_EQ(MustMake(args).keep_q32(), 0xE6666666U);
  EXPECT_EQ(MustMake(args).keep_prob(), 0xE6666666U / 4294967296.0);
  args.dropout.dropout_p = 1e-16;
  EXPECT_TRUE(MustMake(args).drops_nothing());
  args.dropout.dropout_p = 1.0;
  EXPECT_TRUE(MustMake(args).drops_everything());
  args.dropout.training = false;
  EXPECT_TRUE(MustMake(args).drops_nothing());
}

TEST(ProblemTest, SchemeTextIsCanonical) {
  ProblemArgs args = SmallArgs();
  args.dropout.scheme = "block:block_k=64,block_q=7";
  const Problem problem = MustMake(args);
  EXPECT_EQ(problem.dropout().scheme, "block:block_q=7");
  EXPECT_EQ(problem.scheme_params(), (SchemeParamValues{7, 64}));
}

TEST(ProblemTest, SequenceOfADenseProblem) {
  ProblemArgs args = SmallArgs();
  args.origin = {.query = 10, .key = 20};
  args.total = TotalLengths{40, 70};
  args.causal_align = CausalAlign::kBottomRight;
  const Problem problem = MustMake(args);
  const Sequence sequence = problem.sequence(1);
  EXPECT_EQ(sequence.first_row_q, 0);
  EXPECT_EQ(sequence.seqlen_q, 3);
  EXPECT_EQ(sequence.seqlen_k, 5);
  EXPECT_EQ(sequence.origin_q, 10);
  EXPECT_EQ(sequence.origin_k, 20);
  EXPECT_EQ(sequence.total_k, 70);
  EXPECT_EQ(sequence.shift, 30);
  EXPECT_TRUE(problem.covers_part_of_keys());
}

TEST(ProblemTest, GlobalBatchOfAnEntry) {
  ProblemArgs args = SmallArgs();
  args.origin.batch = 7;
  EXPECT_EQ(MustMake(args).global_batch(1), 8U);
  args.origin.batch = 0;
  args.batch_index = {5, 3};
  EXPECT_EQ(MustMake(args).global_batch(0), 5U);
  EXPECT_EQ(MustMake(args).global_batch(1), 3U);
}

TEST(ProblemTest, SequencesOfARaggedBatch) {
  ProblemArgs args = SmallArgs();
  args.causal_align = CausalAlign::kBottomRight;
  args.ragged = RaggedLengths{.cu_seqlens_q = {0, 3, 3, 10},
                              .cu_seqlens_k = {0, 4, 9, 20},
                              .used_q = {2, 0, 7},
                              .used_k = {}};
  const Problem problem = MustMake(args);
  EXPECT_EQ(problem.shape().batch, 3);
  EXPECT_EQ(problem.shape().seqlen_q, 7);
  EXPECT_EQ(problem.shape().seqlen_k, 11);
  EXPECT_EQ(problem.array_batch(), 1);
  EXPECT_EQ(problem.rows_q(), 10);
  EXPECT_EQ(problem.rows_k(), 20);
  EXPECT_FALSE(problem.covers_part_of_keys());
  EXPECT_EQ(problem.sequence(0).seqlen_q, 2);
  EXPECT_EQ(problem.sequence(0).shift, 2);
  EXPECT_EQ(problem.sequence(1).shift, 5);
  EXPECT_EQ(problem.sequence(2).first_row_q, 3);
  EXPECT_EQ(problem.sequence(2).first_row_k, 9);
  EXPECT_EQ(problem.sequence(2).shift, 4);
  EXPECT_EQ(problem.sequence(2).total_k, 11);
}

// ---- Equality
// ------------------------------------------------------------------------------------

TEST(ProblemTest, EachArgumentThatMattersMakesAnotherProblem) {
  using Change = std::function<void(ProblemArgs&)>;
  const std::vector<Change> changes{
      [](ProblemArgs& a) { a.shape.batch = 3; },
      [](ProblemArgs& a) { a.shape.num_kv_heads = 2; },
      [](ProblemArgs& a) { a.shape.head_dim_v = 9; },
      [](ProblemArgs& a) { a.dtype = DType::kFloat64; },
      [](ProblemArgs& a) { a.is_causal = true; },
      [](ProblemArgs& a) { a.causal_align = CausalAlign::kBottomRight; },
      [](ProblemArgs& a) { a.window.left = 1; },
      [](ProblemArgs& a) { a.scale = 2.0; },
      [](ProblemArgs& a) { a.attn_mask.kind = MaskKind::kBool; },
      [](ProblemArgs& a) { a.alibi = true; },
      [](ProblemArgs& a) { a.ragged = RaggedLengths{{0, 3, 6}, {0, 5, 10}, {}, {}}; },
      [](ProblemArgs& a) { a.dropout.dropout_p = 0.5; },
      [](ProblemArgs& a) { a.dropout.scheme = "key"; },
      [](ProblemArgs& a) { a.dropout.stage = Stage::kLogits; },
      [](ProblemArgs& a) { a.dropout.empty_row.kind = EmptyRow::kKeepSelf; },
      [](ProblemArgs& a) { a.dropout.seed = 1; },
      [](ProblemArgs& a) { a.dropout.offset = 1; },
      [](ProblemArgs& a) { a.dropout.training = false; },
      [](ProblemArgs& a) { a.origin.head = 1; },
      [](ProblemArgs& a) { a.batch_index = {1, 0}; },
      [](ProblemArgs& a) { a.total = TotalLengths{3, 6}; },
      [](ProblemArgs& a) { a.layout = Layout::kPadded; },
  };
  const Problem plain = MustMake(SmallArgs());
  EXPECT_TRUE(plain == MustMake(SmallArgs()));
  for (std::size_t i = 0; i < changes.size(); ++i) {
    ProblemArgs args = SmallArgs();
    changes[i](args);
    EXPECT_FALSE(plain == MustMake(args)) << "change " << i;
    EXPECT_TRUE(MustMake(args) == MustMake(args)) << "change " << i;
  }
}

TEST(ProblemTest, SpelledOutDefaultsMakeTheSameProblem) {
  ProblemArgs args = SmallArgs();
  args.shape.num_kv_heads = 4;
  args.shape.head_dim_v = 8;
  args.scale = DefaultScale(8);
  args.total = TotalLengths{3, 5};
  args.dropout.empty_row.attempts = 5;  // not used by empty_row zero
  args.attn_mask.per_key = true;        // not used without an attn_mask
  EXPECT_TRUE(MustMake(args) == MustMake(SmallArgs()));
}

TEST(ProblemTest, MaskFormsCompareByWhatTheyUse) {
  const MaskForm boolean{.kind = MaskKind::kBool, .dtype = DType::kFloat32, .per_key = true};
  MaskForm other = boolean;
  other.dtype = DType::kFloat64;  // a boolean mask has no float type
  EXPECT_TRUE(boolean == other);
  other.per_query = true;
  EXPECT_FALSE(boolean == other);
  MaskForm number = boolean;
  number.kind = MaskKind::kFloat;
  EXPECT_FALSE(boolean == number);
  MaskForm wider = number;
  wider.dtype = DType::kFloat64;
  EXPECT_FALSE(number == wider);
}

TEST(ProblemTest, AttemptsCountOnlyWhereTheyAreUsed) {
  EXPECT_TRUE((EmptyRowPolicy{EmptyRow::kZero, 1} == EmptyRowPolicy{EmptyRow::kZero, 2}));
  EXPECT_FALSE(
      (EmptyRowPolicy{EmptyRow::kAtLeastOne, 1} == EmptyRowPolicy{EmptyRow::kAtLeastOne, 2}));
}

// ---- What may go together (docs/mask-format.md, sections 3 to 5)
// ---------------------------------

struct Combination {
  Scheme scheme;
  EmptyRow policy;
  Stage stage;
};

std::vector<Combination> AllCombinations() {
  std::vector<Combination> all;
  for (const Scheme& scheme : Schemes()) {
    for (const EmptyRowInfo& policy : kEmptyRowInfos) {
      for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
        all.push_back({scheme, policy.kind, stage});
      }
    }
  }
  return all;
}

std::string CombinationName(const Combination& c) {
  for (const EmptyRowInfo& policy : kEmptyRowInfos) {
    if (policy.kind != c.policy) continue;
    return std::string(c.scheme.info.name) + "_" + std::string(policy.name) + "_" +
           std::string(StageName(c.stage));
  }
  return "none";
}

// Names of tests would show the bytes otherwise.
void PrintTo(const Combination& c, std::ostream* out) { *out << CombinationName(c); }

class LegalityTest : public ::testing::TestWithParam<Combination> {
 protected:
  [[nodiscard]] static ProblemArgs Args(double dropout_p) {
    ProblemArgs args = SmallArgs();
    args.shape.seqlen_k = args.shape.seqlen_q;
    args.dropout = {.dropout_p = dropout_p,
                    .scheme = std::string(GetParam().scheme.info.name),
                    .stage = GetParam().stage,
                    .empty_row = {GetParam().policy}};
    return args;
  }
  [[nodiscard]] static std::string_view Name() { return GetParam().scheme.info.name; }
  [[nodiscard]] static bool AtLeastOne() { return GetParam().policy == EmptyRow::kAtLeastOne; }
  // The rows of these two alone can be drawn again, says section 5.
  [[nodiscard]] static bool MayDrawAgain() {
    return Name() == "element" || Name() == "shared" || GetParam().scheme.info.row_redraw;
  }
};

INSTANTIATE_TEST_SUITE_P(Table, LegalityTest, ::testing::ValuesIn(AllCombinations()),
                         [](const auto& i) { return CombinationName(i.param); });

TEST_P(LegalityTest, OnlyRowsThatShareNothingAreDrawnAgain) {
  for (const double p : {0.0, 0.5}) {
    const Result<Problem> problem = Problem::Make(Args(p));
    if (!AtLeastOne() || MayDrawAgain()) {
      EXPECT_TRUE(problem.ok()) << problem.status().message();
    } else {
      EXPECT_TRUE(RefusesArgument(
          problem.status(),
          {"empty_row redraw draws one row again", "scheme \"" + std::string(Name()) + "\"",
           "use empty_row keep_self, keep_first or undropped", "scheme element or shared"}));
    }
  }
}

TEST_P(LegalityTest, DroppingEverythingNeedsPolicyZero) {
  if (AtLeastOne() && !MayDrawAgain()) return;
  for (const double p : {1.0, 0.999999999999}) {
    const Result<Problem> problem = Problem::Make(Args(p));
    if (GetParam().policy == EmptyRow::kZero) {
      ASSERT_TRUE(problem.ok()) << problem.status().message();
      EXPECT_TRUE(problem->drops_everything());
    } else {
      EXPECT_TRUE(RefusesArgument(problem.status(), {"needs dropout_p below 1 - 2^-33, got",
                                                     "only empty_row zero can drop everything"}));
    }
    ProblemArgs evaluation = Args(p);
    evaluation.dropout.training = false;
    EXPECT_TRUE(Problem::Make(evaluation).ok());
  }
}

TEST_P(LegalityTest, PoliciesThatReadWholeRowsNeedTheirMask) {
  if (AtLeastOne() && !MayDrawAgain()) return;
  ProblemArgs args = Args(0.5);
  args.total = TotalLengths{8, 8};
  EXPECT_TRUE(Problem::Make(args).ok()) << "without an attn_mask every key is known";
  args.attn_mask = {.kind = MaskKind::kBool, .per_key = true};
  const Result<Problem> part = Problem::Make(args);
  if (AtLeastOne() || GetParam().policy == EmptyRow::kUndropped) {
    EXPECT_TRUE(RefusesArgument(part.status(), {"looks at all keys of a row", "(3 of 8)",
                                                "use empty_row zero, keep_self or keep_first"}));
  } else {
    EXPECT_TRUE(part.ok()) << part.status().message();
  }
  args.dropout.dropout_p = 0.0;
  EXPECT_TRUE(Problem::Make(args).ok()) << "nothing is drawn";
  args = Args(0.5);
  args.attn_mask = {.kind = MaskKind::kBool, .per_key = true};
  args.total = TotalLengths{8, 3};
  args.shape.seqlen_q = 3;
  const bool square = GetParam().scheme.info.requires_square;
  EXPECT_EQ(Problem::Make(args).ok(), !square) << "part of the queries, all keys";
}

TEST_P(LegalityTest, SquareSchemesNeedSquareProblems) {
  if (AtLeastOne() && !MayDrawAgain()) return;
  const bool square = GetParam().scheme.info.requires_square;
  ProblemArgs args = Args(0.5);
  args.shape.seqlen_k = 5;
  const Result<Problem> cross = Problem::Make(args);
  EXPECT_EQ(cross.ok(), !square);
  if (square) {
    EXPECT_TRUE(RefusesArgument(cross.status(), {"needs seqlen_q == seqlen_k, got 3 and 5",
                                                 "use \"element\" for cross attention"}));
  }
  args.total = TotalLengths{5, 5};
  EXPECT_TRUE(Problem::Make(args).ok()) << "the whole lengths count";
  args.total.reset();
  args.ragged = RaggedLengths{{0, 2, 5}, {0, 2, 6}, {}, {}};
  EXPECT_EQ(Problem::Make(args).ok(), !square) << "every sequence counts";
  args.ragged->used_k = {2, 3};
  EXPECT_TRUE(Problem::Make(args).ok()) << "used lengths count";
}

}  // namespace
}  // namespace attndrop
