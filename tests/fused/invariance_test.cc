// SPDX-License-Identifier: Apache-2.0
// What must not matter: threads and repetition to no bit; tiles, layout, shards not beyond
// rounding.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"
#include "support/random_problem.h"
#include "support/shard.h"

namespace attndrop::testing {
namespace {

constexpr RunOptions kFused{.threads = 1,
                            .plan = {.path = Path::kFused, .target = {}, .tiles = {}}};
constexpr GeneratorOptions kSmall{.max_work = 100000};

void RunBoth(const ProblemArgs& args, ProblemArrays& arrays, const RunOptions& options) {
  RunForward(args, arrays, options);
  RunBackward(args, arrays, options);
}

void ExpectSameBits(ProblemArrays& a, ProblemArrays& b) {
  EXPECT_TRUE(SameBits(a.out, b.out)) << "out";
  EXPECT_TRUE(SameBits(a.logsumexp, b.logsumexp)) << "logsumexp";
  EXPECT_TRUE(SameBits(a.grad_query, b.grad_query)) << "grad_query";
  EXPECT_TRUE(SameBits(a.grad_key, b.grad_key)) << "grad_key";
  EXPECT_TRUE(SameBits(a.grad_value, b.grad_value)) << "grad_value";
  if (!a.has_grad_attn_mask) return;
  EXPECT_TRUE(SameBits(a.grad_attn_mask, b.grad_attn_mask)) << "grad_attn_mask";
}

// ---- threads and repetition ----

// Several blocks of queries and tiles of keys for each head.
std::vector<ProblemArgs> ThreadedProblems() {
  ProblemArgs one_head;
  one_head.shape = {.seqlen_q = 300, .seqlen_k = 520, .head_dim = 20};
  one_head.dropout.dropout_p = 0.2;
  ProblemArgs many_heads = one_head;
  many_heads.shape = {.batch = 2, .num_heads = 3, .seqlen_q = 150, .seqlen_k = 290, .head_dim = 17};
  many_heads.is_causal = true;
  ProblemArgs grouped = one_head;
  grouped.shape = {.batch = 1,
                   .num_heads = 6,
                   .num_kv_heads = 2,
                   .seqlen_q = 200,
                   .seqlen_k = 200,
                   .head_dim = 16,
                   .head_dim_v = 24};
  grouped.dropout.empty_row = {EmptyRow::kAtLeastOne, 64};
  grouped.dtype = DType::kBFloat16;
  // Summed over batch and heads: one sum for all tasks to share.
  ProblemArgs shared_mask = many_heads;
  shared_mask.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, false, true, true};
  ProblemArgs own_mask = shared_mask;
  own_mask.attn_mask = {MaskKind::kFloat, DType::kFloat32, true, true, true, true};
  ProblemArgs key_mask = shared_mask;
  key_mask.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, true, false, true};
  return {one_head, many_heads, grouped, shared_mask, own_mask, key_mask};
}

TEST(FusedThreads, ChangeNoBit) {
  for (const ProblemArgs& args : ThreadedProblems()) {
    SCOPED_TRACE(MustMake(args).ToString());
    ProblemArrays alone = MakeArrays(args, 4);
    RunBoth(args, alone, kFused);
    for (int threads = 1; threads <= 4; ++threads) {
      SCOPED_TRACE(threads);
      ProblemArrays many = MakeArrays(args, 4);
      RunOptions options = kFused;
      options.threads = threads;
      RunBoth(args, many, options);
      ExpectSameBits(alone, many);
    }
  }
}

TEST(FusedThreads, ChangeNoBitOfRandomProblems) {
  ForRandomProblems({.first_seed = 400001, .count = 200}, kSmall,
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = ForFused(given);
                      ProblemArrays alone = MakeArrays(args, seed), many = MakeArrays(args, seed);
                      RunBoth(args, alone, kFused);
                      RunOptions options = kFused;
                      options.threads = 2 + static_cast<int>(seed % 3);
                      RunBoth(args, many, options);
                      ExpectSameBits(alone, many);
                    });
}

