// SPDX-License-Identifier: Apache-2.0
// Relations between calls that hold whatever the formulas say: rates 0 and 1, stage logits as a
// mask, linearity, sums, and numbers that must not be read.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/naive_attention.h"
#include "support/run.h"

namespace attndrop::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void RunBoth(const ProblemArgs& args, ProblemArrays& arrays) {
  RunForward(args, arrays);
  RunBackward(args, arrays);
}

void ExpectSameResults(ProblemArrays& a, ProblemArrays& b) {
  EXPECT_TRUE(SameBits(a.out, b.out)) << "out";
  EXPECT_TRUE(SameBits(a.logsumexp, b.logsumexp)) << "logsumexp";
  EXPECT_TRUE(SameBits(a.grad_query, b.grad_query)) << "grad_query";
  EXPECT_TRUE(SameBits(a.grad_key, b.grad_key)) << "grad_key";
  EXPECT_TRUE(SameBits(a.grad_value, b.grad_value)) << "grad_value";
  if (a.has_grad_attn_mask && b.has_grad_attn_mask) {
    EXPECT_TRUE(SameBits(a.grad_attn_mask, b.grad_attn_mask)) << "grad_attn_mask";
  }
}

TEST(RelationProperty, RateZeroAndEvaluationAreTheDropoutFreeBits) {
  ForRandomProblems({400001, 300}, {.max_work = 100000},
                    [](const ProblemArgs& args, std::uint64_t seed) {
                      ProblemArgs plain = args;
                      plain.dropout = {};
                      ProblemArrays want = MakeArrays(plain, seed);
                      RunBoth(plain, want);
                      ProblemArgs zero = args;
                      zero.dropout.dropout_p = 0.0;
                      ProblemArgs evaluation = args;
                      evaluation.dropout.training = false;
                      for (const ProblemArgs& same : {zero, evaluation}) {
                        ProblemArrays got = MakeArrays(same, seed);
                        RunBoth(same, got);
                        ExpectSameResults(want, got);
                        const LibraryMask mask = RunKeepMask(same, got);
                        const OracleMask oracle = ComputeOracleMask(plain, got);
                        EXPECT_EQ(mask.keep, oracle.visible);
                      }
                    });
}

TEST(RelationProperty, RateOneGivesZeros) {
  ForRandomProblems({410001, 200}, {.max_work = 60000},
                    [](const ProblemArgs& given, std::uint64_t seed) {
                      ProblemArgs args = given;
                      args.dropout.dropout_p = 1.0;
                      args.dropout.training = true;
                      args.dropout.empty_row = {};
                      ProblemArrays arrays = MakeArrays(args, seed, {.grad_logsumexp = false});
                      RunBoth(args, arrays);
                      for (Array* array : {&arrays.out, &arrays.grad_query, &arrays.grad_key,
                                           &arrays.grad_value, &arrays.grad_attn_mask}) {
                        if (array == &arrays.grad_attn_mask && !arrays.has_grad_attn_mask) continue;
                        const Dense4 zeros(array->shape());
                        EXPECT_TRUE(Matches(*array, zeros, zeros, 0.0));
                      }
                      ProblemArgs plain = args;
                      plain.dropout = {};
                      ProblemArrays undropped = MakeArrays(plain, seed);
                      RunForward(plain, undropped);
                      if (args.dropout.stage == Stage::kLogits)
                        undropped.logsumexp.FillAll(-kInfinity);
                      EXPECT_TRUE(SameBits(arrays.logsumexp, undropped.logsumexp));
                    });
}

