// Managed, pinned and registered memory: what travels, and when. The worker's memory is the card's.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "client/cuda/client_test.h"

namespace fargpu::client {
namespace {

class SharedMemoryTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    worker->On<wire::SharedChangesRequest>([this](const wire::SharedChangesRequest&,
                                                  wire::SharedChangesReply* reply,
                                                  FakeWorker::Call*) {
      for (const uint64_t address : changed) {
        reply->addresses.push_back(address);
        reply->sizes.push_back(1);
        uint32_t word = 0;
        std::memcpy(&word, worker->memory(address), sizeof(word));
        reply->words.push_back(word);
      }
      changed.clear();
      return CUDA_SUCCESS;
    });
  }
  uint32_t* AllocateManaged(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    return reinterpret_cast<uint32_t*>(address);
  }
  // Work of any kind.
  void Work() {
    EXPECT_EQ(cuMemsetD8Async(scratch, 0, 16, nullptr), CUDA_SUCCESS);
    ++works;
  }
  void Wait() { EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS); }
  uint32_t& OnCard(const uint32_t* pointer) {
    return *reinterpret_cast<uint32_t*>(worker->memory(reinterpret_cast<uint64_t>(pointer)));
  }
  // As a kernel does, behind the work so far: what the host wrote before that has arrived.
  void WriteOnCard(const uint32_t* pointer, uint32_t value) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (worker->Count("cuMemsetD8Async") < works) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
    OnCard(pointer) = value;
    changed.push_back(reinterpret_cast<uint64_t>(pointer));
  }
  void BeginWithScratch() {
    Begin();
    scratch = Allocate(4096);
  }
  size_t BytesWritten() const {
    size_t bytes = 0;
    for (const auto& call : worker->received()) {
      if (call.name == "SharedWrite") bytes += call.bulk.size();
    }
    return bytes;
  }

  CUdeviceptr scratch = 0;
  size_t works = 0;
  std::vector<uint64_t> changed;
};

TEST_F(SharedMemoryTest, WhatTheHostWroteIsThereBeforeTheNextWork) {
  BeginWithScratch();
  uint32_t* values = AllocateManaged(4000);
  EXPECT_EQ(values[0], 0u);
  values[0] = 7;
  values[999] = 9;
  Work();
  Wait();
  EXPECT_EQ(OnCard(values), 7u);
  EXPECT_EQ(OnCard(values + 999), 9u);
  EXPECT_EQ(worker->Count("SharedWrite"), 1u);
  EXPECT_EQ(BytesWritten(), 8u);
  // Nothing new, nothing sent.
  Work();
  Wait();
  EXPECT_EQ(worker->Count("SharedWrite"), 1u);
}

TEST_F(SharedMemoryTest, WhatKernelsWroteIsSeenAfterWaiting) {
  BeginWithScratch();
  uint32_t* values = AllocateManaged(4000);
  values[0] = 1;
  Work();
  WriteOnCard(values + 1, 55);
  EXPECT_EQ(values[1], 0u);
  // Beside it the host writes without waiting, also what comes as part of a run that has changed.
  values[2] = 66;
  changed.push_back(reinterpret_cast<uint64_t>(values + 2));
  Wait();
  EXPECT_EQ(values[0], 1u);
  EXPECT_EQ(values[1], 55u);
  EXPECT_EQ(values[2], 66u);
  // Without work in between the same wait asks nobody.
  const size_t asked = worker->Count("SharedChanges");
  Wait();
  EXPECT_EQ(worker->Count("SharedChanges"), asked);
  Work();
  Wait();
  EXPECT_EQ(OnCard(values + 2), 66u);
  EXPECT_EQ(OnCard(values + 1), 55u);
}

TEST_F(SharedMemoryTest, LargeMemoryIsFetchedWhereItIsTouched) {
  BeginWithScratch();
  constexpr size_t kWords = (8 << 20) / sizeof(uint32_t);
  uint32_t* values = AllocateManaged(kWords * sizeof(uint32_t));
  values[0] = 1;
  values[kWords / 2] = 2;
  Work();
  Wait();
  // The two pages that were touched, and nothing has been fetched.
  EXPECT_EQ(BytesWritten(), 2 * 4096u);
  EXPECT_EQ(worker->Count("SharedRead"), 0u);
  OnCard(values) = 100;
  OnCard(values + kWords - 1) = 300;
  EXPECT_EQ(values[0], 100u);
  EXPECT_EQ(values[1], 0u);
  EXPECT_EQ(worker->Count("SharedRead"), 1u);
  EXPECT_EQ(values[kWords - 1], 300u);
  EXPECT_EQ(worker->Count("SharedRead"), 2u);
  // Written pages go back, read ones do not.
  values[kWords - 1] = 301;
  Work();
  Wait();
  EXPECT_EQ(BytesWritten(), 3 * 4096u);
  EXPECT_EQ(OnCard(values + kWords - 1), 301u);
  EXPECT_EQ(OnCard(values), 100u);
}