// Threads that meet in every order that thirty runs show.
TEST(FusedThreads, RepetitionChangesNoBit) {
  const ProblemArgs args = ThreadedProblems().front();
  ProblemArrays first = MakeArrays(args, 5), again = MakeArrays(args, 5);
  RunOptions options = kFused;
  options.threads = 4;
  RunBoth(args, first, options);
  for (int run = 0; run < 30 && !HasFailure(); ++run) {
    RunBoth(args, again, options);
    ExpectSameBits(first, again);
  }
}

// ---- tiles and layout ----

TEST(FusedTiles, StayWithinTheBound) {
  const std::vector<TileShape> shapes = {
      {.blocks_per_task = 1, .forward_keys = 1, .backward_keys = 1},
      {.blocks_per_task = 2, .forward_keys = 3, .backward_keys = 5},
      {.blocks_per_task = 3, .forward_keys = 63, .backward_keys = 65},
      {.blocks_per_task = 8, .forward_keys = 256, .backward_keys = 256}};
  for (const ProblemArgs& args : ThreadedProblems()) {
    SCOPED_TRACE(MustMake(args).ToString());
    for (const TileShape& tiles : shapes) {
      SCOPED_TRACE(tiles.forward_keys);
      ProblemArrays arrays = MakeArrays(args, 6);
      CheckBothDirections(args, arrays, Fused(tiles, 2));
    }
  }
}

TEST(FusedTiles, StayWithinTheBoundOnRandomProblems) {
  ForRandomProblems({.first_seed = 410001, .count = 400}, kSmall,
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = ForFused(given);
                      Random random(seed);
                      const TileShape tiles{.blocks_per_task = random.Between(1, 8),
                                            .forward_keys = random.Between(1, 80),
                                            .backward_keys = random.Between(1, 80)};
                      ProblemArrays arrays = MakeArrays(args, seed);
                      CheckBothDirections(args, arrays, Fused(tiles));
                    });
}

void CopyInputs(ProblemArrays& from, ProblemArrays& to) {
  const std::vector<Array*> source = from.Inputs(), target = to.Inputs();
  for (std::size_t k = 0; k < source.size(); ++k) {
    if (source[k]->shape().size() > 0) CopyElements(*source[k], *target[k]);
  }
  to.slopes = from.slopes;
  to.Freeze();
}

// Where the numbers lie decides which are copied first, never what is computed.
TEST(FusedLayout, ChangesNoBit) {
  ForRandomProblems({.first_seed = 420001, .count = 400}, kSmall,
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      const ProblemArgs args = ForFused(given);
                      ProblemArrays plain = MakeArrays(args, seed);
                      ProblemArrays shuffled = Allocate(args, {.shuffle_seed = seed});
                      CopyInputs(plain, shuffled);
                      RunBoth(args, plain, kFused);
                      RunBoth(args, shuffled, kFused);
                      ExpectSameBits(plain, shuffled);
                      EXPECT_TRUE(shuffled.Intact());
                    });
}

// ---- shards ----

std::vector<Range> Parts(std::int64_t length, std::int64_t unit, Random& random) {
  const std::int64_t first = unit * random.Below(length / unit + 1);
  return {{0, first}, {first, length - first}};
}

// Batch, heads and queries in parts: each is held against the whole computed naively.
TEST(FusedShards, BatchHeadsAndQueriesStayWithinTheBound) {
  GeneratorOptions options = kSmall;
  options.ragged = false;
  ForRandomProblems(
      {.first_seed = 430001, .count = 300}, options,
      [](const ProblemArgs& given, std::uint64_t seed) {
        const ProblemArgs args = ForFused(given);
        Random random(seed);
        ProblemArrays arrays = MakeArrays(args, seed);
        const std::int64_t group = args.shape.num_heads / std::max<std::int64_t>(1, KvHeads(args));
        for (const Range& batch : Parts(args.shape.batch, 1, random)) {
          for (const Range& heads :
               Parts(args.shape.num_heads, std::max<std::int64_t>(1, group), random)) {
            for (const Range& queries : Parts(args.shape.seqlen_q, 1, random)) {
              const Cut cut{batch, heads, queries, WholeCut(args).keys};
              ExpectForward(ShardArgs(args, cut), ShardForward(args, cut, arrays), kFused);
              BackwardBuffers backward = ShardBackward(args, cut, arrays);
              backward.grad_key = backward.grad_value = {};
              ExpectBackward(ShardArgs(args, cut), backward, kFused);
            }
          }
        }
        NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
        CheckForward(args, arrays, naive);
        arrays.has_grad_attn_mask = false;
        arrays.grad_key.Fill(
            [&](auto b, auto h, auto r, auto c) { return naive.value.grad_key.at(b, h, r, c); });
        arrays.grad_value.Fill(
            [&](auto b, auto h, auto r, auto c) { return naive.value.grad_value.at(b, h, r, c); });
        CheckBackward(args, arrays, naive);
        EXPECT_TRUE(arrays.Intact());
      });
}

