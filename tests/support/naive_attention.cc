// SPDX-License-Identifier: Apache-2.0
// The formulas (A1) to (A9) as loops over one head.
#include "support/naive_attention.h"

#include <cmath>
#include <limits>

namespace attndrop::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class HeadComputation {
 public:
  explicit HeadComputation(const NaiveHead& head) : head_(head) {
    output_.out.Resize(head.rows_q * head.dim_v);
    output_.logsumexp.Resize(head.rows_q);
    output_.grad_query.Resize(head.rows_q * head.dim);
    output_.grad_key.Resize(head.rows_k * head.dim);
    output_.grad_value.Resize(head.rows_k * head.dim_v);
    output_.grad_logits.Resize(head.rows_q * head.rows_k);
    output_.weights.assign(static_cast<std::size_t>(head.rows_q * head.rows_k), 0.0);
  }

  NaiveOutput Run() {
    for (std::int64_t i = 0; i < head_.rows_q; ++i) {
      Softmax(i);
      Out(i);
      LogitGradients(i);
      for (std::int64_t j = 0; j < head_.rows_k; ++j) AddInputGradients(i, j);
    }
    return std::move(output_);
  }

 private:
  static std::size_t U(std::int64_t x) { return static_cast<std::size_t>(x); }
  std::size_t Cell(std::int64_t i, std::int64_t j) const { return U(i * head_.rows_k + j); }
  bool Visible(std::int64_t i, std::int64_t j) const { return head_.visible[Cell(i, j)] != 0; }
  bool Kept(std::int64_t i, std::int64_t j) const {
    return Visible(i, j) && head_.keep[Cell(i, j)] != 0;
  }
  // The keys that L runs over.
  bool InSum(std::int64_t i, std::int64_t j) const {
    return head_.stage_logits ? Kept(i, j) : Visible(i, j);
  }
  double Factor(std::int64_t i, std::int64_t j) const {
    if (!Kept(i, j)) return 0.0;
    return head_.stage_logits ? 1.0 : head_.factor[Cell(i, j)];
  }

  double Logit(std::int64_t i, std::int64_t j, double* magnitude) const {
    double dot = 0.0, absolute = 0.0;
    for (std::int64_t c = 0; c < head_.dim; ++c) {
      const double term = head_.query[U(i * head_.dim + c)] * head_.key[U(j * head_.dim + c)];
      dot += term;
      absolute += std::fabs(term);
    }
    *magnitude = std::fabs(head_.scale) * absolute + std::fabs(head_.bias[Cell(i, j)]);
    return head_.scale * dot + head_.bias[Cell(i, j)];
  }

  // (A1) to (A3); weights split among logits of +inf, a NaN logit makes the row NaN.
  void Softmax(std::int64_t i) {
    std::vector<double> logits(U(head_.rows_k), -kInfinity);
    std::vector<double> magnitudes(U(head_.rows_k), 0.0);
    double largest = -kInfinity;
    bool any = false, has_nan = false;
    for (std::int64_t j = 0; j < head_.rows_k; ++j) {
      if (!InSum(i, j)) continue;
      logits[U(j)] = Logit(i, j, &magnitudes[U(j)]);
      any = true;
      has_nan = has_nan || std::isnan(logits[U(j)]);
      largest = std::fmax(largest, logits[U(j)]);
    }
    double sum = 0.0;
    std::vector<double> terms(U(head_.rows_k), 0.0);
    for (std::int64_t j = 0; j < head_.rows_k; ++j) {
      if (!InSum(i, j)) continue;
      terms[U(j)] = logits[U(j)] == largest ? 1.0 : std::exp(logits[U(j)] - largest);
      if (has_nan) terms[U(j)] = std::numeric_limits<double>::quiet_NaN();
      sum += terms[U(j)];
    }
    double magnitude = 0.0;
    for (std::int64_t j = 0; j < head_.rows_k; ++j) {
      if (!InSum(i, j)) continue;
      output_.weights[Cell(i, j)] = terms[U(j)] / sum;
      magnitude += output_.weights[Cell(i, j)] * magnitudes[U(j)];
    }
    // Logits of magnitude m are known to m roundings, and so are their exponentials; beyond a
    // million, differences of logits are exact or enormous.
    amplifier_ = 1.0 + 0.02 * std::fmin(magnitude, 1e6);
    output_.logsumexp.value[U(i)] = any ? largest + std::log(sum) : -kInfinity;
    if (has_nan) output_.logsumexp.value[U(i)] = std::numeric_limits<double>::quiet_NaN();
    output_.logsumexp.bound[U(i)] = magnitude + std::log(static_cast<double>(head_.rows_k) + 1.0);
  }

