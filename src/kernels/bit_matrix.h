// SPDX-License-Identifier: Apache-2.0
// 64 x 64 bits in 64 words.
#pragma once

#include <cstdint>

namespace attndrop {

// Bit j of words[i] becomes bit i of words[j]. Swaps ever smaller off-diagonal squares: 6 passes of
// 32 exchanges.
inline void TransposeBits(std::uint64_t (&words)[64]) noexcept {
  std::uint64_t mask = 0x00000000FFFFFFFF;
  for (unsigned half = 32; half != 0; half /= 2, mask ^= mask << half) {
    for (unsigned i = 0; i < 64; i = (i + half + 1) & ~half) {
      const std::uint64_t exchange = ((words[i] >> half) ^ words[i + half]) & mask;
      words[i] ^= exchange << half;
      words[i + half] ^= exchange;
    }
  }
}

}  // namespace attndrop
