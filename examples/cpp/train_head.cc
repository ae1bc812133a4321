// SPDX-License-Identifier: Apache-2.0
// Trains a causal head with dropout .5 (n_embd 20, head_size 10, block_size 4) to do what another
// head does. Prints the loss, and fails if it does not fall. Usage: train_head [STEPS]
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include <torch/torch.h>

#include "attention.h"

namespace {

using torch::Tensor;

constexpr std::int64_t kEmbedding = 20, kHeadSize = 10, kBlockSize = 4, kBatch = 64;
constexpr double kDropout = 0.5;
constexpr std::uint64_t kSeed = 1367149;

struct HeadImpl : torch::nn::Module {
  HeadImpl() {
    const auto linear = torch::nn::LinearOptions(kEmbedding, kHeadSize).bias(false);
    key = register_module("key", torch::nn::Linear(linear));
    query = register_module("query", torch::nn::Linear(linear));
    value = register_module("value", torch::nn::Linear(linear));
  }

  // x (batch, length, kEmbedding); step decides the mask. The scale is that of the embedding.
  Tensor forward(const Tensor& x, std::uint64_t step) {
    const AttentionDropout dropout{
        .dropout_p = is_training() ? kDropout : 0.0, .seed = kSeed, .offset = step};
    const double scale = 1.0 / std::sqrt(static_cast<double>(kEmbedding));
    return CausalAttention(query(x).unsqueeze(1), key(x).unsqueeze(1), value(x).unsqueeze(1), scale,
                           dropout)
        .squeeze(1);
  }

  // The same without attndrop and without dropout.
  Tensor Plain(const Tensor& x) {
    Tensor logits = query(x).matmul(key(x).transpose(1, 2)) / std::sqrt(double{kEmbedding});
    const Tensor future = torch::ones({kBlockSize, kBlockSize}, torch::kBool).triu(1);
    logits = logits.masked_fill(future, -std::numeric_limits<float>::infinity());
    return logits.softmax(-1).matmul(value(x));
  }

  torch::nn::Linear key{nullptr}, query{nullptr}, value{nullptr};
};
TORCH_MODULE(Head);

// The largest difference of output and gradients to libtorch's own operations, without dropout.
double LargestDifference(Head& head) {
  head->eval();
  const Tensor x = torch::randn({kBatch, kBlockSize, kEmbedding});
  const Tensor upstream = torch::randn({kBatch, kBlockSize, kHeadSize});
  const Tensor ours = head->forward(x, 0), theirs = head->Plain(x);
  const auto our_grads = torch::autograd::grad({ours}, head->parameters(), {upstream});
  const auto their_grads = torch::autograd::grad({theirs}, head->parameters(), {upstream});
  double largest = (ours - theirs).abs().max().item<double>();
  for (std::size_t i = 0; i < our_grads.size(); ++i) {
    const Tensor difference = (our_grads[i] - their_grads[i]).abs().max();
    largest = std::max(largest, (difference / their_grads[i].abs().max()).item<double>());
  }
  return largest;
}

double Evaluate(Head& head, Head& teacher) {
  const torch::NoGradGuard no_grad;
  head->eval();
  const Tensor x = torch::randn({1024, kBlockSize, kEmbedding});
  return torch::mse_loss(head->forward(x, 0), teacher->forward(x, 0)).item<double>();
}

void Train(Head& head, Head& teacher, std::int64_t steps) {
  torch::optim::Adam optimizer(head->parameters(), 0.01);
  head->train();
  for (std::int64_t step = 0; step < steps; ++step) {
    const Tensor x = torch::randn({kBatch, kBlockSize, kEmbedding});
    const Tensor out = head->forward(x, static_cast<std::uint64_t>(step));
    const Tensor loss = torch::mse_loss(out, teacher->forward(x, 0).detach());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 100 == 0) {
      std::printf("step %4lld  loss %.4f\n", static_cast<long long>(step), loss.item<double>());
    }
  }
}

int Run(std::int64_t steps) {
  torch::manual_seed(kSeed);
  Head head, teacher;
  teacher->eval();
  const double difference = LargestDifference(head);
  std::printf("largest difference to libtorch's operations without dropout: %.1e\n", difference);
  const double before = Evaluate(head, teacher);
  Train(head, teacher, steps);
  const double after = Evaluate(head, teacher);
  std::printf("loss without dropout fell from %.4f to %.4f\n", before, after);
  return difference < 1e-4 && after < before ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) try {
  return Run(argc > 1 ? std::atoll(argv[1]) : 500);
} catch (const c10::Error& error) {
  std::fprintf(stderr, "train_head: %s\n", error.what_without_backtrace());
  return EXIT_FAILURE;
}
