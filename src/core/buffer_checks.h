// SPDX-License-Identifier: Apache-2.0
// Refusals that need the arrays themselves; run before anything is written.
#pragma once

#include "attndrop/attention.h"
#include "attndrop/status.h"

namespace attndrop {

// Null and misaligned pointers, sizes that no address reaches, outputs that overlap an input or one
// another, and attn_mask or ALiBi numbers that are no bias (NaN, +inf).
[[nodiscard]] Status CheckForwardBuffers(const Problem& problem, const ForwardBuffers& buffers);
[[nodiscard]] Status CheckBackwardBuffers(const Problem& problem, const BackwardBuffers& buffers);
[[nodiscard]] Status CheckMaskBuffers(const Problem& problem, const MaskBuffers& buffers);
[[nodiscard]] Status CheckKeepMaskBuffers(const Problem& problem, const KeepMaskBuffers& buffers);

}  // namespace attndrop
