// SPDX-License-Identifier: Apache-2.0
// Flags to ProblemArgs to a Problem; the library does every check that is not about text or files.
#include "cli/problem_flags.h"

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/mask_files.h"

namespace attndrop::cli {
namespace {

constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxCoordinate = (std::int64_t{1} << 32) - 1;

Result<CausalAlign> ParseCausalAlign(const std::string& text) {
  if (text == "top-left") return CausalAlign::kTopLeft;
  if (text == "bottom-right") return CausalAlign::kBottomRight;
  return Status::InvalidArgument(
      fmt::format("--causal-align must be top-left (query i stands at key i) or bottom-right (the "
                  "last query stands at the last key), got \"{}\"",
                  text));
}

DropoutConfig ReadDropout(const ProblemFlags& flags, FlagReader& reader) {
  DropoutConfig dropout;
  dropout.dropout_p = reader.Number(flags.dropout_p, dropout.dropout_p);
  dropout.scheme = flags.scheme.text.value_or(dropout.scheme);
  if (flags.stage.given()) {
    dropout.stage = reader.Take(ParseStage(*flags.stage.text), dropout.stage);
  }
  if (flags.empty_row.given()) {
    dropout.empty_row = reader.Take(ParseEmptyRow(*flags.empty_row.text), dropout.empty_row);
  }
  dropout.seed = reader.Unsigned64(flags.seed, dropout.seed);
  dropout.offset = reader.Unsigned64(flags.offset, dropout.offset);
  dropout.training = !flags.no_training;
  return dropout;
}

void ReadShard(const ProblemFlags& flags, FlagReader& reader, ProblemArgs& args) {
  const auto origin =
      reader.Integers(flags.origin, {"batch", "head", "query", "key"}, {0, kMaxCoordinate});
  if (flags.origin.given()) {
    args.origin = {.batch = static_cast<std::uint32_t>(origin[0]),
                   .head = static_cast<std::uint32_t>(origin[1]),
                   .query = static_cast<std::uint32_t>(origin[2]),
                   .key = static_cast<std::uint32_t>(origin[3])};
  }
  const auto total = reader.Integers(flags.total, {"seqlen_q", "seqlen_k"}, {0, kMaxInt64});
  if (flags.total.given()) args.total = TotalLengths{.seqlen_q = total[0], .seqlen_k = total[1]};
}

// A flag that a line already answers, "" when there is none.
std::string_view FlagBesideLine(const SizeFlags& sizes, const ProblemFlags& flags) {
  if (flags.is_causal) return "--causal";
  if (flags.no_training) return "--no-training";
  for (const Flag* flag :
       {&sizes.batch, &sizes.heads, &sizes.kv_heads, &sizes.seqlen_q, &sizes.seqlen_k,
        &flags.causal_align, &flags.window, &flags.scale, &flags.dropout_p, &flags.scheme,
        &flags.stage, &flags.empty_row, &flags.seed, &flags.offset, &flags.origin, &flags.total,
        &flags.cu_seqlens_q, &flags.cu_seqlens_k}) {
    if (flag->given()) return flag->name;
  }
  return "";
}

Result<Problem> ParseLine(const SizeFlags& sizes, const ProblemFlags& flags) {
  if (const std::string_view beside = FlagBesideLine(sizes, flags); !beside.empty()) {
    return Status::InvalidArgument(fmt::format(
        "--problem describes the whole problem, so {} cannot be given beside it; change the line",
        beside));
  }
  return Problem::Parse(*sizes.problem.text);
}

Result<ProblemArgs> ReadSizes(const SizeFlags& sizes, const ProblemFlags& flags) {
  Result<ProblemArgs> args = ReadProblemFlags(flags);
  if (!args.ok()) return args;
  FlagReader reader;
  AttentionShape& shape = args->shape;
  shape.batch = reader.Integer(sizes.batch, shape.batch, {0, kMaxInt64});
  shape.num_heads = reader.Integer(sizes.heads, shape.num_heads, {0, kMaxInt64});
  shape.num_kv_heads = reader.Integer(sizes.kv_heads, shape.num_kv_heads, {1, kMaxInt64});
  shape.seqlen_q = reader.Integer(sizes.seqlen_q, 0, {0, kMaxInt64});
  shape.seqlen_k = reader.Integer(sizes.seqlen_k, shape.seqlen_q, {0, kMaxInt64});
  if (!reader.ok()) return reader.status();
  const bool is_ragged = flags.cu_seqlens_q.given() || flags.cu_seqlens_k.given();
  for (const Flag* flag : {&sizes.batch, &sizes.seqlen_q, &sizes.seqlen_k}) {
    if (is_ragged && flag->given()) {
      return Status::InvalidArgument(
          fmt::format("{} comes from --cu-seqlens-q and --cu-seqlens-k; leave it out", flag->name));
    }
  }
  if (!is_ragged && !sizes.seqlen_q.given()) {
    return Status::InvalidArgument(
        "--seqlen-q is missing (--seqlen-k is the same unless given); or give --problem 'LINE'");
  }
  return args;
}

}  // namespace

void AddProblemFlags(CLI::App& app, ProblemFlags& flags) {
  BeginGroup(app, "Attention");
  AddSwitch(app, flags.is_causal, "--causal", "no query sees a key behind its own position");
  AddFlag(app, flags.causal_align, "--causal-align",
          "where queries stand if lengths differ: top-left (default), bottom-right", "ALIGN");
  AddFlag(app, flags.window, "--window", "keys seen left and right of the position, -1: no limit",
          "L,R");
  AddFlag(app, flags.scale, "--scale", "factor of query . key; default 1/sqrt(head_dim)", "X");
  AddFlag(app, flags.attn_mask, "--attn-mask",
          "bool (true takes part) or float (added); broadcast as in NumPy", "FILE");
  AddFlag(app, flags.alibi_slopes, "--alibi-slopes",
          "float32 (heads) or (batch, heads): bias -slope * distance", "FILE");
  AddFlag(app, flags.cu_seqlens_q, "--cu-seqlens-q",
          "ragged batch: first query row of each sequence, and the end", "FILE");
  AddFlag(app, flags.cu_seqlens_k, "--cu-seqlens-k", "likewise for the key rows", "FILE");
  BeginGroup(app, "Dropout");
  AddFlag(app, flags.dropout_p, "--dropout-p", "chance of dropping a weight, 0 to 1; default 0",
          "P");
  AddFlag(app, flags.scheme, "--scheme", "NAME[:param=value,...]: what shares a draw; element",
          "NAME");
  AddFlag(app, flags.stage, "--stage", "weights (after the softmax; default) or logits (before)",
          "STAGE");
  AddFlag(app, flags.empty_row, "--empty-row", "what a row that loses every key does; zero",
          "NAME");
  AddFlag(app, flags.seed, "--seed", "0 to 2^64-1; default 0", "N");
  AddFlag(app, flags.offset, "--offset", "0 to 2^64-1: another offset, another mask; default 0",
          "N");
  AddSwitch(app, flags.no_training, "--no-training", "evaluation: nothing is drawn or dropped");
  BeginGroup(app, "Shards");
  AddFlag(app, flags.origin, "--origin", "where this shard begins: batch, head, query, key",
          "b,h,i,j");
  AddFlag(app, flags.total, "--total", "lengths of the whole that the shard is part of", "q,k");
}

void AddSizeFlags(CLI::App& app, SizeFlags& flags) {
  BeginGroup(app, "Sizes");
  AddFlag(app, flags.batch, "--batch", "default 1", "N");
  AddFlag(app, flags.heads, "--heads", "query heads; default 1", "N");
  AddFlag(app, flags.kv_heads, "--kv-heads", "key heads, a divisor of --heads; default: as many",
          "N");
  AddFlag(app, flags.seqlen_q, "--seqlen-q", "number of queries", "N");
  AddFlag(app, flags.seqlen_k, "--seqlen-k", "number of keys; default: as --seqlen-q", "N");
  AddFlag(app, flags.problem, "--problem", "sizes, attention and dropout as one line", "LINE");
}

Result<ProblemArgs> ReadProblemFlags(const ProblemFlags& flags) {
  FlagReader reader;
  ProblemArgs args;
  args.is_causal = flags.is_causal;
  if (flags.causal_align.given()) {
    args.causal_align = reader.Take(ParseCausalAlign(*flags.causal_align.text), args.causal_align);
  }
  const auto window = reader.Integers(flags.window, {"left", "right"}, {-1, kMaxInt64});
  if (flags.window.given()) args.window = {.left = window[0], .right = window[1]};
  if (flags.scale.given()) args.scale = reader.Number(flags.scale, 1.0);
  args.dropout = ReadDropout(flags, reader);
  ReadShard(flags, reader, args);
  if (flags.cu_seqlens_q.given() != flags.cu_seqlens_k.given()) {
    reader.Fail(Status::InvalidArgument(
        "--cu-seqlens-q and --cu-seqlens-k belong together; give both or none"));
  }
  if (!reader.ok()) return reader.status();
  return args;
}

MaskBuffers LoadedProblem::mask_buffers() const {
  MaskBuffers buffers;
  if (attn_mask) buffers.attn_mask = AttnMaskView(*attn_mask);
  if (alibi_slopes) {
    buffers.alibi_slopes = alibi_slopes->values<float>().data();
    buffers.alibi_batch_stride = alibi_slopes->rank() == 2 ? alibi_slopes->dim(1) : 0;
  }
  return buffers;
}

Result<LoadedProblem> LoadProblem(const ProblemFlags& flags, ProblemArgs args) {
  if (flags.cu_seqlens_q.given()) {
    Result<RaggedLengths> ragged = LoadRaggedLengths(flags.cu_seqlens_q, flags.cu_seqlens_k);
    if (!ragged.ok()) return ragged.status();
    args.ragged = *std::move(ragged);
  }
  // Once without the files, so that they are checked against lengths known to be right.
  Result<Problem> problem = Problem::Make(args);
  if (!problem.ok()) return problem.status();
  LoadedProblem loaded{.problem = *problem, .attn_mask = {}, .alibi_slopes = {}};
  if (flags.attn_mask.given()) {
    Result<NpyArray> mask = LoadAttnMask(flags.attn_mask, problem->shape());
    if (!mask.ok()) return mask.status();
    args.attn_mask = FormOf(*mask);
    loaded.attn_mask = *std::move(mask);
  }
  if (flags.alibi_slopes.given()) {
    Result<NpyArray> slopes = LoadAlibiSlopes(flags.alibi_slopes, problem->shape());
    if (!slopes.ok()) return slopes.status();
    args.alibi = true;
    loaded.alibi_slopes = *std::move(slopes);
  }
  problem = Problem::Make(args);
  if (!problem.ok()) return problem.status();
  loaded.problem = *problem;
  return loaded;
}

Status CheckSizes(const SizeFlags& sizes, const ProblemFlags& flags) {
  if (sizes.problem.given()) return ParseLine(sizes, flags).status();
  const Result<ProblemArgs> args = ReadSizes(sizes, flags);
  if (!args.ok() || flags.cu_seqlens_q.given()) return args.status();
  return Problem::Make(*args).status();
}

Result<LoadedProblem> LoadSizedProblem(const SizeFlags& sizes, const ProblemFlags& flags) {
  if (!sizes.problem.given()) {
    Result<ProblemArgs> args = ReadSizes(sizes, flags);
    if (!args.ok()) return args.status();
    return LoadProblem(flags, *std::move(args));
  }
  Result<Problem> problem = ParseLine(sizes, flags);
  if (!problem.ok()) return problem.status();
  LoadedProblem loaded{.problem = *problem, .attn_mask = {}, .alibi_slopes = {}};
  if ((problem->attn_mask().kind != MaskKind::kNone) != flags.attn_mask.given()) {
    return Status::InvalidArgument(
        "--attn-mask must be given exactly when the line of --problem has an attn_mask");
  }
  if (problem->alibi() != flags.alibi_slopes.given()) {
    return Status::InvalidArgument(
        "--alibi-slopes must be given exactly when the line of --problem has alibi");
  }
  if (flags.attn_mask.given()) {
    Result<NpyArray> mask = LoadAttnMask(flags.attn_mask, problem->shape());
    if (!mask.ok()) return mask.status();
    if (!(FormOf(*mask) == problem->attn_mask())) {
      return Status::InvalidArgument(fmt::format(
          "--attn-mask {} has shape {} of {}, which is not the form in the line of --problem",
          mask->name, ShapeText(mask->header.shape), NpyTypeName(mask->header.type)));
    }
    loaded.attn_mask = *std::move(mask);
  }
  if (flags.alibi_slopes.given()) {
    Result<NpyArray> slopes = LoadAlibiSlopes(flags.alibi_slopes, problem->shape());
    if (!slopes.ok()) return slopes.status();
    loaded.alibi_slopes = *std::move(slopes);
  }
  return loaded;
}

void NoteAlignment(const Streams& streams, const ProblemFlags& flags, const Problem& problem) {
  const bool matters = problem.is_causal() || problem.window() != Window{} || problem.alibi() ||
                       problem.empty_row().kind == EmptyRow::kKeepSelf;
  if (!matters || flags.causal_align.given()) return;
  TotalLengths lengths = problem.total();
  for (std::int64_t batch = 0; problem.is_ragged() && batch < problem.shape().batch; ++batch) {
    const Sequence sequence = problem.sequence(batch);
    lengths = {.seqlen_q = sequence.seqlen_q, .seqlen_k = sequence.seqlen_k};
    if (lengths.seqlen_q != lengths.seqlen_k) break;
  }
  if (lengths.seqlen_q == lengths.seqlen_k) return;
  PrintNote(streams,
            fmt::format("seqlen_q {} and seqlen_k {} differ; top-left alignment is used (query i "
                        "stands at key i); choose with --causal-align top-left or bottom-right",
                        lengths.seqlen_q, lengths.seqlen_k));
}

std::optional<DType> FloatTypeOf(NpyType type) noexcept {
  switch (type) {
    case NpyType::kFloat64:
      return DType::kFloat64;
    case NpyType::kFloat32:
      return DType::kFloat32;
    case NpyType::kFloat16:
      return DType::kFloat16;
    default:
      return std::nullopt;
  }
}

NpyType NpyTypeOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      return NpyType::kFloat64;
    case DType::kFloat16:
      return NpyType::kFloat16;
    default:
      return NpyType::kFloat32;
  }
}

}  // namespace attndrop::cli