// Parts of the keys, merged: L = log(sum of exp(L_s)), out = sum of exp(L_s - L) out_s; gradients
// by the chain rule through out_s and L_s.
class KeyMerge {
 public:
  KeyMerge(const ProblemArgs& args, std::vector<Range> keys, std::uint64_t seed) : args_(args) {
    for (const Range& part : keys) {
      cuts_.push_back(WholeCut(args));
      cuts_.back().keys = part;
      parts_.push_back(MakeArrays(args, seed));
    }
  }

  void Run() {
    for (std::size_t s = 0; s < cuts_.size(); ++s) {
      ExpectForward(ShardArgs(args_, cuts_[s]), ShardForward(args_, cuts_[s], parts_[s]), kFused);
    }
    out_ = Dense4(parts_[0].out.shape());
    logsumexp_ = Dense4(parts_[0].logsumexp.shape());
    grad_query_ = Dense4(parts_[0].query.shape());
    ForEachRow([this](std::int64_t b, std::int64_t h, std::int64_t r) { MergeRow(b, h, r); });
    for (std::size_t s = 0; s < cuts_.size(); ++s) Backward(s);
  }

  void ExpectMatches(const NaiveProblem& naive, double tolerance) {
    ExpectNear(out_, naive.value.out, naive.bound.out, tolerance, "out");
    ExpectNear(logsumexp_, naive.value.logsumexp, naive.bound.logsumexp, tolerance, "logsumexp");
    ExpectNear(grad_query_, naive.value.grad_query, naive.bound.grad_query, tolerance,
               "grad_query");
    Dense4 grad_key(naive.value.grad_key.shape), grad_value(naive.value.grad_value.shape);
    for (std::size_t s = 0; s < cuts_.size(); ++s) {
      TakeKeys(parts_[s].grad_key, cuts_[s].keys, grad_key);
      TakeKeys(parts_[s].grad_value, cuts_[s].keys, grad_value);
    }
    ExpectNear(grad_key, naive.value.grad_key, naive.bound.grad_key, tolerance, "grad_key");
    ExpectNear(grad_value, naive.value.grad_value, naive.bound.grad_value, tolerance, "grad_value");
  }

 private:
  static void ExpectNear(const Dense4& got, const Dense4& want, const Dense4& bound,
                         double tolerance, const char* what) {
    for (std::size_t k = 0; k < want.values.size(); ++k) {
      if (want.values[k] == got.values[k]) continue;  // -inf too
      ASSERT_NEAR(got.values[k], want.values[k], tolerance * bound.values[k] + 1e-30)
          << what << " " << k;
    }
  }

  static void TakeKeys(const Array& from, const Range& keys, Dense4& to) {
    for (std::int64_t b = 0; b < to.shape.batch; ++b) {
      for (std::int64_t h = 0; h < to.shape.heads; ++h) {
        for (std::int64_t r = keys.first; r < keys.first + keys.count; ++r) {
          for (std::int64_t c = 0; c < to.shape.cols; ++c) to.at(b, h, r, c) = from.Get(b, h, r, c);
        }
      }
    }
  }

