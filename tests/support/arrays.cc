// SPDX-License-Identifier: Apache-2.0
// Guarded, strided arrays of every element type, and their comparison.
#include "support/arrays.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace attndrop::testing {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::byte kUntouched{0xFF};

// Rounds to `digits` significant bits, but never below multiples of 2^lowest.
double RoundToFormat(double value, int digits, int lowest, double largest) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - digits, lowest);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  if (std::fabs(rounded) > largest) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return rounded;
}

// value is a number that float16 holds.
std::uint16_t EncodeFloat16(double value) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7E00;
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | 0x7C00U);
  std::uint32_t bits = 0;
  if (magnitude < 0x1p-14) {
    bits = static_cast<std::uint32_t>(magnitude * 0x1p24);
  } else {
    const int exponent = std::ilogb(magnitude);
    const double fraction = std::ldexp(magnitude, 10 - exponent) - 1024.0;
    bits = (static_cast<std::uint32_t>(exponent + 15) << 10) + static_cast<std::uint32_t>(fraction);
  }
  return static_cast<std::uint16_t>(sign | bits);
}

double DecodeFloat16(std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * fraction * 0x1p-24;
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

void Encode(Element element, double value, std::byte* to) {
  const double rounded = RoundTo(element, value);
  const auto store = [to](auto bits) { std::memcpy(to, &bits, sizeof bits); };
  switch (element) {
    case Element::kFloat64:
      return store(rounded);
    case Element::kFloat32:
      return store(static_cast<float>(rounded));
    case Element::kBFloat16:
      return store(static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >> 16));
    case Element::kFloat16:
      return store(EncodeFloat16(rounded));
    case Element::kByte:
      return store(static_cast<std::uint8_t>(rounded));
  }
}

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double Decode(Element element, const std::byte* from) {
  switch (element) {
    case Element::kFloat64:
      return Load<double>(from);
    case Element::kFloat32:
      return static_cast<double>(Load<float>(from));
    case Element::kBFloat16:
      return static_cast<double>(
          std::bit_cast<float>(static_cast<std::uint32_t>(Load<std::uint16_t>(from)) << 16));
    case Element::kFloat16:
      return DecodeFloat16(Load<std::uint16_t>(from));
    case Element::kByte:
      break;
  }
  return Load<std::uint8_t>(from);
}

template <class F>
void ForEachIndex(const ArrayShape& shape, F&& body) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        for (std::int64_t c = 0; c < shape.cols; ++c) body(b, h, r, c);
      }
    }
  }
}

std::string At(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
  return "(" + std::to_string(b) + ", " + std::to_string(h) + ", " + std::to_string(r) + ", " +
         std::to_string(c) + ")";
}

}  // namespace

Element ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return Element::kFloat64;
    case DType::kFloat32:
      return Element::kFloat32;
    case DType::kBFloat16:
      return Element::kBFloat16;
    case DType::kFloat16:
      break;
  }
  return Element::kFloat16;
}

std::size_t BytesOf(Element element) {
  constexpr std::array<std::size_t, 5> kBytes{8, 4, 2, 2, 1};
  return kBytes[static_cast<std::size_t>(element)];
}

double RoundTo(Element element, double value) {
  switch (element) {
    case Element::kFloat32:
      return RoundToFormat(value, 24, -149, static_cast<double>(std::numeric_limits<float>::max()));
    case Element::kBFloat16:
      return RoundToFormat(value, 8, -133, 0x1.FEp127);
    case Element::kFloat16:
      return RoundToFormat(value, 11, -24, 65504.0);
    case Element::kFloat64:
    case Element::kByte:
      break;
  }
  return value;
}

Array::Array(Element element, const ArrayShape& shape, const Placement& placement)
    : element_(element), shape_(shape) {
  const std::array<std::int64_t, 4> lengths{
      placement.expand_batch && shape.batch > 0 ? 1 : shape.batch, shape.heads, shape.rows,
      shape.cols};
  std::int64_t run = 1;
  origin_ = placement.lead;
  for (std::size_t k = 4; k-- > 0;) {
    const auto axis = static_cast<std::size_t>(placement.order[k]);
    strides_[axis] = axis == 0 && placement.expand_batch ? 0 : run;
    if (placement.reversed[axis] && lengths[axis] > 0) {
      origin_ += strides_[axis] * (lengths[axis] - 1);
      strides_[axis] = -strides_[axis];
    }
    run = run * lengths[axis] + placement.padding[axis];
  }
  const auto body = static_cast<std::size_t>(run + placement.lead) * BytesOf(element);
  memory_.assign(body + 2 * kGuardBytes + 64, kUntouched);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  first_ = kGuardBytes + (64 - address % 64) % 64;
}

