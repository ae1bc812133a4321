// SPDX-License-Identifier: Apache-2.0
// The oracle of mask format 1, paragraph by paragraph in the order of its page.
#include "support/mask_oracle.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

namespace attndrop::testing {
namespace {

constexpr std::uint64_t kTwo32 = std::uint64_t{1} << 32;

std::uint32_t Low(std::uint64_t x) { return static_cast<std::uint32_t>(x % kTwo32); }
std::uint32_t High(std::uint64_t x) { return static_cast<std::uint32_t>(x / kTwo32); }

// x * y / 2^80 of two 64-bit numbers, rounded down, by schoolbook multiplication in base 2^32.
std::uint64_t ProductShift80(std::uint64_t x, std::uint64_t y) {
  const std::uint64_t low = std::uint64_t{Low(x)} * Low(y);
  const std::uint64_t mid1 = std::uint64_t{Low(x)} * High(y);
  const std::uint64_t mid2 = std::uint64_t{High(x)} * Low(y);
  const std::uint64_t high = std::uint64_t{High(x)} * High(y);
  const std::uint64_t carry = std::uint64_t{High(low)} + Low(mid1) + Low(mid2);
  const std::uint64_t upper = high + High(mid1) + High(mid2) + High(carry);
  return upper >> 16;
}

// floor(a^k * b^(4-k) / 2^80) for a, b < 2^32: both squares fit 64 bits.
std::uint64_t FourthDegree(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  return ProductShift80(a * b, c * d);
}

unsigned Popcount4(unsigned outcome) {
  return (outcome & 1U) + ((outcome >> 1) & 1U) + ((outcome >> 2) & 1U) + ((outcome >> 3) & 1U);
}

// log of p^count with p = 1 - q32 / 2^32.
long double LogOfPower(std::uint64_t keep_q32, long double count) {
  return count * std::log1p(-static_cast<long double>(keep_q32) / 4294967296.0L);
}

}  // namespace

OracleWords OraclePhilox(OracleKey key, OracleWords counter) {
  std::uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
  std::uint32_t k0 = key.low, k1 = key.high;
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    const std::uint64_t first = 0xD2511F53ULL * a;
    const std::uint64_t second = 0xCD9E8D57ULL * c;
    a = High(second) ^ b ^ k0;
    b = Low(second);
    c = High(first) ^ d ^ k1;
    d = Low(first);
  }
  return {a, b, c, d};
}

std::uint32_t OracleFnv1a(std::string_view name) {
  std::uint64_t hash = 2166136261U;
  for (const char letter : name) {
    hash = (hash ^ static_cast<std::uint64_t>(static_cast<unsigned char>(letter))) * 16777619U;
    hash %= kTwo32;
  }
  return static_cast<std::uint32_t>(hash);
}

OracleKey OracleCallKey(const OracleCall& call, std::uint32_t attempt) {
  const OracleWords words =
      OraclePhilox({Low(call.seed), High(call.seed)},
                   {Low(call.offset), High(call.offset), OracleFnv1a(call.scheme), attempt});
  return {words[0], words[1]};
}

std::uint64_t OracleKeepQ32(double dropout_p) {
  return static_cast<std::uint64_t>(std::floor((1.0 - dropout_p) * 4294967296.0 + 0.5));
}

std::array<std::uint64_t, 5> OracleOutcomes(std::uint64_t keep_q32) {
  if (keep_q32 < kTwo32 / 2) {
    std::array<std::uint64_t, 5> a = OracleOutcomes(kTwo32 - keep_q32);
    std::reverse(a.begin(), a.end());
    return a;
  }
  const std::uint64_t q = keep_q32, r = kTwo32 - keep_q32;
  std::array<std::uint64_t, 5> a{};
  a[0] = FourthDegree(r, r, r, r);
  a[1] = FourthDegree(q, r, r, r);
  a[2] = FourthDegree(q, q, r, r);
  a[3] = (std::uint64_t{1} << 48) - 65536 * q - a[0] - 3 * a[1] - 3 * a[2];
  a[4] = 65536 * q - a[1] - 3 * a[2] - 3 * a[3];
  return a;
}