  // (A4)
  void Out(std::int64_t i) {
    for (std::int64_t c = 0; c < head_.dim_v; ++c) {
      double sum = 0.0, absolute = 0.0;
      for (std::int64_t j = 0; j < head_.rows_k; ++j) {
        if (!Kept(i, j)) continue;
        const double term =
            Factor(i, j) * output_.weights[Cell(i, j)] * head_.value[U(j * head_.dim_v + c)];
        sum += term;
        absolute += std::fabs(term);
      }
      output_.out.value[U(i * head_.dim_v + c)] = sum;
      output_.out.bound[U(i * head_.dim_v + c)] = absolute * amplifier_;
    }
  }

  // grad_out_i . value_j
  double GradWeight(std::int64_t i, std::int64_t j, double* absolute) const {
    double sum = 0.0;
    *absolute = 0.0;
    for (std::int64_t c = 0; c < head_.dim_v; ++c) {
      const double term =
          head_.grad_out[U(i * head_.dim_v + c)] * head_.value[U(j * head_.dim_v + c)];
      sum += term;
      *absolute += std::fabs(term);
    }
    return sum;
  }

  // (A6) and (A7)
  void LogitGradients(std::int64_t i) {
    double delta = -head_.grad_logsumexp[U(i)];
    double delta_absolute = std::fabs(delta);
    for (std::int64_t c = 0; c < head_.dim_v; ++c) {
      const double grad = head_.grad_out[U(i * head_.dim_v + c)];
      delta += grad * output_.out.value[U(i * head_.dim_v + c)];
      delta_absolute += std::fabs(grad) * output_.out.bound[U(i * head_.dim_v + c)];
    }
    for (std::int64_t j = 0; j < head_.rows_k; ++j) {
      if (!InSum(i, j)) continue;
      double pull = 0.0, pull_absolute = 0.0;
      if (Kept(i, j)) {
        pull = Factor(i, j) * GradWeight(i, j, &pull_absolute);
        pull_absolute *= Factor(i, j);
      }
      const double weight = output_.weights[Cell(i, j)];
      output_.grad_logits.value[Cell(i, j)] = weight * (pull - delta);
      output_.grad_logits.bound[Cell(i, j)] =
          weight * (pull_absolute + delta_absolute) * amplifier_;
    }
  }

  // (A8) and (A9)
  void AddInputGradients(std::int64_t i, std::int64_t j) {
    if (!InSum(i, j)) return;
    const double grad = head_.scale * output_.grad_logits.value[Cell(i, j)];
    const double bound = std::fabs(head_.scale) * output_.grad_logits.bound[Cell(i, j)];
    for (std::int64_t c = 0; c < head_.dim; ++c) {
      const std::size_t q = U(i * head_.dim + c), k = U(j * head_.dim + c);
      output_.grad_query.value[q] += grad * head_.key[k];
      output_.grad_query.bound[q] += bound * std::fabs(head_.key[k]);
      output_.grad_key.value[k] += grad * head_.query[q];
      output_.grad_key.bound[k] += bound * std::fabs(head_.query[q]);
    }
    if (!Kept(i, j)) return;
    for (std::int64_t c = 0; c < head_.dim_v; ++c) {
      const std::size_t v = U(j * head_.dim_v + c);
      const double term =
          Factor(i, j) * output_.weights[Cell(i, j)] * head_.grad_out[U(i * head_.dim_v + c)];
      output_.grad_value.value[v] += term;
      output_.grad_value.bound[v] += std::fabs(term) * amplifier_;
    }
  }

  const NaiveHead& head_;
  NaiveOutput output_;
  double amplifier_ = 1.0;  // of the row at hand
};

}  // namespace

NaiveOutput RunNaiveHead(const NaiveHead& head) { return HeadComputation(head).Run(); }

}  // namespace attndrop::testing
