// SPDX-License-Identifier: Apache-2.0
// From the arguments of an operator to a Problem and views of its tensors.
#include "call.h"

#include <array>
#include <cstddef>
#include <utility>

#include "errors.h"

namespace attndrop::python {
namespace {

using torch::headeronly::ScalarType;

std::optional<DType> ToDType(ScalarType type) noexcept {
  switch (type) {
    case ScalarType::Double:
      return DType::kFloat64;
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Half:
      return DType::kFloat16;
    default:
      return std::nullopt;
  }
}

std::string TypeText(const Tensor& tensor) {
  return torch::headeronly::toString(tensor.scalar_type());
}

void CheckCpu(const Tensor& tensor, const char* name) {
  if (tensor.is_cpu()) return;
  Refuse("value", std::string(name) +
                      " must be on the CPU like the other tensors of the call; move "
                      "them all to one device");
}

void CheckRank4(const Tensor& tensor, const char* name) {
  CheckCpu(tensor, name);
  if (tensor.dim() == 4) return;
  Refuse("value", std::string(name) +
                      " must have the shape (batch, heads, seqlen, head_dim), got shape " +
                      ShapeText(tensor));
}

void CheckPair(bool equal, const char* what, const Tensor& query, const Tensor& other,
               const char* names) {
  if (equal) return;
  Refuse("value", std::string(names) + " must have the same " + what + ", got shapes " +
                      ShapeText(query) + " and " + ShapeText(other));
}

template <class Int>
void CopyInts(const Tensor& tensor, std::vector<std::int64_t>& values) {
  const auto* data = static_cast<const Int*>(tensor.const_data_ptr());
  const std::int64_t stride = tensor.stride(0);
  for (std::int64_t i = 0; i < tensor.size(0); ++i) values.push_back(data[i * stride]);
}

std::vector<std::int64_t> ReadInts(const Tensor& tensor, const char* name) {
  CheckCpu(tensor, name);
  const ScalarType type = tensor.scalar_type();
  if (tensor.dim() != 1 || (type != ScalarType::Int && type != ScalarType::Long)) {
    Refuse(tensor.dim() == 1 ? "type" : "value",
           std::string(name) + " must be an int32 or int64 tensor of one axis, got " +
               TypeText(tensor) + " of shape " + ShapeText(tensor));
  }
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(tensor.size(0)));
  if (type == ScalarType::Int) {
    CopyInts<std::int32_t>(tensor, values);
  } else {
    CopyInts<std::int64_t>(tensor, values);
  }
  return values;
}

// Sets seed, offset and the rate, which travels as keep_q32: 1 - keep_q32 / 2^32 is exact in double
// and gives keep_q32 back.
void ReadRng(const Tensor& rng, DropoutConfig& dropout) {
  const std::vector<std::int64_t> values = ReadInts(rng, "rng");
  if (values.size() != 3 || values[2] < 0 || values[2] > (std::int64_t{1} << 32)) {
    Refuse("value", "rng must hold seed, offset and keep_q32 in 0 .. 2^32 as int64, got shape " +
                        ShapeText(rng) +
                        (values.size() == 3 ? " and keep_q32 " + std::to_string(values[2]) : ""));
  }
  dropout.seed = static_cast<std::uint64_t>(values[0]);
  dropout.offset = static_cast<std::uint64_t>(values[1]);
  dropout.dropout_p = 1.0 - static_cast<double>(values[2]) / 4294967296.0;
}

std::uint32_t Coordinate(std::int64_t value, const char* name) {
  if (value >= 0 && value <= 0xFFFFFFFF) return static_cast<std::uint32_t>(value);
  Refuse("value",
         std::string("origin ") + name + " must be in 0 .. 2^32 - 1, got " + std::to_string(value));
}

void SetShard(const Options& options, ProblemArgs& args) {
  const std::vector<std::int64_t>& origin = options.origin;
  const std::vector<std::int64_t>& total = options.total;
  if (!origin.empty() && origin.size() != 4) {
    Refuse("value", "origin must hold batch, head, query and key, got " +
                        std::to_string(origin.size()) + " numbers");
  }
  if (!total.empty() && total.size() != 2) {
    Refuse("value", "total must hold seqlen_q and seqlen_k, got " + std::to_string(total.size()) +
                        " numbers");
  }
  if (!origin.empty()) {
    args.origin = {Coordinate(origin[0], "batch"), Coordinate(origin[1], "head"),
                   Coordinate(origin[2], "query"), Coordinate(origin[3], "key")};
  }
  if (!total.empty()) args.total = TotalLengths{total[0], total[1]};
}

void SetRagged(const SideTensors& side, ProblemArgs& args) {
  if (!side.cu_seqlens_q && !side.cu_seqlens_k) return;
  if (!side.cu_seqlens_q || !side.cu_seqlens_k) {
    Refuse("value", "cu_seqlens_q and cu_seqlens_k come together, got only one of them");
  }
  RaggedLengths ragged{.cu_seqlens_q = ReadInts(*side.cu_seqlens_q, "cu_seqlens_q"),
                       .cu_seqlens_k = ReadInts(*side.cu_seqlens_k, "cu_seqlens_k")};
  const std::pair<std::int64_t, std::int64_t> rows{args.shape.seqlen_q, args.shape.seqlen_k};
  if (args.shape.batch != 1) {
    Refuse("value",
           "with cu_seqlens the sequences lie behind one another along seqlen and the "
           "batch of query, key and value is 1, got " +
               std::to_string(args.shape.batch));
  }
  if (!ragged.cu_seqlens_q.empty() && !ragged.cu_seqlens_k.empty() &&
      (ragged.cu_seqlens_q.back() != rows.first || ragged.cu_seqlens_k.back() != rows.second)) {
    Refuse("value",
           "the last entries of cu_seqlens_q and cu_seqlens_k must be the numbers of rows " +
               std::to_string(rows.first) + " and " + std::to_string(rows.second) + ", got " +
               std::to_string(ragged.cu_seqlens_q.back()) + " and " +
               std::to_string(ragged.cu_seqlens_k.back()));
  }
  args.ragged = std::move(ragged);
}

// The four sizes that attn_mask must be broadcastable to.
std::array<std::int64_t, 4> MaskSizes(const Problem& problem) noexcept {
  const AttentionShape& shape = problem.shape();
  return {shape.batch, shape.num_heads, shape.seqlen_q, shape.seqlen_k};
}

MaskForm FormOf(const Tensor& attn_mask) {
  CheckCpu(attn_mask, "attn_mask");
  const bool is_bool = attn_mask.scalar_type() == ScalarType::Bool;
  const std::optional<DType> dtype = ToDType(attn_mask.scalar_type());
  if (!is_bool && !dtype) {
    Refuse("type", "attn_mask must be bool or one of float64, float32, bfloat16, float16, got " +
                       TypeText(attn_mask));
  }
  if (attn_mask.dim() != 4) {
    Refuse("value", "attn_mask must have four axes (length 1 where it does not vary), got shape " +
                        ShapeText(attn_mask));
  }
  return {.kind = is_bool ? MaskKind::kBool : MaskKind::kFloat,
          .dtype = dtype.value_or(DType::kFloat32),
          .per_batch = attn_mask.size(0) != 1,
          .per_head = attn_mask.size(1) != 1,
          .per_query = attn_mask.size(2) != 1,
          .per_key = attn_mask.size(3) != 1};
}

void CheckMaskShape(const Problem& problem, const Tensor& attn_mask) {
  const std::array<std::int64_t, 4> sizes = MaskSizes(problem);
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    const std::int64_t size = attn_mask.size(static_cast<std::int64_t>(axis));
    if (size == 1 || size == sizes[axis]) continue;
    std::string wanted;
    for (const std::int64_t s : sizes) wanted += (wanted.empty() ? "" : ", ") + std::to_string(s);
    Refuse("value", "attn_mask must be broadcastable to (batch, heads, seqlen_q, seqlen_k) = (" +
                        wanted + "), got shape " + ShapeText(attn_mask));
  }
}

