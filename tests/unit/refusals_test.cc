// SPDX-License-Identifier: Apache-2.0
// What Problem::Make refuses by value: each sentence names the argument, what was given and what is
// allowed. (What may not go together: problem_test.cc; arrays: buffer_checks_test.cc.)
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/problem.h"

#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::RefusesArgument;
using testing::SmallArgs;

constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Change = std::function<void(ProblemArgs&)>;

struct RefusedCase {
  Change change;
  std::vector<std::string_view> pieces;
};

void ExpectRefused(const std::vector<RefusedCase>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ProblemArgs args = SmallArgs();
    cases[i].change(args);
    EXPECT_TRUE(RefusesArgument(Problem::Make(args).status(), cases[i].pieces)) << "case " << i;
  }
}

TEST(RefusalsTest, Sizes) {
  using A = ProblemArgs;
  ExpectRefused({
      {[](A& a) { a.shape.batch = -1; }, {"batch must be in 0 .. 2^32, got -1"}},
      {[](A& a) { a.shape.num_heads = -2; }, {"num_heads must be in 0 .. 2^32, got -2"}},
      {[](A& a) { a.shape.num_kv_heads = -3; }, {"num_kv_heads must be in 0 .. 2^32, got -3"}},
      {[](A& a) { a.shape.seqlen_q = kTwo32 + 1; }, {"seqlen_q must be in 0 .. 2^32, got 42949"}},
      {[](A& a) { a.shape.seqlen_k = -1; }, {"seqlen_k must be in 0 .. 2^32, got -1"}},
      {[](A& a) { a.shape.head_dim = std::numeric_limits<std::int64_t>::max(); },
       {"head_dim must be in 0 .. 2^32, got 9223372036854775807"}},
      {[](A& a) { a.shape.head_dim_v = -2; }, {"head_dim_v must be in 0 .. 2^32, got -2"}},
      {[](A& a) { a.shape.head_dim_v = kTwo32 + 1; }, {"head_dim_v must be in 0 .. 2^32"}},
      {[](A& a) { a.shape.num_kv_heads = 3; },
       {"num_heads must be a multiple of num_kv_heads", "4 query heads over 3 key/value heads"}},
      {[](A& a) { a.shape.num_kv_heads = 8; }, {"4 query heads over 8 key/value heads"}},
  });
}

TEST(RefusalsTest, DropoutP) {
  for (const double p : {-1.0, -5e-324, 1.0000000000000002, 1.5, kNan, kInfinity, -kInfinity}) {
    ProblemArgs args = SmallArgs();
    args.dropout.dropout_p = p;
    EXPECT_TRUE(RefusesArgument(
        Problem::Make(args).status(),
        {"dropout_p must be a finite number in [0, 1], got", "0.5 drops half of the weights"}));
    args.dropout.training = false;
    EXPECT_FALSE(Problem::Make(args).ok()) << "also when it is not used";
  }
  ProblemArgs args = SmallArgs();
  args.dropout.dropout_p = 1.5;
  EXPECT_EQ(Problem::Make(args).status().message(),
            "dropout_p must be a finite number in [0, 1], got 1.5; 0.5 drops half of the weights");
}

TEST(RefusalsTest, Values) {
  using A = ProblemArgs;
  ExpectRefused({
      {[](A& a) { a.scale = kNan; }, {"scale must be a finite number", "got nan", "leave it out"}},
      {[](A& a) { a.scale = kInfinity; }, {"scale must be a finite number", "got inf"}},
      {[](A& a) { a.window.left = -2; },
       {"window left must be 0 .. 2^32 keys, or -1 for no limit, got -2"}},
      {[](A& a) { a.window.right = kTwo32 + 1; },
       {"window right must be 0 .. 2^32 keys, or -1 for no limit, got 4294967297"}},
      {[](A& a) { a.dropout.empty_row = {EmptyRow::kAtLeastOne, 0}; },
       {"empty_row at_least_one needs attempts in 1 .. 1024, got 0"}},
      {[](A& a) { a.dropout.empty_row = {EmptyRow::kAtLeastOne, 1025}; },
       {"empty_row at_least_one needs attempts in 1 .. 1024, got 1025"}},
      {[](A& a) { a.dropout.scheme = "elment"; },
       {"scheme \"elment\" is unknown", "did you mean \"element\"?"}},
  });
}

TEST(RefusalsTest, NumbersThatAreNoEnumerators) {
  using A = ProblemArgs;
  const std::vector<std::string_view> nine{"must be one of its enumerators", "got number 9"};
  const auto with = [&nine](std::string_view name) {
    std::vector<std::string_view> pieces = nine;
    pieces.push_back(name);
    return pieces;
  };
  ExpectRefused({
      {[](A& a) { a.dtype = static_cast<DType>(9); }, with("dtype")},
      {[](A& a) { a.causal_align = static_cast<CausalAlign>(9); }, with("causal_align")},
      {[](A& a) { a.attn_mask.kind = static_cast<MaskKind>(9); }, with("attn_mask kind")},
      {[](A& a) { a.attn_mask.dtype = static_cast<DType>(9); }, with("attn_mask dtype")},
      {[](A& a) { a.dropout.stage = static_cast<Stage>(9); }, with("stage")},
      {[](A& a) { a.dropout.empty_row.kind = static_cast<EmptyRow>(9); }, with("empty_row")},
      {[](A& a) { a.layout = static_cast<Layout>(9); }, with("layout")},
  });
}

