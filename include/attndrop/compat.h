// SPDX-License-Identifier: Apache-2.0
// PyTorch's CPU random numbers and dropout masks, bit for bit, without PyTorch.
//
// Tensors are spans in row-major order of the logical shape. Every function draws from the
// generator in the order in which PyTorch does, so a program's sequence of calls can be replayed
// call by call. A refusal (a Status that is not ok) leaves the generator and the output untouched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string_view>

#include "attndrop/export.h"
#include "attndrop/status.h"

namespace attndrop::compat {

// The state of torch.Generator() on the CPU: a Mersenne Twister and one cached normal value. A
// plain value: a copy continues with the same numbers.
class ATTNDROP_EXPORT TorchCpuGenerator {
 public:
  // What a fresh torch.Generator() holds.
  static constexpr std::uint64_t kDefaultSeed = 67280421310721;

  explicit TorchCpuGenerator(std::uint64_t seed = kDefaultSeed) { Seed(seed); }

  // manual_seed(seed): restarts and forgets the cached normal. Only the low 32 bits of seed choose
  // the numbers; a negative Python seed is seed + 2^64.
  void Seed(std::uint64_t seed);

  // The whole 64-bit value last given to Seed.
  [[nodiscard]] std::uint64_t InitialSeed() const noexcept { return initial_seed_; }

  // One output of the engine.
  std::uint32_t Random32();

  // Two outputs; the first is the high half.
  std::uint64_t Random64();

  // One value of N(0, 1): Box-Muller in double, two values per two Uniform64; the second is cached
  // for the next call.
  double Normal();

  // True where both produce the same numbers from here on (initial seeds may differ).
  [[nodiscard]] bool SameState(const TorchCpuGenerator& other) const;

 private:
  std::mt19937 engine_;
  std::uint64_t initial_seed_ = 0;
  std::optional<double> cached_normal_;
};

// How a PyTorch build draws a Bernoulli mask of scalar probability. The mode belongs to the build
// and the processor that made the mask; it is always the caller's choice, never looked up here.
enum class TorchBuild : std::uint8_t {
  kNoMkl,  // "torch-cpu": AMD and ARM processors, macOS, builds without MKL
  kMkl,    // "torch-cpu-mkl": the x86 wheels on Intel processors
};

[[nodiscard]] ATTNDROP_EXPORT std::string_view TorchBuildName(TorchBuild build) noexcept;
[[nodiscard]] ATTNDROP_EXPORT std::optional<TorchBuild> ParseTorchBuild(
    std::string_view name) noexcept;

// One value of torch.rand in [0, 1): 24 bits of one output, or 53 bits of two.
ATTNDROP_EXPORT float Uniform32(TorchCpuGenerator& generator);
ATTNDROP_EXPORT double Uniform64(TorchCpuGenerator& generator);

// torch.rand.
ATTNDROP_EXPORT void Rand(TorchCpuGenerator& generator, std::span<float> values);
ATTNDROP_EXPORT void Rand(TorchCpuGenerator& generator, std::span<double> values);

// tensor.uniform_(low, high) as x86 builds with AVX2 compute it: one fused multiply-add.
ATTNDROP_EXPORT void RandUniform(TorchCpuGenerator& generator, float low, float high,
                                 std::span<float> values);

// torch.randn of a contiguous tensor. From 16 values on, float32 has the bits of x86 builds with
// AVX2 on every machine (builds without it differ in the last bits, by less than 1e-6). float64,
// and fewer than 16 values, use the machine's log, sin and cos. Below 16 values, float64 follows
// the releases that take log1p(-u); 1.13 took log(1 - u), which may change the last bit.
ATTNDROP_EXPORT void RandN(TorchCpuGenerator& generator, std::span<float> values);
ATTNDROP_EXPORT void RandN(TorchCpuGenerator& generator, std::span<double> values);

// The smallest range from which on randint takes two outputs instead of one.
enum class RandIntRule : std::uint8_t {
  kWideFrom2Pow32,  // up to 1.13 and some later releases
  kWideFrom2Pow28,  // newer releases
};

// torch.randint(low, high): values in [low, high). Refused unless low < high.
ATTNDROP_EXPORT Status RandInt(TorchCpuGenerator& generator, std::int64_t low, std::int64_t high,
                               RandIntRule rule, std::span<std::int64_t> values);

// torch.randperm(permutation.size()). Refused from kMaxRandPerm elements on, where PyTorch releases
// differ.
inline constexpr std::size_t kMaxRandPerm = 214748364;
ATTNDROP_EXPORT Status RandPerm(TorchCpuGenerator& generator, std::span<std::int64_t> permutation);

// The mask stream of one torch-cpu-mkl Bernoulli call: a multiplicative congruential generator
// modulo 2^31 - 1, so any element is available by its index.
class ATTNDROP_EXPORT MklBernoulliStream {
 public:
  // The stream repeats after this many elements.
  static constexpr std::uint64_t kPeriod = 2147483646;

