// SPDX-License-Identifier: Apache-2.0
// Causal, window and attn_mask as ranges of keys and reads of the mask.
#include "core/visibility.h"

#include <cmath>
#include <limits>

#include "core/element.h"

namespace attndrop {

KeyRange WholeKeyRange(const Problem& problem, const Sequence& sequence,
                       std::int64_t query) noexcept {
  const std::int64_t position = query + sequence.shift;
  KeyRange range{0, sequence.total_k};
  if (problem.is_causal()) range.end = std::min(range.end, position + 1);
  const Window& window = problem.window();
  if (window.left >= 0) range.begin = std::max(range.begin, position - window.left);
  if (window.right >= 0) range.end = std::min(range.end, position + window.right + 1);
  return range;
}

KeyRange LocalKeyRange(const Sequence& sequence, const KeyRange& whole) noexcept {
  return {std::max<std::int64_t>(whole.begin - sequence.origin_k, 0),
          std::min(whole.end - sequence.origin_k, sequence.seqlen_k)};
}

MaskReader::MaskReader(const Problem& problem, const MaskBuffers& buffers) noexcept
    : form_(problem.attn_mask()),
      mask_(buffers.attn_mask),
      slopes_(problem.alibi() ? buffers.alibi_slopes : nullptr),
      slopes_batch_stride_(buffers.alibi_batch_stride) {
  if (!form_.per_batch) mask_.batch_stride = 0;
  if (!form_.per_head) mask_.head_stride = 0;
  if (!form_.per_query) mask_.row_stride = 0;
  if (!form_.per_key) mask_.col_stride = 0;
}

std::int64_t MaskReader::Offset(const LocalIndex& at) const noexcept {
  return at.batch * mask_.batch_stride + at.head * mask_.head_stride + at.query * mask_.row_stride +
         at.key * mask_.col_stride;
}

bool MaskReader::Visible(const LocalIndex& at) const noexcept {
  switch (form_.kind) {
    case MaskKind::kNone:
      return true;
    case MaskKind::kBool:
      return static_cast<const std::uint8_t*>(mask_.data)[Offset(at)] != 0;
    case MaskKind::kFloat:
      return LoadElement(form_.dtype, mask_.data, Offset(at)) !=
             -std::numeric_limits<double>::infinity();
  }
  return true;
}

double MaskReader::Bias(const LocalIndex& at, std::int64_t distance) const noexcept {
  double bias = 0.0;
  if (form_.kind == MaskKind::kFloat) bias = LoadElement(form_.dtype, mask_.data, Offset(at));
  if (slopes_ != nullptr) {
    const float slope = slopes_[at.batch * slopes_batch_stride_ + at.head];
    bias -= static_cast<double>(slope) * static_cast<double>(distance);
  }
  return bias;
}

}  // namespace attndrop
