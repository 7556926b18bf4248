#include "softgpu/runtime/device_memory.h"

#include <unistd.h>

#include <cstring>
#include <set>

#include "common/status_matchers.h"
#include "softgpu/runtime/device_window.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

char* At(uint64_t address) { return reinterpret_cast<char*>(address); }

// Whether reading `address` faults. Asks the kernel instead of trying, so that it works under
// sanitizers.
bool Faults(uint64_t address) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return false;
  const bool faults = write(pipe_ends[1], At(address), 1) != 1;
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  return faults;
}

class DeviceMemoryTest : public ::testing::Test {
 protected:
  uint64_t Allocate(uint64_t size, int device = 0, uint64_t context = 1) {
    const auto address = memory_.Allocate(AllocationKind::kDevice, device, context, size);
    EXPECT_THAT(address, IsOk());
    return address.value_or(0);
  }

  DeviceMemory memory_{DeviceMemoryRange(), {64 * kMiB, 8 * kMiB}};
};

TEST(DeviceWindowTest, IsAnAlignedPowerOfTwo) {
  const AddressWindow window = DeviceWindow();
  ASSERT_NE(window.size, 0u);
  EXPECT_EQ(window.size & (window.size - 1), 0u);
  EXPECT_EQ(window.base % window.size, 0u);
  EXPECT_TRUE(Faults(window.base));
}

TEST(DeviceWindowTest, ExecutorRangesAreApartAndZeroed) {
  const uint64_t first = ReserveWindowRange(5000);
  const uint64_t second = ReserveWindowRange(5000);
  ASSERT_NE(first, 0u);
  ASSERT_NE(second, 0u);
  EXPECT_GE(first, DeviceMemoryRange().base + DeviceMemoryRange().size);
  EXPECT_EQ(At(first)[4999], 0);
  std::memset(At(first), 1, 5000);
  EXPECT_TRUE(Faults(first - 1));
  EXPECT_TRUE(Faults(first + 8192));
  ReleaseWindowRange(first, 5000);
  EXPECT_TRUE(Faults(first));
  ReleaseWindowRange(second, 5000);
  EXPECT_EQ(ReserveWindowRange(0), 0u);
  EXPECT_EQ(ReserveWindowRange(~uint64_t{0}), 0u);
}

TEST_F(DeviceMemoryTest, SmallAllocationsShareABlock) {
  std::set<uint64_t> addresses;
  for (int i = 0; i < 100; ++i) {
    const uint64_t address = Allocate(100);
    EXPECT_EQ(address % 512, 0u);
    EXPECT_TRUE(addresses.insert(address).second);
    std::memset(At(address), i, 100);
  }
  EXPECT_EQ(memory_.FreeBytes(0), 62 * kMiB);
  for (uint64_t address : addresses) EXPECT_OK(memory_.Free(address));
  EXPECT_EQ(memory_.FreeBytes(0), 64 * kMiB);
  EXPECT_TRUE(Faults(*addresses.begin()));
}

TEST_F(DeviceMemoryTest, LargeAllocationsAreFencedOff) {
  const uint64_t first = Allocate(3 * kMiB);
  const uint64_t second = Allocate(3 * kMiB);
  EXPECT_EQ(memory_.FreeBytes(0), 56 * kMiB);
  EXPECT_FALSE(Faults(first + 3 * kMiB - 1));
  EXPECT_TRUE(Faults(first + 4 * kMiB));
  EXPECT_GE(second, first + 5 * kMiB);
  ASSERT_OK(memory_.Free(first));
  EXPECT_TRUE(Faults(first));
  EXPECT_FALSE(Faults(second));
}

