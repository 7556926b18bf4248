#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "driver.h"

namespace fargpu::server {

// A CUDA driver for tests: memory is the process's own, kernels do nothing but be remembered, and
// what the test asks for fails or waits. Work is done when the call returns, unless events are
// held. Thread-safe.
class FakeDriver : public Driver {
 public:
  static constexpr uint64_t kGranularity = 2 << 20;
  // Every image holds these two kernels and a variable "counter" of 4 bytes.
  // fill(u64 destination, u32 count, u8 value), no_parameters().
  struct Launch {
    std::string kernel;
    std::vector<uint32_t> geometry;  // grid, block, shared bytes
    CUstream stream = nullptr;
    std::vector<std::vector<char>> params;
  };

  explicit FakeDriver(int devices = 1, bool has_vmm = true)
      : devices_(devices), has_vmm_(has_vmm) {}
  ~FakeDriver() override;

  // The next call of `name` returns `result` and does nothing.
  void FailNext(const std::string& name, CUresult result);
  // Calls of `name` wait until Release(name).
  void Hold(const std::string& name);
  void Release(const std::string& name);
  // Waits until `count` calls of `name` are being held.
  bool WaitHeld(const std::string& name, int count = 1);
  // Events that are recorded from now on are not complete until released.
  void HoldEvents();
  void ReleaseEvents();

  // Names of the calls made so far, in order; queries of devices and functions left out.
  std::vector<std::string> calls() const;
  int Count(const std::string& name) const;
  std::vector<Launch> launches() const;
  // Host functions and callbacks that have been called, by a thread each, and not returned.
  int host_functions_running() const { return host_functions_running_.load(); }
  // Text that the next synchronising call prints to stdout, as device printf does.
  void PrintOnSynchronize(const std::string& text);

  CUresult cuInit(unsigned int Flags) override;
  CUresult cuDriverGetVersion(int* driverVersion) override;
  CUresult cuDeviceGetCount(int* count) override;
  CUresult cuDeviceGet(CUdevice* device, int ordinal) override;
  CUresult cuDeviceGetName(char* name, int len, CUdevice dev) override;
  CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) override;
  CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) override;
  CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) override;
  CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) override;
  CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) override;

  CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) override;
  CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) override;
  CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) override;
  CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) override;
  CUresult cuCtxDestroy_v2(CUcontext ctx) override;
  CUresult cuCtxSetCurrent(CUcontext ctx) override;
  CUresult cuCtxPushCurrent_v2(CUcontext ctx) override;
  CUresult cuCtxPopCurrent_v2(CUcontext* pctx) override;
  CUresult cuCtxSynchronize() override;
  CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) override;

  CUresult cuMemGetInfo_v2(size_t* free, size_t* total) override;
  CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                               unsigned long long flags) override;
  CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                         CUmemAllocationGranularity_flags option) override;
  CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                       const CUmemAllocationProp* prop, unsigned long long flags) override;
  CUresult cuMemRelease(CUmemGenericAllocationHandle handle) override;
  CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) override;
  CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) override;
  CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                          size_t count) override;

  CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t bytes) override;
  CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t bytes) override;
  CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes,
                                CUstream stream) override;
  CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) override;
  CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                           CUstream stream) override;
  CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count) override;

  CUresult cuStreamCreate(CUstream* stream, unsigned int flags) override;
  CUresult cuStreamDestroy_v2(CUstream stream) override;
  CUresult cuStreamSynchronize(CUstream stream) override;
  CUresult cuStreamQuery(CUstream stream) override;
  CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) override;
  CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                               unsigned int flags) override;
  CUresult cuEventCreate(CUevent* event, unsigned int flags) override;
  CUresult cuEventRecord(CUevent event, CUstream stream) override;
  CUresult cuEventQuery(CUevent event) override;
  CUresult cuEventSynchronize(CUevent event) override;
  CUresult cuEventDestroy_v2(CUevent event) override;

  CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                             void** jitOptionsValues, unsigned int numJitOptions,
                             CUlibraryOption* libraryOptions, void** libraryOptionValues,
                             unsigned int numLibraryOptions) override;
  CUresult cuLibraryUnload(CUlibrary library) override;
  CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) override;
  CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                     CUlibrary lib) override;
  CUresult cuKernelGetName(const char** name, CUkernel kernel) override;
  CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset,
                                size_t* size) override;
  CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                CUdevice dev) override;
  CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                          unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                          unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                          void** kernelParams, void** extra) override;

 private:
  // Notes the call, waits if it is held, and says what it shall return.
  CUresult Enter(const char* name);
  void Print();
  void CallOnThread(std::function<void()> function);

  const int devices_;
  const bool has_vmm_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, CUresult> failures_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> held_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> waiting_ ABSL_GUARDED_BY(mutex_);
  bool hold_events_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<CUevent> open_events_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0x1000;
  std::vector<Launch> launches_ ABSL_GUARDED_BY(mutex_);
  std::string print_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> host_functions_running_{0};
  std::vector<std::thread> host_threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::server
