#include "softgpu/runtime/address_space.h"

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace fargpu::softgpu {
namespace {

TEST(AddressSpaceTest, TakesTheLowestFittingRange) {
  AddressSpace space(0x1000, 0x1000);
  EXPECT_EQ(space.Take(0x100, 0x100), 0x1000u);
  EXPECT_EQ(space.Take(0x80, 0x100), 0x1100u);
  EXPECT_EQ(space.Take(0x100, 0x100), 0x1200u);
  EXPECT_EQ(space.Take(0x80, 0x80), 0x1180u);  // what alignment left over
  EXPECT_EQ(space.free_bytes(), 0x1000u - 0x300);
}

TEST(AddressSpaceTest, RefusesWhatDoesNotFit) {
  AddressSpace space(0x1000, 0x1000);
  EXPECT_EQ(space.Take(0, 1), std::nullopt);
  EXPECT_EQ(space.Take(0x1001, 1), std::nullopt);
  EXPECT_EQ(space.Take(0x1000, 0x2000), std::nullopt);
  EXPECT_EQ(space.Take(~uint64_t{0}, 1), std::nullopt);
  EXPECT_TRUE(space.unused());
  EXPECT_EQ(space.Take(0x1000, 1), 0x1000u);
  EXPECT_EQ(space.Take(1, 1), std::nullopt);
}

TEST(AddressSpaceTest, TakesNotBelowFrom) {
  AddressSpace space(0, 0x1000);
  EXPECT_EQ(space.Take(0x100, 0x100, 0x780), 0x800u);
  EXPECT_EQ(space.Take(0x100, 0x100, 0x780), 0x900u);
  EXPECT_EQ(space.Take(0x1000 - 0x780, 0x10, 0x780), std::nullopt);
}

TEST(AddressSpaceTest, TakesExactRangesOnlyIfFree) {
  AddressSpace space(0x1000, 0x1000);
  EXPECT_TRUE(space.TakeAt(0x1400, 0x100));
  EXPECT_FALSE(space.TakeAt(0x1400, 0x100));
  EXPECT_FALSE(space.TakeAt(0x13ff, 2));
  EXPECT_FALSE(space.TakeAt(0x0fff, 2));
  EXPECT_FALSE(space.TakeAt(0x1fff, 2));
  EXPECT_FALSE(space.TakeAt(0x1000, ~uint64_t{0}));
  EXPECT_TRUE(space.TakeAt(0x1300, 0x100));
  EXPECT_TRUE(space.TakeAt(0x1500, 0xb00));
}

TEST(AddressSpaceTest, RandomTakesNeverOverlapAndMergeBack) {
  std::mt19937 random(1);
  AddressSpace space(0x10000, 0x10000);
  std::map<uint64_t, uint64_t> taken;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0 || taken.empty()) {
      const uint64_t size = 1 + random() % 0x800;
      const uint64_t alignment = uint64_t{1} << (random() % 10);
      const auto address = space.Take(size, alignment);
      if (!address) continue;
      ASSERT_EQ(*address % alignment, 0u);
      ASSERT_GE(*address, 0x10000u);
      ASSERT_LE(*address + size, 0x20000u);
      const auto next = taken.lower_bound(*address);
      if (next != taken.end()) {
        ASSERT_LE(*address + size, next->first);
      }
      if (next != taken.begin()) {
        const auto previous = std::prev(next);
        ASSERT_LE(previous->first + previous->second, *address);
      }
      taken.emplace(*address, size);
    } else {
      auto it = taken.begin();
      std::advance(it, random() % taken.size());
      space.Give(it->first, it->second);
      taken.erase(it);
    }
  }
  for (const auto& [address, size] : taken) space.Give(address, size);
  EXPECT_TRUE(space.unused());
  EXPECT_EQ(space.Take(0x10000, 1), 0x10000u);  // one piece again
}

}  // namespace
}  // namespace fargpu::softgpu
