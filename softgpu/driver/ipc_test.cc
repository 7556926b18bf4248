#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"

#include "softgpu/driver/driver_test.h"

extern char** environ;

namespace fargpu::softgpu {
namespace {

template <typename Handle>
std::string ToHex(const Handle& handle) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(&handle), sizeof(handle)));
}

// The other process: this program again, with the handles in its environment.
template <typename Handle>
bool FromEnvironment(const char* name, Handle* handle) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return false;
  const std::string bytes = absl::HexStringToBytes(text);
  std::memcpy(handle, bytes.data(), sizeof(*handle));
  return true;
}

int RunOther(const char* test) {
  const std::string filter = std::string("--gtest_filter=IpcTest.") + test;
  const char* arguments[] = {"/proc/self/exe", filter.c_str(), nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments),
                  environ) != 0) {
    return -1;
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

using IpcTest = DriverTest;

TEST_F(IpcTest, MemoryAndEventsCross) {
  CUipcMemHandle memory_handle = {};
  CUipcEventHandle event_handle = {};
  if (FromEnvironment("FARGPU_TEST_MEMORY", &memory_handle)) {
    ASSERT_TRUE(FromEnvironment("FARGPU_TEST_EVENT", &event_handle));
    CUdeviceptr memory = 0;
    ASSERT_SUCCESS(cuIpcOpenMemHandle(&memory, memory_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CUevent event = nullptr;
    ASSERT_SUCCESS(cuIpcOpenEventHandle(&event, event_handle));
    ASSERT_SUCCESS(cuStreamWaitEvent(nullptr, event, 0));
    char value = 0;
    ASSERT_SUCCESS(cuMemcpyDtoH(&value, memory + 999, 1));
    EXPECT_EQ(value, 5);
    ASSERT_SUCCESS(cuMemsetD8(memory, 6, 1000));
    ASSERT_SUCCESS(cuEventRecord(event, nullptr));
    ASSERT_SUCCESS(cuEventSynchronize(event));
    EXPECT_SUCCESS(cuIpcCloseMemHandle(memory));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(memory));
    return;
  }
  CUdeviceptr before = 0, memory = 0;
  ASSERT_SUCCESS(cuMemAlloc(&before, 1000));
  ASSERT_SUCCESS(cuMemAlloc(&memory, 1000));
  ASSERT_SUCCESS(cuMemsetD8(before, 1, 1000));
  ASSERT_SUCCESS(cuMemsetD8(memory, 5, 1000));
  ASSERT_SUCCESS(cuIpcGetMemHandle(&memory_handle, memory));
  CUevent event = nullptr;
  ASSERT_SUCCESS(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  ASSERT_SUCCESS(cuIpcGetEventHandle(&event_handle, event));
  ASSERT_SUCCESS(cuEventRecord(event, nullptr));
  setenv("FARGPU_TEST_MEMORY", ToHex(memory_handle).c_str(), 1);
  setenv("FARGPU_TEST_EVENT", ToHex(event_handle).c_str(), 1);
  EXPECT_EQ(RunOther("MemoryAndEventsCross"), 0);
  unsetenv("FARGPU_TEST_MEMORY");
  EXPECT_SUCCESS(cuEventQuery(event));
  char value = 0;
  EXPECT_SUCCESS(cuMemcpyDtoH(&value, memory + 999, 1));
  EXPECT_EQ(value, 6);
  EXPECT_SUCCESS(cuMemcpyDtoH(&value, before + 999, 1));
  EXPECT_EQ(value, 1);
}

TEST_F(IpcTest, HandlesAreChecked) {
  CUdeviceptr memory = 0, opened = 0;
  ASSERT_SUCCESS(cuMemAlloc(&memory, 3 * kMiB));
  CUipcMemHandle handle = {};
  ASSERT_SUCCESS(cuIpcGetMemHandle(&handle, memory));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT,
            cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&opened, handle, 0));
  handle = {};
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, 4096));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(memory));
  CUevent event = nullptr;
  ASSERT_SUCCESS(cuEventCreate(&event, 0));
  CUipcEventHandle event_handle = {};
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&event_handle, event));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuIpcOpenEventHandle(&event, event_handle));
}

TEST_F(IpcTest, PhysicalMemoryByDescriptor) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle physical = 0, imported = 0;
  ASSERT_SUCCESS(cuMemCreate(&physical, 2 * kMiB, &properties, 0));
  int fd = -1;
  ASSERT_SUCCESS(
      cuMemExportToShareableHandle(&fd, physical, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_SUCCESS(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{fd}),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CUmemAllocationProp seen = {};
  EXPECT_SUCCESS(cuMemGetAllocationPropertiesFromHandle(&seen, imported));
  EXPECT_EQ(seen.location.id, 1);
  EXPECT_EQ(seen.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  // Both handles are the same bytes.
  CUdeviceptr range = 0;
  ASSERT_SUCCESS(cuMemAddressReserve(&range, 4 * kMiB, 0, 0, 0));
  ASSERT_SUCCESS(cuMemMap(range, 2 * kMiB, 0, physical, 0));
  ASSERT_SUCCESS(cuMemMap(range + 2 * kMiB, 2 * kMiB, 0, imported, 0));
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_SUCCESS(cuMemSetAccess(range, 4 * kMiB, &access, 1));
  ASSERT_SUCCESS(cuMemsetD8(range, 9, 2 * kMiB));
  char value = 0;
  EXPECT_SUCCESS(cuMemcpyDtoH(&value, range + 4 * kMiB - 1, 1));
  EXPECT_EQ(value, 9);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{0}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED,
            cuMemExportToShareableHandle(&fd, physical, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  CUmemGenericAllocationHandle plain = 0;
  ASSERT_SUCCESS(cuMemCreate(&plain, 2 * kMiB, &properties, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_SUCCESS(cuMemUnmap(range, 4 * kMiB));
  close(fd);
  for (CUmemGenericAllocationHandle handle : {physical, imported, plain}) {
    EXPECT_SUCCESS(cuMemRelease(handle));
  }
  EXPECT_SUCCESS(cuMemAddressFree(range, 4 * kMiB));
}

TEST_F(IpcTest, PoolsByDescriptor) {
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr, imported = nullptr;
  ASSERT_SUCCESS(cuMemPoolCreate(&pool, &properties));
  int fd = -1;
  ASSERT_SUCCESS(
      cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_SUCCESS(cuMemPoolImportFromShareableHandle(&imported,
                                                    reinterpret_cast<void*>(intptr_t{fd}),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUdeviceptr memory = 0, same = 0;
  ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&memory, 5000, pool, nullptr));
  CUmemPoolPtrExportData data = {};
  ASSERT_SUCCESS(cuMemPoolExportPointer(&data, memory));
  ASSERT_SUCCESS(cuMemPoolImportPointer(&same, imported, &data));
  ASSERT_SUCCESS(cuMemsetD8(memory, 4, 5000));
  char value = 0;
  EXPECT_SUCCESS(cuMemcpyDtoH(&value, same + 4999, 1));
  EXPECT_EQ(value, 4);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemPoolImportPointer(&same, pool, &data));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&memory, 16, imported, nullptr));
  EXPECT_SUCCESS(cuMemFreeAsync(same, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  CUmemoryPool plain = nullptr;
  ASSERT_SUCCESS(cuDeviceGetDefaultMemPool(&plain, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportToShareableHandle(
                                          &fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(fd);
}

}  // namespace
}  // namespace fargpu::softgpu
