// SPDX-License-Identifier: Apache-2.0
// The keep mask of a head as bytes, from the words that the tile kernels read.
#pragma once

#include <cstdint>

#include "attndrop/attention.h"

#include "kernels/kernels.h"

namespace attndrop {

// keep: [seqlen_q][seqlen_k] of one head, 1 = visible and kept; every byte is written.
void WriteKeepBytes(const Problem& problem, const MaskBuffers& mask, const Kernels& kernels,
                    const LocalIndex& head, std::uint8_t* keep);

}  // namespace attndrop