std::size_t Array::ByteAt(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const {
  const std::int64_t index =
      origin_ + b * strides_[0] + h * strides_[1] + r * strides_[2] + c * strides_[3];
  return first_ + static_cast<std::size_t>(index) * BytesOf(element_);
}

double Array::Get(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const {
  return Decode(element_, memory_.data() + ByteAt(b, h, r, c));
}

void Array::Set(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c, double value) {
  Encode(element_, value, memory_.data() + ByteAt(b, h, r, c));
}

void Array::Fill(
    const std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& f) {
  ForEachIndex(shape_, [&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    Set(b, h, r, c, f(b, h, r, c));
  });
}

void Array::FillAll(double value) {
  Fill([value](std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return value; });
}

Dense4 Array::ToDouble() const {
  Dense4 dense(shape_);
  ForEachIndex(shape_, [&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    dense.at(b, h, r, c) = Get(b, h, r, c);
  });
  return dense;
}

Strided<void> Array::View() { return ViewAt(0, 0, 0); }

Strided<const void> Array::ConstView() const {
  return {.data = memory_.data() + ByteAt(0, 0, 0, 0),
          .batch_stride = strides_[0],
          .head_stride = strides_[1],
          .row_stride = strides_[2],
          .col_stride = strides_[3]};
}

Strided<void> Array::ViewAt(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
  return {.data = memory_.data() + ByteAt(b, h, r, c),
          .batch_stride = strides_[0],
          .head_stride = strides_[1],
          .row_stride = strides_[2],
          .col_stride = strides_[3]};
}

::testing::AssertionResult Array::GuardsIntact() const {
  std::vector<bool> used(memory_.size(), false);
  ForEachIndex(shape_, [&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    const std::size_t first = ByteAt(b, h, r, c);
    for (std::size_t k = 0; k < BytesOf(element_); ++k) used[first + k] = true;
  });
  for (std::size_t k = 0; k < memory_.size(); ++k) {
    if (used[k] || memory_[k] == kUntouched) continue;
    return ::testing::AssertionFailure()
           << "byte " << static_cast<std::ptrdiff_t>(k) - static_cast<std::ptrdiff_t>(first_)
           << " of the array, which holds no element, was written";
  }
  return ::testing::AssertionSuccess();
}

std::vector<std::byte> Array::ElementBytes() const {
  std::vector<std::byte> bytes;
  ForEachIndex(shape_, [&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    const auto first = memory_.begin() + static_cast<std::ptrdiff_t>(ByteAt(b, h, r, c));
    bytes.insert(bytes.end(), first, first + static_cast<std::ptrdiff_t>(BytesOf(element_)));
  });
  return bytes;
}

void CopyElements(const Array& from, Array& to) {
  to.Fill([&from](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    return from.Get(b, h, r, c);
  });
}

::testing::AssertionResult Matches(const Array& got, const Dense4& want, const Dense4& bound,
                                   double tolerance) {
  if (!(got.shape() == want.shape) || !(bound.shape == want.shape)) {
    return ::testing::AssertionFailure() << "the shapes differ";
  }
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  ForEachIndex(want.shape, [&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
    if (!result) return;
    const double x = got.Get(b, h, r, c);
    const double y = want.at(b, h, r, c);
    const double slack = tolerance * bound.at(b, h, r, c) + 1e-300;
    bool good = std::isnan(y) ? std::isnan(x) : x == RoundTo(got.element(), y);
    if (!good && std::isfinite(y) && std::isfinite(slack)) {
      good = RoundTo(got.element(), y - slack) <= x && x <= RoundTo(got.element(), y + slack);
    }
    if (good) return;
    result = ::testing::AssertionFailure();
    result << "at " << At(b, h, r, c) << ": got " << ::testing::PrintToString(x) << ", expected "
           << ::testing::PrintToString(y) << " within " << slack;
  });
  return result;
}

::testing::AssertionResult SameBits(const Array& a, const Array& b) {
  if (!(a.shape() == b.shape()) || a.element() != b.element()) {
    return ::testing::AssertionFailure() << "the arrays differ in shape or element type";
  }
  const std::vector<std::byte> x = a.ElementBytes(), y = b.ElementBytes();
  const auto difference = std::mismatch(x.begin(), x.end(), y.begin());
  if (difference.first == x.end()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "the arrays differ at byte " << difference.first - x.begin() << " of " << x.size();
}

}  // namespace attndrop::testing
