#include <thread>

#include "common/cuda_error.h"
#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

using ContextTest = DriverTest;

TEST_F(ContextTest, PrimaryContextCountsReferences) {
  CUcontext again = nullptr;
  EXPECT_SUCCESS(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_EQ(again, context_);
  EXPECT_SUCCESS(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 1;
  int active = 0;
  EXPECT_SUCCESS(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  EXPECT_SUCCESS(cuDevicePrimaryCtxRelease(0));
  EXPECT_SUCCESS(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRelease(5));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxRetain(nullptr, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&again, 2));
  // It is still current, and gone.
  CUdeviceptr address = 0;
  EXPECT_CU(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&address, 1));
}

TEST_F(ContextTest, ResetFreesAllAndTheHandleComesBack) {
  CUdeviceptr address = 0;
  ASSERT_SUCCESS(cuMemAlloc(&address, 100 * kMiB));
  ASSERT_SUCCESS(cuDevicePrimaryCtxReset(0));
  CUcontext again = nullptr;
  ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_EQ(again, context_);
  size_t free = 0, total = 0;
  EXPECT_SUCCESS(cuMemGetInfo(&free, &total));
  EXPECT_EQ(free, kTestDeviceBytes);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(address));
}

TEST_F(ContextTest, AnInactivePrimaryContextMayBeCurrent) {
  const unsigned char kCudart[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                     0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
  CUuuid id;
  __builtin_memcpy(id.bytes, kCudart, sizeof(kCudart));
  const void* table = nullptr;
  ASSERT_SUCCESS(cuGetExportTable(&table, &id));
  using GetPrimary = CUresult (*)(CUcontext*, CUdevice);
  CUcontext second = nullptr;
  ASSERT_SUCCESS(reinterpret_cast<GetPrimary>(static_cast<void* const*>(table)[2])(&second, 1));
  EXPECT_SUCCESS(cuCtxSetCurrent(second));
  CUdevice device = -1;
  EXPECT_SUCCESS(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 1);
  CUcontext retained = nullptr;
  EXPECT_SUCCESS(cuDevicePrimaryCtxRetain(&retained, 1));
  EXPECT_EQ(retained, second);
}

TEST_F(ContextTest, FlagsAreChecked) {
  unsigned flags = 0;
  int active = 0;
  EXPECT_SUCCESS(cuDevicePrimaryCtxSetFlags(1, CU_CTX_SCHED_BLOCKING_SYNC));
  EXPECT_SUCCESS(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(flags, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags(1, 0x8000));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags(1, 3));
  EXPECT_SUCCESS(cuDevicePrimaryCtxSetFlags(1, 0));
}

TEST_F(ContextTest, OwnContextsStackUp) {
  CUcontext first = nullptr, second = nullptr, current = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&first, nullptr, 0, 0));
  ASSERT_SUCCESS(cuCtxCreate(&second, nullptr, CU_CTX_SCHED_SPIN, 1));
  EXPECT_SUCCESS(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, second);
  unsigned flags = 0;
  EXPECT_SUCCESS(cuCtxGetFlags(&flags));
  EXPECT_EQ(flags, static_cast<unsigned>(CU_CTX_SCHED_SPIN));
  CUdevice device = -1;
  EXPECT_SUCCESS(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 1);
  EXPECT_SUCCESS(cuCtxPopCurrent(&current));
  EXPECT_EQ(current, second);
  EXPECT_SUCCESS(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, first);
  EXPECT_SUCCESS(cuCtxPushCurrent(second));
  EXPECT_SUCCESS(cuCtxDestroy(second));
  EXPECT_SUCCESS(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, first);  // destroying pops
  EXPECT_SUCCESS(cuCtxDestroy(first));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(first));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent(first));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(first));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(context_));  // a primary one
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate(&first, nullptr, 0, 9));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCtxCreate(nullptr, nullptr, 0, 0));
  EXPECT_SUCCESS(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context_);
}

TEST_F(ContextTest, PoppingNothingIsAnError) {
  EXPECT_SUCCESS(cuCtxSetCurrent(nullptr));
  CUcontext current = context_;
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&current));
  EXPECT_SUCCESS(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, nullptr);
  CUdevice device = 0;
  CUdeviceptr address = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&address, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

TEST_F(ContextTest, ADestroyedContextStaysCurrentElsewhere) {
  CUcontext own = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&own, nullptr, 0, 0));
  Gate destroyed, set;
  std::thread other([&] {
    EXPECT_SUCCESS(cuCtxSetCurrent(own));
    set.Open();
    EXPECT_TRUE(destroyed.Pass());
    CUdeviceptr address = 0;
    EXPECT_CU(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&address, 1));
    CUcontext popped = nullptr;
    EXPECT_SUCCESS(cuCtxPopCurrent(&popped));
    EXPECT_EQ(popped, own);
  });
  EXPECT_TRUE(set.Pass());
  EXPECT_SUCCESS(cuCtxDestroy(own));
  destroyed.Open();
  other.join();
}

