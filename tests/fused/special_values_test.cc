// SPDX-License-Identifier: Apache-2.0
// NaN, infinities, extreme logits, extreme rates and denormals on every target: the table of
// docs/math/attention.md, held by the fused path.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fused/bound.h"

namespace attndrop::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kLowest = std::numeric_limits<float>::lowest();

ProblemArgs Square(std::int64_t seqlen, double dropout_p = 0.0) {
  ProblemArgs args;
  args.shape = {.seqlen_q = seqlen, .seqlen_k = seqlen, .head_dim = 8};
  args.dropout.dropout_p = dropout_p;
  args.dropout.seed = 2;
  return args;
}

void ForEachTarget(const std::function<void(Target)>& check) {
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(TargetName(target));
    check(target);
    if (::testing::Test::HasFailure()) return;
  }
}

void SetRow(Array& array, std::int64_t row, double value) {
  for (std::int64_t c = 0; c < array.shape().cols; ++c) array.Set(0, 0, row, c, value);
}

void RunBoth(const ProblemArgs& args, ProblemArrays& arrays, Target target) {
  RunForward(args, arrays, Fused(target));
  RunBackward(args, arrays, Fused(target));
}

// Both runs wrote the same bits, but for the rows of the gradients of key and value where the
// poison is.
void ExpectSameOutputs(ProblemArrays& clean, ProblemArrays& poisoned) {
  EXPECT_TRUE(SameBits(clean.out, poisoned.out)) << "out";
  EXPECT_TRUE(SameBits(clean.logsumexp, poisoned.logsumexp)) << "logsumexp";
  EXPECT_TRUE(SameBits(clean.grad_query, poisoned.grad_query)) << "grad_query";
  EXPECT_TRUE(SameBits(clean.grad_key, poisoned.grad_key)) << "grad_key";
  EXPECT_TRUE(SameBits(clean.grad_value, poisoned.grad_value)) << "grad_value";
}

// The same within rounding: where a NaN is, other kernels run, which add up in another order.
void ExpectWithinBound(const ProblemArgs& args, ProblemArrays& poisoned,
                       const NaiveProblem& clean) {
  NaiveProblem naive = clean;
  CheckForward(args, poisoned, naive);
  CheckBackward(args, poisoned, naive);
}

// ---- masked and dropped cells ----

// Causal: the last ten keys are seen by no query when there are ten queries less.
TEST(FusedSpecialValues, NothingEntersFromKeysThatNoQuerySees) {
  for (const double poison : {kNan, kInf, -kInf}) {
    ForEachTarget([poison](Target target) {
      ProblemArgs args = Square(150, 0.3);
      args.shape.seqlen_q = 140;
      args.is_causal = true;
      ProblemArrays arrays = MakeArrays(args, 3);
      const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
      for (std::int64_t key = 140; key < 150; ++key) {
        SetRow(arrays.key, key, poison);
        SetRow(arrays.value, key, poison);
      }
      RunBoth(args, arrays, target);
      ExpectWithinBound(args, arrays, naive);
    });
  }
}

// A key that attn_mask hides from every query, in the middle of a tile.
TEST(FusedSpecialValues, NothingEntersFromKeysThatTheMaskHides) {
  for (const MaskKind kind : {MaskKind::kBool, MaskKind::kFloat}) {
    for (const double poison : {kNan, kInf}) {
      ForEachTarget([kind, poison](Target target) {
        ProblemArgs args = Square(130, 0.3);
        args.attn_mask = {kind, DType::kFloat32, false, false, false, true};
        ProblemArrays arrays = MakeArrays(args, 3);
        const double visible = kind == MaskKind::kBool ? 1.0 : 0.0;
        const double hidden = kind == MaskKind::kBool ? 0.0 : -kInf;
        arrays.attn_mask.Fill(
            [&](auto, auto, auto, std::int64_t c) { return c == 0 || c == 77 ? hidden : visible; });
        const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
        for (const std::int64_t key : {0, 77}) {
          SetRow(arrays.key, key, poison);
          SetRow(arrays.value, key, poison);
        }
        RunBoth(args, arrays, target);
        ExpectWithinBound(args, arrays, naive);
      });
    }
  }
}

