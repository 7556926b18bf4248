#include <cstring>

#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

class MemoryTest : public DriverTest {
 protected:
  size_t FreeBytes() {
    size_t free = 0, total = 0;
    EXPECT_SUCCESS(cuMemGetInfo(&free, &total));
    EXPECT_EQ(total, kTestDeviceBytes);
    return free;
  }
  static CUmemAllocationProp OnDevice(int device) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return properties;
  }
};

TEST_F(MemoryTest, AllocatesAndFrees) {
  CUdeviceptr first = 0, second = 0;
  EXPECT_SUCCESS(cuMemAlloc(&first, 100));
  EXPECT_SUCCESS(cuMemAlloc(&second, 100));
  EXPECT_EQ(first % 256, 0u);
  EXPECT_EQ(second % 256, 0u);
  EXPECT_NE(first, second);
  EXPECT_EQ(FreeBytes(), kTestDeviceBytes - 2 * kMiB);
  EXPECT_SUCCESS(cuMemFree(first));
  EXPECT_SUCCESS(cuMemFree(second));
  EXPECT_EQ(FreeBytes(), kTestDeviceBytes);
  EXPECT_SUCCESS(cuMemFree(0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(first));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(12345));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(nullptr, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&first, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemGetInfo(nullptr, nullptr));
}

TEST_F(MemoryTest, RunsOutAndGoesOn) {
  CUdeviceptr most = 0, more = 0;
  ASSERT_SUCCESS(cuMemAlloc(&most, kTestDeviceBytes - 4 * kMiB));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, 5 * kMiB));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, ~size_t{0}));
  EXPECT_SUCCESS(cuMemAlloc(&more, 4 * kMiB));
  EXPECT_EQ(FreeBytes(), 0u);
  EXPECT_SUCCESS(cuMemFree(most));
  EXPECT_SUCCESS(cuMemAlloc(&most, 100 * kMiB));
}

TEST_F(MemoryTest, PitchedRowsAreAligned) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  ASSERT_SUCCESS(cuMemAllocPitch(&address, &pitch, 1000, 10, 4));
  EXPECT_EQ(pitch, 1024u);
  size_t size = 0;
  EXPECT_SUCCESS(cuMemGetAddressRange(nullptr, &size, address));
  EXPECT_EQ(size, 10240u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&address, &pitch, 1000, 10, 5));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&address, &pitch, 0, 10, 4));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch(&address, &pitch, ~size_t{0} / 2, 10, 4));
}

TEST_F(MemoryTest, AddressRanges) {
  CUdeviceptr address = 0, base = 0;
  size_t size = 0;
  ASSERT_SUCCESS(cuMemAlloc(&address, 5000));
  EXPECT_SUCCESS(cuMemGetAddressRange(&base, &size, address + 4999));
  EXPECT_EQ(base, address);
  EXPECT_EQ(size, 5000u);
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, address + 5000));
}

TEST_F(MemoryTest, PinnedHostMemoryIsMapped) {
  void* host = nullptr;
  ASSERT_SUCCESS(cuMemHostAlloc(&host, 1000, CU_MEMHOSTALLOC_PORTABLE));
  std::memset(host, 1, 1000);
  EXPECT_EQ(FreeBytes(), kTestDeviceBytes);
  CUdeviceptr mapped = 0;
  EXPECT_SUCCESS(cuMemHostGetDevicePointer(&mapped, host, 0));
  EXPECT_EQ(mapped, reinterpret_cast<CUdeviceptr>(host));
  unsigned flags = 0;
  EXPECT_SUCCESS(cuMemHostGetFlags(&flags, host));
  EXPECT_EQ(flags, static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&mapped, host, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&mapped, &mapped, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(mapped));
  EXPECT_SUCCESS(cuMemFreeHost(host));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(host));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&host, 1000, 0x100));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocHost(&host, 0));
}

