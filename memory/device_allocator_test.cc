#include "memory/device_allocator.h"

#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "common/status_matchers.h"

namespace fargpu::memory {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kWindow = uint64_t{0x200000000000};
constexpr uint64_t kOwner = 7;

// Keeps books like a driver and holds WaitIdle() back when told to.
class FakeMemoryDriver : public MemoryDriver {
 public:
  absl::StatusOr<uint64_t> ReserveAddresses(uint64_t size, uint64_t alignment) override {
    if (size > largest_window) return CudaError(CUDA_ERROR_OUT_OF_MEMORY, "window");
    return kWindow;
  }
  absl::StatusOr<uint64_t> Granularity(int device) override {
    if (!has_vmm) return absl::UnimplementedError("no virtual memory");
    return 2 * kMiB;
  }
  absl::StatusOr<uint64_t> CreatePhysical(int device, uint64_t size) override {
    MutexLock lock(&mutex);
    if (fail_create) return CudaError(CUDA_ERROR_OUT_OF_MEMORY, "physical");
    physical[++last_handle] = size;
    return last_handle;
  }
  absl::StatusOr<uint64_t> CreateShareable(int device, uint64_t size) override {
    ASSIGN_OR_RETURN(const uint64_t handle, CreatePhysical(device, size));
    shareable[handle] = size;
    return handle;
  }
  absl::StatusOr<UniqueFd> ExportPhysical(uint64_t handle) override {
    if (shareable.count(handle) == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "not shareable");
    return UniqueFd(dup(0));
  }
  absl::StatusOr<uint64_t> ImportPhysical(int fd) override {
    MutexLock lock(&mutex);
    physical[++last_handle] = import_bytes;
    return last_handle;
  }
  absl::Status Copy(uint64_t owner, uint64_t to, uint64_t from, uint64_t size) override {
    copied_bytes += size;
    return absl::OkStatus();
  }
  absl::Status ReleasePhysical(uint64_t handle) override {
    MutexLock lock(&mutex);
    EXPECT_EQ(physical.erase(handle), 1u);
    return absl::OkStatus();
  }
  absl::Status Map(int device, uint64_t address, uint64_t size, uint64_t handle) override {
    MutexLock lock(&mutex);
    if (fail_map) return CudaError(CUDA_ERROR_ILLEGAL_STATE, "map");
    EXPECT_EQ(physical.at(handle), size);
    EXPECT_TRUE(mapped.emplace(address, size).second);
    return absl::OkStatus();
  }
  absl::Status Unmap(uint64_t address, uint64_t size) override {
    MutexLock lock(&mutex);
    EXPECT_EQ(mapped.erase(address), 1u);
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Allocate(uint64_t owner, uint64_t size) override {
    MutexLock lock(&mutex);
    const uint64_t address = 0x5000 + 0x1000 * ++last_handle;
    plain[address] = size;
    return address;
  }
  absl::Status Free(uint64_t owner, uint64_t address) override {
    MutexLock lock(&mutex);
    EXPECT_EQ(plain.erase(address), 1u);
    return absl::OkStatus();
  }
  absl::Status Zero(uint64_t owner, uint64_t address, uint64_t size) override {
    MutexLock lock(&mutex);
    zeroed += size;
    return fail_zero ? CudaError(CUDA_ERROR_ILLEGAL_ADDRESS, "zero") : absl::OkStatus();
  }
  absl::Status WaitIdle(uint64_t owner) override {
    MutexLock lock(&mutex);
    while (busy) changed.WaitFor(&mutex, std::chrono::seconds(1));
    return absl::OkStatus();
  }
  void SetBusy(bool value) {
    MutexLock lock(&mutex);
    busy = value;
    changed.SignalAll();
  }
  size_t mapped_count() {
    MutexLock lock(&mutex);
    return mapped.size();
  }

  bool has_vmm = true;
  bool fail_create = false;
  bool fail_map = false;
  bool fail_zero = false;
  uint64_t largest_window = UINT64_MAX;

  Mutex mutex;
  CondVar changed;
  bool busy = false;
  uint64_t last_handle = 0;
  uint64_t zeroed = 0;
  uint64_t copied_bytes = 0;
  uint64_t import_bytes = 0;
  std::map<uint64_t, uint64_t> physical, mapped, plain, shareable;
};

class DeviceAllocatorTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fargpu-allocator-XXXXXX";
    const int fd = mkstemp(name);
    ASSERT_GE(fd, 0);
    close(fd);
    path_ = name;
    auto ledger = LeaseLedger::Create(path_, /*device_count=*/2, 64 * kMiB);
    ASSERT_OK(ledger);
    ledger_ = std::move(*ledger);
    ASSERT_OK(ledger_->Join());
  }
  void TearDown() override { unlink(path_.c_str()); }

