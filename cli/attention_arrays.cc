// SPDX-License-Identifier: Apache-2.0
// Shapes that must fit together, said with both shapes in full; result arrays.
#include "cli/attention_arrays.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "cli/io/npy_header.h"
#include "cli/mask_files.h"

namespace attndrop::cli {
namespace {

constexpr std::string_view kAxes =
    "batch, heads, seqlen, head_dim; a missing axis is added with array[None]";

struct Named {
  const Flag& flag;
  const NpyArray& array;
  [[nodiscard]] std::string Text() const {
    return fmt::format("{} {} has shape {} of {}", flag.name, array.name,
                       ShapeText(array.header.shape), NpyTypeName(array.header.type));
  }
};

Status CheckSame(const Named& a, const Named& b, std::size_t axis, std::string_view what) {
  if (a.array.dim(axis) == b.array.dim(axis)) return {};
  return Status::InvalidArgument(fmt::format("{} but {}; they must have the same {} (axis {})",
                                             a.Text(), b.Text(), what, axis));
}

Status CheckSameType(const Named& a, const Named& b) {
  if (a.array.header.type == b.array.header.type) return {};
  return Status::InvalidArgument(fmt::format(
      "{} but {}; query, key and value must have one type: save one again with array.astype",
      a.Text(), b.Text()));
}

Status CheckFit(const Named& query, const Named& key, const Named& value) {
  const Status checks[] = {
      CheckSameType(query, key),
      CheckSameType(query, value),
      CheckSame(query, key, 0, "batch"),
      CheckSame(query, value, 0, "batch"),
      CheckSame(key, value, 1, "heads"),
      CheckSame(key, value, 2, "seqlen"),
      CheckSame(query, key, 3, "head_dim"),
  };
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  return {};
}

Status CheckRowCount(const Named& named, std::int64_t rows, std::string_view source) {
  if (named.array.dim(2) == rows) return {};
  return Status::InvalidArgument(fmt::format(
      "{} but {} ends at row {}; axis 2 must have as many rows", named.Text(), source, rows));
}

}  // namespace

void AddArrayFlags(CLI::App& app, ArrayFlags& flags) {
  AddFlag(app, flags.query, "--query", "batch, heads, seqlen_q, head_dim", "FILE");
  AddFlag(app, flags.key, "--key", "batch, kv heads, seqlen_k, head_dim", "FILE");
  AddFlag(app, flags.value, "--value", "batch, kv heads, seqlen_k, head_dim_v", "FILE");
}

Result<AttentionArrays> LoadArrays(const ArrayFlags& flags, ProblemArgs& args) {
  Result<NpyArray> query = LoadFloats(flags.query, 4, kAxes);
  if (!query.ok()) return query.status();
  Result<NpyArray> key = LoadFloats(flags.key, 4, kAxes);
  if (!key.ok()) return key.status();
  Result<NpyArray> value = LoadFloats(flags.value, 4, kAxes);
  if (!value.ok()) return value.status();
  if (Status fit = CheckFit({flags.query, *query}, {flags.key, *key}, {flags.value, *value});
      !fit.ok()) {
    return fit;
  }
  if (query->dim(1) != 0 && key->dim(1) == 0) {
    return Status::InvalidArgument(fmt::format("{} but {} has no heads; give it one at least",
                                               Named{flags.key, *key}.Text(), flags.key.name));
  }
  args.shape = {.batch = query->dim(0),
                .num_heads = query->dim(1),
                .num_kv_heads = key->dim(1),
                .seqlen_q = query->dim(2),
                .seqlen_k = key->dim(2),
                .head_dim = query->dim(3),
                .head_dim_v = value->dim(3)};
  args.dtype = FloatTypeOf(query->header.type).value_or(DType::kFloat32);
  return AttentionArrays{
      .query = *std::move(query), .key = *std::move(key), .value = *std::move(value)};
}

Status CheckRows(const ArrayFlags& flags, const AttentionArrays& arrays, const Problem& problem) {
  if (!problem.is_ragged()) return {};
  for (const Named& named : {Named{flags.query, arrays.query}, Named{flags.key, arrays.key}}) {
    if (named.array.dim(0) != 1) {
      return Status::InvalidArgument(fmt::format(
          "{}; with --cu-seqlens-q the sequences lie behind one another and axis 0 has length 1",
          named.Text()));
    }
  }
  if (Status rows = CheckRowCount({flags.query, arrays.query}, problem.rows_q(), "--cu-seqlens-q");
      !rows.ok()) {
    return rows;
  }
  return CheckRowCount({flags.key, arrays.key}, problem.rows_k(), "--cu-seqlens-k");
}

Result<NpyArray> LoadLike(const Flag& flag, NpyType type, const std::vector<std::int64_t>& shape,
                          std::string_view axes) {
  Result<NpyArray> array = LoadFloats(flag, shape.size(), axes);
  if (!array.ok()) return array;
  if (array->header.type != type || array->header.shape != shape) {
    return Status::InvalidArgument(fmt::format("{}; {} of {} is expected: {}",
                                               Named{flag, *array}.Text(), ShapeText(shape),
                                               NpyTypeName(type), axes));
  }
  return array;
}

Strided<const void> ViewOf(const NpyArray& array) {
  return Dense<const void>(array.data.get(), array.dim(1), array.dim(2), array.dim(3));
}

Result<ResultArray> ResultArray::Make(std::string flag, NpyType type,
                                      std::vector<std::int64_t> shape) {
  ResultArray result;
  double bytes = static_cast<double>(SizeOf(type));
  for (const std::int64_t length : shape) bytes *= static_cast<double>(length);
  const std::string refusal =
      fmt::format("{} of shape {} takes {} bytes, which this machine does not have", flag,
                  ShapeText(shape), bytes);
  if (bytes > 1e18) return Status::OutOfMemory(refusal);
  std::size_t count = SizeOf(type);
  for (const std::int64_t length : shape) count *= static_cast<std::size_t>(length);
  result.data_.reset(new (std::nothrow) std::byte[count]());
  if (result.data_ == nullptr) return Status::OutOfMemory(refusal);
  result.flag_ = std::move(flag);
  result.type_ = type;
  result.shape_ = std::move(shape);
  result.num_bytes_ = count;
  return result;
}

Strided<void> ResultArray::view() const {
  const std::vector<std::int64_t> padded = [this] {
    std::vector<std::int64_t> lengths(4 - std::min<std::size_t>(4, shape_.size()), 1);
    lengths.insert(lengths.end(), shape_.begin(), shape_.end());
    return lengths;
  }();
  return Dense<void>(data_.get(), padded[1], padded[2], padded[3]);
}

Strided<void> ResultArray::row_view() const {
  return Dense<void>(data_.get(), shape_[1], shape_[2], 1);
}

OutputArray ResultArray::output() const {
  return {.flag = flag_, .type = type_, .shape = shape_, .bytes = {data_.get(), num_bytes_}};
}

Status AddResult(const OutputSet& outputs, const Flag& flag, NpyType type,
                 std::vector<std::int64_t> shape, std::vector<ResultArray>& results) {
  if (!outputs.Has(flag.name)) return {};
  Result<ResultArray> result = ResultArray::Make(flag.name, type, std::move(shape));
  if (!result.ok()) return result.status();
  results.push_back(*std::move(result));
  return {};
}

const ResultArray* FindResult(const Flag& flag, const std::vector<ResultArray>& results) {
  const auto found = std::ranges::find_if(
      results, [&flag](const ResultArray& result) { return result.flag() == flag.name; });
  return found == results.end() ? nullptr : &*found;
}

Strided<void> ViewFor(const Flag& flag, const std::vector<ResultArray>& results) {
  const ResultArray* result = FindResult(flag, results);
  return result == nullptr ? Strided<void>{} : result->view();
}

Status WriteResults(const OutputSet& outputs, const std::vector<ResultArray>& results) {
  std::vector<OutputArray> arrays;
  arrays.reserve(results.size());
  for (const ResultArray& result : results) arrays.push_back(result.output());
  return outputs.Write(arrays);
}

nlohmann::ordered_json DescribeResults(const OutputSet& outputs,
                                       const std::vector<ResultArray>& results) {
  nlohmann::ordered_json described = nlohmann::ordered_json::array();
  for (const ResultArray& result : results) {
    const OutputArray array = result.output();
    described.push_back({{"flag", array.flag},
                         {"file", outputs.PathOf(array.flag)},
                         {"dtype", std::string(NpyTypeName(array.type))},
                         {"shape", array.shape}});
  }
  return described;
}

}  // namespace attndrop::cli
