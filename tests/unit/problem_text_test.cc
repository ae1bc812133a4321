// SPDX-License-Identifier: Apache-2.0
// The one-line form of a Problem: known lines, and Parse as the inverse of ToString.
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "attndrop/problem.h"

#include "support/random_problem.h"
#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::RefusesArgument;
using testing::SmallArgs;

std::string LineOf(const ProblemArgs& args) {
  const Result<Problem> problem = Problem::Make(args);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return problem.ok() ? problem->ToString() : "";
}

TEST(ProblemTextTest, LeavesDefaultsOut) { EXPECT_EQ(LineOf(SmallArgs()), "b2 h4 q3 k5 d8 f32"); }

TEST(ProblemTextTest, SaysEverythingThatMatters) {
  ProblemArgs args;
  args.shape = {2, 8, 2, 1024, 1000, 64, 32};
  args.dtype = DType::kBFloat16;
  args.is_causal = true;
  args.causal_align = CausalAlign::kBottomRight;
  args.window = {128, -1};
  args.scale = -0.1;
  args.attn_mask = {
      .kind = MaskKind::kFloat, .dtype = DType::kFloat64, .per_head = true, .per_key = true};
  args.alibi = true;
  args.dropout = {.dropout_p = 1.0 / 3.0,
                  .scheme = "block:block_k=4",
                  .stage = Stage::kLogits,
                  .empty_row = {EmptyRow::kKeepFirst},
                  .seed = std::numeric_limits<std::uint64_t>::max(),
                  .offset = 9,
                  .training = false};
  args.origin = {1, 2, 3, 4};
  args.total = TotalLengths{5000, 6000};
  args.layout = Layout::kReversed;
  EXPECT_EQ(LineOf(args),
            "b2 h8 kv2 q1024 k1000 d64 dv32 bf16 causal align=bottom-right window=128,-1 "
            "scale=-0.1 mask=f64:hk alibi scheme=block:block_k=4 stage=logits "
            "empty_row=keep_first p=0.3333333333333333 seed=18446744073709551615 offset=9 eval "
            "origin=1,2,3,4 total=5000,6000 layout=reversed");
}

TEST(ProblemTextTest, BatchIndexStandsBesideTheOriginOfTheOtherAxes) {
  ProblemArgs args = SmallArgs();
  args.batch_index = {7, 0};
  args.origin.head = 2;
  EXPECT_EQ(LineOf(args), "b2 h4 q3 k5 d8 f32 origin=0,2,0,0 batch_index=7,0");
}

TEST(ProblemTextTest, RaggedLengthsStandInsteadOfSizes) {
  ProblemArgs args = SmallArgs();
  args.ragged = RaggedLengths{{0, 3, 8}, {0, 4, 4}, {1, 5}, {}};
  args.attn_mask = {.kind = MaskKind::kBool};
  EXPECT_EQ(LineOf(args), "h4 d8 f32 mask=bool:- cu_q=0,3,8 cu_k=0,4,4 used_q=1,5");
}

TEST(ProblemTextTest, ReadsWordsInAnyOrderAndRepeatedSpaces) {
  const Result<Problem> a = Problem::Parse("  f64   d8 q3 causal k5 h4 b2 ");
  const Result<Problem> b = Problem::Parse("b2 h4 q3 k5 d8 f64 causal");
  ASSERT_TRUE(a.ok()) << a.status().message();
  ASSERT_TRUE(b.ok());
  EXPECT_TRUE(*a == *b);
}

TEST(ProblemTextTest, MissingWordsAreTheDefaultsOfProblemArgs) {
  const Result<Problem> parsed = Problem::Parse("");
  const Result<Problem> made = Problem::Make({});
  ASSERT_TRUE(parsed.ok() && made.ok());
  EXPECT_TRUE(*parsed == *made);
  EXPECT_EQ(parsed->ToString(), "b1 h1 q0 k0 d0 f32");
}

TEST(ProblemTextTest, PolicyNames) {
  const struct {
    std::string_view given;
    std::string_view printed;
    std::uint32_t attempts;
  } cases[] = {{"keep_one", "keep_one", 1},
               {"redraw", "redraw", 64},
               {"at_least_one", "redraw", 64},
               {"at_least_one:attempts=1", "keep_one", 1},
               {"at_least_one:attempts=64", "redraw", 64},
               {"at_least_one:attempts=1024", "at_least_one:attempts=1024", 1024}};
  for (const auto& c : cases) {
    const Result<Problem> problem =
        Problem::Parse("q3 k5 d8 empty_row=" + std::string(c.given) + " p=0.5");
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    EXPECT_EQ(problem->empty_row().attempts, c.attempts);
    EXPECT_EQ(problem->ToString(),
              "b1 h1 q3 k5 d8 f32 scheme=element empty_row=" + std::string(c.printed) + " p=0.5");
  }
  for (const std::string_view name : {"keep_self", "keep_first", "undropped"}) {
    const Result<EmptyRowPolicy> policy = ParseEmptyRow(name);
    ASSERT_TRUE(policy.ok());
    EXPECT_EQ(EmptyRowName(*policy), name);
  }
  EXPECT_EQ(EmptyRowName({}), "zero");
  EXPECT_EQ(*ParseEmptyRow("zero"), EmptyRowPolicy{});
}

TEST(ProblemTextTest, DoublesReadBackExactly) {
  for (const double p : {0.1, 1e-300, 0.9999999999999999, 5e-324, 1.0 / 3.0}) {
    ProblemArgs args = SmallArgs();
    args.dropout.dropout_p = p;
    args.scale = -1.0 / p;
    if (p < 1e-300) args.scale = p;
    const Result<Problem> made = Problem::Make(args);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Result<Problem> parsed = Problem::Parse(made->ToString());
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->dropout().dropout_p, p);
    EXPECT_EQ(parsed->scale(), *args.scale);
    EXPECT_TRUE(*parsed == *made);
  }
}

