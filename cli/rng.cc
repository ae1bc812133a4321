// SPDX-License-Identifier: Apache-2.0
// attndrop rng: numbers of a named generator.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "attndrop/attention.h"
#include "attndrop/compat.h"

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/io/output_file.h"
#include "cli/run_flags.h"

namespace attndrop::cli {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 32;
constexpr std::uint64_t kLow32 = 0xFFFFFFFF;

enum class Kind : std::uint8_t { kBernoulli, kUniform, kNormal };

// What is asked for, checked.
struct Request {
  std::optional<compat::TorchBuild> build;  // none: format attndrop
  Kind kind = Kind::kBernoulli;
  std::uint64_t seed = 0;
  double dropout_p = 0.0;
  std::size_t count = 0;
};

// One of the two is filled.
struct Numbers {
  std::vector<std::uint8_t> keep;
  std::vector<float> values;
};

Result<Kind> ParseKind(const std::string& text) {
  if (text == "bernoulli") return Kind::kBernoulli;
  if (text == "uniform") return Kind::kUniform;
  if (text == "normal") return Kind::kNormal;
  return Status::InvalidArgument(
      fmt::format("--kind must be bernoulli (keep flags), uniform or normal, got \"{}\"", text));
}

// Row 0 of the mask of scheme element.
Result<Numbers> DrawField(const Request& request) {
  ProblemArgs args;
  args.shape.seqlen_q = 1;
  args.shape.seqlen_k = static_cast<std::int64_t>(request.count);
  args.dropout.dropout_p = request.dropout_p;
  args.dropout.seed = request.seed;
  const Result<Problem> problem = Problem::Make(args);
  if (!problem.ok()) return problem.status();
  Numbers numbers;
  numbers.keep.resize(request.count);
  SerialExecutor executor;
  KeepMaskBuffers buffers;
  buffers.keep = numbers.keep.data();
  if (Status done = KeepMask(*problem, buffers, executor); !done.ok()) return done;
  return numbers;
}

Result<Numbers> Draw(const Request& request) {
  if (!request.build) return DrawField(request);
  compat::TorchCpuGenerator generator(request.seed);
  Numbers numbers;
  if (request.kind == Kind::kBernoulli) {
    numbers.keep.resize(request.count);
    Status drawn = compat::DropoutKeep(generator, *request.build, request.dropout_p, numbers.keep);
    if (!drawn.ok()) return drawn;
    return numbers;
  }
  numbers.values.resize(request.count);
  if (request.kind == Kind::kUniform) {
    compat::Rand(generator, std::span<float>(numbers.values));
  } else {
    compat::RandN(generator, std::span<float>(numbers.values));
  }
  return numbers;
}

class RngCommand final : public Command {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "rng"; }
  [[nodiscard]] std::string_view summary() const noexcept override {
    return "numbers of a named generator, printed or to --output";
  }
  [[nodiscard]] std::string_view examples() const noexcept override {
    return "attndrop rng --format torch-cpu-mkl --seed 123 --kind bernoulli --dropout-p 0.5 "
           "--count 36\n"
           "attndrop rng --format torch-cpu --seed 0 --kind normal --count 1000 --output n.npy";
  }

  void AddFlags(CLI::App& app) override {
    BeginGroup(app, "Generator");
    AddFlag(app, format_, "--format", "attndrop, torch-cpu (AMD, ARM) or torch-cpu-mkl (Intel)",
            "NAME");
    AddFlag(app, kind_, "--kind", "bernoulli (1 = kept), uniform or normal", "KIND");
    AddFlag(app, seed_, "--seed", "0 to 2^64-1; default 0", "N");
    AddFlag(app, dropout_p_, "--dropout-p", "bernoulli: chance of a 0", "P");
    AddFlag(app, count_, "--count", "how many numbers, up to 2^32", "N");
    BeginGroup(app, "Run");
    AddFlag(app, output_, "--output", "one axis: uint8 (bernoulli) or float32", "FILE");
    AddForceFlag(app, run_flags_);
    AddJsonFlag(app, run_flags_);
  }

