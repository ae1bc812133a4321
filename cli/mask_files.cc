// SPDX-License-Identifier: Apache-2.0
// Types, shapes and numbers of the smaller files; a refusal names the flag, the file and the byte.
#include "cli/mask_files.h"

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "attndrop/dtype.h"

#include "cli/io/npy_header.h"
#include "cli/problem_flags.h"

namespace attndrop::cli {
namespace {

constexpr std::size_t kMaskRank = 4;

Result<NpyArray> Load(const Flag& flag) {
  Result<NpyArray> array = ReadNpyFile(*flag.text);
  if (array.ok()) return array;
  const std::string message = fmt::format("{} {}", flag.name, array.status().message());
  return array.status().code() == StatusCode::kInvalidArgument ? Status::InvalidArgument(message)
         : array.status().code() == StatusCode::kOutOfMemory   ? Status::OutOfMemory(message)
                                                               : Status::Internal(message);
}

Status Refuse(const Flag& flag, const NpyArray& array, std::uint64_t byte, std::string_view what) {
  return NpyError(fmt::format("{} {}", flag.name, array.name), byte, std::string(what));
}

// Shape with the missing leading axes, as NumPy broadcasts.
std::array<std::int64_t, kMaskRank> PaddedShape(const NpyArray& array) {
  std::array<std::int64_t, kMaskRank> padded = {1, 1, 1, 1};
  for (std::size_t i = 0; i < array.rank(); ++i) {
    padded[kMaskRank - array.rank() + i] = array.dim(i);
  }
  return padded;
}

std::array<std::int64_t, kMaskRank> MaskAxes(const AttentionShape& shape) {
  return {shape.batch, shape.num_heads, shape.seqlen_q, shape.seqlen_k};
}

double FloatAt(const NpyArray& array, std::size_t index) {
  switch (array.header.type) {
    case NpyType::kFloat64:
      return array.values<double>()[index];
    case NpyType::kFloat32:
      return static_cast<double>(array.values<float>()[index]);
    default:
      return static_cast<double>(Float16ToFloat(array.values<std::uint16_t>()[index]));
  }
}

// First element for which `is_bad`, if any.
template <class IsBad>
std::optional<std::size_t> FindFloat(const NpyArray& array, IsBad is_bad) {
  for (std::size_t i = 0; i < array.header.num_elements; ++i) {
    if (is_bad(FloatAt(array, i))) return i;
  }
  return std::nullopt;
}

std::string IndexText(const NpyArray& array, std::size_t element) {
  std::vector<std::int64_t> index(array.rank());
  for (std::size_t axis = array.rank(); axis-- > 0;) {
    const auto length = static_cast<std::size_t>(array.dim(axis));
    index[axis] = static_cast<std::int64_t>(element % length);
    element /= length;
  }
  return ShapeText(index);
}

Result<std::vector<std::int64_t>> LoadStarts(const Flag& flag) {
  const Result<NpyArray> array = Load(flag);
  if (!array.ok()) return array.status();
  if (array->header.type != NpyType::kInt64 && array->header.type != NpyType::kInt32) {
    return Refuse(flag, *array, array->header.descr_offset,
                  fmt::format("the elements are {}, int64 or int32 are expected",
                              NpyTypeName(array->header.type)));
  }
  if (array->rank() != 1) {
    return Refuse(flag, *array, array->header.shape_offset,
                  fmt::format("shape {} has {} axes; one is expected, of batch + 1 row numbers",
                              ShapeText(array->header.shape), array->rank()));
  }
  std::vector<std::int64_t> starts;
  if (array->header.type == NpyType::kInt64) {
    const auto values = array->values<std::int64_t>();
    starts.assign(values.begin(), values.end());
  } else {
    const auto values = array->values<std::int32_t>();
    starts.assign(values.begin(), values.end());
  }
  return starts;
}

}  // namespace

Result<NpyArray> LoadFloats(const Flag& flag, std::size_t rank, std::string_view axes) {
  Result<NpyArray> array = Load(flag);
  if (!array.ok()) return array;
  if (!FloatTypeOf(array->header.type)) {
    return Refuse(flag, *array, array->header.descr_offset,
                  fmt::format("the elements are {}; float64, float32 or float16 are expected: save "
                              "it again with array.astype(numpy.float32)",
                              NpyTypeName(array->header.type)));
  }
  if (array->rank() != rank) {
    return Refuse(flag, *array, array->header.shape_offset,
                  fmt::format("shape {} has {} axes; {} are expected: {}",
                              ShapeText(array->header.shape), array->rank(), rank, axes));
  }
  return array;
}

Result<NpyArray> LoadAttnMask(const Flag& flag, const AttentionShape& shape) {
  Result<NpyArray> array = Load(flag);
  if (!array.ok()) return array;
  const NpyType type = array->header.type;
  const bool is_float = FloatTypeOf(type).has_value();
  if (!is_float && type != NpyType::kBool && type != NpyType::kUint8) {
    return Refuse(
        flag, *array, array->header.descr_offset,
        fmt::format("the elements are {}; bool or uint8 (true: the weight takes part) or a "
                    "float type (added to the logits) is expected",
                    NpyTypeName(type)));
  }
  const std::array<std::int64_t, kMaskRank> wanted = MaskAxes(shape);
  bool fits = array->rank() <= kMaskRank;
  for (std::size_t axis = 0; fits && axis < kMaskRank; ++axis) {
    const std::int64_t length = PaddedShape(*array)[axis];
    fits = length == 1 || length == wanted[axis];
  }
  if (!fits) {
    return Refuse(flag, *array, array->header.shape_offset,
                  fmt::format("shape {} does not fit the problem's (batch, heads, seqlen_q, "
                              "seqlen_k) = {}; each of its axes, counted from the last, must have "
                              "that length or 1",
                              ShapeText(array->header.shape), ShapeText(wanted)));
  }
  if (!is_float) return array;
  const auto bad = FindFloat(*array, [](double x) { return std::isnan(x) || x == INFINITY; });
  if (bad) {
    return Refuse(flag, *array, array->OffsetOf(*bad),
                  fmt::format("element {} is {}; a float attn_mask holds finite numbers or -inf",
                              IndexText(*array, *bad), FloatAt(*array, *bad)));
  }
  return array;
}

MaskForm FormOf(const NpyArray& attn_mask) {
  const std::optional<DType> dtype = FloatTypeOf(attn_mask.header.type);
  const std::array<std::int64_t, kMaskRank> lengths = PaddedShape(attn_mask);
  // An axis of length 1 does not vary, be the problem as short there or not.
  const auto varies = [&lengths](std::size_t axis) { return lengths[axis] != 1; };
  return {.kind = dtype ? MaskKind::kFloat : MaskKind::kBool,
          .dtype = dtype.value_or(DType::kFloat32),
          .per_batch = varies(0),
          .per_head = varies(1),
          .per_query = varies(2),
          .per_key = varies(3)};
}

Strided<const void> AttnMaskView(const NpyArray& attn_mask) {
  const std::array<std::int64_t, kMaskRank> lengths = PaddedShape(attn_mask);
  return Dense<const void>(attn_mask.data.get(), lengths[1], lengths[2], lengths[3]);
}

Result<NpyArray> LoadAlibiSlopes(const Flag& flag, const AttentionShape& shape) {
  Result<NpyArray> array = Load(flag);
  if (!array.ok()) return array;
  if (array->header.type != NpyType::kFloat32) {
    return Refuse(flag, *array, array->header.descr_offset,
                  fmt::format("the elements are {}; float32 is expected: save it again with "
                              "array.astype(numpy.float32)",
                              NpyTypeName(array->header.type)));
  }
  const std::vector<std::int64_t>& given = array->header.shape;
  const bool fits = (given.size() == 1 && given[0] == shape.num_heads) ||
                    (given.size() == 2 && given[0] == shape.batch && given[1] == shape.num_heads);
  if (!fits) {
    return Refuse(
        flag, *array, array->header.shape_offset,
        fmt::format("shape {} does not fit; ({},), one slope for each query head, or ({}, "
                    "{}), for each batch and head, is expected",
                    ShapeText(given), shape.num_heads, shape.batch, shape.num_heads));
  }
  const auto bad = FindFloat(*array, [](double x) { return !std::isfinite(x); });
  if (bad) {
    return Refuse(flag, *array, array->OffsetOf(*bad),
                  fmt::format("element {} is {}; slopes are finite", IndexText(*array, *bad),
                              FloatAt(*array, *bad)));
  }
  return array;
}

Result<RaggedLengths> LoadRaggedLengths(const Flag& cu_seqlens_q, const Flag& cu_seqlens_k) {
  Result<std::vector<std::int64_t>> starts_q = LoadStarts(cu_seqlens_q);
  if (!starts_q.ok()) return starts_q.status();
  Result<std::vector<std::int64_t>> starts_k = LoadStarts(cu_seqlens_k);
  if (!starts_k.ok()) return starts_k.status();
  return RaggedLengths{.cu_seqlens_q = *std::move(starts_q),
                       .cu_seqlens_k = *std::move(starts_k),
                       .used_q = {},
                       .used_k = {}};
}

}  // namespace attndrop::cli