TEST_F(MemoryTest, RegisteredMemory) {
  std::vector<char> memory(10000);
  char* const start = memory.data() + 100;
  EXPECT_SUCCESS(cuMemHostRegister(start, 5000, CU_MEMHOSTREGISTER_PORTABLE));
  EXPECT_CU(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(start + 10, 10, 0));
  EXPECT_CU(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(start - 10, 20, 0));
  EXPECT_SUCCESS(cuMemHostRegister(start + 5000, 10, 0));
  unsigned flags = 0;
  EXPECT_SUCCESS(cuMemHostGetFlags(&flags, start + 4999));
  EXPECT_EQ(flags, static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE));
  CUdeviceptr mapped = 0;
  EXPECT_SUCCESS(cuMemHostGetDevicePointer(&mapped, start, 0));
  EXPECT_EQ(mapped, reinterpret_cast<CUdeviceptr>(start));
  // The device's address is one for copies too, but only as far as it is registered.
  EXPECT_SUCCESS(cuMemsetD8(mapped, 5, 5000));
  EXPECT_EQ(start[4999], 5);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(mapped, 5, 5001));
  EXPECT_CU(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(start + 1));
  EXPECT_SUCCESS(cuMemHostUnregister(start));
  EXPECT_CU(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(start));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(nullptr, 1, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(start, 0, 0));
}

TEST_F(MemoryTest, PointerAttributes) {
  CUdeviceptr device = 0;
  ASSERT_SUCCESS(cuMemAlloc(&device, 100));
  unsigned type = 0;
  EXPECT_SUCCESS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 50));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  CUcontext context = nullptr;
  EXPECT_SUCCESS(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, device));
  EXPECT_EQ(context, context_);
  int ordinal = -1;
  EXPECT_SUCCESS(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device));
  EXPECT_EQ(ordinal, 0);
  // A pointer of the program: the singular form refuses, the plural one answers.
  int local = 0;
  const CUdeviceptr host = reinterpret_cast<CUdeviceptr>(&local);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host));
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  unsigned managed = 9;
  void* data[] = {&type, &ordinal, &managed};
  EXPECT_SUCCESS(cuPointerGetAttributes(3, attributes, data, host));
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, CU_DEVICE_INVALID);
  EXPECT_EQ(managed, 0u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuPointerGetAttribute(&type, static_cast<CUpointer_attribute>(999), device));
}

TEST_F(MemoryTest, VirtualMemory) {
  const CUmemAllocationProp properties = OnDevice(0);
  size_t granularity = 0;
  ASSERT_SUCCESS(
      cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ASSERT_EQ(granularity, 2 * kMiB);
  CUdeviceptr range = 0;
  ASSERT_SUCCESS(cuMemAddressReserve(&range, 8 * kMiB, 0, 0, 0));
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_SUCCESS(cuMemCreate(&handle, 4 * kMiB, &properties, 0));
  EXPECT_EQ(FreeBytes(), kTestDeviceBytes - 4 * kMiB);
  ASSERT_SUCCESS(cuMemMap(range, 4 * kMiB, 0, handle, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(range, 1, 1));  // no access yet
  const CUmemAccessDesc access = {.location = properties.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_SUCCESS(cuMemSetAccess(range, 4 * kMiB, &access, 1));
  EXPECT_SUCCESS(cuMemsetD8(range, 7, 4 * kMiB));
  char byte = 0;
  EXPECT_SUCCESS(cuMemcpyDtoH(&byte, range + 4 * kMiB - 1, 1));
  EXPECT_EQ(byte, 7);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&byte, range + 4 * kMiB, 1));
  unsigned long long flags = 0;
  EXPECT_SUCCESS(cuMemGetAccess(&flags, &properties.location, range));
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  CUmemAllocationProp told = {};
  EXPECT_SUCCESS(cuMemGetAllocationPropertiesFromHandle(&told, handle));
  EXPECT_EQ(told.location.id, 0);
  EXPECT_SUCCESS(cuMemRelease(handle));
  EXPECT_SUCCESS(cuMemUnmap(range, 4 * kMiB));
  EXPECT_EQ(FreeBytes(), kTestDeviceBytes);
  EXPECT_SUCCESS(cuMemAddressFree(range, 8 * kMiB));
  // The same address again, as a session that moves needs it.
  CUdeviceptr again = 0;
  EXPECT_SUCCESS(cuMemAddressReserve(&again, 8 * kMiB, 0, range, 0));
  EXPECT_EQ(again, range);
  EXPECT_SUCCESS(cuMemAddressFree(again, 8 * kMiB));
}

TEST_F(MemoryTest, VirtualMemoryRefusesWhatItCannot) {
  CUmemAllocationProp properties = OnDevice(7);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  properties = OnDevice(0);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 1000, &properties, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 2 * kMiB, &properties, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 2 * kMiB, nullptr, 0));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY,
            cuMemCreate(&handle, kTestDeviceBytes + 2 * kMiB, &properties, 0));
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemRelease(123456));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(0, 2 * kMiB));
}