  std::unique_ptr<DeviceAllocator> Allocator(bool zeroed = true) {
    return std::make_unique<DeviceAllocator>(
        &driver_, ledger_.get(),
        DeviceAllocator::Options{.window_bytes = uint64_t{64} << 30,
                                 .fresh_memory_is_zero = zeroed,
                                 .reclaim_wait = absl::Seconds(5)});
  }
  // Freeing happens on another thread.
  void ExpectUsed(uint64_t bytes) {
    for (int i = 0; i < 500 && ledger_->UsedBytes(0) != bytes; ++i) usleep(10000);
    EXPECT_EQ(ledger_->UsedBytes(0), bytes);
  }

  std::string path_;
  std::unique_ptr<LeaseLedger> ledger_;
  FakeMemoryDriver driver_;
};

TEST_F(DeviceAllocatorTest, LargeAllocationsAreChargedAsTheDriverRoundsThem) {
  auto allocator = Allocator();
  EXPECT_EQ(allocator->window_base(), kWindow);
  ASSERT_OK_AND_ASSIGN(const uint64_t a, allocator->Allocate(0, kOwner, 3 * kMiB));
  EXPECT_EQ(a, kWindow);
  EXPECT_EQ(ledger_->UsedBytes(0), 4 * kMiB);
  ASSERT_OK_AND_ASSIGN(const uint64_t b, allocator->Allocate(1, kOwner, 2 * kMiB));
  EXPECT_EQ(b, kWindow + 4 * kMiB);
  EXPECT_EQ(ledger_->UsedBytes(1), 2 * kMiB);
  EXPECT_EQ(allocator->FreeBytes(0), 60 * kMiB);
  ASSERT_OK(allocator->Free(a));
  EXPECT_EQ(allocator->FreeBytes(0), 64 * kMiB);
  ExpectUsed(0);
  EXPECT_EQ(driver_.mapped_count(), 1u);
}

TEST_F(DeviceAllocatorTest, SmallAllocationsShareASlabOfTheirContext) {
  auto allocator = Allocator();
  std::vector<uint64_t> addresses;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_OK_AND_ASSIGN(const uint64_t address, allocator->Allocate(0, kOwner, 100));
    EXPECT_EQ(address % kAllocationAlignment, 0u);
    addresses.push_back(address);
  }
  EXPECT_EQ(ledger_->UsedBytes(0), 2 * kMiB);
  ASSERT_OK(allocator->Allocate(0, kOwner + 1, 100));
  EXPECT_EQ(ledger_->UsedBytes(0), 4 * kMiB);
  for (uint64_t address : addresses) ASSERT_OK(allocator->Free(address));
  // The slab is kept but counts as free.
  EXPECT_EQ(allocator->FreeBytes(0), 62 * kMiB);
  // And goes when its bytes are needed.
  ASSERT_OK(allocator->Allocate(0, kOwner, 62 * kMiB));
}