// Poison in single cells of the upper triangle: rows before it stay clean, rows from it on do not.
TEST(FusedSpecialValues, NanReachesExactlyTheRowsThatSeeIt) {
  ForEachTarget([](Target target) {
    ProblemArgs args = Square(200);
    args.is_causal = true;
    for (const bool in_key : {false, true}) {
      ProblemArrays arrays = MakeArrays(args, 4);
      (in_key ? arrays.key : arrays.value).Set(0, 0, 130, 3, kNan);
      RunForward(args, arrays, Fused(target));
      for (std::int64_t row = 0; row < 200; ++row) {
        for (std::int64_t c = 0; c < 8; ++c) {
          const bool reached = row >= 130 && (in_key || c == 3);
          EXPECT_EQ(std::isnan(arrays.out.Get(0, 0, row, c)), reached) << row << " " << c;
        }
        EXPECT_EQ(std::isnan(arrays.logsumexp.Get(0, 0, row, 0)), in_key && row >= 130) << row;
      }
    }
  });
}

TEST(FusedSpecialValues, NanInAQueryIsThatRowAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    ForEachTarget([dtype](Target target) {
      ProblemArgs args = Square(100, 0.2);
      args.dtype = dtype;
      ProblemArrays arrays = MakeArrays(args, 4);
      ProblemArrays clean = MakeArrays(args, 4);
      arrays.query.Set(0, 0, 70, 0, kNan);
      RunBoth(args, arrays, target);
      RunForward(args, clean, Fused(target));
      for (std::int64_t row = 0; row < 100; ++row) {
        for (std::int64_t c = 0; c < 8; ++c) {
          EXPECT_EQ(std::isnan(arrays.out.Get(0, 0, row, c)), row == 70) << row;
          EXPECT_EQ(std::isnan(arrays.grad_query.Get(0, 0, row, c)), row == 70) << row;
          if (row == 70) continue;
          EXPECT_NEAR(arrays.out.Get(0, 0, row, c), clean.out.Get(0, 0, row, c), 2e-2);
        }
      }
    });
  }
}

// Stage weights: a dropped value does not enter. Query 0 of each p keeps other keys.
TEST(FusedSpecialValues, NothingEntersFromDroppedValues) {
  for (const char* scheme : {"element", "key", "symmetric", "block:block_q=16,block_k=8"}) {
    for (const double poison : {kNan, kInf}) {
      ForEachTarget([scheme, poison](Target target) {
        ProblemArgs args = Square(140, 0.6);
        args.dropout.scheme = scheme;
        ProblemArrays arrays = MakeArrays(args, 5);
        SetRow(arrays.value, 66, poison);
        RunForward(args, arrays, Fused(target));
        const LibraryMask mask = RunKeepMask(args, arrays);
        for (std::int64_t row = 0; row < 140; ++row) {
          const bool kept = mask.keep[static_cast<std::size_t>(row * 140 + 66)] != 0;
          EXPECT_EQ(std::isfinite(arrays.out.Get(0, 0, row, 0)), !kept) << "row " << row;
        }
      });
    }
  }
}

// Both stages, whole problems: whatever is poisoned, the naive computation says which numbers are
// NaN. Its loops skip what does not enter.
TEST(FusedSpecialValues, PoisonAnywhereAgreesWithTheNaiveComputation) {
  for (const Stage stage : {Stage::kWeights, Stage::kLogits}) {
    for (int where = 0; where < 3; ++where) {
      ForEachTarget([stage, where](Target target) {
        ProblemArgs args = Square(90, 0.5);
        args.is_causal = true;
        args.dropout.stage = stage;
        args.dropout.scheme = "key";
        ProblemArrays arrays = MakeArrays(args, 6);
        Array& array = where == 0 ? arrays.value : where == 1 ? arrays.key : arrays.query;
        array.Set(0, 0, 40, 1, kNan);
        arrays.Freeze();
        CheckBothDirections(args, arrays, Fused(target));
      });
    }
  }
}

