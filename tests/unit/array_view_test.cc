// SPDX-License-Identifier: Apache-2.0
// Reach and overlap of strided arrays against brute force over all their elements.
#include "core/array_view.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.h"

namespace attndrop {
namespace {

constexpr std::uintptr_t kBase = 1 << 20;

const void* Address(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

// First bytes of all elements, in index order.
std::vector<std::uintptr_t> Elements(const ArrayView& view) {
  std::vector<std::uintptr_t> elements;
  const auto base = reinterpret_cast<std::intptr_t>(view.data);
  for (std::int64_t b = 0; b < view.sizes[0]; ++b) {
    for (std::int64_t h = 0; h < view.sizes[1]; ++h) {
      for (std::int64_t r = 0; r < view.sizes[2]; ++r) {
        for (std::int64_t c = 0; c < view.sizes[3]; ++c) {
          const std::int64_t offset =
              b * view.strides[0] + h * view.strides[1] + r * view.strides[2] + c * view.strides[3];
          elements.push_back(static_cast<std::uintptr_t>(
              base + offset * static_cast<std::int64_t>(view.element_bytes)));
        }
      }
    }
  }
  return elements;
}

bool HasDuplicates(const std::vector<std::uintptr_t>& elements) {
  return std::set<std::uintptr_t>(elements.begin(), elements.end()).size() != elements.size();
}

// Some byte belongs to an element of each.
bool ShareBytes(const ArrayView& a, const ArrayView& b) {
  std::set<std::uintptr_t> bytes;
  for (const std::uintptr_t element : Elements(a)) {
    for (std::size_t i = 0; i < a.element_bytes; ++i) bytes.insert(element + i);
  }
  for (const std::uintptr_t element : Elements(b)) {
    for (std::size_t i = 0; i < b.element_bytes; ++i) {
      if (bytes.contains(element + i)) return true;
    }
  }
  return false;
}

// Sizes 1 .. 4 and small strides of both signs.
ArrayView RandomView(testing::Random& random) {
  ArrayView view{.name = "view", .element_bytes = 2};
  view.data = Address(kBase + static_cast<std::uintptr_t>(random.Between(0, 60)));
  for (std::size_t axis = 0; axis < 4; ++axis) {
    view.sizes[axis] = random.Between(1, 4);
    view.strides[axis] = random.Between(-3, 24);
  }
  return view;
}

// Dense in a random order of axes, with gaps, some axes backwards.
ArrayView RandomNestedView(testing::Random& random) {
  ArrayView view{.name = "view", .data = Address(kBase), .element_bytes = 4};
  std::array<std::size_t, 4> order{0, 1, 2, 3};
  for (std::size_t i = 3; i > 0; --i) {
    std::swap(order[i], order[static_cast<std::size_t>(random.Between(0, std::int64_t(i)))]);
  }
  std::int64_t stride = random.Between(1, 2);
  for (const std::size_t axis : order) {
    view.sizes[axis] = random.Between(1, 4);
    view.strides[axis] = random.Chance(0.3) ? -stride : stride;
    stride = stride * view.sizes[axis] + random.Between(0, 3);
  }
  return view;
}

TEST(ArrayViewTest, BytesOfIsTheSpanOfAllElements) {
  testing::Random random(11);
  for (int i = 0; i < 3000; ++i) {
    const ArrayView view = RandomView(random);
    const auto range = BytesOf(view);
    ASSERT_TRUE(range.has_value());
    const std::vector<std::uintptr_t> elements = Elements(view);
    ASSERT_EQ(range->begin, *std::min_element(elements.begin(), elements.end()));
    ASSERT_EQ(range->end, *std::max_element(elements.begin(), elements.end()) + 2);
  }
}

TEST(ArrayViewTest, BytesOfHasNoAnswerBeyondTheAddressSpace) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;
  const ArrayView plain{
      .name = "view", .data = Address(kBase), .element_bytes = 8, .sizes = {1, 1, 1, 1}};
  const struct {
    std::array<std::int64_t, 4> sizes;
    std::array<std::int64_t, 4> strides;
  } cases[] = {
      {{1, 1, 3, 1}, {0, 0, kHuge, 0}},                              // the product overflows
      {{1, 2, 2, 1}, {0, kHuge, kHuge, 0}},                          // the sum overflows
      {{1, 1, 1, 2}, {0, 0, 0, kHuge}},                              // one more element overflows
      {{1, 1, 2, 1}, {0, 0, kHuge / 4, 0}},                          // the bytes overflow
      {{1, 1, 2, 1}, {0, 0, -(kHuge / 4), 0}},                       // also downwards
      {{1, 1, 2, 1}, {0, 0, -static_cast<std::int64_t>(kBase), 0}},  // below address 0
      {{kTwo32, kTwo32, 1, 1}, {kTwo32, 1, 0, 0}},
  };
  for (const auto& c : cases) {
    ArrayView view = plain;
    view.sizes = c.sizes;
    view.strides = c.strides;
    EXPECT_FALSE(BytesOf(view).has_value());
  }
  ArrayView top = plain;
  top.data = Address(std::numeric_limits<std::uintptr_t>::max() - 7);
  top.sizes[3] = 2;
  top.strides[3] = 1;
  EXPECT_FALSE(BytesOf(top).has_value());
  ArrayView unused = plain;  // the stride of an axis of length 1 is not used
  unused.strides = {kHuge, -kHuge - 1, kHuge, -kHuge - 1};
  EXPECT_TRUE(BytesOf(unused).has_value());
  EXPECT_FALSE(OverlapsItself(unused));
  EXPECT_FALSE(Interleaved(unused, unused));
}

TEST(ArrayViewTest, OverlapsItselfMissesNothing) {
  testing::Random random(12);
  int distinct = 0;
  for (int i = 0; i < 20000; ++i) {
    const ArrayView view = RandomView(random);
    if (OverlapsItself(view)) continue;
    ++distinct;
    ASSERT_FALSE(HasDuplicates(Elements(view))) << i;
  }
  EXPECT_GT(distinct, 1000);
}

TEST(ArrayViewTest, OverlapsItselfAcceptsNestedLayouts) {
  testing::Random random(13);
  for (int i = 0; i < 3000; ++i) {
    const ArrayView view = RandomNestedView(random);
    ASSERT_FALSE(HasDuplicates(Elements(view)));
    ASSERT_FALSE(OverlapsItself(view)) << i;
  }
}

TEST(ArrayViewTest, InterleavedIsNeverWrong) {
  testing::Random random(14);
  int proven = 0;
  int shared = 0;
  for (int i = 0; i < 40000; ++i) {
    const ArrayView a = random.Chance(0.5) ? RandomView(random) : RandomNestedView(random);
    ArrayView b = a;
    b.data = Address(kBase + static_cast<std::uintptr_t>(random.Between(0, 200)));
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (random.Chance(0.3)) b.sizes[axis] = random.Between(1, 4);
      if (random.Chance(0.1)) b.strides[axis] = random.Between(-3, 24);
    }
    const bool share = ShareBytes(a, b);
    const bool interleaved = Interleaved(a, b);
    ASSERT_FALSE(share && interleaved) << i;
    ASSERT_EQ(interleaved, Interleaved(b, a)) << i;
    proven += interleaved ? 1 : 0;
    shared += share ? 1 : 0;
  }
  EXPECT_GT(proven, 3000);
  EXPECT_GT(shared, 4000);
}

// One axis of a nested array is cut in two: the halves are slices of one array.
TEST(ArrayViewTest, InterleavedProvesSlicesOfOneArray) {
  testing::Random random(15);
  for (int i = 0; i < 5000; ++i) {
    ArrayView a = RandomNestedView(random);
    const auto axis = static_cast<std::size_t>(random.Below(4));
    if (a.sizes[axis] < 2) continue;
    ArrayView b = a;
    const std::int64_t cut = random.Between(1, a.sizes[axis] - 1);
    a.sizes[axis] = cut;
    b.sizes[axis] -= cut;
    b.data = static_cast<const char*>(b.data) + cut * b.strides[axis] * 4;
    ASSERT_FALSE(ShareBytes(a, b));
    ASSERT_TRUE(Interleaved(a, b)) << i;
    // The stride of an axis that only one index of a slice lies on may be anything.
    if (a.sizes[axis] == 1) a.strides[axis] = 12345;
    ASSERT_TRUE(Interleaved(a, b)) << i;
  }
}

// (batch, seqlen, num_heads + 2 num_kv_heads, head_dim), the usual output of one projection.
TEST(ArrayViewTest, InterleavedProvesPackedGroupedHeads) {
  for (const std::int64_t heads : {1, 2, 4, 8, 12}) {
    for (const std::int64_t kv_heads : {1, 2, 4, 12}) {
      for (const std::int64_t dim : {1, 3, 8}) {
        const std::int64_t row = (heads + 2 * kv_heads) * dim;
        const auto slice = [&](std::int64_t first, std::int64_t count) {
          return ArrayView{.name = "slice",
                           .data = Address(kBase + static_cast<std::uintptr_t>(2 * first * dim)),
                           .element_bytes = 2,
                           .sizes = {2, count, 3, dim},
                           .strides = {3 * row, dim, row, 1}};
        };
        const ArrayView query = slice(0, heads);
        const ArrayView key = slice(heads, kv_heads);
        const ArrayView value = slice(heads + kv_heads, kv_heads);
        EXPECT_TRUE(Interleaved(query, key)) << heads << " " << kv_heads << " " << dim;
        EXPECT_TRUE(Interleaved(value, query)) << heads << " " << kv_heads << " " << dim;
        EXPECT_TRUE(Interleaved(key, value)) << heads << " " << kv_heads << " " << dim;
        EXPECT_FALSE(Interleaved(query, slice(heads - 1, kv_heads)));
      }
    }
  }
}

TEST(ArrayViewTest, InterleavedNeedsWholeElementsApart) {
  const ArrayView a{.name = "view",
                    .data = Address(kBase),
                    .element_bytes = 4,
                    .sizes = {1, 1, 4, 2},
                    .strides = {0, 0, 8, 1}};
  ArrayView b = a;
  b.data = Address(kBase + 8);
  EXPECT_TRUE(Interleaved(a, b));
  b.data = Address(kBase + 7);
  EXPECT_FALSE(Interleaved(a, b));
  b.data = Address(kBase + 8);
  b.element_bytes = 2;
  EXPECT_FALSE(Interleaved(a, b));
}

TEST(ArrayViewTest, ShapesAndTypesOfTheRoles) {
  const Result<Problem> problem = Problem::Parse("b2 h8 kv4 q5 k7 d16 dv12 bf16 mask=f64:hk");
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  using Shape = std::array<std::int64_t, 4>;
  EXPECT_EQ(ShapeOf(*problem, Role::kQuery), (Shape{2, 8, 5, 16}));
  EXPECT_EQ(ShapeOf(*problem, Role::kKey), (Shape{2, 4, 7, 16}));
  EXPECT_EQ(ShapeOf(*problem, Role::kValue), (Shape{2, 4, 7, 12}));
  EXPECT_EQ(ShapeOf(*problem, Role::kOut), (Shape{2, 8, 5, 12}));
  EXPECT_EQ(ShapeOf(*problem, Role::kLogsumexp), (Shape{2, 8, 5, 1}));
  EXPECT_EQ(ShapeOf(*problem, Role::kAttnMask), (Shape{1, 8, 1, 7}));
  EXPECT_EQ(DTypeOf(*problem, Role::kOut), DType::kBFloat16);
  EXPECT_EQ(DTypeOf(*problem, Role::kLogsumexp), DType::kFloat32);
  EXPECT_EQ(DTypeOf(*problem, Role::kAttnMask), DType::kFloat64);
  const Result<Problem> ragged = Problem::Parse("h2 d4 f64 mask=bool:bq cu_q=0,3,8 cu_k=0,2,6");
  ASSERT_TRUE(ragged.ok());
  EXPECT_EQ(ShapeOf(*ragged, Role::kQuery), (Shape{1, 2, 8, 4}));
  EXPECT_EQ(ShapeOf(*ragged, Role::kValue), (Shape{1, 2, 6, 4}));
  EXPECT_EQ(ShapeOf(*ragged, Role::kAttnMask), (Shape{2, 1, 5, 1}));
  EXPECT_EQ(DTypeOf(*ragged, Role::kLogsumexp), DType::kFloat64);
  EXPECT_EQ(MakeView(*ragged, Role::kAttnMask, "attn_mask", Strided<const void>{}).element_bytes,
            1U);
}

}  // namespace
}  // namespace attndrop
