// SPDX-License-Identifier: Apache-2.0
// Words of 64 queries a key, turned into bytes of 64 keys a query.
#include "kernels/keep_bytes.h"

#include <algorithm>
#include <cstring>

#include "kernels/bit_matrix.h"
#include "kernels/tile_words.h"

namespace attndrop {
namespace {

// The low eight bits as eight bytes of 0 or 1, lowest first.
std::uint64_t SpreadBits(std::uint64_t bits) noexcept {
  const std::uint64_t copies = (bits & 0xFF) * 0x0101010101010101;
  const std::uint64_t one_each = copies & 0x8040201008040201;
  return ((one_each + 0x7F7F7F7F7F7F7F7F) >> 7) & 0x0101010101010101;
}

void WriteBytes(std::uint64_t bits, std::int64_t count, std::uint8_t* bytes) noexcept {
  for (; count >= 8; count -= 8, bytes += 8, bits >>= 8) {
    const std::uint64_t eight = SpreadBits(bits);
    std::memcpy(bytes, &eight, sizeof eight);
  }
  for (; count > 0; --count, ++bytes, bits >>= 1) *bytes = static_cast<std::uint8_t>(bits & 1);
}

}  // namespace

void WriteKeepBytes(const Problem& problem, const MaskBuffers& mask, const Kernels& kernels,
                    const LocalIndex& head, std::uint8_t* keep) {
  const AttentionShape& shape = problem.shape();
  std::fill_n(keep, shape.seqlen_q * shape.seqlen_k, std::uint8_t{0});
  const KeepWordsTables tables = MakeFieldTables(problem);
  TileWordSource source(problem, mask, kernels, tables);
  TileWords words;
  BlockState state;
  const std::int64_t blocks = NumBlocks(problem.sequence(head.batch));
  for (std::int64_t index = 0; index < blocks; ++index) {
    const QueryBlock block = MakeBlock(problem, head.batch, head.head, index);
    source.FindBlockState(block, state);
    for (std::int64_t begin = block.keys.begin; begin < block.keys.end; begin += 64) {
      const KeyRange keys{begin, std::min<std::int64_t>(begin + 64, block.keys.end)};
      source.Fill(block, state, keys, words);
      std::uint64_t rows[64] = {};
      std::copy_n(words.has_kept ? words.kept : words.part, words.count, rows);
      TransposeBits(rows);
      for (std::size_t lane = block.lane_begin; lane < block.lane_end; ++lane) {
        WriteBytes(rows[lane], keys.size(),
                   keep + block.local_query(lane) * shape.seqlen_k + keys.begin);
      }
    }
  }
}

}  // namespace attndrop
