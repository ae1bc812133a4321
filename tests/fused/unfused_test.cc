// SPDX-License-Identifier: Apache-2.0
// The largest error of the fused path beside that of an unfused float32 computation with the same
// mask: forward at most 2 times, backward at most 3 times.
#include "fused/unfused.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"

namespace attndrop::testing {
namespace {

constexpr double kForwardLimit = 2.0;
constexpr double kBackwardLimit = 3.0;

// One head: what its arrays and its mask hold.
NaiveHead MakeHead(const ProblemArgs& args, const ProblemArrays& arrays) {
  const OracleMask mask = ComputeOracleMask(args, arrays);
  NaiveHead head;
  head.rows_q = args.shape.seqlen_q;
  head.rows_k = args.shape.seqlen_k;
  head.dim = args.shape.head_dim;
  head.dim_v = HeadDimV(args);
  head.scale = ScaleOf(args);
  head.query = arrays.query.ToDouble().values;
  head.key = arrays.key.ToDouble().values;
  head.value = arrays.value.ToDouble().values;
  head.grad_out = arrays.grad_out.ToDouble().values;
  head.bias.assign(mask.visible.size(), 0.0);
  head.grad_logsumexp.assign(static_cast<std::size_t>(head.rows_q), 0.0);
  head.visible = mask.visible;
  head.keep = mask.keep;
  head.factor = mask.factor;
  return head;
}

double LargestError(const std::vector<double>& want, const std::vector<float>& got) {
  double largest = 0.0;
  for (std::size_t k = 0; k < want.size(); ++k) {
    largest = std::fmax(largest, std::fabs(want[k] - static_cast<double>(got[k])));
  }
  return largest;
}
double LargestError(const std::vector<double>& want, const Array& got) {
  const Dense4 dense = got.ToDouble();
  double largest = 0.0;
  for (std::size_t k = 0; k < want.size(); ++k) {
    largest = std::fmax(largest, std::fabs(want[k] - dense.values[k]));
  }
  return largest;
}

struct Comparison {
  std::string name;
  NaiveHead head;
  NaiveOutput exact;
  Unfused unfused;
};

Comparison Compare(const std::string& name, const ProblemArgs& args, const ProblemArrays& arrays) {
  Comparison all{name, MakeHead(args, arrays), {}, {}};
  all.exact = RunNaiveHead(all.head);
  all.unfused = RunUnfused(all.head);
  return all;
}

void ExpectRatio(const std::string& what, double fused, double unfused, double limit) {
  const double ratio = fused / unfused;
  std::printf("%-46s %.2e fused, %.2e unfused: %.2f\n", what.c_str(), fused, unfused, ratio);
  EXPECT_GT(unfused, 0.0) << what;
  EXPECT_LE(ratio, limit) << what;
}

// On every target.
void ExpectAccurate(const Comparison& all, const ProblemArgs& args, ProblemArrays& arrays) {
  for (const Target target : SupportedTargets()) {
    const std::string name = all.name + ", " + std::string(TargetName(target)) + ", ";
    RunForward(args, arrays, Fused(target));
    RunBackward(args, arrays, Fused(target));
    const auto expect = [&](const char* what, const NaiveNumbers& exact, const Array& got,
                            const std::vector<float>& unfused, double limit) {
      ExpectRatio(name + what, LargestError(exact.value, got), LargestError(exact.value, unfused),
                  limit);
    };
    expect("out", all.exact.out, arrays.out, all.unfused.out, kForwardLimit);
    expect("grad_query", all.exact.grad_query, arrays.grad_query, all.unfused.grad_query,
           kBackwardLimit);
    expect("grad_key", all.exact.grad_key, arrays.grad_key, all.unfused.grad_key, kBackwardLimit);
    expect("grad_value", all.exact.grad_value, arrays.grad_value, all.unfused.grad_value,
           kBackwardLimit);
  }
}

ProblemArgs OneHead(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim) {
  ProblemArgs args;
  args.shape = {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = head_dim};
  args.dropout.dropout_p = 0.1;
  args.dropout.seed = 3;
  return args;
}

constexpr ArrayOptions kPlainArrays{
    .shuffle_seed = {}, .grad_logsumexp = false, .grad_attn_mask = false};

TEST(FusedBesideUnfused, OrdinaryNumbers) {
  for (const bool is_causal : {false, true}) {
    ProblemArgs args = OneHead(256, 512, 64);
    args.is_causal = is_causal;
    args.causal_align = CausalAlign::kBottomRight;
    ProblemArrays arrays = MakeArrays(args, 12, kPlainArrays);
    ExpectAccurate(Compare(is_causal ? "causal" : "full", args, arrays), args, arrays);
  }
}

// Logits that differ by about 1e-3 and values near 1: every partial sum is as large as it can be,
// and all of its roundings count.
ProblemArrays NearlyEqual(const ProblemArgs& args) {
  ProblemArrays arrays = MakeArrays(args, 1, kPlainArrays);
  Random random(99);
  for (Array* array : {&arrays.query, &arrays.key}) {
    array->Fill([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
      return 0.03 * random.Normal();
    });
  }
  for (Array* array : {&arrays.value, &arrays.grad_out}) {
    array->Fill([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
      return 1.0 + 0.01 * random.Normal();
    });
  }
  arrays.Freeze();
  return arrays;
}

// Forward with one running sum over all keys, as a fused kernel that never folds would have it.
std::vector<float> OutByRunningSums(const NaiveHead& head, const NaiveOutput& exact) {
  const auto m = static_cast<std::size_t>(head.rows_k), dv = static_cast<std::size_t>(head.dim_v);
  std::vector<float> out(static_cast<std::size_t>(head.rows_q) * dv);
  for (std::size_t i = 0; i < static_cast<std::size_t>(head.rows_q); ++i) {
    for (std::size_t c = 0; c < dv; ++c) {
      float sum = 0.0F, total = 0.0F;
      for (std::size_t j = 0; j < m; ++j) {
        const auto weight = static_cast<float>(exact.weights[i * m + j] * static_cast<double>(m));
        total += weight;
        if (head.keep[i * m + j] == 0) continue;
        sum += weight * static_cast<float>(head.value[j * dv + c]);
      }
      out[i * dv + c] = static_cast<float>(head.factor.front()) * sum / total;
    }
  }
  return out;
}

void CheckNearlyEqual(std::int64_t seqlen_q, std::int64_t seqlen_k) {
  ProblemArgs args = OneHead(seqlen_q, seqlen_k, 32);
  args.dropout.dropout_p = 0.0;
  ProblemArrays arrays = NearlyEqual(args);
  const Comparison all = Compare("near equal, " + std::to_string(seqlen_k), args, arrays);
  ExpectAccurate(all, args, arrays);
  // The test has teeth: without folding the limit of forward is missed.
  const double running = LargestError(all.exact.out.value, OutByRunningSums(all.head, all.exact));
  const double unfused = LargestError(all.exact.out.value, all.unfused.out);
  std::printf("%-46s %.2e running sum: %.2f\n", all.name.c_str(), running, running / unfused);
  EXPECT_GT(running, kForwardLimit * unfused);
}

TEST(FusedBesideUnfused, NearlyEqualLogits2048) { CheckNearlyEqual(64, 2048); }
TEST(FusedBesideUnfused, NearlyEqualLogits16384) { CheckNearlyEqual(64, 16384); }
TEST(FusedBesideUnfused, NearlyEqualLogits65536) { CheckNearlyEqual(8, 65536); }

// Backward sums over queries where forward sums over keys.
TEST(FusedBesideUnfused, NearlyEqualLogitsManyQueries) {
  ProblemArgs args = OneHead(8192, 24, 16);
  args.dropout.dropout_p = 0.0;
  ProblemArrays arrays = NearlyEqual(args);
  ExpectAccurate(Compare("near equal, 8192 queries", args, arrays), args, arrays);
}

}  // namespace
}  // namespace attndrop::testing
