// SPDX-License-Identifier: Apache-2.0
// The scalar definition of the Bernoulli field (docs/mask-format.md); every fast generator must
// agree with it bit for bit.
#include "rng/field.h"

#include <bit>
#include <cmath>
#include <cstddef>

namespace attndrop {
namespace {

constexpr std::uint64_t kOne32 = std::uint64_t{1} << 32;
constexpr std::uint64_t kCapacity = std::uint64_t{1} << 44;   // of one column of the alias table
constexpr std::uint32_t kTieDomain = std::uint32_t{1} << 30;  // above every r div 4
constexpr int kTableSize = 16;

__extension__ typedef unsigned __int128 Uint128;  // NOLINT(modernize-use-using)

// floor(a * b * c * d / 2^80) for factors below 2^32.
std::uint64_t ProductShifted80(std::uint64_t a, std::uint64_t b, std::uint64_t c,
                               std::uint64_t d) noexcept {
  const auto product = static_cast<Uint128>(a * b) * (c * d);
  return static_cast<std::uint64_t>(product >> 80);
}

// A first-in first-out list of table columns; each column enters at most twice.
class ColumnQueue {
 public:
  void Push(int column) noexcept { columns_[static_cast<std::size_t>(end_++)] = column; }
  int Pop() noexcept { return columns_[static_cast<std::size_t>(begin_++)]; }
  [[nodiscard]] int Front() const noexcept { return columns_[static_cast<std::size_t>(begin_)]; }
  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }

 private:
  std::array<int, std::size_t{2} * kTableSize> columns_{};
  int begin_ = 0;
  int end_ = 0;
};

}  // namespace

std::uint64_t KeepQ32(double dropout_p) noexcept {
  return static_cast<std::uint64_t>(std::floor((1.0 - dropout_p) * 4294967296.0 + 0.5));
}

std::array<std::uint64_t, 5> OutcomeProbabilities(std::uint64_t keep_q32) noexcept {
  if (keep_q32 < kOne32 / 2) {
    const std::array<std::uint64_t, 5> mirrored = OutcomeProbabilities(kOne32 - keep_q32);
    return {mirrored[4], mirrored[3], mirrored[2], mirrored[1], mirrored[0]};
  }
  const std::uint64_t q = keep_q32;
  const std::uint64_t r = kOne32 - keep_q32;
  std::array<std::uint64_t, 5> a{};
  a[0] = ProductShifted80(r, r, r, r);
  a[1] = ProductShifted80(q, r, r, r);
  a[2] = ProductShifted80(q, q, r, r);
  // The last two make the sixteen outcomes sum to 2^48 and every marginal exactly q / 2^32.
  a[3] = (std::uint64_t{1} << 48) - (q << 16) - a[0] - 3 * a[1] - 3 * a[2];
  a[4] = (q << 16) - a[1] - 3 * a[2] - 3 * a[3];
  return a;
}

AliasTable MakeAliasTable(std::uint64_t keep_q32) noexcept {
  const std::array<std::uint64_t, 5> probability = OutcomeProbabilities(keep_q32);
  AliasTable table;
  std::array<std::uint64_t, kTableSize> left{};  // what each outcome still has to place
  ColumnQueue small;
  ColumnQueue large;
  for (int outcome = 0; outcome < kTableSize; ++outcome) {
    const auto o = static_cast<std::size_t>(outcome);
    left[o] = probability[static_cast<std::size_t>(std::popcount(static_cast<unsigned>(outcome)))];
    table.threshold[o] = kCapacity;
    table.alias[o] = static_cast<std::uint8_t>(outcome);
    (left[o] < kCapacity ? small : large).Push(outcome);
  }
  while (!small.empty() && !large.empty()) {
    const auto column = static_cast<std::size_t>(small.Pop());
    const auto donor = static_cast<std::size_t>(large.Front());
    table.threshold[column] = left[column];
    table.alias[column] = static_cast<std::uint8_t>(donor);
    left[donor] -= kCapacity - left[column];
    if (left[donor] < kCapacity) small.Push(large.Pop());
  }
  return table;
}

unsigned FieldNibble(const AliasTable& table, PhiloxKey key, const FieldPoint& point) noexcept {
  const std::uint32_t row = point.r % 4;
  const std::uint32_t group = (point.c / 4) % 2;  // which four of the eight columns
  const PhiloxWords words = Philox(key, {point.r / 4, point.c / 8, point.h, point.b});
  const std::uint32_t half_index = 4 * group + row;
  const std::uint32_t half = (words[half_index / 2] >> (16 * (half_index % 2))) & 0xFFFF;
  const std::uint32_t column = half % 16;
  const std::uint32_t draw = half / 16;
  const auto high = static_cast<std::uint32_t>(table.threshold[column] >> 32);
  if (draw < high) return column;
  if (draw > high) return table.alias[column];
  const PhiloxWords tie =
      Philox(key, {point.r / 4 + (1 + group) * kTieDomain, point.c / 8, point.h, point.b});
  const auto low = static_cast<std::uint32_t>(table.threshold[column]);
  return tie[row] < low ? column : table.alias[column];
}

std::uint32_t ForcedKeyWord(PhiloxKey key, const FieldPoint& point) noexcept {
  return Philox(key, {point.r / 4 + 3 * kTieDomain, 0, point.h, point.b})[point.r % 4];
}

}  // namespace attndrop
