// SPDX-License-Identifier: Apache-2.0
// The one-line form of random problems reads back to the same problem.
#include <cmath>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "support/random_problem.h"

namespace attndrop::testing {
namespace {

TEST(ProblemLineProperty, ReadsBackEqual) {
  ForRandomProblems({300001, 10000}, {}, [](const ProblemArgs& given, std::uint64_t seed) {
    ProblemArgs args = given;
    Random random(seed);
    if (random.Chance(0.3)) args.dropout.dropout_p = random.Uniform();
    if (random.Chance(0.3))
      args.scale = random.Normal() * std::ldexp(1.0, static_cast<int>(random.Between(-40, 40)));
    const Problem problem = MustMake(args);
    const std::string line = problem.ToString();
    const Result<Problem> again = Problem::Parse(line);
    ASSERT_TRUE(again.ok()) << line << ": " << again.status().message();
    EXPECT_EQ(*again, problem) << line;
    EXPECT_EQ(again->ToString(), line);
    EXPECT_EQ(again->keep_q32(), problem.keep_q32());
    EXPECT_EQ(line.find('\n'), std::string::npos);
  });
}

// Changes one thing that a caller can set; what it does may equal what was there.
void ChangeOneThing(Random& random, ProblemArgs& args) {
  DropoutConfig& dropout = args.dropout;
  switch (random.Below(16)) {
    case 0:
      args.shape.head_dim += 1;
      break;
    case 1:
      args.shape.head_dim_v = random.Between(1, 9);
      break;
    case 2:
      args.dtype = random.Pick({DType::kFloat64, DType::kBFloat16, DType::kFloat16});
      break;
    case 3:
      args.is_causal = !args.is_causal;
      break;
    case 4:
      args.causal_align = CausalAlign::kBottomRight;
      break;
    case 5:
      args.window.left = random.Between(-1, 5);
      break;
    case 6:
      args.window.right = random.Between(-1, 5);
      break;
    case 7:
      args.scale = std::nextafter(args.scale.value_or(1.0), 2.0);
      break;
    case 8:
      args.attn_mask.per_key = !args.attn_mask.per_key;
      break;
    case 9:
      args.attn_mask.per_batch = !args.attn_mask.per_batch;
      break;
    case 10:
      args.alibi = !args.alibi;
      break;
    case 11:
      dropout.dropout_p = std::nextafter(dropout.dropout_p, 0.0);
      break;
    case 12:
      dropout.seed ^= std::uint64_t{1} << random.Below(64);
      break;
    case 13:
      dropout.offset ^= std::uint64_t{1} << random.Below(64);
      break;
    case 14:
      args.layout = random.Pick({Layout::kBshd, Layout::kPadded, Layout::kReversed});
      break;
    default:
      args.origin.head = static_cast<std::uint32_t>(random.Below(3));
      break;
  }
}

// Whatever differs shows in the line.
TEST(ProblemLineProperty, DifferentProblemsHaveDifferentLines) {
  int different = 0;
  ForRandomProblems({310001, 5000}, {}, [&](const ProblemArgs& args, std::uint64_t seed) {
    Random random(seed);
    ProblemArgs changed = args;
    ChangeOneThing(random, changed);
    const Problem a = MustMake(args), b = MustMake(changed);
    EXPECT_EQ(a == b, a.ToString() == b.ToString()) << a.ToString() << " and " << b.ToString();
    different += a == b ? 0 : 1;
  });
  EXPECT_GT(different, 3000);
}

}  // namespace
}  // namespace attndrop::testing