  [[nodiscard]] Status Check() override {
    if (Status there = RequireFlag(format_, "attndrop, torch-cpu or torch-cpu-mkl"); !there.ok()) {
      return there;
    }
    if (Status there = RequireFlag(kind_, "bernoulli, uniform or normal"); !there.ok()) {
      return there;
    }
    if (Status there = RequireFlag(count_, "how many numbers"); !there.ok()) return there;
    request_.build = compat::ParseTorchBuild(*format_.text);
    if (!request_.build && *format_.text != "attndrop") {
      return Status::InvalidArgument(fmt::format(
          "--format must be attndrop, torch-cpu or torch-cpu-mkl, got \"{}\"", *format_.text));
    }
    FlagReader reader;
    request_.kind = reader.Take(ParseKind(*kind_.text), request_.kind);
    request_.seed = reader.Unsigned64(seed_, 0);
    request_.dropout_p = reader.Number(dropout_p_, 0.0);
    request_.count = static_cast<std::size_t>(reader.Integer(count_, 0, {0, kMaxCount}));
    if (!reader.ok()) return reader.status();
    return CheckKind();
  }

  [[nodiscard]] Status Run(const Streams& streams) override {
    OutputSet outputs(run_flags_.force);
    if (output_.given()) {
      if (Status added = outputs.Add(output_.name, *output_.text); !added.ok()) return added;
    }
    const double bytes_each = request_.kind == Kind::kBernoulli ? 1.0 : 4.0;
    if (Status memory = CheckMemory(bytes_each * static_cast<double>(request_.count),
                                    fmt::format("--count {}", request_.count), "ask for fewer");
        !memory.ok()) {
      return memory;
    }
    if (request_.build && request_.seed > kLow32) {
      PrintWarning(streams, fmt::format("PyTorch's CPU generator reads the low 32 bits of a seed: "
                                        "{} gives the numbers of {}",
                                        request_.seed, request_.seed & kLow32));
    }
    const Result<Numbers> numbers = Draw(request_);
    if (!numbers.ok()) return numbers.status();
    return output_.given() ? Write(*numbers, outputs) : Print(*numbers, streams);
  }

 private:
  [[nodiscard]] Status CheckKind() const {
    if (request_.kind != Kind::kBernoulli && !request_.build) {
      return Status::Unsupported(fmt::format(
          "--format attndrop has keep flags only, not {}; give --kind bernoulli, or torch-cpu",
          *kind_.text));
    }
    if ((request_.kind == Kind::kBernoulli) != dropout_p_.given()) {
      return Status::InvalidArgument(
          "--dropout-p is needed for --kind bernoulli and means nothing for the others");
    }
    const bool is_probability = request_.dropout_p >= 0.0 && request_.dropout_p <= 1.0;
    if (!is_probability) {
      return Status::InvalidArgument(
          fmt::format("--dropout-p must be a finite number in [0, 1], got {}; 0.5 drops half",
                      *dropout_p_.text));
    }
    return {};
  }

  [[nodiscard]] Status Write(const Numbers& numbers, const OutputSet& outputs) const {
    const bool is_keep = request_.kind == Kind::kBernoulli;
    const OutputArray array{.flag = output_.name,
                            .type = is_keep ? NpyType::kUint8 : NpyType::kFloat32,
                            .shape = {static_cast<std::int64_t>(request_.count)},
                            .bytes = is_keep ? std::as_bytes(std::span(numbers.keep))
                                             : std::as_bytes(std::span(numbers.values))};
    return outputs.Write({&array, 1});
  }

  [[nodiscard]] Status Print(const Numbers& numbers, const Streams& streams) const {
    if (run_flags_.json) {
      nlohmann::ordered_json json = {
          {"format", *format_.text}, {"kind", *kind_.text}, {"seed", request_.seed}};
      json["values"] = request_.kind == Kind::kBernoulli ? nlohmann::ordered_json(numbers.keep)
                                                         : nlohmann::ordered_json(numbers.values);
      PrintJson(streams, json);
      return {};
    }
    for (const std::uint8_t keep : numbers.keep) streams.out << (keep != 0 ? "1\n" : "0\n");
    for (const float value : numbers.values) streams.out << fmt::format("{}\n", value);
    return {};
  }

  RunFlags run_flags_;
  Flag format_, kind_, seed_, dropout_p_, count_, output_;
  Request request_;
};

}  // namespace

std::unique_ptr<Command> MakeRngCommand() { return std::make_unique<RngCommand>(); }

}  // namespace attndrop::cli