TEST(RelationProperty, StageLogitsIsMinusInfinityAddedToDroppedLogits) {
  ForRandomProblems(
      {420001, 400}, {.max_work = 100000}, [](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        args.dropout.stage = Stage::kLogits;
        if (args.attn_mask.kind == MaskKind::kFloat) args.attn_mask.kind = MaskKind::kBool;
        ProblemArrays dropped = MakeArrays(args, seed);
        RunBoth(args, dropped);
        const LibraryMask mask = RunKeepMask(args, dropped);
        const OracleMask index = ComputeOracleMask(args, dropped);

        ProblemArgs masked = args;
        masked.dropout = {};
        masked.attn_mask = {MaskKind::kFloat, DType::kFloat32, true, true, true, true};
        ProblemArrays other = Allocate(masked, {});
        for (auto [to, from] : {std::pair<Array*, Array*>{&other.query, &dropped.query},
                                {&other.key, &dropped.key},
                                {&other.value, &dropped.value},
                                {&other.grad_out, &dropped.grad_out},
                                {&other.grad_logsumexp, &dropped.grad_logsumexp}}) {
          CopyElements(*from, *to);
        }
        other.slopes = dropped.slopes;
        other.attn_mask.Fill([&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
          return mask.keep[index.Index(b, h, r, c)] != 0 ? 0.0 : -kInfinity;
        });
        RunBoth(masked, other);
        ExpectSameResults(dropped, other);
      });
}

TEST(RelationProperty, LinearInValueAndGradOut) {
  ForRandomProblems(
      {430001, 300}, {.max_work = 60000}, [](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        args.dtype = DType::kFloat64;
        const ArrayOptions options{.grad_logsumexp = false};
        ProblemArrays once = MakeArrays(args, seed, options),
                      twice = MakeArrays(args, seed, options);
        for (Array* array : {&twice.value, &twice.grad_out}) {
          array->Fill([&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
            return 2.0 * (array == &twice.value ? once.value : once.grad_out).Get(b, h, r, c);
          });
        }
        RunBoth(args, once);
        RunBoth(args, twice);
        const auto expect_times = [](Array& small, const Array& large, double factor) {
          small.Fill([&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
            return factor * small.Get(b, h, r, c);
          });
          EXPECT_TRUE(SameBits(small, large));
        };
        expect_times(once.out, twice.out, 2.0);
        expect_times(once.grad_query, twice.grad_query, 4.0);
        expect_times(once.grad_key, twice.grad_key, 4.0);
        expect_times(once.grad_value, twice.grad_value, 2.0);
        EXPECT_TRUE(SameBits(once.logsumexp, twice.logsumexp));
      });
}

// out(value + other) = out(value) + out(other).
TEST(RelationProperty, AdditiveInValue) {
  ForRandomProblems(
      {440001, 200}, {.max_work = 60000}, [](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        args.dtype = DType::kFloat64;
        args.layout = Layout::kBhsd;
        ProblemArrays a = MakeArrays(args, seed), b = MakeArrays(args, seed),
                      sum = MakeArrays(args, seed);
        Random random(seed + 1);
        b.value.Fill([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
          return random.Normal();
        });
        sum.value.Fill([&](std::int64_t i, std::int64_t h, std::int64_t r, std::int64_t c) {
          return a.value.Get(i, h, r, c) + b.value.Get(i, h, r, c);
        });
        for (ProblemArrays* arrays : {&a, &b, &sum}) RunForward(args, *arrays);
        const OracleMask mask = ComputeOracleMask(args, a);
        const Dense4 bound_a = RunNaive(args, a, mask).bound.out,
                     bound_b = RunNaive(args, b, mask).bound.out;
        Dense4 want = a.out.ToDouble(), bound = bound_a;
        const Dense4 other = b.out.ToDouble();
        for (std::size_t k = 0; k < want.values.size(); ++k) {
          want.values[k] += other.values[k];
          bound.values[k] += bound_b.values[k];
        }
        EXPECT_TRUE(Matches(sum.out, want, bound, 1e-13));
      });
}

// A constant added to the logits of a row changes logsumexp by it, and nothing else.
TEST(RelationProperty, ConstantOnARowOnlyMovesLogsumexp) {
  ForRandomProblems(
      {450001, 200}, {.max_work = 60000}, [](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        args.dtype = DType::kFloat64;
        args.attn_mask = {MaskKind::kFloat, DType::kFloat64, false, false, true, false};
        if (args.total && !args.ragged) args.dropout.empty_row = {};
        ProblemArrays zero = MakeArrays(args, seed), moved = MakeArrays(args, seed);
        zero.attn_mask.FillAll(0.0);
        moved.attn_mask.Fill([](std::int64_t, std::int64_t, std::int64_t r, std::int64_t) {
          return 3.0 - 0.25 * static_cast<double>(r);
        });
        RunForward(args, moved);
        RunBackward(args, moved);
        const NaiveProblem naive = RunNaive(args, zero, ComputeOracleMask(args, zero));
        EXPECT_TRUE(Matches(moved.out, naive.value.out, naive.bound.out, 1e-12));
        EXPECT_TRUE(
            Matches(moved.grad_query, naive.value.grad_query, naive.bound.grad_query, 1e-12));
        EXPECT_TRUE(
            Matches(moved.grad_value, naive.value.grad_value, naive.bound.grad_value, 1e-12));
      });
}

