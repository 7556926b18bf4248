#include "memory/address_space.h"

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace fargpu::memory {
namespace {

TEST(AddressSpaceTest, DealsOutAlignedRangesAndMergesThemAgain) {
  AddressSpace space(0x1000, 0x9000);
  EXPECT_EQ(space.Allocate(0x100, 0x100), 0x1000u);
  EXPECT_EQ(space.Allocate(0x1000, 0x1000), 0x2000u);
  EXPECT_EQ(space.Allocate(0x200, 0x100), 0x1100u);  // in the hole that alignment left
  EXPECT_EQ(space.SizeAt(0x1100), 0x200u);
  EXPECT_EQ(space.Allocate(0x8000, 1), kNoAddress);
  EXPECT_EQ(space.Free(0x2000), 0x1000u);
  EXPECT_EQ(space.Free(0x1000), 0x100u);
  EXPECT_EQ(space.Free(0x1100), 0x200u);
  EXPECT_TRUE(space.empty());
  EXPECT_EQ(space.Allocate(0x9000, 0x1000), 0x1000u);
}

TEST(AddressSpaceTest, RefusesWhatIsNotThere) {
  AddressSpace space(0x1000, 0x1000);
  EXPECT_EQ(space.Free(0x1000), std::nullopt);
  EXPECT_EQ(space.Allocate(0x1001, 1), kNoAddress);
  EXPECT_EQ(space.Allocate(UINT64_MAX, 1), kNoAddress);
  EXPECT_FALSE(space.AllocateAt(0xfff, 1));
  EXPECT_FALSE(space.AllocateAt(0x1fff, 2));
  EXPECT_FALSE(space.AllocateAt(0x1000, 0));
  EXPECT_TRUE(space.AllocateAt(0x1800, 0x800));
  EXPECT_FALSE(space.AllocateAt(0x1900, 1));
  EXPECT_EQ(space.Free(0x1900), std::nullopt);
}

TEST(AddressSpaceTest, RangesNeverOverlap) {
  std::mt19937_64 random(1);
  AddressSpace space(1 << 20, 1 << 20);
  std::map<uint64_t, uint64_t> taken;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      auto victim = taken.lower_bound((1 << 20) + random() % (1 << 20));
      if (victim == taken.end()) victim = taken.begin();
      ASSERT_EQ(space.Free(victim->first), victim->second);
      taken.erase(victim);
      continue;
    }
    const uint64_t size = 1 + random() % 5000;
    const uint64_t alignment = uint64_t{1} << random() % 12;
    const uint64_t address = space.Allocate(size, alignment);
    if (address == kNoAddress) continue;
    ASSERT_EQ(address % alignment, 0u);
    ASSERT_GE(address, 1u << 20);
    ASSERT_LE(address + size, 2u << 20);
    const auto [place, inserted] = taken.emplace(address, size);
    ASSERT_TRUE(inserted);
    if (place != taken.begin()) {
      ASSERT_LE(std::prev(place)->first + std::prev(place)->second, address);
    }
    if (std::next(place) != taken.end()) {
      ASSERT_LE(address + size, std::next(place)->first);
    }
  }
}

TEST(RoundUpTest, NoticesOverflow) {
  EXPECT_EQ(RoundUp(0, 512), 0u);
  EXPECT_EQ(RoundUp(1, 512), 512u);
  EXPECT_EQ(RoundUp(512, 512), 512u);
  EXPECT_EQ(RoundUp(UINT64_MAX, 512), std::nullopt);
}

}  // namespace
}  // namespace fargpu::memory