void CheckSlopes(const Problem& problem, const Tensor& slopes) {
  CheckCpu(slopes, "alibi_slopes");
  const AttentionShape& shape = problem.shape();
  const std::int64_t rank = slopes.dim();
  const bool fits = (rank == 1 || (rank == 2 && slopes.size(0) == shape.batch)) &&
                    slopes.size(rank - 1) == shape.num_heads;
  if (slopes.scalar_type() != ScalarType::Float) {
    Refuse("type", "alibi_slopes must be float32, got " + TypeText(slopes));
  }
  if (!fits || (shape.num_heads > 1 && slopes.stride(rank - 1) != 1)) {
    Refuse("value", "alibi_slopes must be dense with shape (heads) or (batch, heads), here (" +
                        std::to_string(shape.num_heads) + ") or (" + std::to_string(shape.batch) +
                        ", " + std::to_string(shape.num_heads) + "), got shape " +
                        ShapeText(slopes));
  }
}

}  // namespace

SideTensors TakeSideTensors(Arguments& arguments) {
  SideTensors side{.rng = arguments.Take<Tensor>()};
  side.attn_mask = arguments.Take<std::optional<Tensor>>();
  side.alibi_slopes = arguments.Take<std::optional<Tensor>>();
  side.cu_seqlens_q = arguments.Take<std::optional<Tensor>>();
  side.cu_seqlens_k = arguments.Take<std::optional<Tensor>>();
  side.batch_index = arguments.Take<std::optional<Tensor>>();
  return side;
}