  template <class F>
  void ForEachRow(F&& body) const {
    const ArrayShape& shape = parts_[0].out.shape();
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        for (std::int64_t r = 0; r < shape.rows; ++r) body(b, h, r);
      }
    }
  }

  // exp(L_s - L)
  [[nodiscard]] double Share(std::size_t s, std::int64_t b, std::int64_t h, std::int64_t r) const {
    const double part = parts_[s].logsumexp.Get(b, h, r, 0);
    return std::isinf(part) ? 0.0 : std::exp(part - logsumexp_.at(b, h, r, 0));
  }

  void MergeRow(std::int64_t b, std::int64_t h, std::int64_t r) {
    double top = -INFINITY, sum = 0.0;
    for (const ProblemArrays& part : parts_) {
      top = std::fmax(top, part.logsumexp.Get(b, h, r, 0));
    }
    for (const ProblemArrays& part : parts_) {
      if (!std::isinf(top)) sum += std::exp(part.logsumexp.Get(b, h, r, 0) - top);
    }
    logsumexp_.at(b, h, r, 0) = std::isinf(top) ? top : top + std::log(sum);
    for (std::size_t s = 0; s < parts_.size(); ++s) {
      for (std::int64_t c = 0; c < out_.shape.cols; ++c) {
        out_.at(b, h, r, c) += Share(s, b, h, r) * parts_[s].out.Get(b, h, r, c);
      }
    }
  }

  void Backward(std::size_t s) {
    ProblemArrays& part = parts_[s];
    ForEachRow([&](std::int64_t b, std::int64_t h, std::int64_t r) {
      const double share = Share(s, b, h, r);
      double grad = part.grad_logsumexp.Get(b, h, r, 0);
      for (std::int64_t c = 0; c < out_.shape.cols; ++c) {
        const double grad_out = part.grad_out.Get(b, h, r, c);
        grad += grad_out * (part.out.Get(b, h, r, c) - out_.at(b, h, r, c));
        part.grad_out.Set(b, h, r, c, share * grad_out);
      }
      part.grad_logsumexp.Set(b, h, r, 0, share * grad);
    });
    ExpectBackward(ShardArgs(args_, cuts_[s]), ShardBackward(args_, cuts_[s], part), kFused);
    const Dense4 add = part.grad_query.ToDouble();
    for (std::size_t k = 0; k < add.values.size(); ++k) grad_query_.values[k] += add.values[k];
  }

  const ProblemArgs& args_;
  std::vector<Cut> cuts_;
  std::vector<ProblemArrays> parts_;
  Dense4 out_, logsumexp_, grad_query_;
};

// Of the sum of the absolute values of the terms.
constexpr double kMergeTolerance = 1e-6;

TEST(FusedShards, KeyPartsMergeThroughLogsumexp) {
  for (const char* scheme : {"element", "key", "block", "symmetric"}) {
    for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
      for (const bool is_causal : {false, true}) {
        ProblemArgs args;
        args.shape = {
            .num_heads = 2, .num_kv_heads = 1, .seqlen_q = 330, .seqlen_k = 330, .head_dim = 16};
        args.is_causal = is_causal;
        args.dropout = {.dropout_p = 0.3, .scheme = scheme, .stage = stage, .seed = 9};
        SCOPED_TRACE(MustMake(args).ToString());
        KeyMerge merge(args, {{0, 77}, {77, 128}, {205, 125}}, 21);
        merge.Run();
        ProblemArrays arrays = MakeArrays(args, 21);
        merge.ExpectMatches(RunNaive(args, arrays, ComputeOracleMask(args, arrays)),
                            kMergeTolerance);
      }
    }
  }
}

// ---- nothing dropped ----

// p = 0, training off, and no word of dropout at all are one computation, whatever else is asked.
TEST(FusedDropout, NothingDroppedIsNoDropoutBitForBit) {
  ForRandomProblems({.first_seed = 440001, .count = 200}, kSmall,
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      ProblemArgs args = ForFused(given);
                      args.dropout.dropout_p = 0.0;
                      ProblemArgs evaluation = args, none = args;
                      evaluation.dropout.dropout_p = 0.5;
                      evaluation.dropout.training = false;
                      none.dropout = {};
                      ProblemArrays a = MakeArrays(args, seed), b = MakeArrays(args, seed);
                      ProblemArrays c = MakeArrays(args, seed);
                      RunBoth(args, a, kFused);
                      RunBoth(evaluation, b, kFused);
                      RunBoth(none, c, kFused);
                      ExpectSameBits(a, b);
                      ExpectSameBits(a, c);
                    });
}

}  // namespace
}  // namespace attndrop::testing
