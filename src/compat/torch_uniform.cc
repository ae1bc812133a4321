// SPDX-License-Identifier: Apache-2.0
// PyTorch's uniform floats, integers, permutations, and the initial values of nn.Linear.
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "attndrop/compat.h"

namespace attndrop::compat {

namespace {

std::string LinearSpanMessage(std::string_view name, std::size_t size, std::string_view allowed) {
  return "LinearInit: " + std::string(name) + " has " + std::to_string(size) +
         " elements; it must have " + std::string(allowed);
}

}  // namespace

float Uniform32(TorchCpuGenerator& generator) {
  const std::uint32_t low_bits = generator.Random32() & ((std::uint32_t{1} << 24) - 1);
  return static_cast<float>(low_bits) * 0x1p-24F;
}

double Uniform64(TorchCpuGenerator& generator) {
  const std::uint64_t low_bits = generator.Random64() & ((std::uint64_t{1} << 53) - 1);
  return static_cast<double>(low_bits) * 0x1p-53;
}

void Rand(TorchCpuGenerator& generator, std::span<float> values) {
  for (float& value : values) value = Uniform32(generator);
}

void Rand(TorchCpuGenerator& generator, std::span<double> values) {
  for (double& value : values) value = Uniform64(generator);
}

void RandUniform(TorchCpuGenerator& generator, float low, float high, std::span<float> values) {
  const float width = high - low;
  for (float& value : values) value = std::fma(Uniform32(generator), width, low);
}

Status RandInt(TorchCpuGenerator& generator, std::int64_t low, std::int64_t high, RandIntRule rule,
               std::span<std::int64_t> values) {
  if (low >= high) {
    return Status::InvalidArgument("low must be less than high, got low " + std::to_string(low) +
                                   " and high " + std::to_string(high) +
                                   "; 0 and 10 give the digits");
  }
  // Differences and sums are taken modulo 2^64, where every range of int64 values fits.
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const bool wide = range >= std::uint64_t{1} << (rule == RandIntRule::kWideFrom2Pow28 ? 28 : 32);
  for (std::int64_t& value : values) {
    const std::uint64_t draw = wide ? generator.Random64() : generator.Random32();
    value = static_cast<std::int64_t>(draw % range + static_cast<std::uint64_t>(low));
  }
  return Status::Ok();
}

Status RandPerm(TorchCpuGenerator& generator, std::span<std::int64_t> permutation) {
  const std::size_t count = permutation.size();
  if (count >= kMaxRandPerm) {
    return Status::InvalidArgument(
        "a permutation must have fewer than " + std::to_string(kMaxRandPerm) + " elements, got " +
        std::to_string(count) + "; PyTorch releases differ beyond that, so use a smaller one");
  }
  std::iota(permutation.begin(), permutation.end(), std::int64_t{0});
  for (std::size_t i = 0; i + 1 < count; ++i) {
    const std::size_t skip = generator.Random32() % (count - i);
    std::swap(permutation[i], permutation[i + skip]);
  }
  return Status::Ok();
}

Status LinearInit(TorchCpuGenerator& generator, std::size_t out_features, std::size_t in_features,
                  std::span<float> weight, std::span<float> bias) {
  if (out_features == 0 || in_features == 0) {
    return Status::InvalidArgument(
        "LinearInit: out_features and in_features must be at least 1, got " +
        std::to_string(out_features) + " and " + std::to_string(in_features) +
        "; 10 and 20 give a 10 x 20 weight");
  }
  if (weight.size() % in_features != 0 || weight.size() / in_features != out_features) {
    return Status::InvalidArgument(
        LinearSpanMessage("weight", weight.size(),
                          std::to_string(out_features) + " x " + std::to_string(in_features)));
  }
  if (!bias.empty() && bias.size() != out_features) {
    return Status::InvalidArgument(LinearSpanMessage(
        "bias", bias.size(), std::to_string(out_features) + ", or none for bias=False"));
  }
  // Kaiming uniform with a = sqrt(5) takes this detour; its bound may differ from 1 / sqrt(fan_in)
  // in the last bit.
  const double fan_in_root = std::sqrt(static_cast<double>(in_features));
  const double gain = std::sqrt(2.0 / (1.0 + 5.0));
  const auto weight_bound = static_cast<float>(std::sqrt(3.0) * (gain / fan_in_root));
  RandUniform(generator, -weight_bound, weight_bound, weight);
  const auto bias_bound = static_cast<float>(1.0 / fan_in_root);
  RandUniform(generator, -bias_bound, bias_bound, bias);
  return Status::Ok();
}

}  // namespace attndrop::compat
