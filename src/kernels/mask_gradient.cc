// SPDX-License-Identifier: Apache-2.0
// Sums of grad_logits over the broadcast axes of attn_mask.
#include "kernels/mask_gradient.h"

#include <algorithm>

#include "core/array_view.h"
#include "kernels/float_rows.h"

namespace attndrop {
namespace {

// The queries of a tile: its lanes that are queries of the problem. The tile has some.
LaneRange LanesOf(const GradLogitsTile& tile) noexcept {
  return {std::max(tile.block.lane_begin, tile.words.lanes.begin),
          std::min(tile.block.lane_end, tile.words.lanes.end)};
}

}  // namespace

MaskGradient::MaskGradient(const Problem& problem, std::int64_t heads_in_flight,
                           Arena& arena) noexcept
    : problem_(&problem), slots_(heads_in_flight) {
  std::int64_t elements = 1;
  const std::array<std::int64_t, 4> sizes = ShapeOf(problem, Role::kAttnMask);
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    sizes_[axis] = sizes[axis];
    elements = SaturatingProduct(elements, sizes[axis]);
  }
  sums_ = arena.Take<float>(elements);
  if (!problem.attn_mask().per_key) {
    row_sums_ = arena.Take<float>(SaturatingProduct(slots_, problem.shape().seqlen_q));
  }
}

bool MaskGradient::SharesSums(const Problem& problem) noexcept {
  return !(problem.attn_mask().per_batch && problem.attn_mask().per_head);
}

void MaskGradient::Clear() noexcept {
  std::fill_n(sums_, sizes_[0] * sizes_[1] * sizes_[2] * sizes_[3], 0.0F);
  if (row_sums_ != nullptr) std::fill_n(row_sums_, slots_ * problem_->shape().seqlen_q, 0.0F);
}

float* MaskGradient::Sum(std::int64_t batch, std::int64_t head, std::int64_t query,
                         std::int64_t key) const noexcept {
  const MaskForm& form = problem_->attn_mask();
  std::int64_t index = form.per_batch ? batch : 0;
  index = index * sizes_[1] + (form.per_head ? head : 0);
  index = index * sizes_[2] + (form.per_query ? query : 0);
  index = index * sizes_[3] + (form.per_key ? key : 0);
  return sums_ + index;
}

void MaskGradient::AddOwned(const GradLogitsTile& tile) const noexcept {
  if (!problem_->attn_mask().per_key) return;
  const QueryBlock& block = tile.block;
  const LaneRange lanes = LanesOf(tile);
  float* rows[kBlockQueries];
  for (std::size_t lane = lanes.begin; lane < lanes.end; ++lane) {
    rows[lane] = Sum(block.batch, block.head, block.local_query(lane), tile.first_key);
  }
  const KeyList keys = tile.words.parts();
  for (std::size_t i = 0; i < keys.count; ++i) {
    const float* const grad = tile.grad_logits + i * block.width;
    for (std::size_t lane = lanes.begin; lane < lanes.end; ++lane) {
      rows[lane][keys.keys[i]] += grad[lane];
    }
  }
}

void MaskGradient::AddOrdered(const GradLogitsTile& tile, std::int64_t slot) const noexcept {
  if (row_sums_ == nullptr) return;
  const QueryBlock& block = tile.block;
  const LaneRange lanes = LanesOf(tile);
  float* const rows = row_sums_ + slot * problem_->shape().seqlen_q;
  const KeyList keys = tile.words.parts();
  for (std::size_t lane = lanes.begin; lane < lanes.end; ++lane) {
    float sum = 0.0F;
    for (std::size_t i = 0; i < keys.count; ++i) {
      sum += tile.grad_logits[i * block.width + lane];
    }
    rows[block.local_query(lane)] += sum;
  }
}

void MaskGradient::FinishHead(std::int64_t batch, std::int64_t head,
                              std::int64_t slot) const noexcept {
  if (row_sums_ == nullptr) return;
  float* const rows = row_sums_ + slot * problem_->shape().seqlen_q;
  for (std::int64_t query = 0; query < problem_->sequence(batch).seqlen_q; ++query) {
    *Sum(batch, head, query, 0) += rows[query];
    rows[query] = 0.0F;
  }
}

void MaskGradient::Store(const Strided<void>& grad_attn_mask) const noexcept {
  const float* sums = sums_;
  for (std::int64_t batch = 0; batch < sizes_[0]; ++batch) {
    for (std::int64_t head = 0; head < sizes_[1]; ++head, sums += sizes_[2] * sizes_[3]) {
      RowWriter(problem_->attn_mask().dtype, grad_attn_mask, batch, head, 0)
          .Write(0, static_cast<std::size_t>(sizes_[2]), static_cast<std::size_t>(sizes_[3]), sums,
                 static_cast<std::size_t>(sizes_[3]));
    }
  }
}

}  // namespace attndrop