  // seed32 is the one 32-bit output that the call draws. keep_prob <= 0 or NaN keeps nothing;
  // values above 1 count as 1 (which still drops the 64 highest states, as Intel's library does).
  MklBernoulliStream(std::uint32_t seed32, double keep_prob) noexcept;

  // True = kept. Any index, in O(log index); indices wrap at kPeriod.
  [[nodiscard]] bool Keep(std::uint64_t index) const noexcept;

  // keep[k] = Keep(first_index + k) as 0 or 1. Splitting a range into chunks changes nothing.
  void Fill(std::uint64_t first_index, std::span<std::uint8_t> keep) const noexcept;

  // The state before element index, in [1, 2^31 - 2].
  [[nodiscard]] std::uint32_t StateAt(std::uint64_t index) const noexcept;

  // Elements are kept exactly where the state is below this.
  [[nodiscard]] std::uint32_t Threshold() const noexcept { return threshold_; }

 private:
  std::uint32_t first_state_;
  std::uint32_t threshold_;
};

// tensor.bernoulli_(keep_prob) with a scalar probability: 0 or 1 per element. Draws one output
// (kMkl) or two per element (kNoMkl), for keep_prob 0 and 1 too; an empty span draws nothing.
// Refused unless keep_prob is in [0, 1].
ATTNDROP_EXPORT Status Bernoulli(TorchCpuGenerator& generator, TorchBuild build, double keep_prob,
                                 std::span<std::uint8_t> keep);

// The keep flags of F.dropout in training. dropout_p 0 and 1 draw nothing. Refused unless dropout_p
// is in [0, 1].
ATTNDROP_EXPORT Status DropoutKeep(TorchCpuGenerator& generator, TorchBuild build, double dropout_p,
                                   std::span<std::uint8_t> keep);

// What F.dropout multiplies kept values by, for dropout_p in [0, 1): for float32 both 1 - dropout_p
// and its reciprocal are rounded to float32.
[[nodiscard]] ATTNDROP_EXPORT float DropoutScale32(double dropout_p) noexcept;
[[nodiscard]] ATTNDROP_EXPORT double DropoutScale64(double dropout_p) noexcept;

// F.dropout(input, dropout_p, training). Dropped values are multiplied by 0, so an infinite one
// becomes NaN and a negative one -0. dropout_p 0, dropout_p 1 and training off draw nothing. output
// has input's size and may be input itself. Refused unless dropout_p is in [0, 1], training or not.
ATTNDROP_EXPORT Status Dropout(TorchCpuGenerator& generator, TorchBuild build, double dropout_p,
                               bool training, std::span<const float> input,
                               std::span<float> output);
ATTNDROP_EXPORT Status Dropout(TorchCpuGenerator& generator, TorchBuild build, double dropout_p,
                               bool training, std::span<const double> input,
                               std::span<double> output);

// Initial values of nn.Linear(in_features, out_features, bias) in float32, with the bits of x86
// builds with AVX2: weight (out_features x in_features, row-major) first, then bias (out_features;
// an empty span is bias=False). Refused where a size is 0 or a span does not fit.
ATTNDROP_EXPORT Status LinearInit(TorchCpuGenerator& generator, std::size_t out_features,
                                  std::size_t in_features, std::span<float> weight,
                                  std::span<float> bias);

}  // namespace attndrop::compat