OracleTable OracleAliasTable(std::uint64_t keep_q32) {
  const std::array<std::uint64_t, 5> a = OracleOutcomes(keep_q32);
  const std::uint64_t capacity = std::uint64_t{1} << 44;
  OracleTable table;
  std::array<std::uint64_t, 16> share{};
  std::deque<unsigned> small, large;
  for (unsigned outcome = 0; outcome < 16; ++outcome) {
    share[outcome] = a[Popcount4(outcome)];
    table.threshold[outcome] = capacity;
    table.alias[outcome] = outcome;
    (share[outcome] < capacity ? small : large).push_back(outcome);
  }
  while (!small.empty() && !large.empty()) {
    const unsigned taken = small.front();
    small.pop_front();
    const unsigned donor = large.front();
    table.threshold[taken] = share[taken];
    table.alias[taken] = donor;
    share[donor] -= capacity - share[taken];
    if (share[donor] < capacity) {
      large.pop_front();
      small.push_back(donor);
    }
  }
  return table;
}

bool OracleFieldBit(const OracleTable& table, OracleKey key, const OraclePoint& at) {
  const OracleWords counter = {Low(at.r / 4), Low(at.c / 8), Low(at.h), Low(at.b)};
  const OracleWords words = OraclePhilox(key, counter);
  std::array<std::uint32_t, 8> halves{};
  for (std::size_t w = 0; w < 4; ++w) {
    halves[2 * w] = words[w] % 65536;
    halves[2 * w + 1] = words[w] / 65536;
  }
  const std::uint32_t x = halves[4 * ((at.c / 4) % 2) + at.r % 4];
  const unsigned column = x % 16;
  const std::uint32_t u = x / 16;
  unsigned outcome = column;
  if (u > High(table.threshold[column])) outcome = table.alias[column];
  if (u == High(table.threshold[column])) {
    const std::uint64_t group = 1 + (at.c / 4) % 2;
    OracleWords tie_counter = counter;
    tie_counter[0] = Low(at.r / 4 + group * (std::uint64_t{1} << 30));
    const std::uint32_t y = OraclePhilox(key, tie_counter)[at.r % 4];
    if (y >= Low(table.threshold[column])) outcome = table.alias[column];
  }
  return ((outcome >> (at.c % 4)) & 1U) != 0;
}

OracleScheme ParseOracleScheme(std::string_view text) {
  OracleScheme scheme;
  const std::size_t colon = text.find(':');
  scheme.name = std::string(text.substr(0, colon));
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    std::uint64_t value = 0;
    std::from_chars(item.data() + equals + 1, item.data() + item.size(), value);
    (item.substr(0, equals) == "block_q" ? scheme.block_q : scheme.block_k) = value;
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  return scheme;
}

OraclePoint OraclePointOf(const OracleScheme& scheme, const OracleWeight& at) {
  if (scheme.name == "element") return {at.i, at.j, at.h, at.b};
  if (scheme.name == "shared") return {at.i, at.j, 0, 0};
  if (scheme.name == "key") return {0, at.j, at.h, at.b};
  if (scheme.name == "word") return {0, at.j, 0, at.b};
  if (scheme.name == "query") return {at.i, 0, at.h, at.b};
  if (scheme.name == "head") return {0, 0, at.h, at.b};
  if (scheme.name == "block") {
    return {at.i / scheme.block_q, at.j / scheme.block_k, at.h, at.b};
  }
  return {std::max(at.i, at.j), std::min(at.i, at.j), at.h, at.b};  // symmetric
}

MaskOracle::MaskOracle(const DropoutConfig& config)
    : config_(config),
      scheme_(ParseOracleScheme(config.scheme)),
      keep_q32_(config.training ? OracleKeepQ32(config.dropout_p) : kTwo32),
      table_(keep_q32_ > 0 && keep_q32_ < kTwo32 ? OracleAliasTable(keep_q32_) : OracleTable{}) {}

bool MaskOracle::Drawn(const OracleWeight& at, std::uint32_t attempt) const {
  if (keep_q32_ == kTwo32) return true;
  if (keep_q32_ == 0) return false;
  const OracleKey key = OracleCallKey({config_.seed, config_.offset, scheme_.name}, attempt);
  return OracleFieldBit(table_, key, OraclePointOf(scheme_, at));
}