TEST_F(SharedMemoryTest, FetchesGrowWhileTheProgramGoesUpwards) {
  BeginWithScratch();
  constexpr size_t kWords = (8 << 20) / sizeof(uint32_t);
  uint32_t* values = AllocateManaged(kWords * sizeof(uint32_t));
  Work();
  Wait();
  uint32_t sum = 0;
  for (size_t i = 0; i < kWords; ++i) sum += values[i];
  EXPECT_EQ(sum, 0u);
  // 1, 2, 4 ... 256 pages, then 256 each.
  EXPECT_LE(worker->Count("SharedRead"), 20u);
}

TEST_F(SharedMemoryTest, PrefetchToTheHostBringsAllAtOnce) {
  BeginWithScratch();
  uint32_t* values = AllocateManaged(4 << 20);
  Work();
  Wait();
  OnCard(values + 500000) = 5;
  const CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  ASSERT_EQ(cuMemPrefetchAsync_v2(reinterpret_cast<CUdeviceptr>(values), 4 << 20, host, 0, nullptr),
            CUDA_SUCCESS);
  Work();
  Wait();
  const size_t reads = worker->Count("SharedRead");
  EXPECT_EQ(reads, 4u);
  EXPECT_EQ(values[500000], 5u);
  EXPECT_EQ(worker->Count("SharedRead"), reads);
}

TEST_F(SharedMemoryTest, PinnedMemoryTravelsOnlyOnceAKernelHasIt) {
  BeginWithScratch();
  void* memory = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&memory, 10000, 0), CUDA_SUCCESS);
  auto* values = static_cast<uint32_t*>(memory);
  values[0] = 3;
  Work();
  Wait();
  EXPECT_EQ(worker->Count("SharedBack") + worker->Count("SharedWrite"), 0u);
  // As the destination of a set it is memory of the card's.
  EXPECT_EQ(cuMemsetD32_v2(reinterpret_cast<CUdeviceptr>(values + 1), 4, 1), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("SharedBack"), 1u);
  EXPECT_EQ(OnCard(values), 3u);
  EXPECT_EQ(cuMemFreeHost(memory), CUDA_SUCCESS);
}

TEST_F(SharedMemoryTest, RegisteredMemoryHasAnotherAddressOnTheCard) {
  BeginWithScratch();
  std::vector<uint32_t> memory(5000, 1);
  ASSERT_EQ(cuMemHostRegister_v2(memory.data(), 20000, 0), CUDA_SUCCESS);
  CUdeviceptr device = 0;
  ASSERT_EQ(cuMemHostGetDevicePointer_v2(&device, memory.data() + 10, 0), CUDA_SUCCESS);
  EXPECT_NE(device, reinterpret_cast<CUdeviceptr>(memory.data() + 10));
  memory[10] = 1234;
  Work();
  const auto* on_card = reinterpret_cast<uint32_t*>(device);
  WriteOnCard(on_card + 1, 4321);
  Wait();
  EXPECT_EQ(OnCard(on_card), 1234u);
  EXPECT_EQ(OnCard(on_card + 2), 1u);
  EXPECT_EQ(memory[11], 4321u);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("SharedUnwatch"), 0u);  // not waited for
  Wait();
  EXPECT_EQ(worker->Count("SharedUnwatch"), 1u);
}

TEST_F(SharedMemoryTest, ManagedMemoryIsBothSidesOfCopies) {
  BeginWithScratch();
  uint32_t* values = AllocateManaged(4 << 20);
  values[0] = 8;
  // The host pointer is the card's too: no bytes travel but the page.
  EXPECT_EQ(cuMemcpyHtoD_v2(scratch, values, 4096), CUDA_SUCCESS);
  Wait();
  EXPECT_EQ(worker->Count("cuMemcpyDtoD_v2"), 1u);
  EXPECT_EQ(worker->Count("cuMemcpyHtoD_v2"), 0u);
  unsigned managed = 0;
  EXPECT_EQ(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                  reinterpret_cast<CUdeviceptr>(values + 5)),
            CUDA_SUCCESS);
  EXPECT_EQ(managed, 1u);
  EXPECT_EQ(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(values)), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(values)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SharedMemoryTest, SmallAllocationsShareARange) {
  BeginWithScratch();
  std::vector<uint32_t*> values;
  for (int i = 0; i < 100; ++i) values.push_back(AllocateManaged(16));
  EXPECT_EQ(worker->Count("SharedReserve"), 1u);
  EXPECT_EQ(worker->Count("SharedBack"), 1u);
  for (size_t i = 0; i < values.size(); ++i) *values[i] = static_cast<uint32_t>(i);
  Work();
  Wait();
  EXPECT_EQ(OnCard(values[99]), 99u);
  EXPECT_EQ(BytesWritten(), 99 * sizeof(uint32_t));  // the first is 0 as before
}

TEST_F(SharedMemoryTest, AnAddressOutsideTheWindowEndsTheSession) {
  worker->On<wire::SharedReserveRequest>(
      [](const wire::SharedReserveRequest&, wire::SharedReserveReply* reply, FakeWorker::Call*) {
        reply->address = 0x400000;
        return CUDA_SUCCESS;
      });
  BeginWithScratch();
  CUdeviceptr address = 0;
  EXPECT_NE(cuMemAllocManaged(&address, 16, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_NE(cuCtxSynchronize(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace fargpu::client