TEST_F(DeviceMemoryTest, TheLimitIsExactAndPerDevice) {
  const uint64_t all = Allocate(8 * kMiB, 1);
  EXPECT_EQ(memory_.FreeBytes(1), 0u);
  EXPECT_THAT(memory_.Allocate(AllocationKind::kDevice, 1, 1, 1),
              IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_EQ(memory_.FreeBytes(0), 64 * kMiB);
  ASSERT_OK(memory_.Free(all));
  EXPECT_THAT(memory_.Allocate(AllocationKind::kDevice, 1, 1, 8 * kMiB + 1),
              IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_THAT(memory_.Allocate(AllocationKind::kDevice, 1, 1, ~uint64_t{0}),
              IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_EQ(memory_.FreeBytes(1), 8 * kMiB);
  EXPECT_THAT(memory_.Allocate(AllocationKind::kDevice, 1, 1, 0),
              IsCudaError(CUDA_ERROR_INVALID_VALUE));
}

TEST_F(DeviceMemoryTest, HostMemoryIsNotCharged) {
  ASSERT_OK_AND_ASSIGN(const uint64_t address,
                       memory_.Allocate(AllocationKind::kHost, 1, 1, 100 * kMiB));
  EXPECT_EQ(memory_.FreeBytes(1), 8 * kMiB);
  At(address)[100 * kMiB - 1] = 1;
  EXPECT_OK(memory_.Free(address));
}

TEST_F(DeviceMemoryTest, FindsByAnyAddressInside) {
  const uint64_t address = Allocate(1000, 1, 77);
  const auto found = memory_.Find(address + 999);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->base, address);
  EXPECT_EQ(found->size, 1000u);
  EXPECT_EQ(found->device, 1);
  EXPECT_EQ(found->context, 77u);
  EXPECT_FALSE(memory_.Find(address + 1000).has_value());
  EXPECT_FALSE(memory_.Find(0).has_value());
  EXPECT_TRUE(memory_.Accessible(address, 1000, Access::kReadWrite));
  EXPECT_FALSE(memory_.Accessible(address, 1001, Access::kRead));
  EXPECT_FALSE(memory_.Accessible(address, ~uint64_t{0}, Access::kRead));
}

TEST_F(DeviceMemoryTest, FreesOnlyWhatItGave) {
  const uint64_t address = Allocate(1000);
  EXPECT_THAT(memory_.Free(address + 512), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_THAT(memory_.Free(0), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_OK(memory_.Free(address));
  EXPECT_THAT(memory_.Free(address), IsCudaError(CUDA_ERROR_INVALID_VALUE));
}

TEST_F(DeviceMemoryTest, DetachedMemoryStaysUsableUntilFreed) {
  const uint64_t address = Allocate(4 * kMiB);
  ASSERT_OK_AND_ASSIGN(const Allocation allocation, memory_.Detach(address));
  EXPECT_FALSE(memory_.Find(address).has_value());
  EXPECT_FALSE(Faults(address));
  EXPECT_EQ(memory_.FreeBytes(0), 60 * kMiB);
  memory_.FreeDetached(allocation);
  memory_.FreeDetached(allocation);  // once is enough, twice is harmless
  EXPECT_TRUE(Faults(address));
  EXPECT_EQ(memory_.FreeBytes(0), 64 * kMiB);
}

TEST_F(DeviceMemoryTest, AContextsMemoryGoesWithIt) {
  Allocate(100, 0, 5);
  Allocate(10 * kMiB, 0, 5);
  const uint64_t other = Allocate(100, 0, 6);
  memory_.FreeContext(5);
  EXPECT_EQ(memory_.FreeBytes(0), 62 * kMiB);
  EXPECT_TRUE(memory_.Find(other).has_value());
  memory_.FreeContext(6);
  EXPECT_EQ(memory_.FreeBytes(0), 64 * kMiB);
}

TEST_F(DeviceMemoryTest, FreedMemoryComesBackZeroed) {
  const uint64_t first = Allocate(2 * kMiB);
  std::memset(At(first), 0x5a, 2 * kMiB);
  ASSERT_OK(memory_.Free(first));
  const uint64_t second = Allocate(2 * kMiB);
  ASSERT_EQ(first, second);
  EXPECT_EQ(At(second)[kMiB], 0);
}

TEST_F(DeviceMemoryTest, ReservationHonoursTheHint) {
  ASSERT_OK_AND_ASSIGN(const uint64_t first, memory_.Reserve(4 * kMiB, 0, 0));
  ASSERT_OK(memory_.Unreserve(first, 4 * kMiB));
  ASSERT_OK_AND_ASSIGN(const uint64_t again, memory_.Reserve(2 * kMiB, 0, first + 2 * kMiB));
  EXPECT_EQ(again, first + 2 * kMiB);
  ASSERT_OK_AND_ASSIGN(const uint64_t elsewhere, memory_.Reserve(2 * kMiB, 0, again));
  EXPECT_NE(elsewhere, again);  // a hint that is taken is only a hint
  ASSERT_OK_AND_ASSIGN(const uint64_t aligned, memory_.Reserve(2 * kMiB, 64 * kMiB, 0));
  EXPECT_EQ(aligned % (64 * kMiB), 0u);
  EXPECT_THAT(memory_.Reserve(kMiB, 0, 0), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_THAT(memory_.Reserve(2 * kMiB, 3, 0), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_THAT(memory_.Reserve(uint64_t{1} << 60, 0, 0), IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_THAT(memory_.Unreserve(again, 4 * kMiB), IsCudaError(CUDA_ERROR_INVALID_VALUE));
}

TEST_F(DeviceMemoryTest, OnePhysicalMemoryAtTwoAddresses) {
  ASSERT_OK_AND_ASSIGN(const uint64_t handle, memory_.CreatePhysical(0, 4 * kMiB));
  EXPECT_EQ(memory_.FreeBytes(0), 60 * kMiB);
  ASSERT_OK_AND_ASSIGN(const uint64_t range, memory_.Reserve(8 * kMiB, 0, 0));
  ASSERT_OK(memory_.Map(range, 4 * kMiB, 0, handle));
  ASSERT_OK(memory_.Map(range + 4 * kMiB, 2 * kMiB, 2 * kMiB, handle));
  EXPECT_TRUE(Faults(range));
  EXPECT_FALSE(memory_.Accessible(range, 1, Access::kRead));
  ASSERT_OK(memory_.SetAccess(range, 6 * kMiB, Access::kReadWrite));
  EXPECT_TRUE(memory_.Accessible(range, 6 * kMiB, Access::kReadWrite));  // over both mappings
  At(range)[3 * kMiB] = 42;
  EXPECT_EQ(At(range)[5 * kMiB], 42);

  // The handle may go; the mappings keep the memory.
  ASSERT_OK(memory_.ReleasePhysical(handle));
  EXPECT_THAT(memory_.ReleasePhysical(handle), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_EQ(memory_.FreeBytes(0), 60 * kMiB);
  ASSERT_OK_AND_ASSIGN(const uint64_t retained, memory_.RetainPhysical(range + 1));
  EXPECT_EQ(retained, handle);
  ASSERT_OK(memory_.ReleasePhysical(retained));

  EXPECT_THAT(memory_.Unreserve(range, 8 * kMiB), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_THAT(memory_.Unmap(range, 2 * kMiB), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  ASSERT_OK(memory_.Unmap(range, 4 * kMiB));
  EXPECT_EQ(At(range)[5 * kMiB], 42);
  ASSERT_OK(memory_.Unmap(range + 4 * kMiB, 2 * kMiB));
  EXPECT_TRUE(Faults(range));
  EXPECT_EQ(memory_.FreeBytes(0), 64 * kMiB);
  EXPECT_OK(memory_.Unreserve(range, 8 * kMiB));
}

TEST_F(DeviceMemoryTest, MapRefusesWhatIsWrong) {
  ASSERT_OK_AND_ASSIGN(const uint64_t handle, memory_.CreatePhysical(1, 4 * kMiB));
  ASSERT_OK_AND_ASSIGN(const uint64_t range, memory_.Reserve(8 * kMiB, 0, 0));
  const auto is_invalid = IsCudaError(CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(memory_.Map(range, 4 * kMiB, 0, handle + 1), is_invalid);
  EXPECT_THAT(memory_.Map(range + 1, 2 * kMiB, 0, handle), is_invalid);
  EXPECT_THAT(memory_.Map(range, 4 * kMiB, 2 * kMiB, handle), is_invalid);
  EXPECT_THAT(memory_.Map(range + 6 * kMiB, 4 * kMiB, 0, handle), is_invalid);
  EXPECT_THAT(memory_.Map(range + 64 * kMiB, 4 * kMiB, 0, handle), is_invalid);
  ASSERT_OK(memory_.Map(range, 4 * kMiB, 0, handle));
  EXPECT_THAT(memory_.Map(range + 2 * kMiB, 2 * kMiB, 0, handle), is_invalid);
  EXPECT_THAT(memory_.Free(range), is_invalid);
  EXPECT_THAT(memory_.SetAccess(range, 8 * kMiB, Access::kRead), is_invalid);
  ASSERT_OK(memory_.SetAccess(range, 4 * kMiB, Access::kRead));
  EXPECT_FALSE(memory_.Accessible(range, 1, Access::kReadWrite));
  ASSERT_OK_AND_ASSIGN(const Access access, memory_.GetAccess(range));
  EXPECT_EQ(access, Access::kRead);
  EXPECT_THAT(memory_.CreatePhysical(1, 6 * kMiB), IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_THAT(memory_.CreatePhysical(1, kMiB), is_invalid);
}

}  // namespace
}  // namespace fargpu::softgpu
