// SPDX-License-Identifier: Apache-2.0
// What all ways to draw keep words share: tables, and ties.
#include "kernels/keep_words.h"

#include <bit>

namespace attndrop {

KeepWordsTables MakeKeepWordsTables(const AliasTable& table, PhiloxKey key) noexcept {
  KeepWordsTables tables;
  tables.table = table;
  tables.key = key;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    tables.k0[round] = key.k0;
    tables.k1[round] = key.k1;
    key.k0 += kPhiloxIncrement0;
    key.k1 += kPhiloxIncrement1;
  }
  for (std::size_t i = 0; i < 64; ++i) {
    // A full column (4096) never hands over to its alias, which is itself: any threshold serves.
    const std::uint64_t high = table.threshold[i % 16] >> 32;
    const auto threshold = static_cast<std::uint16_t>(high > 0xFFF ? 0xFFF0 : high << 4);
    tables.threshold_low[i] = static_cast<std::uint8_t>(threshold);
    tables.threshold_high[i] = static_cast<std::uint8_t>(threshold >> 8);
    tables.alias_bytes[i] = table.alias[i % 16];
    if (i >= 32) continue;
    tables.threshold[i] = threshold;
    tables.alias[i] = table.alias[i % 16];
  }
  return tables;
}

void DecideTies(const KeepWordsArgs& args, std::uint64_t rows, std::size_t first_column,
                std::uint64_t* words) noexcept {
  for (; rows != 0; rows &= rows - 1) {
    const auto row = static_cast<std::uint32_t>(std::countr_zero(rows));
    const unsigned nibble =
        FieldNibble(args.tables->table, args.tables->key,
                    {.r = args.row + row,
                     .c = args.column + static_cast<std::uint32_t>(first_column),
                     .h = args.h,
                     .b = args.b});
    for (unsigned bit = 0; bit < 4; ++bit) {
      const std::uint64_t keep = (nibble >> bit) & 1U;
      words[bit] = (words[bit] & ~(std::uint64_t{1} << row)) | (keep << row);
    }
  }
}

}  // namespace attndrop
