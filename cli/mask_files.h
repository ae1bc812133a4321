// SPDX-License-Identifier: Apache-2.0
// The files beside query, key and value: attn_mask, ALiBi slopes, starts of ragged sequences.
#pragma once

#include "attndrop/problem.h"
#include "attndrop/status.h"
#include "attndrop/strided.h"

#include "cli/flags.h"
#include "cli/io/npy.h"

namespace attndrop::cli {

// A float array of `rank` axes: float64, float32 or float16.
[[nodiscard]] Result<NpyArray> LoadFloats(const Flag& flag, std::size_t rank,
                                          std::string_view axes);

// bool, uint8 or float with at most four axes, each of length 1 or that of the problem; a float one
// holds neither NaN nor +inf.
[[nodiscard]] Result<NpyArray> LoadAttnMask(const Flag& flag, const AttentionShape& shape);
[[nodiscard]] MaskForm FormOf(const NpyArray& attn_mask);
[[nodiscard]] Strided<const void> AttnMaskView(const NpyArray& attn_mask);

// float32, (num_heads) or (batch, num_heads), all finite.
[[nodiscard]] Result<NpyArray> LoadAlibiSlopes(const Flag& flag, const AttentionShape& shape);

// int64 or int32, one axis each.
[[nodiscard]] Result<RaggedLengths> LoadRaggedLengths(const Flag& cu_seqlens_q,
                                                      const Flag& cu_seqlens_k);

}  // namespace attndrop::cli