TEST(FusedSpecialValues, NanInGradOut) {
  ForEachTarget([](Target target) {
    ProblemArgs args = Square(150, 0.5);
    args.is_causal = true;
    args.dropout.scheme = "key";
    ProblemArrays arrays = MakeArrays(args, 6);
    SetRow(arrays.grad_out, 70, kNan);
    arrays.Freeze();
    CheckBothDirections(args, arrays, Fused(target));
    // Keys after the query do not meet it.
    EXPECT_TRUE(std::isfinite(arrays.grad_key.Get(0, 0, 71, 0)));
    EXPECT_TRUE(std::isfinite(arrays.grad_value.Get(0, 0, 71, 0)));
    EXPECT_TRUE(std::isfinite(arrays.grad_query.Get(0, 0, 69, 0)));
    EXPECT_TRUE(std::isnan(arrays.grad_query.Get(0, 0, 70, 0)));
  });
}

// ---- infinite and extreme logits ----

// One key has the logit +inf for positive queries: all the weight is there.
TEST(FusedSpecialValues, InfiniteLogitTakesAllWeight) {
  ForEachTarget([](Target target) {
    ProblemArgs args = Square(100);
    ProblemArrays arrays = MakeArrays(args, 7);
    arrays.query.FillAll(1.0);
    arrays.key.Set(0, 0, 80, 2, kInf);
    RunForward(args, arrays, Fused(target));
    for (std::int64_t c = 0; c < 8; ++c) {
      EXPECT_EQ(arrays.out.Get(0, 0, 50, c), arrays.value.Get(0, 0, 80, c));
    }
    EXPECT_EQ(arrays.logsumexp.Get(0, 0, 50, 0), kInf);
    // Two of them, in different tiles, share it.
    arrays.key.Set(0, 0, 10, 5, kInf);
    RunForward(args, arrays,
               {.threads = 1,
                .plan = {.path = Path::kFused, .target = target, .tiles = TileShape{1, 32, 32}}});
    for (std::int64_t c = 0; c < 8; ++c) {
      const double mean = (arrays.value.Get(0, 0, 80, c) + arrays.value.Get(0, 0, 10, c)) / 2.0;
      EXPECT_NEAR(arrays.out.Get(0, 0, 50, c), mean, 1e-6);
    }
    // A single -inf is a weight of zero.
    arrays.key.Set(0, 0, 80, 2, -kInf);
    arrays.key.Set(0, 0, 10, 5, 0.0);
    RunForward(args, arrays, Fused(target));
    EXPECT_TRUE(std::isfinite(arrays.out.Get(0, 0, 50, 0)));
    EXPECT_TRUE(std::isfinite(arrays.logsumexp.Get(0, 0, 50, 0)));
  });
}

// Logits of -size .. size whose largest wins alone.
TEST(FusedSpecialValues, EnormousLogitsStayFinite) {
  for (const double size : {1e4, 1e15, 1e30, 1e37}) {
    ForEachTarget([size](Target target) {
      SCOPED_TRACE(size);
      ProblemArgs args = Square(70);
      args.scale = 1.0;
      ProblemArrays arrays = MakeArrays(args, 8);
      arrays.query.Fill([](auto, auto, auto, std::int64_t c) { return c == 0 ? 1.0 : 0.0; });
      arrays.key.Fill([size](auto, auto, std::int64_t r, std::int64_t c) {
        return c != 0 ? 0.5 : size * (r == 33 ? 1.0 : -1.0);
      });
      RunBoth(args, arrays, target);
      for (std::int64_t row = 0; row < 70; ++row) {
        for (std::int64_t c = 0; c < 8; ++c) {
          ASSERT_EQ(arrays.out.Get(0, 0, row, c), arrays.value.Get(0, 0, 33, c)) << row;
          ASSERT_TRUE(std::isfinite(arrays.grad_query.Get(0, 0, row, c))) << row;
          ASSERT_TRUE(std::isfinite(arrays.grad_key.Get(0, 0, row, c))) << row;
          ASSERT_TRUE(std::isfinite(arrays.grad_value.Get(0, 0, row, c))) << row;
        }
        EXPECT_NEAR(arrays.logsumexp.Get(0, 0, row, 0), size, 1e-6 * size);
      }
    });
  }
}