TEST(ProblemTextTest, ParseIsTheInverseOfToStringOnRandomProblems) {
  const auto check = [](const ProblemArgs& args, std::uint64_t) {
    const Result<Problem> made = Problem::Make(args);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const std::string line = made->ToString();
    const Result<Problem> parsed = Problem::Parse(line);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_TRUE(*parsed == *made) << line;
    EXPECT_EQ(parsed->ToString(), line);
  };
  testing::ForRandomProblems({.first_seed = 1, .count = 500}, {}, check);
  testing::ForRandomProblems({.first_seed = 1001, .count = 200}, {.batch_index = true}, check);
}

TEST(ProblemTextTest, RefusesWithASentence) {
  constexpr std::string_view kMask =
      "TYPE:AXES, TYPE one of bool, f64, f32, bf16, f16, AXES some of bhqk in this order or -";
  const struct {
    std::string line;
    std::vector<std::string_view> pieces;
  } cases[] = {
      {"causl", {"problem word \"causl\" is unknown", "did you mean \"causal\"?", "known: f64,"}},
      {"sed=3", {"problem word \"sed=3\" is unknown", "did you mean \"seed=\"?"}},
      {"=", {"problem word \"=\" is unknown"}},
      {"b", {"problem word \"b\" is unknown"}},
      {"causal2", {"problem word \"causal2\" is unknown"}},
      {"f128", {"problem word \"f128\" is unknown"}},
      {"q1\tk1", {"problem word \"q\" needs a whole number, got \"1\tk1\""}},
      {"b2x", {"problem word \"b\" needs a whole number, got \"2x\""}},
      {"h1.5", {"problem word \"h\" needs a whole number, got \"1.5\""}},
      {"kv9223372036854775808", {"problem word \"kv\" needs a whole number"}},
      {"q3 q3", {"problem word \"q\" stands twice; give it once"}},
      {"f32 f64", {"problem word \"dtype\" stands twice; give it once"}},
      {"causal causal", {"problem word \"causal\" stands twice"}},
      {"align=left", {"problem word \"align=\" needs top-left or bottom-right, got \"left\""}},
      {"window=3", {"\"window=\" needs LEFT,RIGHT (-1: no limit), got \"3\""}},
      {"window=3,x", {"\"window=\" needs LEFT,RIGHT (-1: no limit), got \"x\""}},
      {"window=1,2,3", {"got \"1,2,3\""}},
      {"scale=two", {"problem word \"scale=\" needs a number, got \"two\""}},
      {"scale=nan", {"scale must be a finite number", "got nan"}},
      {"mask=bool", {kMask, "got \"bool\""}},
      {"mask=int:k", {kMask, "got \"int:k\""}},
      {"mask=bool:", {kMask, "got \"bool:\""}},
      {"mask=f32:kq", {kMask, "got \"f32:kq\""}},
      {"cu_q=0,x cu_k=0,1", {"\"cu_q=\" needs whole numbers between commas, got \"x\""}},
      {"cu_q= cu_k=0,1", {"\"cu_q=\" needs whole numbers between commas, got \"\""}},
      {"cu_q=0,1", {"cu_seqlens_k must hold batch + 1 numbers that start with 0, got none"}},
      {"cu_q=0,1 cu_k=0,1 b1", {"\"b\" cannot stand beside cu_q and cu_k", "leave it out"}},
      {"cu_q=0,1 cu_k=0,1 q1", {"\"q\" cannot stand beside cu_q and cu_k"}},
      {"k1 cu_q=0,1 cu_k=0,1", {"\"k\" cannot stand beside cu_q and cu_k"}},
      {"p=50%", {"problem word \"p=\" needs a number, got \"50%\""}},
      {"p=nan", {"dropout_p must be a finite number in [0, 1], got nan"}},
      {"seed=-1", {"\"seed=\" needs a whole number below 2^64, got \"-1\""}},
      {"seed=18446744073709551616", {"\"seed=\" needs a whole number below 2^64"}},
      {"offset=1.5", {"\"offset=\" needs a whole number below 2^64, got \"1.5\""}},
      {"origin=1,2,3", {"\"origin=\" needs BATCH,HEAD,QUERY,KEY below 2^32, got \"1,2,3\""}},
      {"origin=1,2,3,4294967296", {"below 2^32, got \"4294967296\""}},
      {"total=5", {"\"total=\" needs SEQLEN_Q,SEQLEN_K, got \"5\""}},
      {"layout=nhwc", {"\"layout=\" needs bhsd, bshd, padded, expanded, reversed, got \"nhwc\""}},
      {"scheme=elment", {"scheme \"elment\" is unknown", "did you mean \"element\"?"}},
      {"stage=logit", {"stage \"logit\" is unknown; did you mean \"logits\"?", "known: weights"}},
      {"empty_row=keepself", {"empty_row \"keepself\" is unknown", "did you mean \"keep_self\"?"}},
      {"empty_row=at_least_one:attempts=0", {"attempts in 1 .. 1024, got", "or redraw"}},
      {"empty_row=at_least_one:attempts=1025", {"attempts in 1 .. 1024, got"}},
      {"empty_row=at_least_one:attempts=", {"attempts in 1 .. 1024, got"}},
      {"empty_row=at_least_one:tries=3", {"did you mean \"at_least_one\"?"}},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(RefusesArgument(Problem::Parse(c.line).status(), c.pieces)) << c.line;
  }
}

}  // namespace
}  // namespace attndrop
