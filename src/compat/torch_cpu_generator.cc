// SPDX-License-Identifier: Apache-2.0
// The Mersenne Twister state of a PyTorch CPU generator and its scalar draws.
#include <cmath>
#include <numbers>

#include "attndrop/compat.h"

namespace attndrop::compat {

void TorchCpuGenerator::Seed(std::uint64_t seed) {
  engine_.seed(static_cast<std::uint32_t>(seed));
  initial_seed_ = seed;
  cached_normal_.reset();
}

std::uint32_t TorchCpuGenerator::Random32() { return static_cast<std::uint32_t>(engine_()); }

std::uint64_t TorchCpuGenerator::Random64() {
  const std::uint64_t high = Random32();
  return (high << 32) | Random32();
}

double TorchCpuGenerator::Normal() {
  if (cached_normal_.has_value()) {
    const double cached = *cached_normal_;
    cached_normal_.reset();
    return cached;
  }
  const double u1 = Uniform64(*this);
  const double u2 = Uniform64(*this);
  const double radius = std::sqrt(-2.0 * std::log1p(-u2));
  const double theta = 2.0 * std::numbers::pi * u1;
  cached_normal_ = radius * std::sin(theta);
  return radius * std::cos(theta);
}

bool TorchCpuGenerator::SameState(const TorchCpuGenerator& other) const {
  return engine_ == other.engine_ && cached_normal_ == other.cached_normal_;
}

std::string_view TorchBuildName(TorchBuild build) noexcept {
  return build == TorchBuild::kMkl ? "torch-cpu-mkl" : "torch-cpu";
}

std::optional<TorchBuild> ParseTorchBuild(std::string_view name) noexcept {
  for (const TorchBuild build : {TorchBuild::kNoMkl, TorchBuild::kMkl}) {
    if (name == TorchBuildName(build)) return build;
  }
  return std::nullopt;
}

}  // namespace attndrop::compat
