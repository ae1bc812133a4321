// SPDX-License-Identifier: Apache-2.0
// PyTorch's scalar Bernoulli draw and F.dropout on the CPU, in both builds.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "attndrop/compat.h"

namespace attndrop::compat {

namespace {

std::string ShortestText(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

Status CheckProbability(std::string_view name, double value, std::string_view example) {
  if (value >= 0.0 && value <= 1.0) return Status::Ok();  // false for NaN
  return Status::InvalidArgument(std::string(name) + " must be a finite number in [0, 1], got " +
                                 ShortestText(value) + "; " + std::string(example));
}

Status CheckDropoutP(double dropout_p) {
  return CheckProbability("dropout_p", dropout_p, "0.5 drops half of the elements");
}

// Calls consume(index, keep) for index = 0 .. count - 1. keep_prob is in [0, 1].
template <class Consume>
void DrawKeep(TorchCpuGenerator& generator, TorchBuild build, double keep_prob, std::size_t count,
              Consume consume) {
  if (count == 0) return;
  if (build == TorchBuild::kNoMkl) {
    for (std::size_t i = 0; i < count; ++i) consume(i, Uniform64(generator) < keep_prob);
    return;
  }
  const MklBernoulliStream stream(generator.Random32(), keep_prob);
  std::array<std::uint8_t, 4096> chunk;
  for (std::size_t begin = 0; begin < count; begin += chunk.size()) {
    const std::size_t size = std::min(chunk.size(), count - begin);
    stream.Fill(begin, std::span(chunk).first(size));
    for (std::size_t k = 0; k < size; ++k) consume(begin + k, chunk[k] != 0);
  }
}

float Scale(float, double dropout_p) { return DropoutScale32(dropout_p); }
double Scale(double, double dropout_p) { return DropoutScale64(dropout_p); }

template <class T>
Status DropoutValues(TorchCpuGenerator& generator, TorchBuild build, double dropout_p,
                     std::span<const T> input, std::span<T> output) {
  if (dropout_p == 1.0) {
    std::transform(input.begin(), input.end(), output.begin(), [](T x) { return x * T{0}; });
    return Status::Ok();
  }
  const T scale = Scale(T{}, dropout_p);
  DrawKeep(generator, build, 1.0 - dropout_p, input.size(),
           [&](std::size_t i, bool keep) { output[i] = input[i] * (keep ? scale : T{0}); });
  return Status::Ok();
}

template <class T>
Status CheckedDropout(TorchCpuGenerator& generator, TorchBuild build, double dropout_p,
                      bool training, std::span<const T> input, std::span<T> output) {
  if (Status status = CheckDropoutP(dropout_p); !status.ok()) return status;
  if (input.size() != output.size()) {
    return Status::InvalidArgument("output must have as many elements as input, got " +
                                   std::to_string(output.size()) + " and " +
                                   std::to_string(input.size()) + "; give them the same size");
  }
  if (!training || dropout_p == 0.0) {
    if (input.data() != output.data()) std::copy(input.begin(), input.end(), output.begin());
    return Status::Ok();
  }
  return DropoutValues(generator, build, dropout_p, input, output);
}

}  // namespace

Status Bernoulli(TorchCpuGenerator& generator, TorchBuild build, double keep_prob,
                 std::span<std::uint8_t> keep) {
  if (Status status = CheckProbability("keep_prob", keep_prob, "0.5 keeps half of the elements");
      !status.ok()) {
    return status;
  }
  DrawKeep(generator, build, keep_prob, keep.size(),
           [&](std::size_t i, bool kept) { keep[i] = kept ? 1 : 0; });
  return Status::Ok();
}

Status DropoutKeep(TorchCpuGenerator& generator, TorchBuild build, double dropout_p,
                   std::span<std::uint8_t> keep) {
  if (Status status = CheckDropoutP(dropout_p); !status.ok()) return status;
  if (dropout_p == 0.0 || dropout_p == 1.0) {
    std::fill(keep.begin(), keep.end(), std::uint8_t{dropout_p == 0.0});
    return Status::Ok();
  }
  return Bernoulli(generator, build, 1.0 - dropout_p, keep);
}

float DropoutScale32(double dropout_p) noexcept {
  // The two roundings are PyTorch's: the divisor becomes a float32 before the division.
  return 1.0F / static_cast<float>(1.0 - dropout_p);
}

double DropoutScale64(double dropout_p) noexcept { return 1.0 / (1.0 - dropout_p); }

Status Dropout(TorchCpuGenerator& generator, TorchBuild build, double dropout_p, bool training,
               std::span<const float> input, std::span<float> output) {
  return CheckedDropout(generator, build, dropout_p, training, input, output);
}

Status Dropout(TorchCpuGenerator& generator, TorchBuild build, double dropout_p, bool training,
               std::span<const double> input, std::span<double> output) {
  return CheckedDropout(generator, build, dropout_p, training, input, output);
}

}  // namespace attndrop::compat
