// SPDX-License-Identifier: Apache-2.0
// A problem computed in parts (batch, heads, queries, keys) is the whole problem.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/naive_attention.h"
#include "support/run.h"
#include "support/shard.h"

namespace attndrop::testing {
namespace {

constexpr GeneratorOptions kOptions{.max_work = 60000, .ragged = false};

std::array<Range, 2> Halves(std::int64_t length, std::int64_t unit, Random& random) {
  const std::int64_t units = length / unit;
  const std::int64_t first = unit * random.Below(units + 1);
  return {Range{0, first}, Range{first, length - first}};
}

// The sixteen shards of a random cut along every axis.
std::vector<Cut> RandomCuts(const ProblemArgs& args, std::uint64_t seed) {
  Random random(seed);
  const std::int64_t group = args.shape.num_heads / std::max<std::int64_t>(1, KvHeads(args));
  const auto batch = Halves(args.shape.batch, 1, random);
  const auto heads = Halves(args.shape.num_heads, std::max<std::int64_t>(1, group), random);
  const auto queries = Halves(args.shape.seqlen_q, 1, random);
  const auto keys = Halves(args.shape.seqlen_k, 1, random);
  std::vector<Cut> cuts;
  for (std::size_t part = 0; part < 16; ++part) {
    cuts.push_back(
        {batch[part & 1], heads[(part >> 1) & 1], queries[(part >> 2) & 1], keys[(part >> 3) & 1]});
  }
  return cuts;
}

bool ReadsWholeRow(const ProblemArgs& args) {
  const EmptyRow kind = args.dropout.empty_row.kind;
  return kind == EmptyRow::kAtLeastOne || kind == EmptyRow::kUndropped;
}

void ExpectShardOfMask(const ProblemArgs& args, const Cut& cut, ProblemArrays& arrays,
                       const LibraryMask& whole) {
  const ProblemArgs shard = ShardArgs(args, cut);
  const auto cells = static_cast<std::size_t>(cut.batch.count * cut.heads.count *
                                              cut.queries.count * cut.keys.count);
  std::vector<std::uint8_t> keep(cells + 1, 0xEE);
  std::vector<double> factors(cells + 1, -7.0);
  SerialExecutor executor;
  const Status status = KeepMask(
      MustMake(shard),
      {.mask = ShardMask(args, cut, arrays), .keep = keep.data(), .factors = factors.data()},
      executor);
  ASSERT_TRUE(status.ok()) << status.message();
  const AttentionShape& shape = args.shape;
  std::size_t cell = 0;
  for (std::int64_t b = 0; b < cut.batch.count; ++b) {
    for (std::int64_t h = 0; h < cut.heads.count; ++h) {
      for (std::int64_t i = 0; i < cut.queries.count; ++i) {
        for (std::int64_t j = 0; j < cut.keys.count; ++j, ++cell) {
          const std::int64_t row =
              ((cut.batch.first + b) * shape.num_heads + cut.heads.first + h) * shape.seqlen_q +
              cut.queries.first + i;
          const auto at = static_cast<std::size_t>(row * shape.seqlen_k + cut.keys.first + j);
          ASSERT_EQ(keep[cell], whole.keep[at]) << b << " " << h << " " << i << " " << j;
          ASSERT_EQ(factors[cell], whole.factors[at]) << b << " " << h << " " << i << " " << j;
        }
      }
    }
  }
}

TEST(ShardProperty, MaskOfEveryPart) {
  ForRandomProblems({200001, 600}, kOptions, [](const ProblemArgs& given, std::uint64_t seed) {
    ProblemArgs args = given;
    if (ReadsWholeRow(args)) args.attn_mask = {};
    ProblemArrays arrays = MakeArrays(args, seed);
    const LibraryMask whole = RunKeepMask(args, arrays);
    for (const Cut& cut : RandomCuts(args, seed)) ExpectShardOfMask(args, cut, arrays, whole);
  });
}

// Parts that hold all keys of their rows write the same bits as the whole.
TEST(ShardProperty, BatchHeadsAndQueriesChangeNoBit) {
  ForRandomProblems({210001, 300}, kOptions, [](const ProblemArgs& args, std::uint64_t seed) {
    ProblemArrays whole = MakeArrays(args, seed);
    RunForward(args, whole);
    RunBackward(args, whole);
    ProblemArrays parts = MakeArrays(args, seed);
    for (Cut cut : RandomCuts(args, seed)) {
      if (cut.keys.first != 0) continue;
      cut.keys = WholeCut(args).keys;
      ExpectForward(ShardArgs(args, cut), ShardForward(args, cut, parts));
      BackwardBuffers backward = ShardBackward(args, cut, parts);
      backward.grad_key = {};
      backward.grad_value = {};
      ExpectBackward(ShardArgs(args, cut), backward);
    }
    EXPECT_TRUE(SameBits(whole.out, parts.out));
    EXPECT_TRUE(SameBits(whole.logsumexp, parts.logsumexp));
    EXPECT_TRUE(SameBits(whole.grad_query, parts.grad_query));
    EXPECT_TRUE(parts.Intact());
  });
}

void Accumulate(const Array& part, Dense4& sum) {
  const Dense4 values = part.ToDouble();
  for (std::size_t k = 0; k < sum.values.size(); ++k) sum.values[k] += values.values[k];
}

Array AsArray(const Dense4& numbers) {
  Array array(Element::kFloat64, numbers.shape, {});
  array.Fill([&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    return numbers.at(b, h, r, c);
  });
  return array;
}

// Two key shards and their merge: logsumexp L = log(sum of exp(L_s)), out = sum of exp(L_s - L)
// out_s; gradients by the chain rule through out_s and L_s.
class KeyMerge {
 public:
  KeyMerge(const ProblemArgs& args, std::uint64_t seed) : args_(args) {
    Random random(seed);
    for (const Range& keys : Halves(args.shape.seqlen_k, 1, random)) {
      Cut cut = WholeCut(args);
      cut.keys = keys;
      cuts_.push_back(cut);
      parts_.push_back(MakeArrays(args, seed));
    }
  }

