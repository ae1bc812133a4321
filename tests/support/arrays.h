// SPDX-License-Identifier: Apache-2.0
// The arrays of a Problem, laid out as it says or in a random order of strides, between guard zones
// that notice every write outside the elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/attention.h"
#include "attndrop/problem.h"

namespace attndrop::testing {

class Random;

enum class Element : std::uint8_t { kFloat64, kFloat32, kBFloat16, kFloat16, kByte };
[[nodiscard]] Element ElementOf(DType dtype);
[[nodiscard]] std::size_t BytesOf(Element element);

// The nearest number that the element type holds (ties to even), infinity beyond its range.
[[nodiscard]] double RoundTo(Element element, double value);

struct ArrayShape {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  [[nodiscard]] std::int64_t size() const { return batch * heads * rows * cols; }
  friend bool operator==(const ArrayShape&, const ArrayShape&) = default;
};

// Numbers of a (batch, heads, rows, cols) array, dense.
struct Dense4 {
  ArrayShape shape;
  std::vector<double> values;

  Dense4() = default;
  explicit Dense4(const ArrayShape& s, double fill = 0.0)
      : shape(s), values(static_cast<std::size_t>(s.size()), fill) {}
  [[nodiscard]] double& at(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    return values[Index(b, h, r, c)];
  }
  [[nodiscard]] double at(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const {
    return values[Index(b, h, r, c)];
  }
  [[nodiscard]] std::size_t Index(std::int64_t b, std::int64_t h, std::int64_t r,
                                  std::int64_t c) const {
    return static_cast<std::size_t>(((b * shape.heads + h) * shape.rows + r) * shape.cols + c);
  }
};

// Axes are numbered batch 0, heads 1, rows 2, cols 3.
struct Placement {
  std::array<int, 4> order{0, 1, 2, 3};   // slowest first
  std::array<std::int64_t, 4> padding{};  // unused elements behind each run of the axis
  std::array<bool, 4> reversed{};         // stored last to first
  bool expand_batch = false;              // batch stride 0
  std::int64_t lead = 0;                  // unused elements in front
};

class Array {
 public:
  Array() = default;
  // Every byte, unused elements and guard zones included, starts as 0xFF: a NaN in every float
  // type.
  Array(Element element, const ArrayShape& shape, const Placement& placement);

  [[nodiscard]] const ArrayShape& shape() const { return shape_; }
  [[nodiscard]] Element element() const { return element_; }
  [[nodiscard]] double Get(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const;
  void Set(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c, double value);
  void Fill(const std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& f);
  void FillAll(double value);
  [[nodiscard]] Dense4 ToDouble() const;

  [[nodiscard]] Strided<void> View();
  [[nodiscard]] Strided<const void> ConstView() const;
  // A view that starts at the given indices.
  [[nodiscard]] Strided<void> ViewAt(std::int64_t b, std::int64_t h, std::int64_t r,
                                     std::int64_t c = 0);

  // Nothing outside the elements has been written.
  [[nodiscard]] ::testing::AssertionResult GuardsIntact() const;
  // For inputs: remembers every byte; afterwards Unchanged compares.
  void Freeze() { frozen_ = memory_; }
  [[nodiscard]] bool Unchanged() const { return frozen_ == memory_; }
  // The bytes of the elements in logical order, for bitwise comparisons.
  [[nodiscard]] std::vector<std::byte> ElementBytes() const;

 private:
  [[nodiscard]] std::size_t ByteAt(std::int64_t b, std::int64_t h, std::int64_t r,
                                   std::int64_t c) const;

  Element element_ = Element::kFloat64;
  ArrayShape shape_;
  std::array<std::int64_t, 4> strides_{};
  std::int64_t origin_ = 0;  // element index of (0, 0, 0, 0), counted from the first byte
  std::size_t first_ = 0;    // byte where the body starts
  std::vector<std::byte> memory_;
  std::vector<std::byte> frozen_;
};

// Between arrays of one shape.
void CopyElements(const Array& from, Array& to);

// How a sequence of the batch lies in the arrays and in the whole problem; written from the
// comments of problem.h, not from its code.
struct SequenceView {
  std::int64_t array_batch = 0;
  std::int64_t first_row_q = 0;
  std::int64_t first_row_k = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t origin_q = 0;
  std::int64_t origin_k = 0;
  std::int64_t total_q = 0;
  std::int64_t total_k = 0;
  std::int64_t shift = 0;
};
[[nodiscard]] SequenceView ViewSequence(const ProblemArgs& args, std::int64_t batch);
[[nodiscard]] std::int64_t KvHeads(const ProblemArgs& args);
[[nodiscard]] std::int64_t HeadDimV(const ProblemArgs& args);

// What the arrays hold and how they lie.
struct ArrayOptions {
  std::optional<std::uint64_t> shuffle_seed =
      {};  // random placements instead of the problem's layout
  bool grad_logsumexp = true;
  bool grad_attn_mask = true;  // where there is a float attn_mask
};

struct ProblemArrays {
  Array query, key, value, attn_mask, out, logsumexp;
  Array grad_out, grad_logsumexp, grad_query, grad_key, grad_value, grad_attn_mask;
  std::vector<float> slopes;  // batch x heads
  bool has_grad_logsumexp = false;
  bool has_grad_attn_mask = false;
  std::int64_t num_heads = 0;

  [[nodiscard]] MaskBuffers Mask();
  [[nodiscard]] ForwardBuffers ForForward();
  // out and logsumexp are handed over, as Forward wrote them.
  [[nodiscard]] BackwardBuffers ForBackward();
  [[nodiscard]] std::vector<Array*> Inputs();
  [[nodiscard]] std::vector<Array*> Outputs();
  [[nodiscard]] std::vector<Array*> Gradients();
  // Guards of all arrays, and inputs as they were at Freeze.
  [[nodiscard]] ::testing::AssertionResult Intact();
  void Freeze();
};

// Allocates; elements are all NaN.
[[nodiscard]] ProblemArrays Allocate(const ProblemArgs& args, const ArrayOptions& options);
// Fills the inputs with ordinary numbers, ties, exact zeros, and masks with whole rows masked.
void FillRandom(const ProblemArgs& args, std::uint64_t seed, ProblemArrays& arrays);

// All of these in one call, seeded.
[[nodiscard]] ProblemArrays MakeArrays(const ProblemArgs& args, std::uint64_t seed,
                                       const ArrayOptions& options = {});

// Each element lies between want - t and want + t, both rounded to the element type, with
// t = tolerance * bound; NaN matches NaN alone. bound holds the sum of the absolute terms.
[[nodiscard]] ::testing::AssertionResult Matches(const Array& got, const Dense4& want,
                                                 const Dense4& bound, double tolerance);
[[nodiscard]] ::testing::AssertionResult SameBits(const Array& a, const Array& b);

}  // namespace attndrop::testing