// Equal inputs of 1e3 .. 1e4: every weight is 1/n, however large the logits.
TEST(FusedSpecialValues, LargeEqualInputsHaveFiniteGradients) {
  for (const double size : {1e3, 1e4}) {
    ForEachTarget([size](Target target) {
      const ProblemArgs args = Square(64);
      ProblemArrays arrays = MakeArrays(args, 8);
      for (Array* array : {&arrays.query, &arrays.key, &arrays.value}) array->FillAll(size);
      RunBoth(args, arrays, target);
      for (std::int64_t row = 0; row < 64; ++row) {
        EXPECT_NEAR(arrays.out.Get(0, 0, row, 0), size, 1e-5 * size);
        EXPECT_TRUE(std::isfinite(arrays.grad_query.Get(0, 0, row, 0)));
        EXPECT_TRUE(std::isfinite(arrays.grad_key.Get(0, 0, row, 0)));
      }
    });
  }
}

// Products that overflow to +inf or -inf in float32 harm the rows that they belong to, no others.
TEST(FusedSpecialValues, OverflowStaysInItsRow) {
  ForEachTarget([](Target target) {
    ProblemArgs args = Square(100);
    args.scale = 1.0;
    ProblemArrays arrays = MakeArrays(args, 9);
    SetRow(arrays.query, 20, 3e38);
    RunForward(args, arrays, Fused(target));
    for (std::int64_t row = 0; row < 100; ++row) {
      if (row != 20) EXPECT_TRUE(std::isfinite(arrays.out.Get(0, 0, row, 0))) << row;
    }
  });
}

// A whole row of the lowest float is a row of equal logits: the mean of the values.
TEST(FusedSpecialValues, RowsOfLowestFloatsAreMeans) {
  ForEachTarget([](Target target) {
    ProblemArgs args = Square(150);
    args.attn_mask = {MaskKind::kFloat, DType::kFloat32, false, false, true, true};
    ProblemArrays arrays = MakeArrays(args, 10);
    // Row 3: all keys; row 4: the first tile; row 5: -inf there, so that it is skipped.
    arrays.attn_mask.Fill([](auto, auto, std::int64_t r, std::int64_t c) {
      if (r == 3 || (r == 4 && c < 128)) return kLowest;
      return r == 5 && c < 128 ? -kInf : 0.0;
    });
    arrays.Freeze();
    RunBoth(args, arrays, target);
    for (std::int64_t c = 0; c < 8; ++c) {
      double mean = 0.0;
      for (std::int64_t j = 0; j < 150; ++j) mean += arrays.value.Get(0, 0, j, c) / 150.0;
      EXPECT_NEAR(arrays.out.Get(0, 0, 3, c), mean, 1e-6);
      for (const std::int64_t row : {3, 4, 5}) {
        EXPECT_TRUE(std::isfinite(arrays.out.Get(0, 0, row, c)));
        EXPECT_TRUE(std::isfinite(arrays.grad_query.Get(0, 0, row, c)));
      }
    }
    NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
    CheckForward(args, arrays, naive);
  });
}

