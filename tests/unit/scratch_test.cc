// SPDX-License-Identifier: Apache-2.0
// Scratch: growth, reuse, alignment, failure; and the arena that divides it.
#include "attndrop/scratch.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/arena.h"
#include "unit/counting_allocator.h"
#include "unit/refusal.h"

namespace attndrop {
namespace {

using testing::CountingAllocator;
using testing::Refuses;

constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max();

bool IsAligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kScratchAlignment == 0;
}

TEST(ScratchTest, StartsEmpty) {
  const Scratch scratch;
  EXPECT_EQ(scratch.data(), nullptr);
  EXPECT_EQ(scratch.size(), 0U);
}

TEST(ScratchTest, GrowsAndIsReused) {
  CountingAllocator allocator;
  {
    Scratch scratch(&allocator);
    ASSERT_TRUE(scratch.Reserve(0).ok());
    EXPECT_EQ(allocator.calls(), 0);
    ASSERT_TRUE(scratch.Reserve(1000).ok());
    const std::byte* const first = scratch.data();
    ASSERT_TRUE(scratch.Reserve(10).ok());
    ASSERT_TRUE(scratch.Reserve(1000).ok());
    EXPECT_EQ(scratch.data(), first);
    EXPECT_EQ(scratch.size(), 1000U);
    EXPECT_EQ(allocator.calls(), 1);
    ASSERT_TRUE(scratch.Reserve(2000).ok());
    EXPECT_EQ(scratch.size(), 2000U);
    EXPECT_EQ(allocator.calls(), 2);
    EXPECT_EQ(allocator.live_bytes(), 2000U) << "the old block is freed before the new one";
    EXPECT_EQ(allocator.peak_bytes(), 2000U);
  }
  EXPECT_EQ(allocator.live_bytes(), 0U);
}

TEST(ScratchTest, HeapMemoryIsAlignedAndWritable) {
  Scratch scratch;
  for (const std::size_t bytes : {1U, 127U, 129U, 100000U}) {
    ASSERT_TRUE(scratch.Reserve(bytes).ok());
    EXPECT_TRUE(IsAligned(scratch.data()));
    std::fill(scratch.data(), scratch.data() + bytes, std::byte{7});
  }
}

TEST(ScratchTest, FailureIsAStatusAndLeavesAnEmptyScratch) {
  CountingAllocator allocator;
  Scratch scratch(&allocator);
  ASSERT_TRUE(scratch.Reserve(64).ok());
  allocator.FailFromNow(0);
  EXPECT_TRUE(
      Refuses(scratch.Reserve(4096), StatusCode::kOutOfMemory,
              {"no memory for 4096 bytes of scratch", "use fewer threads or a shorter sequence"}));
  EXPECT_EQ(scratch.data(), nullptr);
  EXPECT_EQ(scratch.size(), 0U);
  EXPECT_EQ(allocator.live_bytes(), 0U);
  allocator.FailFromNow(1000);
  EXPECT_TRUE(scratch.Reserve(4096).ok()) << "a later call may succeed";
}

TEST(ScratchTest, ImpossibleSizesDoNotReachTheAllocator) {
  CountingAllocator allocator;
  Scratch scratch(&allocator);
  for (const std::size_t bytes : {kLargest, kLargest / 2, kLargest / 4 + 2}) {
    EXPECT_EQ(scratch.Reserve(bytes).code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(Scratch().Reserve(bytes).code(), StatusCode::kOutOfMemory);
  }
  EXPECT_EQ(allocator.calls(), 0);
}

TEST(ArenaTest, MeasuresWhatItHandsOut) {
  const auto take = [](Arena& arena, std::vector<const void*>& pointers) {
    pointers = {arena.Take<double>(3), arena.Take<std::uint8_t>(0), arena.Take<float>(100),
                arena.Take<std::uint8_t>(1)};
  };
  Arena measure;
  std::vector<const void*> pointers;
  take(measure, pointers);
  for (const void* pointer : pointers) EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(measure.bytes(), 128U + 0U + 512U + 128U);

  Scratch scratch;
  ASSERT_TRUE(scratch.Reserve(measure.bytes()).ok());
  Arena arena(scratch.data());
  take(arena, pointers);
  EXPECT_EQ(arena.bytes(), measure.bytes());
  const std::size_t offsets[] = {0, 128, 128, 640};
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    EXPECT_EQ(pointers[i], scratch.data() + offsets[i]);
    EXPECT_TRUE(IsAligned(pointers[i]));
  }
}

TEST(ArenaTest, TooLargeStaysTooLarge) {
  constexpr std::int64_t kLargestCount = std::numeric_limits<std::int64_t>::max();
  Arena product;
  (void)product.Take<double>(kLargestCount);
  EXPECT_EQ(product.bytes(), kLargest);
  (void)product.Take<double>(1);
  EXPECT_EQ(product.bytes(), kLargest);
  Arena sum;
  for (int i = 0; i < 3; ++i) (void)sum.Take<std::uint8_t>(kLargestCount);
  EXPECT_EQ(sum.bytes(), kLargest);
}

TEST(ArenaTest, SizesSaturate) {
  constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;
  EXPECT_EQ(SaturatingProduct(3, 4), 12);
  EXPECT_EQ(SaturatingProduct(kTwo32, kTwo32), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(SaturatingTimes(5, 6), 30U);
  EXPECT_EQ(SaturatingTimes(kLargest, 2), kLargest);
  EXPECT_EQ(SaturatingSum(5, 6), 11U);
  EXPECT_EQ(SaturatingSum(kLargest, 1), kLargest);
}

}  // namespace
}  // namespace attndrop