TEST_F(DeviceAllocatorTest, OverTheLimitTheDriverIsNotAsked) {
  auto allocator = Allocator();
  ASSERT_OK(allocator->Allocate(0, kOwner, 40 * kMiB));
  EXPECT_THAT(allocator->Allocate(0, kOwner, 25 * kMiB), IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_THAT(allocator->Allocate(0, kOwner, UINT64_MAX), IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_THAT(allocator->Allocate(0, kOwner, 0), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_EQ(driver_.last_handle, 1u);
  EXPECT_EQ(ledger_->UsedBytes(0), 40 * kMiB);
}

TEST_F(DeviceAllocatorTest, RefundsWhenTheDriverFails) {
  auto allocator = Allocator(/*zeroed=*/false);
  driver_.fail_create = true;
  EXPECT_THAT(allocator->Allocate(0, kOwner, 4 * kMiB), IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  driver_.fail_create = false;
  driver_.fail_map = true;
  EXPECT_THAT(allocator->Allocate(0, kOwner, 4 * kMiB), IsCudaError(CUDA_ERROR_ILLEGAL_STATE));
  driver_.fail_map = false;
  driver_.fail_zero = true;
  EXPECT_THAT(allocator->Allocate(0, kOwner, 4 * kMiB), IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  driver_.fail_zero = false;
  EXPECT_EQ(ledger_->UsedBytes(0), 0u);
  EXPECT_TRUE(driver_.physical.empty());
  // All addresses came back.
  ASSERT_OK_AND_ASSIGN(const uint64_t address, allocator->Allocate(0, kOwner, 4 * kMiB));
  EXPECT_EQ(address, kWindow);
}

TEST_F(DeviceAllocatorTest, FreedMemoryStaysUntilTheCardIsDoneWithIt) {
  auto allocator = Allocator();
  ASSERT_OK_AND_ASSIGN(const uint64_t a, allocator->Allocate(0, kOwner, 64 * kMiB));
  driver_.SetBusy(true);
  ASSERT_OK(allocator->Free(a));
  EXPECT_THAT(allocator->Free(a), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_EQ(driver_.mapped_count(), 1u);
  EXPECT_EQ(allocator->FreeBytes(0), 64 * kMiB);
  std::thread card([this] {
    usleep(50000);
    driver_.SetBusy(false);
  });
  // Waits for the memory that the program believes to be free.
  EXPECT_OK(allocator->Allocate(0, kOwner, 64 * kMiB).status());
  card.join();
}

TEST_F(DeviceAllocatorTest, AKernelThatNeverEndsDoesNotHangAnAllocation) {
  auto allocator = std::make_unique<DeviceAllocator>(
      &driver_, ledger_.get(),
      DeviceAllocator::Options{.window_bytes = uint64_t{64} << 30,
                               .fresh_memory_is_zero = true,
                               .reclaim_wait = absl::Milliseconds(200)});
  ASSERT_OK_AND_ASSIGN(const uint64_t a, allocator->Allocate(0, kOwner, 64 * kMiB));
  driver_.SetBusy(true);
  ASSERT_OK(allocator->Free(a));
  EXPECT_THAT(allocator->Allocate(0, kOwner, 64 * kMiB), IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  driver_.SetBusy(false);
}

TEST_F(DeviceAllocatorTest, AContextTakesItsMemoryAlong) {
  auto allocator = Allocator();
  ASSERT_OK(allocator->Allocate(0, kOwner, 4 * kMiB));
  ASSERT_OK(allocator->Allocate(0, kOwner, 10));
  ASSERT_OK(allocator->Allocate(0, kOwner + 1, 4 * kMiB));
  allocator->FreeOwner(kOwner);
  EXPECT_EQ(ledger_->UsedBytes(0), 4 * kMiB);
  EXPECT_EQ(driver_.mapped_count(), 1u);
}

TEST_F(DeviceAllocatorTest, FreshMemoryIsZeroedUnlessTheDriverPromises) {
  auto allocator = Allocator(/*zeroed=*/false);
  ASSERT_OK(allocator->Allocate(0, kOwner, 3 * kMiB));
  EXPECT_EQ(driver_.zeroed, 4 * kMiB);
  ASSERT_OK(allocator->Allocate(0, kOwner, 1));
  ASSERT_OK(allocator->Allocate(0, kOwner, 1));
  EXPECT_EQ(driver_.zeroed, 6 * kMiB);
}

TEST_F(DeviceAllocatorTest, TakesASmallerWindowOrNone) {
  driver_.largest_window = uint64_t{10} << 30;
  EXPECT_EQ(Allocator()->window_bytes(), uint64_t{8} << 30);
  driver_.has_vmm = false;
  auto allocator = Allocator();
  EXPECT_EQ(allocator->window_bytes(), 0u);
  ASSERT_OK_AND_ASSIGN(const uint64_t address, allocator->Allocate(0, kOwner, 1000));
  EXPECT_EQ(ledger_->UsedBytes(0), 1024u);
  EXPECT_THAT(allocator->Allocate(0, kOwner, 64 * kMiB), IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
  ASSERT_OK(allocator->Free(address));
  ExpectUsed(0);
  EXPECT_THAT(allocator->ReserveAddresses(2 * kMiB, 0, 0), IsCudaError(CUDA_ERROR_NOT_SUPPORTED));
}

TEST_F(DeviceAllocatorTest, ProgramsReserveAddressesInTheWindow) {
  auto allocator = Allocator();
  ASSERT_OK_AND_ASSIGN(const uint64_t memory, allocator->Allocate(0, kOwner, 2 * kMiB));
  const uint64_t wanted = kWindow + 16 * kMiB;
  ASSERT_OK_AND_ASSIGN(const uint64_t a, allocator->ReserveAddresses(4 * kMiB, 0, wanted));
  EXPECT_EQ(a, wanted);
  ASSERT_OK_AND_ASSIGN(const uint64_t b, allocator->ReserveAddresses(4 * kMiB, 32 * kMiB, wanted));
  EXPECT_EQ(b % (32 * kMiB), 0u);
  EXPECT_THAT(allocator->ReserveAddresses(kMiB, 0, 0), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_THAT(allocator->ReleaseAddresses(a, 2 * kMiB), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_THAT(allocator->ReleaseAddresses(memory, 2 * kMiB), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  EXPECT_OK(allocator->ReleaseAddresses(a, 4 * kMiB));
}

TEST_F(DeviceAllocatorTest, SharesMemoryWhereItLies) {
  const auto allocator = Allocator();
  const auto large = allocator->Allocate(0, kOwner, 4 * kMiB);
  const auto first = allocator->Allocate(0, kOwner, 1000);
  const auto second = allocator->Allocate(0, kOwner, 1000);
  ASSERT_OK(large);
  ASSERT_OK(first);
  ASSERT_OK(second);
  const uint64_t used = ledger_->UsedBytes(0);
  const auto shared_large = allocator->Share(*large);
  const auto shared_first = allocator->Share(*first);
  const auto shared_second = allocator->Share(*second);
  ASSERT_OK(shared_large);
  ASSERT_OK(shared_first);
  ASSERT_OK(shared_second);
  EXPECT_EQ(shared_large->block_bytes, 4 * kMiB);
  EXPECT_EQ(shared_large->offset, 0u);
  // Small ones have one slab, which moves once.
  EXPECT_EQ(shared_first->number, shared_second->number);
  EXPECT_EQ(shared_second->offset - shared_first->offset, *second - *first);
  EXPECT_EQ(driver_.copied_bytes, 6 * kMiB);
  EXPECT_EQ(driver_.mapped_count(), 2u);
  EXPECT_EQ(ledger_->UsedBytes(0), used);
  EXPECT_OK(allocator->Export(shared_large->number));
  EXPECT_OK(allocator->Export(shared_first->number));
  ASSERT_OK(allocator->Free(*large));
  EXPECT_EQ(ToCuResult(allocator->Export(shared_large->number).status()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ToCuResult(allocator->Share(*first + 512).status()), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceAllocatorTest, ChargesAndUnmapsWhatItImports) {
  const auto allocator = Allocator();
  driver_.import_bytes = 4 * kMiB;
  const DeviceAllocator::Shared shared = {
      .number = 1, .device = 1, .block_bytes = 4 * kMiB, .offset = 512, .bytes = 1000};
  const auto address = allocator->Import(kOwner, shared, /*fd=*/0);
  ASSERT_OK(address);
  EXPECT_EQ(ledger_->UsedBytes(1), 4 * kMiB);
  EXPECT_EQ(ToCuResult(allocator->Share(*address).status()), CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK(allocator->Free(*address));
  allocator->FreeOwner(kOwner);
  EXPECT_EQ(ledger_->UsedBytes(1), 0u);
  EXPECT_EQ(driver_.mapped_count(), 0u);
  for (const DeviceAllocator::Shared& wrong :
       {DeviceAllocator::Shared{1, 2, 4 * kMiB, 0, 1}, DeviceAllocator::Shared{1, 0, kMiB, 0, 1},
        DeviceAllocator::Shared{1, 0, 4 * kMiB, 4 * kMiB, 1},
        DeviceAllocator::Shared{1, 0, 4 * kMiB, 4 * kMiB - 1, 2}}) {
    EXPECT_EQ(ToCuResult(allocator->Import(kOwner, wrong, 0).status()), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(ToCuResult(allocator->Import(kOwner, {1, 0, 128 * kMiB, 0, 1}, 0).status()),
            CUDA_ERROR_OUT_OF_MEMORY);
}

}  // namespace
}  // namespace fargpu::memory