// The gradients of the logits of a row sum to zero, dropout or not (grad_logsumexp apart).
TEST(RelationProperty, LogitGradientsOfARowSumToZero) {
  ForRandomProblems(
      {460001, 300}, {.max_work = 60000}, [](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        args.dtype = DType::kFloat64;
        args.attn_mask = {MaskKind::kFloat, DType::kFloat64, true, true, true, true};
        if (args.total && !args.ragged) args.dropout.empty_row = {};
        ProblemArrays arrays = MakeArrays(args, seed, {.grad_logsumexp = false});
        RunBackward(args, arrays);
        const Dense4 bound =
            RunNaive(args, arrays, ComputeOracleMask(args, arrays)).bound.grad_attn_mask;
        const ArrayShape& shape = arrays.grad_attn_mask.shape();
        for (std::int64_t b = 0; b < shape.batch; ++b) {
          for (std::int64_t h = 0; h < shape.heads; ++h) {
            for (std::int64_t r = 0; r < shape.rows; ++r) {
              double sum = 0.0, total = 0.0;
              for (std::int64_t c = 0; c < shape.cols; ++c) {
                sum += arrays.grad_attn_mask.Get(b, h, r, c);
                total += bound.at(b, h, r, c);
              }
              ASSERT_LE(std::fabs(sum), 1e-12 * total + 1e-300) << b << " " << h << " " << r;
            }
          }
        }
      });
}

// Whether any query head and row reads the key: visible, and kept.
struct KeyUse {
  std::vector<bool> seen, kept;
};
KeyUse UseOfKeys(const ProblemArgs& args, const ProblemArrays& arrays, const OracleMask& mask) {
  const ArrayShape& shape = arrays.value.shape();
  KeyUse use;
  use.seen.assign(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows), false);
  use.kept = use.seen;
  for (std::int64_t b = 0; b < mask.batch; ++b) {
    const SequenceView view = ViewSequence(args, b);
    for (std::int64_t h = 0; h < mask.heads; ++h) {
      const std::int64_t kv = h / (args.shape.num_heads / KvHeads(args));
      for (std::int64_t i = 0; i < view.seqlen_q; ++i) {
        for (std::int64_t j = 0; j < view.seqlen_k; ++j) {
          const auto row = static_cast<std::size_t>(
              (view.array_batch * shape.heads + kv) * shape.rows + view.first_row_k + j);
          const std::size_t cell = mask.Index(b, h, i, j);
          if (mask.visible[cell] != 0) use.seen[row] = true;
          if (mask.keep[cell] != 0) use.kept[row] = true;
        }
      }
    }
  }
  return use;
}

void FillRow(Array& array, std::size_t row, double value) {
  const auto r = static_cast<std::int64_t>(row);
  const ArrayShape& shape = array.shape();
  for (std::int64_t c = 0; c < shape.cols; ++c) {
    array.Set(r / shape.rows / shape.heads, r / shape.rows % shape.heads, r % shape.rows, c, value);
  }
}