  void Run() {
    for (std::size_t s = 0; s < cuts_.size(); ++s) {
      ExpectForward(ShardArgs(args_, cuts_[s]), ShardForward(args_, cuts_[s], parts_[s]));
    }
    Merge();
    grad_query_ = Dense4(parts_[0].query.shape());
    for (std::size_t s = 0; s < cuts_.size(); ++s) Backward(s);
  }

  void ExpectMatches(const NaiveProblem& naive) {
    constexpr double kTolerance = 1e-11;
    const NaiveResult &value = naive.value, &bound = naive.bound;
    EXPECT_TRUE(Matches(AsArray(out_), value.out, bound.out, kTolerance));
    EXPECT_TRUE(Matches(AsArray(logsumexp_), value.logsumexp, bound.logsumexp, kTolerance));
    EXPECT_TRUE(Matches(AsArray(grad_query_), value.grad_query, bound.grad_query, kTolerance));
    // Each part has written its own keys.
    Dense4 grad_key = parts_[0].grad_key.ToDouble(), grad_value = parts_[0].grad_value.ToDouble();
    const auto take = [&](const Array& from, Dense4& to) {
      for (std::int64_t b = 0; b < to.shape.batch; ++b) {
        for (std::int64_t h = 0; h < to.shape.heads; ++h) {
          for (std::int64_t r = cuts_[1].keys.first; r < to.shape.rows; ++r) {
            for (std::int64_t c = 0; c < to.shape.cols; ++c)
              to.at(b, h, r, c) = from.Get(b, h, r, c);
          }
        }
      }
    };
    take(parts_[1].grad_key, grad_key);
    take(parts_[1].grad_value, grad_value);
    EXPECT_TRUE(Matches(AsArray(grad_key), value.grad_key, bound.grad_key, kTolerance));
    EXPECT_TRUE(Matches(AsArray(grad_value), value.grad_value, bound.grad_value, kTolerance));
  }

 private:
  // exp(L_s - L)
  double Share(std::size_t s, std::int64_t b, std::int64_t h, std::int64_t r) const {
    const double part = parts_[s].logsumexp.Get(b, h, r, 0);
    return std::isinf(part) ? 0.0 : std::exp(part - logsumexp_.at(b, h, r, 0));
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

  void Merge() {
    out_ = Dense4(parts_[0].out.shape());
    logsumexp_ = Dense4(parts_[0].logsumexp.shape());
    ForEachRow([&](std::int64_t b, std::int64_t h, std::int64_t r) {
      const double x = parts_[0].logsumexp.Get(b, h, r, 0), y = parts_[1].logsumexp.Get(b, h, r, 0);
      const double top = std::fmax(x, y);
      logsumexp_.at(b, h, r, 0) =
          std::isinf(top) ? top : top + std::log(std::exp(x - top) + std::exp(y - top));
      for (std::int64_t c = 0; c < out_.shape.cols; ++c) {
        for (std::size_t s = 0; s < 2; ++s) {
          out_.at(b, h, r, c) += Share(s, b, h, r) * parts_[s].out.Get(b, h, r, c);
        }
      }
    });
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
    ExpectBackward(ShardArgs(args_, cuts_[s]), ShardBackward(args_, cuts_[s], part));
    Accumulate(part.grad_query, grad_query_);
  }

  const ProblemArgs& args_;
  std::vector<Cut> cuts_;
  std::vector<ProblemArrays> parts_;
  Dense4 out_, logsumexp_, grad_query_;
};

TEST(ShardProperty, KeyPartsMergeThroughLogsumexp) {
  ForRandomProblems({220001, 400}, kOptions, [](const ProblemArgs& given, std::uint64_t seed) {
    ProblemArgs args = given;
    args.dtype = DType::kFloat64;
    if (ReadsWholeRow(args)) args.attn_mask = {};
    KeyMerge merge(args, seed);
    merge.Run();
    ProblemArrays arrays = MakeArrays(args, seed);
    merge.ExpectMatches(RunNaive(args, arrays, ComputeOracleMask(args, arrays)));
  });
}

}  // namespace
}  // namespace attndrop::testing