TEST_F(MemoryTest, StreamOrderedAllocation) {
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr address = 0;
  ASSERT_SUCCESS(cuMemAllocAsync(&address, 100 * kMiB, stream));
  EXPECT_SUCCESS(cuMemsetD8Async(address, 1, 100 * kMiB, stream));
  EXPECT_SUCCESS(cuMemFreeAsync(address, stream));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(address, stream));
  EXPECT_SUCCESS(cuMemFreeAsync(0, stream));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(address));
  // More than is left until the stream has given it back.
  EXPECT_SUCCESS(cuMemAllocAsync(&address, 200 * kMiB, stream));
  EXPECT_SUCCESS(cuMemFree(address));
  EXPECT_SUCCESS(cuStreamSynchronize(stream));
  EXPECT_EQ(FreeBytes(), kTestDeviceBytes);
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&address, 300 * kMiB, stream));
}

TEST_F(MemoryTest, Pools) {
  CUmemoryPool pool = nullptr, current = nullptr;
  ASSERT_SUCCESS(cuDeviceGetDefaultMemPool(&pool, 0));
  EXPECT_SUCCESS(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(pool, current);
  cuuint64_t threshold = 12345;
  EXPECT_SUCCESS(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  threshold = 0;
  EXPECT_SUCCESS(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  EXPECT_EQ(threshold, 12345u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(99), &threshold));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemoryPool own = nullptr;
  ASSERT_SUCCESS(cuMemPoolCreate(&own, &properties));
  EXPECT_SUCCESS(cuDeviceSetMemPool(0, own));
  CUdeviceptr address = 0;
  EXPECT_SUCCESS(cuMemAllocFromPoolAsync(&address, 1000, own, nullptr));
  cuuint64_t used = 0;
  EXPECT_SUCCESS(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 1000u);
  EXPECT_SUCCESS(cuMemFreeAsync(address, nullptr));
  EXPECT_SUCCESS(cuMemPoolTrimTo(own, 0));
  EXPECT_SUCCESS(cuMemPoolDestroy(own));
  EXPECT_SUCCESS(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(pool, current);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, own));
}

TEST_F(MemoryTest, ManagedMemoryIsBothSides) {
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAllocManaged(&memory, 1 << 16, CU_MEM_ATTACH_GLOBAL));
  EXPECT_SUCCESS(cuMemsetD8(memory, 7, 1 << 16));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(reinterpret_cast<char*>(memory)[65535], 7);
  unsigned managed = 0, type = 0;
  void* host = nullptr;
  EXPECT_SUCCESS(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory + 9));
  EXPECT_EQ(managed, 1u);
  EXPECT_SUCCESS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_SUCCESS(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, memory));
  EXPECT_EQ(host, reinterpret_cast<void*>(memory));
  EXPECT_SUCCESS(cuMemFree(memory));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(memory));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&memory, 0, CU_MEM_ATTACH_GLOBAL));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&memory, 16, CU_MEM_ATTACH_SINGLE));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(nullptr, 16, CU_MEM_ATTACH_GLOBAL));
}

