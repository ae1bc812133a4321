// SPDX-License-Identifier: Apache-2.0
// The generator of random problems.
#include "support/random_problem.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace attndrop::testing {
namespace {

constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;

std::int64_t RandomLength(Random& random, bool allow_zero) {
  if (random.Chance(0.7)) {
    const std::int64_t length = random.Pick<std::int64_t>(
        {0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65});
    return length == 0 && !allow_zero ? 1 : length;
  }
  return random.Between(1, 70);
}

std::int64_t RandomHeadDim(Random& random, bool allow_zero) {
  const std::int64_t dim =
      random.Pick<std::int64_t>({0, 1, 1, 2, 3, 4, 5, 8, 8, 15, 16, 17, 24, 31, 32, 33, 64});
  return dim == 0 && !allow_zero ? 1 : dim;
}

AttentionShape RandomShape(Random& random, const GeneratorOptions& options) {
  const bool zero = options.empty && random.Chance(0.1);
  AttentionShape shape;
  shape.batch = zero && random.Chance(0.2) ? 0 : random.Pick<std::int64_t>({1, 1, 2, 3});
  const std::int64_t kv_heads = zero && random.Chance(0.1) ? 0 : random.Between(1, 3);
  shape.num_heads = kv_heads * random.Between(1, 3);
  shape.num_kv_heads = kv_heads;
  shape.seqlen_q = RandomLength(random, zero);
  shape.seqlen_k = random.Chance(0.5) ? shape.seqlen_q : RandomLength(random, zero);
  shape.head_dim = RandomHeadDim(random, zero);
  shape.head_dim_v = random.Chance(0.5) ? -1 : RandomHeadDim(random, zero);
  return shape;
}

std::int64_t WorkOf(const AttentionShape& shape) {
  const std::int64_t dim_v = shape.head_dim_v < 0 ? shape.head_dim : shape.head_dim_v;
  return shape.batch * shape.num_heads * shape.seqlen_q * shape.seqlen_k *
         (shape.head_dim + dim_v + 8);
}

void ShrinkTo(std::int64_t max_work, AttentionShape& shape) {
  while (WorkOf(shape) > max_work) {
    if (shape.batch > 1) {
      --shape.batch;
    } else if (shape.num_heads > 4 && shape.num_heads % 2 == 0) {
      shape.num_kv_heads = 1;
      shape.num_heads = 2;
    } else if (shape.head_dim > 16) {
      shape.head_dim = 16;
      shape.head_dim_v = std::min<std::int64_t>(shape.head_dim_v, 17);
    } else {
      shape.seqlen_q = (shape.seqlen_q + 1) / 2;
      shape.seqlen_k = (shape.seqlen_k + 1) / 2;
    }
  }
}

MaskForm RandomMaskForm(Random& random) {
  MaskForm form;
  if (random.Chance(0.5)) return form;
  form.kind = random.Pick({MaskKind::kBool, MaskKind::kFloat});
  if (form.kind == MaskKind::kFloat) {
    form.dtype = random.Pick({DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  }
  form.per_batch = random.Chance(0.5);
  form.per_head = random.Chance(0.5);
  form.per_query = random.Chance(0.7);
  form.per_key = random.Chance(0.9);
  return form;
}

Window RandomWindow(Random& random) {
  if (random.Chance(0.7)) return {};
  Window window;
  window.left = random.Pick<std::int64_t>({-1, 0, 1, 3, 15, 16, 17, 100});
  window.right = random.Pick<std::int64_t>({-1, 0, 1, 3, 15, 16, 17, 100});
  return window;
}

void MakeRagged(Random& random, ProblemArgs& args) {
  RaggedLengths ragged;
  ragged.cu_seqlens_q = {0};
  ragged.cu_seqlens_k = {0};
  const bool padded = random.Chance(0.4);
  const bool square = args.dropout.scheme == "symmetric";
  for (std::int64_t b = 0; b < args.shape.batch; ++b) {
    const std::int64_t q = random.Below(args.shape.seqlen_q + 1);
    const std::int64_t k = square ? q : random.Below(args.shape.seqlen_k + 1);
    if (padded) {
      ragged.used_q.push_back(q);
      ragged.used_k.push_back(k);
    }
    ragged.cu_seqlens_q.push_back(ragged.cu_seqlens_q.back() + q + (padded ? random.Below(4) : 0));
    ragged.cu_seqlens_k.push_back(ragged.cu_seqlens_k.back() + k + (padded ? random.Below(4) : 0));
  }
  args.shape.seqlen_q = 0;  // Make finds the longest
  args.shape.seqlen_k = 0;
  args.ragged = std::move(ragged);
}

bool ReadsWholeRow(const DropoutConfig& dropout) {
  return dropout.empty_row.kind == EmptyRow::kAtLeastOne ||
         dropout.empty_row.kind == EmptyRow::kUndropped;
}

void MakeShard(Random& random, bool far, ProblemArgs& args) {
  std::int64_t base = 0, room = 150;
  if (far && !ReadsWholeRow(args.dropout)) {
    base = random.Pick<std::int64_t>(
        {std::int64_t{1} << 31, (std::int64_t{1} << 31) - 40, kTwo32 - 500, 1000003});
  }
  const std::int64_t origin_q = base + random.Below(room);
  std::int64_t origin_k = base + random.Below(room);
  if (args.dropout.scheme == "symmetric" && random.Chance(0.5)) origin_k = origin_q;
  TotalLengths total{origin_q + args.shape.seqlen_q + random.Below(40),
                     origin_k + args.shape.seqlen_k + random.Below(40)};
  if (args.dropout.scheme == "symmetric") {
    total.seqlen_q = total.seqlen_k = std::max(total.seqlen_q, total.seqlen_k);
  }
  args.origin.query = static_cast<std::uint32_t>(origin_q);
  args.origin.key = static_cast<std::uint32_t>(origin_k);
  args.total = total;
  if (ReadsWholeRow(args.dropout)) args.attn_mask = {};
}

void MoveBatchAndHeads(Random& random, ProblemArgs& args) {
  const std::int64_t last = kTwo32 - 64;
  args.origin.batch =
      static_cast<std::uint32_t>(random.Pick<std::int64_t>({0, 1, 5, std::int64_t{1} << 31, last}));
  args.origin.head =
      static_cast<std::uint32_t>(random.Pick<std::int64_t>({0, 1, 5, std::int64_t{1} << 31, last}));
}

void SetBatchIndex(Random& random, ProblemArgs& args) {
  args.origin.batch = 0;
  const std::int64_t batch = args.ragged
                                 ? static_cast<std::int64_t>(args.ragged->cu_seqlens_q.size()) - 1
                                 : args.shape.batch;
  for (std::int64_t b = 0; b < batch; ++b) {
    args.batch_index.push_back(
        random.Pick<std::int64_t>({random.Below(10), random.Below(kTwo32), kTwo32 - 1}));
  }
}

std::string RandomScheme(Random& random) {
  const std::string name = random.Pick<const char*>(
      {"element", "element", "shared", "key", "word", "query", "head", "block", "symmetric"});
  if (name != "block" || random.Chance(0.2)) return name;
  const auto size = [&random] {
    return std::to_string(random.Pick<std::int64_t>({1, 2, 3, 4, 5, 8, 16, 64, 4294967295}));
  };
  return name + ":block_q=" + size() + ",block_k=" + size();
}

EmptyRowPolicy RandomPolicy(Random& random, bool row_redraw) {
  EmptyRowPolicy policy;
  policy.kind = random.Pick({EmptyRow::kZero, EmptyRow::kAtLeastOne, EmptyRow::kKeepSelf,
                             EmptyRow::kKeepFirst, EmptyRow::kUndropped});
  if (policy.kind == EmptyRow::kAtLeastOne && !row_redraw) policy.kind = EmptyRow::kUndropped;
  policy.attempts = random.Pick<std::uint32_t>({1, 2, 5, 64, 1024});
  return policy;
}

std::uint64_t RandomSeed64(Random& random) {
  return random.Pick<std::uint64_t>(
      {0, 1, 42, random.Next(), random.Next() >> 32, std::numeric_limits<std::uint64_t>::max()});
}

std::int64_t EnvironmentNumber(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoll(text, nullptr, 10);
}

}  // namespace

DropoutConfig RandomDropout(Random& random) {
  DropoutConfig dropout;
  dropout.scheme = RandomScheme(random);
  dropout.stage = random.Pick({Stage::kWeights, Stage::kLogits});
  dropout.empty_row =
      RandomPolicy(random, dropout.scheme == "element" || dropout.scheme == "shared");
  dropout.dropout_p = random.Pick(
      {0.0, 1e-16, 1e-9, 0.1, 0.1, 1.0 / 3.0, 0.5, 0.5, 0.7, 0.9, 0.99, 1.0 - 0x1p-24, 1.0});
  const bool rare = random.Chance(0.9);
  if (rare && (dropout.dropout_p > 0.995 || dropout.dropout_p < 1e-6)) dropout.dropout_p = 0.25;
  if (dropout.dropout_p == 1.0) dropout.empty_row = {};
  dropout.seed = RandomSeed64(random);
  dropout.offset = RandomSeed64(random);
  dropout.training = !random.Chance(0.03);
  return dropout;
}

ProblemArgs RandomProblemArgs(Random& random, const GeneratorOptions& options) {
  ProblemArgs args;
  args.shape = RandomShape(random, options);
  args.dtype = random.Pick({DType::kFloat64, DType::kFloat64, DType::kFloat32, DType::kFloat32,
                            DType::kBFloat16, DType::kFloat16});
  args.is_causal = random.Chance(0.5);
  args.causal_align = random.Pick({CausalAlign::kTopLeft, CausalAlign::kBottomRight});
  args.window = RandomWindow(random);
  if (random.Chance(0.25)) args.scale = random.Pick({0.0, -0.5, 1.0, 0.3, 2.0});
  args.attn_mask = RandomMaskForm(random);
  args.alibi = random.Chance(0.15);
  args.dropout = RandomDropout(random);
  args.layout = random.Pick(
      {Layout::kBhsd, Layout::kBshd, Layout::kPadded, Layout::kExpanded, Layout::kReversed});
  ShrinkTo(options.max_work, args.shape);
  if (args.dropout.scheme == "symmetric") args.shape.seqlen_k = args.shape.seqlen_q;
  ShrinkTo(options.max_work, args.shape);
  if (random.Chance(0.3)) MoveBatchAndHeads(random, args);
  if (options.ragged && random.Chance(0.2)) {
    MakeRagged(random, args);
  } else if (options.shards && random.Chance(0.3)) {
    MakeShard(random, options.far && random.Chance(0.5), args);
  }
  if (options.batch_index) SetBatchIndex(random, args);
  return args;
}

Problem MustMake(const ProblemArgs& args) {
  Result<Problem> problem = Problem::Make(args);
  if (!problem.ok()) {
    throw std::invalid_argument("refused, but should be legal: " + problem.status().message());
  }
  return *std::move(problem);
}

void ForRandomProblems(const CaseRange& range, const GeneratorOptions& options,
                       const ProblemCheck& check) {
  const std::int64_t only = EnvironmentNumber("ATTNDROP_TEST_SEED", -1);
  const std::int64_t count =
      only >= 0 ? 1 : range.count * EnvironmentNumber("ATTNDROP_TEST_CASES", 1);
  const std::uint64_t first = only >= 0 ? static_cast<std::uint64_t>(only) : range.first_seed;
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count); ++seed) {
    Random random(seed);
    const ProblemArgs args = RandomProblemArgs(random, options);
    const Result<Problem> problem = Problem::Make(args);
    SCOPED_TRACE("ATTNDROP_TEST_SEED=" + std::to_string(seed) +
                 ", problem: " + (problem.ok() ? problem->ToString() : "(refused)"));
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    check(args, seed);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace attndrop::testing