TEST(RefusalsTest, Shards) {
  using A = ProblemArgs;
  constexpr std::uint32_t kLast = 0xFFFFFFFF;
  ExpectRefused({
      {[](A& a) { a.origin.batch = kLast; },
       {"origin batch + its length must be at most 2^32", "4294967295 + 2 = 4294967297"}},
      {[](A& a) { a.origin.head = kLast; }, {"origin head + its length", "4294967295 + 4"}},
      {[](A& a) { a.origin.query = kLast; }, {"origin query + its length", "4294967295 + 3"}},
      {[](A& a) { a.origin.key = kLast; },
       {"origin key + its length", "4294967295 + 5", "coordinates of the mask are 32-bit"}},
      {[](A& a) { a.total = TotalLengths{2, 5}; },
       {"total query must be in 3 (origin + length here) .. 2^32, got 2", "whole sequence"}},
      {[](A& a) {
         a.origin.key = 10;
         a.total = TotalLengths{3, 14};
       },
       {"total key must be in 15 (origin + length here) .. 2^32, got 14"}},
      {[](A& a) { a.total = TotalLengths{3, kTwo32 + 1}; }, {"total key must be in", "4294967297"}},
  });
  ExpectRefused({
      {[](A& a) { a.batch_index = {3}; },
       {"batch_index must hold one number for each of the 2 entries of the batch, got 1"}},
      {[](A& a) {
         a.batch_index = {3, 4};
         a.origin.batch = 1;
       },
       {"origin batch must be 0 beside it, got 1"}},
      {[](A& a) { a.batch_index = {3, -1}; },
       {"batch_index must hold numbers in 0 .. 2^32 - 1, got -1 at entry 1"}},
      {[](A& a) { a.batch_index = {kTwo32, 1}; },
       {"batch_index must hold numbers in 0 .. 2^32 - 1, got 4294967296 at entry 0"}},
  });
  ProblemArgs last = SmallArgs();
  last.origin = {kLast - 1, kLast - 3, kLast - 2, kLast - 4};
  EXPECT_TRUE(Problem::Make(last).ok()) << "the last coordinates are legal";
}

RaggedLengths TwoSequences() { return {{0, 2, 5}, {0, 4, 4}, {}, {}}; }

TEST(RefusalsTest, RaggedLengths) {
  using R = RaggedLengths;
  const struct {
    std::function<void(R&)> change;
    std::vector<std::string_view> pieces;
  } cases[] = {
      {[](R& r) { r.cu_seqlens_q = {}; },
       {"cu_seqlens_q must hold batch + 1 numbers that start with 0, got none"}},
      {[](R& r) { r.cu_seqlens_k = {1, 2, 3}; },
       {"cu_seqlens_k must hold batch + 1 numbers that start with 0, got first number 1"}},
      {[](R& r) { r.cu_seqlens_q = {0, 5, 4}; },
       {"cu_seqlens_q must not decrease, got 5 and then 4 at entry 2"}},
      {[](R& r) { r.cu_seqlens_k = {0, 1, kTwo32 + 1}; },
       {"cu_seqlens_k (its last entry) must be in 0 .. 2^32, got 4294967297"}},
      {[](R& r) { r.cu_seqlens_k = {0, 4}; },
       {"cu_seqlens_q and cu_seqlens_k must have batch + 1 entries each, got 3 and 2"}},
      {[](R& r) { r.used_q = {1}; },
       {"used_q must hold one length for each of the 2 sequences, got 1"}},
      {[](R& r) { r.used_k = {1, 1}; },
       {"used_k of sequence 1 must be in 0 .. 0 (its rows in cu_seqlens), got 1"}},
      {[](R& r) { r.used_q = {-1, 0}; }, {"used_q of sequence 0 must be in 0 .. 2", "got -1"}},
  };
  for (const auto& c : cases) {
    ProblemArgs args = SmallArgs();
    args.ragged = TwoSequences();
    c.change(*args.ragged);
    EXPECT_TRUE(RefusesArgument(Problem::Make(args).status(), c.pieces));
  }
}

TEST(RefusalsTest, ShardsOfARaggedBatchAreWholeSequences) {
  using A = ProblemArgs;
  const std::vector<std::string_view> pieces{"a ragged batch holds whole sequences",
                                             "split it by batch or heads"};
  for (const Change& change :
       {Change([](A& a) { a.origin.query = 1; }), Change([](A& a) { a.origin.key = 1; }),
        Change([](A& a) { a.total = TotalLengths{3, 4}; })}) {
    ProblemArgs args = SmallArgs();
    args.ragged = TwoSequences();
    change(args);
    EXPECT_TRUE(RefusesArgument(Problem::Make(args).status(), pieces));
  }
  ProblemArgs args = SmallArgs();
  args.ragged = TwoSequences();
  args.origin = {.batch = 3, .head = 2};
  EXPECT_TRUE(Problem::Make(args).ok());
}

}  // namespace
}  // namespace attndrop