// Puts NaN and infinities wherever the result may not look; returns how many rows it hit.
int Poison(const ProblemArgs& args, const OracleMask& mask, ProblemArrays& arrays, Random& random) {
  int count = 0;
  const auto poison = [&] { return random.Pick({kNaN, kInfinity, -kInfinity}); };
  const KeyUse use = UseOfKeys(args, arrays, mask);
  const bool logits = args.dropout.stage == Stage::kLogits;
  for (std::size_t row = 0; row < use.seen.size(); ++row) {
    if (!use.seen[row] || (logits && !use.kept[row])) FillRow(arrays.key, row, poison());
    if (!use.kept[row]) FillRow(arrays.value, row, poison());
    count += use.kept[row] ? 0 : 1;
  }
  for (std::int64_t b = 0; b < mask.batch; ++b) {
    const SequenceView view = ViewSequence(args, b);
    for (std::int64_t h = 0; h < mask.heads; ++h) {
      for (std::int64_t i = 0; i < view.seqlen_q; ++i) {
        bool seen = false;
        for (std::int64_t j = 0; j < view.seqlen_k; ++j) {
          seen = seen || mask.visible[mask.Index(b, h, i, j)] != 0;
        }
        if (seen) continue;
        const ArrayShape& shape = arrays.query.shape();
        const auto row = static_cast<std::size_t>(
            (view.array_batch * shape.heads + h) * shape.rows + view.first_row_q + i);
        FillRow(arrays.query, row, poison());
        FillRow(arrays.grad_out, row, poison());
        FillRow(arrays.grad_logsumexp, row, poison());
        ++count;
      }
    }
  }
  return count;
}

TEST(RelationProperty, NaNAndInfinityWhereNothingLooksChangeNoBit) {
  int poisoned = 0;
  ForRandomProblems({470001, 500}, {.max_work = 60000, .empty = false},
                    [&](const ProblemArgs& given, std::uint64_t seed) {
                      ProblemArgs args = given;
                      Random random(seed);
                      if (args.layout == Layout::kExpanded) args.layout = Layout::kBshd;
                      if (random.Chance(0.5)) args.dropout.dropout_p = 0.9;
                      ProblemArrays clean = MakeArrays(args, seed), dirty = MakeArrays(args, seed);
                      poisoned += Poison(args, ComputeOracleMask(args, clean), dirty, random);
                      RunBoth(args, clean);
                      RunBoth(args, dirty);
                      ExpectSameResults(clean, dirty);
                    });
  EXPECT_GT(poisoned, 1000);
}

// A NaN in what a row reads makes that row NaN and no other.
TEST(RelationProperty, NaNStaysInTheRowsThatReadIt) {
  ForRandomProblems(
      {480001, 500}, {.max_work = 60000, .empty = false},
      [&](const ProblemArgs& args, std::uint64_t seed) {
        ProblemArrays arrays = MakeArrays(args, seed);
        Random random(seed);
        Array& array = *random.Pick<Array*>({&arrays.query, &arrays.key, &arrays.value});
        const ArrayShape& shape = array.shape();
        if (shape.size() == 0) return;
        array.Set(random.Below(shape.batch), random.Below(shape.heads), random.Below(shape.rows),
                  random.Below(shape.cols), kNaN);
        const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
        RunForward(args, arrays);
        EXPECT_TRUE(Matches(arrays.out, naive.value.out, naive.bound.out, 1e-12));
        EXPECT_TRUE(Matches(arrays.logsumexp, naive.value.logsumexp, naive.bound.logsumexp, 1e-12));
      });
}

// Stage logits: the weights of a row that keeps a key sum to one.
TEST(RelationProperty, KeptWeightsOfStageLogitsSumToOne) {
  ForRandomProblems(
      {490001, 200}, {.max_work = 60000}, [&](const ProblemArgs& given, std::uint64_t seed) {
        ProblemArgs args = given;
        args.dtype = DType::kFloat64;
        args.dropout.stage = Stage::kLogits;
        ProblemArrays arrays = MakeArrays(args, seed);
        arrays.value.FillAll(1.0);
        RunForward(args, arrays);
        const Dense4 out = arrays.out.ToDouble(), logsumexp = arrays.logsumexp.ToDouble();
        for (std::size_t k = 0; k < out.values.size(); ++k) {
          const std::size_t row = k / static_cast<std::size_t>(out.shape.cols);
          const double want = std::isinf(logsumexp.values[row]) ? 0.0 : 1.0;
          ASSERT_NEAR(out.values[k], want, 1e-13);
        }
      });
}

}  // namespace
}  // namespace attndrop::testing
