// SPDX-License-Identifier: Apache-2.0
// torch.randn: blocks of 16 Box-Muller values; for float32 with the polynomials of AVX2 builds.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "attndrop/compat.h"

namespace attndrop::compat {

namespace {

// PyTorch transforms whole blocks from this many values on, and draws value by value below.
constexpr std::size_t kBlock = 16;
constexpr std::size_t kHalf = kBlock / 2;

// Horner's rule, highest power first, one fused step per coefficient.
template <std::size_t kCount>
float Polynomial(const std::array<float, kCount>& coefficients, float x) {
  float sum = coefficients[0];
  for (std::size_t i = 1; i < kCount; ++i) sum = std::fma(sum, x, coefficients[i]);
  return sum;
}

// Natural logarithm of a normal number in (0, 1], with the single-precision polynomial of the
// Cephes library (logf). The order of roundings is that of the AVX2 build; each matters for the
// last bit.
float Log(float x) {
  constexpr std::array<float, 9> kLog = {7.0376836292E-2F,  -1.1514610310E-1F, 1.1676998740E-1F,
                                         -1.2420140846E-1F, 1.4249322787E-1F,  -1.6668057665E-1F,
                                         2.0000714765E-1F,  -2.4999993993E-1F, 3.3333331174E-1F};
  constexpr float kSqrtHalf = 0.707106781186547524F;
  // ln 2 as a sum of a short and a small part.
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;

  const auto bits = std::bit_cast<std::uint32_t>(x);
  auto exponent = static_cast<float>(static_cast<std::int32_t>(bits >> 23) - 126);
  float mantissa = std::bit_cast<float>((bits & 0x007fffffU) | 0x3f000000U);  // in [0.5, 1)
  if (mantissa < kSqrtHalf) {
    exponent -= 1.0F;
    mantissa += mantissa;
  }
  const float m = mantissa - 1.0F;
  const float m2 = m * m;
  float y = Polynomial(kLog, m) * m;
  y = std::fma(y, m2, exponent * kLn2Low);
  y -= m2 * 0.5F;  // halving is exact
  return std::fma(exponent, kLn2High, m + y);
}

template <class T>
struct SinCos {
  T sin;
  T cos;
};

// Sine and cosine of x >= 0 (sinf, cosf of the Cephes library), roundings as in the AVX2 build.
SinCos<float> SinAndCos(float x) {
  constexpr std::array<float, 3> kSin = {-1.9515295891E-4F, 8.3321608736E-3F, -1.6666654611E-1F};
  constexpr std::array<float, 3> kCos = {2.443315711809948E-5F, -1.388731625493765E-3F,
                                         4.166664568298827E-2F};
  constexpr float kFourOverPi = 1.27323954473516F;
  // -pi/4 in three parts, so that the reduction loses nothing.
  constexpr std::array<float, 3> kMinusPiOver4 = {-0.78515625F, -2.4187564849853515625e-4F,
                                                  -3.77489497744594108e-8F};

  const auto octant =
      static_cast<std::uint32_t>(static_cast<std::int32_t>(x * kFourOverPi) + 1) & ~1U;
  const auto turns = static_cast<float>(octant);
  for (const float part : kMinusPiOver4) x = std::fma(turns, part, x);
  const float z = x * x;
  const float cos_tail = Polynomial(kCos, z) * z;
  const float near_cos = std::fma(cos_tail, z, -(z * 0.5F)) + 1.0F;
  const float near_sin = std::fma(Polynomial(kSin, z) * z, x, x);

  const bool swap = (octant & 2) != 0;
  const bool negative_sin = (octant & 4) != 0;
  const bool negative_cos = negative_sin != swap;
  const float sin = swap ? near_cos : near_sin;
  const float cos = swap ? near_sin : near_cos;
  return {.sin = negative_sin ? -sin : sin, .cos = negative_cos ? -cos : cos};
}

double Log(double x) { return std::log(x); }

SinCos<double> SinAndCos(double x) { return {.sin = std::sin(x), .cos = std::cos(x)}; }

// Turns 16 uniforms into 16 normals in place: element j pairs with element j + 8.
template <class T>
void TransformBlock(std::span<T, kBlock> block) {
  constexpr T kTwoPi = static_cast<T>(2.0 * std::numbers::pi);
  for (std::size_t j = 0; j < kHalf; ++j) {
    const T u1 = T{1} - block[j];
    const T radius = std::sqrt(T{-2} * Log(u1));
    const SinCos<T> angle = SinAndCos(kTwoPi * block[j + kHalf]);
    // PyTorch ends with + mean; adding 0 turns -0 into +0.
    block[j] = radius * angle.cos + T{0};
    block[j + kHalf] = radius * angle.sin + T{0};
  }
}

template <class T>
void FillNormal(TorchCpuGenerator& generator, std::span<T> values) {
  if (values.size() < kBlock) {
    for (T& value : values) value = static_cast<T>(generator.Normal());
    return;
  }
  Rand(generator, values);
  for (std::size_t begin = 0; begin + kBlock <= values.size(); begin += kBlock) {
    TransformBlock(values.subspan(begin).template first<kBlock>());
  }
  if (values.size() % kBlock != 0) {
    // The last 16 values are drawn again, although some of them are already final.
    const std::span<T, kBlock> tail = values.template last<kBlock>();
    Rand(generator, tail);
    TransformBlock(tail);
  }
}

}  // namespace

void RandN(TorchCpuGenerator& generator, std::span<float> values) { FillNormal(generator, values); }

void RandN(TorchCpuGenerator& generator, std::span<double> values) {
  FillNormal(generator, values);
}

}  // namespace attndrop::compat
