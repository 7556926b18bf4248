#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <cudaProfiler.h>
#include <thread>

#include "protocol/driver_abi/caller.h"
#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

using ::testing::StrEq;

// Named to run before any test that calls cuInit.
TEST(AaaBeforeInitTest, CallsSayNotInitialized) {
  int number = 0;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&number));
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&context));
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&address, 1));
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuStreamSynchronize(nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuGraphCreate(nullptr, 0));
  EXPECT_SUCCESS(cuDriverGetVersion(&number));
  EXPECT_EQ(number, 13000);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDriverGetVersion(nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuInit(1));
}

// A child of a process that never used CUDA starts afresh.
TEST(AaaBeforeInitTest, ForkBeforeInitWorks) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int count = 0;
    _exit(cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 2 ? 0
                                                                                              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(AaaBeforeInitTest, NoVisibleDeviceIsNoDevice) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);
    int count = 0;
    _exit(cuInit(0) == CUDA_ERROR_NO_DEVICE &&
                  cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

using DeviceTest = DriverTest;

TEST_F(DeviceTest, ForkAfterInitIsRefusedInTheChild) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int count = 0;
    _exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                  cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  int count = 0;
  EXPECT_SUCCESS(cuDeviceGetCount(&count));
}

TEST_F(DeviceTest, CountsAndNames) {
  int count = 0;
  EXPECT_SUCCESS(cuInit(0));
  EXPECT_SUCCESS(cuDeviceGetCount(&count));
  EXPECT_EQ(count, 2);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(nullptr));
  CUdevice device = -1;
  EXPECT_SUCCESS(cuDeviceGet(&device, 1));
  EXPECT_EQ(device, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 2));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, -1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGet(nullptr, 0));
  char name[64];
  EXPECT_SUCCESS(cuDeviceGetName(name, sizeof(name), 0));
  EXPECT_THAT(name, StrEq("Test Card"));
  EXPECT_SUCCESS(cuDeviceGetName(name, 5, 0));
  EXPECT_THAT(name, StrEq("Test"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetName(name, 0, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetName(nullptr, 1, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, 5, 2));
  size_t bytes = 0;
  EXPECT_SUCCESS(cuDeviceTotalMem(&bytes, 1));
  EXPECT_EQ(bytes, kTestDeviceBytes);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem(&bytes, 7));
}

TEST_F(DeviceTest, AttributesAgreeWithEachOther) {
  const auto get = [](int attribute) {
    int value = -12345;
    EXPECT_SUCCESS(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), 0));
    return value;
  };
  EXPECT_EQ(get(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
  EXPECT_EQ(get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
  EXPECT_EQ(get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 12);
  EXPECT_EQ(get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 4);
  EXPECT_EQ(get(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
  EXPECT_EQ(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK), 48 << 10);
  EXPECT_LE(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) +
                get(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
            get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  EXPECT_EQ(get(100000), 0);  // from the future
  EXPECT_EQ(get(-5), 0);
  int value = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE,
            cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2));
}

TEST_F(DeviceTest, UuidAndPciIdNameACard) {
  CUuuid first, second;
  EXPECT_SUCCESS(cuDeviceGetUuid(&first, 0));
  EXPECT_SUCCESS(cuDeviceGetUuid(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof(first)), 0);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetUuid(nullptr, 0));
  char id[16];
  // CUDA_VISIBLE_DEVICES (driver_test_environment.cc) hides 0000:11:00.0.
  EXPECT_SUCCESS(cuDeviceGetPCIBusId(id, sizeof(id), 1));
  EXPECT_THAT(id, StrEq("0000:12:00.0"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetPCIBusId(id, 12, 1));
  CUdevice device = -1;
  EXPECT_SUCCESS(cuDeviceGetByPCIBusId(&device, "0000:12:00.0"));
  EXPECT_EQ(device, 1);
  EXPECT_SUCCESS(cuDeviceGetByPCIBusId(&device, "10:00"));
  EXPECT_EQ(device, 0);
  EXPECT_SUCCESS(cuDeviceGetByPCIBusId(&device, "0:12:0"));
  EXPECT_EQ(device, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&device, "0000:11:00.0"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&device, "card"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&device, nullptr));
}

TEST_F(DeviceTest, PeersReachEachOther) {
  int can = -1;
  EXPECT_SUCCESS(cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_SUCCESS(cuDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(can, 0);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, 0, 2));
}

TEST_F(DeviceTest, ErrorNames) {
  const char* text = nullptr;
  EXPECT_SUCCESS(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_THAT(text, StrEq("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_SUCCESS(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_THAT(text, StrEq("out of memory"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(static_cast<CUresult>(4711), &text));
  EXPECT_EQ(text, nullptr);
}

TEST_F(DeviceTest, ProcAddressFindsTheAbiOfAVersion) {
  const auto find = [](const char* name, int version, cuuint64_t flags) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status;
    EXPECT_SUCCESS(cuGetProcAddress(name, &function, version, flags, &status)) << name;
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    return function;
  };
  EXPECT_EQ(find("cuMemAlloc", 13000, 0), reinterpret_cast<void*>(&cuMemAlloc));
  EXPECT_NE(find("cuMemAlloc", 2000, 0), reinterpret_cast<void*>(&cuMemAlloc));
  EXPECT_NE(find("cuLaunchKernel", 13000, 2), find("cuLaunchKernel", 13000, 0));
  EXPECT_NE(find("cuCtxGetDevice", 13000, 0), find("cuCtxGetDevice", 2000, 0));
  void* function = &function;
  CUdriverProcAddressQueryResult status;
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, &status));
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST_F(DeviceTest, WhatIsMissingRefuses) {
  CUexternalMemory memory = nullptr;
  const CUDA_EXTERNAL_MEMORY_HANDLE_DESC descriptor = {};
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalMemory(&memory, &descriptor));
  EXPECT_SUCCESS(cuProfilerStart());
  EXPECT_SUCCESS(cuProfilerStop());
}

TEST_F(DeviceTest, ExportTablesOfTheRuntime) {
  const unsigned char kCudart[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                     0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
  CUuuid id;
  std::memcpy(id.bytes, kCudart, sizeof(kCudart));
  const void* table = nullptr;
  ASSERT_SUCCESS(cuGetExportTable(&table, &id));
  using GetPrimary = CUresult (*)(CUcontext*, CUdevice);
  const auto get = reinterpret_cast<GetPrimary>(static_cast<void* const*>(table)[2]);
  CUcontext primary = nullptr;
  EXPECT_SUCCESS(get(&primary, 0));
  EXPECT_EQ(primary, context_);
  id.bytes[0] = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGetExportTable(&table, &id));
}

TEST_F(DeviceTest, LibrariesAreToldAnotherCapability) {
  int major = 0;
  EXPECT_SUCCESS(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  EXPECT_EQ(major, 12);
  // What a worker asks for.
  major = 0;
  EXPECT_SUCCESS(cuDeviceGetAttribute(
      &major, static_cast<CUdevice_attribute>(driver_abi::kProgramCapabilityMajor), 0));
  EXPECT_EQ(major, 12);
}

}  // namespace
}  // namespace fargpu::softgpu