Options TakeOptions(Arguments& arguments) {
  Options options;
  options.scale = arguments.Take<std::optional<double>>();
  options.is_causal = arguments.Take<bool>();
  options.bottom_right = arguments.Take<bool>();
  options.window_left = arguments.Take<std::int64_t>();
  options.window_right = arguments.Take<std::int64_t>();
  options.scheme = arguments.TakeString();
  options.stage = arguments.TakeString();
  options.empty_row = arguments.TakeString();
  options.origin = arguments.Take<std::vector<std::int64_t>>();
  options.total = arguments.Take<std::vector<std::int64_t>>();
  return options;
}

Problem MakeProblem(const AttentionShape& shape, DType dtype, const SideTensors& side,
                    const Options& options) {
  ProblemArgs args{.shape = shape, .dtype = dtype, .is_causal = options.is_causal};
  args.causal_align = options.bottom_right ? CausalAlign::kBottomRight : CausalAlign::kTopLeft;
  args.window = {options.window_left, options.window_right};
  args.scale = options.scale;
  if (side.attn_mask) args.attn_mask = FormOf(*side.attn_mask);
  args.alibi = side.alibi_slopes.has_value();
  SetRagged(side, args);
  ReadRng(side.rng, args.dropout);
  args.dropout.scheme = options.scheme;
  args.dropout.stage = ValueOrThrow(ParseStage(options.stage));
  args.dropout.empty_row = ValueOrThrow(ParseEmptyRow(options.empty_row));
  SetShard(options, args);
  if (side.batch_index) args.batch_index = ReadInts(*side.batch_index, "batch_index");
  Problem problem = ValueOrThrow(Problem::Make(args));
  // The core takes an empty list for none.
  if (side.batch_index && side.batch_index->size(0) != problem.shape().batch) {
    Refuse("value", "batch_index must hold one number for each of the " +
                        std::to_string(problem.shape().batch) + " entries of the batch, got " +
                        std::to_string(side.batch_index->size(0)));
  }
  if (side.attn_mask) CheckMaskShape(problem, *side.attn_mask);
  if (side.alibi_slopes) CheckSlopes(problem, *side.alibi_slopes);
  return problem;
}

DType DTypeOf(const Tensor& tensor, const char* name) {
  const std::optional<DType> dtype = ToDType(tensor.scalar_type());
  if (dtype) return *dtype;
  Refuse("type", std::string(name) + " must be one of float64, float32, bfloat16, float16, got " +
                     TypeText(tensor));
}

AttentionShape ShapeOf(const AttentionTensors& tensors) {
  const auto& [query, key, value] = tensors;
  const std::pair<const Tensor&, const char*> all[] = {
      {query, "query"}, {key, "key"}, {value, "value"}};
  for (const auto& [tensor, name] : all) {
    CheckRank4(tensor, name);
    static_cast<void>(DTypeOf(tensor, name));
  }
  if (key.scalar_type() != query.scalar_type() || value.scalar_type() != query.scalar_type()) {
    Refuse("type", "query, key and value must have the same dtype, got " + TypeText(query) + ", " +
                       TypeText(key) + " and " + TypeText(value));
  }
  CheckPair(query.size(0) == key.size(0), "batch", query, key, "query and key");
  CheckPair(query.size(3) == key.size(3), "head_dim", query, key, "query and key");
  CheckPair(key.size(0) == value.size(0), "batch", key, value, "key and value");
  CheckPair(key.size(1) == value.size(1), "number of heads", key, value, "key and value");
  CheckPair(key.size(2) == value.size(2), "seqlen_k", key, value, "key and value");
  if (key.size(1) == 0 && query.size(1) != 0) {
    CheckPair(false, "number of heads", query, key, "query and key");
  }
  return {.batch = query.size(0),
          .num_heads = query.size(1),
          .num_kv_heads = key.size(1),
          .seqlen_q = query.size(2),
          .seqlen_k = key.size(2),
          .head_dim = query.size(3),
          .head_dim_v = value.size(3)};
}

Strided<const void> InputView(const Tensor& tensor) {
  return {.data = tensor.const_data_ptr(),
          .batch_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .row_stride = tensor.stride(2),
          .col_stride = tensor.dim() > 3 ? tensor.stride(3) : 1};
}

Strided<void> OutputView(const Tensor& tensor) {
  return {.data = tensor.mutable_data_ptr(),
          .batch_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .row_stride = tensor.stride(2),
          .col_stride = tensor.dim() > 3 ? tensor.stride(3) : 1};
}

MaskBuffers MaskViews(const SideTensors& side) {
  MaskBuffers mask;
  if (side.attn_mask) mask.attn_mask = InputView(*side.attn_mask);
  if (side.alibi_slopes) {
    mask.alibi_slopes = static_cast<const float*>(side.alibi_slopes->const_data_ptr());
    mask.alibi_batch_stride = side.alibi_slopes->dim() == 2 ? side.alibi_slopes->stride(0) : 0;
  }
  return mask;
}

std::string ShapeText(const Tensor& tensor) {
  std::string text;
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(tensor.size(axis));
  }
  return '(' + text + ')';
}

}  // namespace attndrop::python
