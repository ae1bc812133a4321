// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), to compare long outputs with one line of a golden file.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "support/golden.h"

namespace attndrop::testing {

// The first 32 bits of the fraction of the square root (power 2) or cube root (power 3) of n.
inline std::uint32_t RootFraction(std::uint32_t n, int power) {
  const long double root =
      power == 2 ? std::sqrt(static_cast<long double>(n)) : std::cbrt(static_cast<long double>(n));
  return static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L);
}

struct Sha256Tables {
  std::array<std::uint32_t, 64> round{};
  std::array<std::uint32_t, 8> start{};

  Sha256Tables() {
    std::size_t found = 0;
    for (std::uint32_t n = 2; found < round.size(); ++n) {
      bool prime = true;
      for (std::uint32_t d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
      if (!prime) continue;
      round[found] = RootFraction(n, 3);
      if (found < start.size()) start[found] = RootFraction(n, 2);
      ++found;
    }
  }
};

inline void Sha256Block(const Sha256Tables& tables, std::span<const std::uint8_t> block,
                        std::array<std::uint32_t, 8>& hash) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 64; ++i) w[i / 4] = (w[i / 4] << 8) | block[i];
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15];
    const std::uint32_t b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = hash;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & f) ^ (~e & g)) + tables.round[i] + w[i];
    const std::uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> sum = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) hash[i] += sum[i];
}

// The digest as 64 hexadecimal digits.
inline std::string Sha256(std::vector<std::uint8_t> bytes) {
  static const Sha256Tables tables;
  const std::uint64_t bit_count = std::uint64_t{bytes.size()} * 8;
  bytes.push_back(0x80);
  while (bytes.size() % 64 != 56) bytes.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<std::uint8_t>(bit_count >> shift));
  }
  std::array<std::uint32_t, 8> hash = tables.start;
  for (std::size_t begin = 0; begin < bytes.size(); begin += 64) {
    Sha256Block(tables, std::span(bytes).subspan(begin, 64), hash);
  }
  std::string text;
  for (const std::uint32_t word : hash) text += Hex(word, 8);
  return text;
}

// Digest of the little endian bytes of float or double values.
template <class T>
std::string Sha256OfValues(const std::vector<T>& values) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(values.size() * sizeof(T));
  for (const T value : values) {
    for (const std::uint8_t byte : std::bit_cast<std::array<std::uint8_t, sizeof(T)>>(value)) {
      bytes.push_back(byte);
    }
  }
  return Sha256(std::move(bytes));
}

// Digest of flags packed 8 per byte, first flag in the lowest bit.
inline std::string Sha256OfFlags(std::span<const std::uint8_t> flags) {
  std::vector<std::uint8_t> bytes((flags.size() + 7) / 8);
  for (std::size_t i = 0; i < flags.size(); ++i) {
    bytes[i / 8] = static_cast<std::uint8_t>(bytes[i / 8] | (flags[i] << (i % 8)));
  }
  return Sha256(std::move(bytes));
}

}  // namespace attndrop::testing
