// SPDX-License-Identifier: Apache-2.0
// The keep mask as an array and one weight at a time.
#include <string>

#include "attndrop/attention.h"

#include "core/buffer_checks.h"
#include "core/row_state.h"
#include "core/text.h"
#include "kernels/keep_bytes.h"

namespace attndrop {
namespace {

void WriteRow(const Problem& problem, const Row& row, const MaskReader& mask, KeepField& field,
              const KeepMaskBuffers& buffers) {
  const AttentionShape& shape = problem.shape();
  const std::int64_t first =
      ((row.at.batch * shape.num_heads + row.at.head) * shape.seqlen_q + row.at.query) *
      shape.seqlen_k;
  const RowState state = FindRowState(problem, row, mask, field);
  for (std::int64_t key = 0; key < shape.seqlen_k; ++key) {
    KeepCell cell;
    if (row.local.contains(key) && mask.Visible({row.at.batch, row.at.head, row.at.query, key})) {
      cell = KeepOf(state, GlobalCoord(problem, row, key + row.sequence.origin_k), field);
    }
    buffers.keep[first + key] = cell.keep ? 1 : 0;
    if (buffers.factors != nullptr) buffers.factors[first + key] = cell.factor;
  }
}

Status CheckIndex(std::string_view name, std::int64_t index, std::int64_t size) {
  if (index >= 0 && index < size) return Status::Ok();
  const std::string got = ", got " + std::string(name) + " index " + FormatNumber(index);
  if (size == 0) return Status::InvalidArgument("a problem of size 0 has no weights" + got);
  return Status::InvalidArgument(std::string(name) + " index must be in 0 .. " +
                                 FormatNumber(size - 1) + " (indices count inside this problem)" +
                                 got);
}

Status CheckCell(const AttentionShape& shape, const LocalIndex& at) {
  Status status = CheckIndex("batch", at.batch, shape.batch);
  if (status.ok()) status = CheckIndex("head", at.head, shape.num_heads);
  if (status.ok()) status = CheckIndex("query", at.query, shape.seqlen_q);
  if (status.ok()) status = CheckIndex("key", at.key, shape.seqlen_k);
  return status;
}

// A row that exists in the arrays but not in its sequence (padding of a ragged batch) sees nothing.
Row RowOrPadding(const Problem& problem, const LocalIndex& at) noexcept {
  Row row = MakeRow(problem, at.batch, at.head, at.query);
  if (at.query >= row.sequence.seqlen_q) row.whole = row.local = {};
  return row;
}

}  // namespace

Status KeepMask(const Problem& problem, const KeepMaskBuffers& buffers, Executor& executor) {
  if (Status status = CheckKeepMaskBuffers(problem, buffers); !status.ok()) return status;
  const AttentionShape& shape = problem.shape();
  if (shape.seqlen_q == 0 || shape.seqlen_k == 0) return Status::Ok();
  const MaskReader mask(problem, buffers.mask);
  // Bytes come from the words of the tile kernels where there are any; the factors of single
  // weights are found one by one. Both agree with the definition bit for bit.
  const Kernels* const kernels = buffers.factors == nullptr ? WidestKernels() : nullptr;
  const auto write_head = [&](std::int64_t task, int /*worker*/) {
    const LocalIndex at{.batch = task / shape.num_heads, .head = task % shape.num_heads};
    if (kernels != nullptr) {
      WriteKeepBytes(problem, buffers.mask, *kernels, at,
                     buffers.keep + task * shape.seqlen_q * shape.seqlen_k);
      return;
    }
    KeepField field(problem);
    for (std::int64_t query = 0; query < shape.seqlen_q; ++query) {
      const Row row = RowOrPadding(problem, {at.batch, at.head, query, 0});
      WriteRow(problem, row, mask, field, buffers);
    }
  };
  executor.Run(shape.batch * shape.num_heads, write_head);
  return Status::Ok();
}

Result<KeepCell> KeepAt(const Problem& problem, const MaskBuffers& buffers, const LocalIndex& at) {
  Status status = CheckCell(problem.shape(), at);
  if (status.ok()) status = CheckMaskBuffers(problem, buffers);
  if (!status.ok()) return status;
  const MaskReader mask(problem, buffers);
  const Row row = RowOrPadding(problem, at);
  if (!row.local.contains(at.key) || !mask.Visible(at)) return KeepCell{};
  KeepField field(problem);
  const RowState state = FindRowState(problem, row, mask, field);
  return KeepOf(state, GlobalCoord(problem, row, at.key + row.sequence.origin_k), field);
}

}  // namespace attndrop