TEST_F(MemoryTest, AdviceIsRemembered) {
  CUdeviceptr memory = 0, plain = 0;
  ASSERT_SUCCESS(cuMemAllocManaged(&memory, 8192, CU_MEM_ATTACH_GLOBAL));
  ASSERT_SUCCESS(cuMemAlloc(&plain, 100));
  const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  const CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  const CUmemLocation nowhere = {CU_MEM_LOCATION_TYPE_DEVICE, 7};
  const auto get = [&](CUmem_range_attribute attribute, CUdeviceptr address, size_t size) {
    int value = 99;
    EXPECT_SUCCESS(cuMemRangeGetAttribute(&value, sizeof(value), attribute, address, size));
    return value;
  };
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 8192), 0);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, memory, 8192), CU_DEVICE_INVALID);
  EXPECT_SUCCESS(cuMemAdvise(memory, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, host));
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 4096), 1);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 8192), 0);
  EXPECT_SUCCESS(cuMemAdvise(memory, 8192, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, memory, 8192), CU_DEVICE_CPU);
  EXPECT_SUCCESS(cuMemAdvise(memory, 8192, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
  int who[2] = {};
  EXPECT_SUCCESS(
      cuMemRangeGetAttribute(who, sizeof(who), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory, 8192));
  EXPECT_EQ(who[0], 1);
  EXPECT_EQ(who[1], CU_DEVICE_INVALID);
  EXPECT_SUCCESS(cuMemPrefetchAsync(memory + 4096, 4096, device, 0, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, memory + 4096, 4096), 1);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, memory, 8192), CU_DEVICE_INVALID);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync(memory, 4096, nowhere, 0, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(plain, 100, device, 0, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(memory, 8193, device, 0, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(plain, 100, CU_MEM_ADVISE_SET_READ_MOSTLY, host));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemAdvise(memory, 8192, static_cast<CUmem_advise>(99), host));
  int value = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemRangeGetAttribute(&value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 8192));
}

TEST_F(MemoryTest, BatchesOfRangesArePrefetchedAndDiscarded) {
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAllocManaged(&memory, 16384, CU_MEM_ATTACH_GLOBAL));
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr ranges[] = {memory, memory + 4096, memory + 8192};
  size_t sizes[] = {4096, 4096, 8192};
  CUmemLocation locations[] = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, {CU_MEM_LOCATION_TYPE_HOST, 0}};
  size_t indices[] = {0, 2};
  EXPECT_SUCCESS(cuMemPrefetchBatchAsync(ranges, sizes, 3, locations, indices, 2, 0, stream));
  EXPECT_SUCCESS(cuStreamSynchronize(stream));
  const auto where = [&](CUdeviceptr address) {
    int value = 99;
    EXPECT_SUCCESS(cuMemRangeGetAttribute(
        &value, sizeof(value), CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 4096));
    return value;
  };
  EXPECT_EQ(where(memory), 1);
  EXPECT_EQ(where(memory + 4096), 1);
  EXPECT_EQ(where(memory + 12288), CU_DEVICE_CPU);
  EXPECT_SUCCESS(cuMemDiscardBatchAsync(ranges, sizes, 3, 0, stream));
  EXPECT_SUCCESS(
      cuMemDiscardAndPrefetchBatchAsync(ranges, sizes, 1, locations + 1, indices, 1, 0, stream));
  EXPECT_EQ(where(memory), CU_DEVICE_CPU);
  size_t wrong[] = {1, 2};
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemPrefetchBatchAsync(ranges, sizes, 3, locations, wrong, 2, 0, stream));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemPrefetchBatchAsync(ranges, sizes, 0, locations, indices, 1, 0, stream));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemPrefetchBatchAsync(ranges, sizes, 3, locations, indices, 2, 0, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(ranges, sizes, 3, 1, stream));
  ranges[2] += 8192;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(ranges, sizes, 3, 0, stream));
  EXPECT_SUCCESS(cuStreamDestroy(stream));
}

}  // namespace
}  // namespace fargpu::softgpu