std::vector<bool> MaskOracle::Draw(const OracleRow& row, std::uint32_t attempt) const {
  std::vector<bool> bits;
  for (const std::uint64_t j : row.visible)
    bits.push_back(Drawn({row.b, row.h, row.i, j}, attempt));
  return bits;
}

double MaskOracle::Inclusion(std::uint64_t visible, std::uint32_t attempts) const {
  const long double q = static_cast<long double>(keep_q32_) / 4294967296.0L;
  const long double n = static_cast<long double>(visible);
  const long double all = LogOfPower(keep_q32_, n * static_cast<long double>(attempts));
  const long double once = LogOfPower(keep_q32_, n);
  return static_cast<double>(q * std::expm1(all) / std::expm1(once) + std::exp(all) / n);
}

std::vector<OracleCell> MaskOracle::AtLeastOne(const OracleRow& row) const {
  const std::uint64_t n = row.visible.size();
  const std::uint32_t attempts = config_.empty_row.attempts;
  const double factor = 1.0 / Inclusion(n, attempts);
  std::vector<OracleCell> cells(n);
  for (std::uint32_t attempt = 0; attempt < attempts; ++attempt) {
    const std::vector<bool> bits = Draw(row, attempt);
    if (std::find(bits.begin(), bits.end(), true) == bits.end()) continue;
    for (std::size_t k = 0; k < n; ++k) {
      if (bits[k]) cells[k] = {true, factor};
    }
    return cells;
  }
  const OraclePoint point = OraclePointOf(scheme_, {row.b, row.h, row.i, row.visible.front()});
  const OracleKey key = OracleCallKey({config_.seed, config_.offset, scheme_.name}, 0);
  const OracleWords words = OraclePhilox(
      key, {Low(point.r / 4 + 3 * (std::uint64_t{1} << 30)), 0, Low(point.h), Low(point.b)});
  const std::uint64_t y = words[point.r % 4];
  cells[High(y * n)] = {true, factor};
  return cells;
}

std::vector<OracleCell> MaskOracle::Forced(const OracleRow& row,
                                           std::optional<std::uint64_t> forced) const {
  const std::vector<bool> bits = Draw(row, 0);
  const double factor = 4294967296.0 / static_cast<double>(keep_q32_);
  std::vector<OracleCell> cells(row.visible.size());
  for (std::size_t k = 0; k < cells.size(); ++k) {
    if (bits[k]) cells[k] = {true, factor};
    if (forced && row.visible[k] == *forced) cells[k] = {true, 1.0};
  }
  return cells;
}

std::vector<OracleCell> MaskOracle::Undropped(const OracleRow& row) const {
  std::set<OraclePoint> points;
  for (const std::uint64_t j : row.visible) {
    points.insert(OraclePointOf(scheme_, {row.b, row.h, row.i, j}));
  }
  const long double empty =
      std::exp(LogOfPower(keep_q32_, static_cast<long double>(points.size())));
  const long double q = static_cast<long double>(keep_q32_) / 4294967296.0L;
  const std::vector<bool> bits = Draw(row, 0);
  const bool lost = std::find(bits.begin(), bits.end(), true) == bits.end();
  std::vector<OracleCell> cells(row.visible.size());
  for (std::size_t k = 0; k < cells.size(); ++k) {
    if (lost) cells[k] = {true, static_cast<double>(1.0L / (1.0L + empty))};
    if (bits[k]) cells[k] = {true, static_cast<double>(1.0L / (q * (1.0L + empty)))};
  }
  return cells;
}

std::vector<OracleCell> MaskOracle::Row(const OracleRow& row) const {
  if (row.visible.empty()) return {};
  if (keep_q32_ == kTwo32) return std::vector<OracleCell>(row.visible.size(), {true, 1.0});
  switch (config_.empty_row.kind) {
    case EmptyRow::kAtLeastOne:
      return AtLeastOne(row);
    case EmptyRow::kKeepSelf:
      return Forced(
          row, row.self < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(row.self)));
    case EmptyRow::kKeepFirst:
      return Forced(row, 0);
    case EmptyRow::kUndropped:
      return Undropped(row);
    case EmptyRow::kZero:
      break;
  }
  return Forced(row, std::nullopt);
}

}  // namespace attndrop::testing