TEST_F(ContextTest, SettingsAreKept) {
  size_t value = 0;
  EXPECT_SUCCESS(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  EXPECT_EQ(value, 1024u);
  EXPECT_SUCCESS(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  EXPECT_SUCCESS(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  EXPECT_EQ(value, 4096u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(static_cast<CUlimit>(99), 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(&value, static_cast<CUlimit>(99)));
  EXPECT_CU(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxSetLimit(CU_LIMIT_SHMEM_SIZE, 1));
  CUfunc_cache cache;
  EXPECT_SUCCESS(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  EXPECT_SUCCESS(cuCtxGetCacheConfig(&cache));
  EXPECT_EQ(cache, CU_FUNC_CACHE_PREFER_L1);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCtxSetCacheConfig(static_cast<CUfunc_cache>(9)));
  int least = 1, greatest = 1;
  EXPECT_SUCCESS(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(greatest, -5);
  unsigned version = 0;
  EXPECT_SUCCESS(cuCtxGetApiVersion(context_, &version));
  EXPECT_EQ(version, 3020u);
  unsigned long long id = 0, other = 0;
  EXPECT_SUCCESS(cuCtxGetId(context_, &id));
  EXPECT_SUCCESS(cuDevicePrimaryCtxReset(0));
  CUcontext again = nullptr;
  EXPECT_SUCCESS(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_SUCCESS(cuCtxGetId(nullptr, &other));
  EXPECT_NE(id, other);  // a context that starts anew is another one
}

TEST_F(ContextTest, PeerAccessIsEnabledOnce) {
  CUcontext peer = nullptr;
  ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&peer, 1));
  EXPECT_CU(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(peer));
  EXPECT_SUCCESS(cuCtxEnablePeerAccess(peer, 0));
  EXPECT_CU(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(peer, 0));
  EXPECT_SUCCESS(cuCtxDisablePeerAccess(peer));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(context_, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(peer, 1));
}

TEST_F(ContextTest, ErrorsOfTheDeviceStayUntilReset) {
  CUdeviceptr address = 0;
  ASSERT_SUCCESS(cuMemAlloc(&address, 16));
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&stream, 0));
  const CUfunction fails = Load(
      "fails", [](const LaunchConfig&) { return CudaError(CUDA_ERROR_ILLEGAL_ADDRESS, "wild"); });
  EXPECT_SUCCESS(Launch(fails));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&address, 16));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoH(&address, address, 8));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(stream));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, Launch(fails));
  // Another context on the device goes on.
  CUcontext own = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&own, nullptr, 0, 0));
  CUdeviceptr other = 0;
  EXPECT_SUCCESS(cuMemAlloc(&other, 16));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_SUCCESS(cuCtxDestroy(own));
  EXPECT_SUCCESS(cuDevicePrimaryCtxReset(0));
  ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context_, 0));
  EXPECT_SUCCESS(cuMemAlloc(&address, 16));
  EXPECT_SUCCESS(cuCtxSynchronize());
}

TEST_F(ContextTest, AFailedContextSkipsWhatIsQueued) {
  Gate gate;
  std::atomic<bool> ran{false};
  const CUfunction fails = Load("fails_late", [&](const LaunchConfig&) {
    gate.Pass();
    return CudaError(CUDA_ERROR_LAUNCH_FAILED, "trap");
  });
  const CUfunction next = Load("next", [&](const LaunchConfig&) {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_SUCCESS(Launch(fails));
  EXPECT_SUCCESS(Launch(next));
  gate.Open();
  EXPECT_CU(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
  EXPECT_FALSE(ran);
}

TEST_F(ContextTest, DestroyingWaitsForWhatIsQueued) {
  CUcontext own = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&own, nullptr, 0, 0));
  std::atomic<int> ran{0};
  const CUfunction slow = Load("slow", [&](const LaunchConfig&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++ran;
    return absl::OkStatus();
  });
  for (int i = 0; i < 5; ++i) EXPECT_SUCCESS(Launch(slow));
  EXPECT_SUCCESS(cuCtxDestroy(own));
  EXPECT_EQ(ran, 5);
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, Launch(slow));
}

TEST_F(ContextTest, DestroyingEndsWhatDoesNotEndAndSkipsTheRest) {
  CUcontext own = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&own, nullptr, 0, 0));
  std::atomic<int> ran{0};
  const CUfunction endless = Load("endless", [&](const LaunchConfig& config) {
    ++ran;
    while (!*config.interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return CudaError(CUDA_ERROR_LAUNCH_FAILED, "interrupted");
  });
  for (int i = 0; i < 3; ++i) EXPECT_SUCCESS(Launch(endless));
  EXPECT_SUCCESS(cuCtxDestroy(own));
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace fargpu::softgpu