// First, middle and last rows and tiles that see nothing.
TEST(FusedSpecialValues, RowsWithoutKeysAreZero) {
  ForEachTarget([](Target target) {
    ProblemArgs args = Square(200, 0.5);
    args.attn_mask = {MaskKind::kBool, DType::kFloat32, false, false, true, true};
    ProblemArrays arrays = MakeArrays(args, 11);
    const auto sees_nothing = [](std::int64_t r) { return r < 70 || r == 100 || r > 190; };
    arrays.attn_mask.Fill([&](auto, auto, std::int64_t r, std::int64_t c) {
      return !sees_nothing(r) && c >= 130 ? 1.0 : 0.0;
    });
    arrays.Freeze();
    CheckBothDirections(args, arrays, Fused(target));
    for (std::int64_t row = 0; row < 200; ++row) {
      if (!sees_nothing(row)) continue;
      EXPECT_EQ(arrays.out.Get(0, 0, row, 0), 0.0);
      EXPECT_FALSE(std::signbit(arrays.out.Get(0, 0, row, 0)));
      EXPECT_EQ(arrays.logsumexp.Get(0, 0, row, 0), -kInf);
      EXPECT_EQ(arrays.grad_query.Get(0, 0, row, 0), 0.0);
    }
  });
}

// ---- scale, rates, denormals ----

TEST(FusedSpecialValues, ZeroAndNegativeScale) {
  for (const double scale : {0.0, -0.0, -0.5, -2.0}) {
    ForEachTarget([scale](Target target) {
      ProblemArgs args = Square(140, 0.1);
      args.scale = scale;
      args.is_causal = true;
      ProblemArrays arrays = MakeArrays(args, 12);
      CheckBothDirections(args, arrays, Fused(target));
      if (scale == 0.0) EXPECT_EQ(arrays.grad_query.Get(0, 0, 100, 0), 0.0);
    });
  }
}

TEST(FusedSpecialValues, ExtremeRates) {
  for (const double dropout_p : {1e-16, 1e-9, 1.0 - 0x1p-24, 1.0 - 0x1p-32, 1.0}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      ForEachTarget([dropout_p, dtype](Target target) {
        SCOPED_TRACE(dropout_p);
        ProblemArgs args = Square(140, dropout_p);
        args.dtype = dtype;
        ProblemArrays arrays = MakeArrays(args, 13);
        CheckBothDirections(args, arrays, Fused(target));
      });
    }
  }
}

// A rate below 2^-33 drops nothing: the very same bits.
TEST(FusedSpecialValues, TinyRatesDropNothing) {
  ForEachTarget([](Target target) {
    ProblemArrays none = MakeArrays(Square(140), 13), tiny = MakeArrays(Square(140, 1e-16), 13);
    RunBoth(Square(140), none, target);
    RunBoth(Square(140, 1e-16), tiny, target);
    ExpectSameOutputs(none, tiny);
  });
}

// Denormal inputs and weights: nothing worse than absolute errors of the smallest normal number.
TEST(FusedSpecialValues, Denormals) {
  ForEachTarget([](Target target) {
    ProblemArgs args = Square(100, 0.1);
    ProblemArrays arrays = MakeArrays(args, 14);
    arrays.value.Fill([](auto, auto, std::int64_t r, std::int64_t c) {
      return static_cast<double>(r + c + 1) * 0x1p-149;
    });
    arrays.query.Set(0, 0, 5, 0, 0x1p-140);
    arrays.key.Set(0, 0, 6, 0, -0x1p-149);
    arrays.Freeze();
    RunForward(args, arrays, Fused(target));
    const NaiveProblem naive = RunNaive(args, arrays, ComputeOracleMask(args, arrays));
    const Dense4 got = arrays.out.ToDouble();
    for (std::size_t k = 0; k < got.values.size(); ++k) {
      ASSERT_NEAR(got.values[k], naive.value.out.values[k], 0x1p-126) << k;
    }
  });
}

}  // namespace
}  // namespace attndrop::testing
