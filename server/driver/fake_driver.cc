#include "server/driver/fake_driver.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace fargpu::server {
namespace {

// Handles of kernels are places in this table; libraries and the like are running numbers.
struct KernelDescription {
  const char* name;
  std::vector<std::pair<size_t, size_t>> params;  // offset, size
};
const KernelDescription kKernels[] = {{"fill", {{0, 8}, {8, 4}, {12, 1}}}, {"no_parameters", {}}};

const KernelDescription* Describe(const void* kernel) {
  for (const KernelDescription& description : kKernels) {
    if (kernel == &description) return &description;
  }
  return nullptr;
}

thread_local std::vector<CUcontext> current_contexts;  // NOLINT: a driver's state is per thread

void FillUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, 0x40 + device, sizeof(uuid->bytes));
}

}  // namespace

CUresult FakeDriver::Enter(const char* name) {
  MutexLock lock(&mutex_);
  calls_.push_back(name);
  ++waiting_[name];
  changed_.SignalAll();
  // A test that forgets to release must not hang for ever.
  for (int seconds = 0; held_.count(name) != 0 && seconds < 60; ++seconds) {
    changed_.WaitFor(&mutex_, std::chrono::seconds(1));
  }
  --waiting_[name];
  const auto failure = failures_.find(name);
  if (failure == failures_.end()) return CUDA_SUCCESS;
  const CUresult result = failure->second;
  failures_.erase(failure);
  return result;
}

#define FAKE_ENTER(name)                                             \
  do {                                                               \
    if (const CUresult r = Enter(name); r != CUDA_SUCCESS) return r; \
  } while (false)

void FakeDriver::FailNext(const std::string& name, CUresult result) {
  MutexLock lock(&mutex_);
  failures_[name] = result;
}
void FakeDriver::Hold(const std::string& name) {
  MutexLock lock(&mutex_);
  held_.insert(name);
}
void FakeDriver::Release(const std::string& name) {
  MutexLock lock(&mutex_);
  held_.erase(name);
  changed_.SignalAll();
}
bool FakeDriver::WaitHeld(const std::string& name, int count) {
  MutexLock lock(&mutex_);
  for (int i = 0; i < 100 && waiting_[name] < count; ++i) {
    changed_.WaitFor(&mutex_, std::chrono::milliseconds(100));
  }
  return waiting_[name] >= count;
}
void FakeDriver::HoldEvents() {
  MutexLock lock(&mutex_);
  hold_events_ = true;
}
void FakeDriver::ReleaseEvents() {
  MutexLock lock(&mutex_);
  hold_events_ = false;
  open_events_.clear();
  changed_.SignalAll();
}
std::vector<std::string> FakeDriver::calls() const {
  MutexLock lock(&mutex_);
  return calls_;
}
int FakeDriver::Count(const std::string& name) const {
  MutexLock lock(&mutex_);
  return static_cast<int>(std::count(calls_.begin(), calls_.end(), name));
}
std::vector<FakeDriver::Launch> FakeDriver::launches() const {
  MutexLock lock(&mutex_);
  return launches_;
}
void FakeDriver::PrintOnSynchronize(const std::string& text) {
  MutexLock lock(&mutex_);
  print_ = text;
}
void FakeDriver::Print() {
  MutexLock lock(&mutex_);
  std::fwrite(print_.data(), 1, print_.size(), stdout);
  print_.clear();
}

CUresult FakeDriver::cuInit(unsigned int Flags) { return Enter("cuInit"); }
CUresult FakeDriver::cuDriverGetVersion(int* driverVersion) {
  *driverVersion = 13000;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceGetCount(int* count) {
  *count = devices_;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices_) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceGetName(char* name, int len, CUdevice dev) {
  std::snprintf(name, static_cast<size_t>(len), "Fake Card %d", dev);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  FillUuid(uuid, dev);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  FillUuid(uuid, dev);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  *bytes = size_t{8} << 30;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  *pi = attrib == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            ? (has_vmm_ ? 1 : 0)
            : static_cast<int>(attrib) * 10 + dev;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  std::snprintf(pciBusId, static_cast<size_t>(len), "0000:%02x:00.0", dev + 1);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  FAKE_ENTER("cuDevicePrimaryCtxRetain");
  *pctx = reinterpret_cast<CUcontext>(uintptr_t{0x100} + static_cast<uintptr_t>(dev));
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return Enter("cuDevicePrimaryCtxRelease_v2");
}
CUresult FakeDriver::cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return Enter("cuDevicePrimaryCtxReset_v2");
}
CUresult FakeDriver::cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  FAKE_ENTER("cuCtxCreate_v2");
  MutexLock lock(&mutex_);
  *pctx = reinterpret_cast<CUcontext>(++last_handle_);
  current_contexts.push_back(*pctx);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuCtxDestroy_v2(CUcontext ctx) { return Enter("cuCtxDestroy_v2"); }
CUresult FakeDriver::cuCtxSetCurrent(CUcontext ctx) {
  FAKE_ENTER("cuCtxSetCurrent");
  current_contexts.assign(1, ctx);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuCtxPushCurrent_v2(CUcontext ctx) {
  current_contexts.push_back(ctx);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuCtxPopCurrent_v2(CUcontext* pctx) {
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *pctx = current_contexts.back();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuCtxSynchronize() {
  FAKE_ENTER("cuCtxSynchronize");
  Print();
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult FakeDriver::cuMemGetInfo_v2(size_t* free, size_t* total) {
  FAKE_ENTER("cuMemGetInfo_v2");
  *free = *total = size_t{8} << 30;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment,
                                         CUdeviceptr addr, unsigned long long flags) {
  FAKE_ENTER("cuMemAddressReserve");
  char* memory = static_cast<char*>(mmap(nullptr, size + alignment, PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory);
  *ptr = (start + alignment - 1) / alignment * alignment;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemGetAllocationGranularity(size_t* granularity,
                                                   const CUmemAllocationProp* prop,
                                                   CUmemAllocationGranularity_flags option) {
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                                 const CUmemAllocationProp* prop, unsigned long long flags) {
  FAKE_ENTER("cuMemCreate");
  MutexLock lock(&mutex_);
  *handle = ++last_handle_;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Enter("cuMemRelease");
}
CUresult FakeDriver::cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  FAKE_ENTER("cuMemMap");
  void* memory = mmap(reinterpret_cast<void*>(ptr), size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemUnmap(CUdeviceptr ptr, size_t size) {
  FAKE_ENTER("cuMemUnmap");
  mmap(reinterpret_cast<void*>(ptr), size, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                                    size_t count) {
  return Enter("cuMemSetAccess");
}

CUresult FakeDriver::cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t bytes) {
  FAKE_ENTER("cuMemcpyHtoD_v2");
  std::memcpy(reinterpret_cast<void*>(dst), src, bytes);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t bytes) {
  FAKE_ENTER("cuMemcpyDtoH_v2");
  std::memcpy(dst, reinterpret_cast<void*>(src), bytes);
  Print();
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes,
                                          CUstream stream) {
  FAKE_ENTER("cuMemcpyHtoDAsync_v2");
  std::memcpy(reinterpret_cast<void*>(dst), src, bytes);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes,
                                          CUstream stream) {
  FAKE_ENTER("cuMemcpyDtoHAsync_v2");
  std::memcpy(dst, reinterpret_cast<void*>(src), bytes);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                                     CUstream stream) {
  FAKE_ENTER("cuMemsetD8Async");
  std::memset(reinterpret_cast<void*>(dst), value, count);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count) {
  FAKE_ENTER("cuMemsetD8_v2");
  std::memset(reinterpret_cast<void*>(dst), value, count);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::cuStreamCreate(CUstream* stream, unsigned int flags) {
  FAKE_ENTER("cuStreamCreate");
  MutexLock lock(&mutex_);
  *stream = reinterpret_cast<CUstream>(++last_handle_);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuStreamDestroy_v2(CUstream stream) { return Enter("cuStreamDestroy_v2"); }
CUresult FakeDriver::cuStreamSynchronize(CUstream stream) {
  FAKE_ENTER("cuStreamSynchronize");
  Print();
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuStreamQuery(CUstream stream) { return Enter("cuStreamQuery"); }
void FakeDriver::CallOnThread(std::function<void()> function) {
  host_functions_running_.fetch_add(1);
  MutexLock lock(&mutex_);
  host_threads_.emplace_back([this, function = std::move(function)] {
    function();
    host_functions_running_.fetch_sub(1);
  });
}
CUresult FakeDriver::cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  FAKE_ENTER("cuLaunchHostFunc");
  CallOnThread([function, data] { function(data); });
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                                         unsigned int flags) {
  FAKE_ENTER("cuStreamAddCallback");
  CallOnThread([stream, callback, data] { callback(stream, CUDA_SUCCESS, data); });
  return CUDA_SUCCESS;
}
FakeDriver::~FakeDriver() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    threads.swap(host_threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

CUresult FakeDriver::cuEventCreate(CUevent* event, unsigned int flags) {
  FAKE_ENTER("cuEventCreate");
  MutexLock lock(&mutex_);
  *event = reinterpret_cast<CUevent>(++last_handle_);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuEventRecord(CUevent event, CUstream stream) {
  FAKE_ENTER("cuEventRecord");
  MutexLock lock(&mutex_);
  if (hold_events_) open_events_.insert(event);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuEventQuery(CUevent event) {
  MutexLock lock(&mutex_);
  return open_events_.count(event) != 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult FakeDriver::cuEventSynchronize(CUevent event) {
  FAKE_ENTER("cuEventSynchronize");
  MutexLock lock(&mutex_);
  for (int i = 0; i < 60 && open_events_.count(event) != 0; ++i) {
    changed_.WaitFor(&mutex_, std::chrono::seconds(1));
  }
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuEventDestroy_v2(CUevent event) { return Enter("cuEventDestroy_v2"); }

CUresult FakeDriver::cuLibraryLoadData(CUlibrary* library, const void* code,
                                       CUjit_option* jitOptions, void** jitOptionsValues,
                                       unsigned int numJitOptions, CUlibraryOption* libraryOptions,
                                       void** libraryOptionValues, unsigned int numLibraryOptions) {
  FAKE_ENTER("cuLibraryLoadData");
  MutexLock lock(&mutex_);
  *library = reinterpret_cast<CUlibrary>(++last_handle_);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuLibraryUnload(CUlibrary library) { return Enter("cuLibraryUnload"); }
CUresult FakeDriver::cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  *count = std::size(kKernels);
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                               CUlibrary lib) {
  for (unsigned int i = 0; i < numKernels && i < std::size(kKernels); ++i) {
    kernels[i] = reinterpret_cast<CUkernel>(const_cast<KernelDescription*>(&kKernels[i]));
  }
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuKernelGetName(const char** name, CUkernel kernel) {
  const KernelDescription* description = Describe(kernel);
  if (description == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = description->name;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset,
                                          size_t* size) {
  const KernelDescription* description = Describe(kernel);
  if (description == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= description->params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = description->params[index].first;
  *size = description->params[index].second;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuKernelGetAttribute(int* value, CUfunction_attribute attribute,
                                          CUkernel kernel, CUdevice dev) {
  *value = static_cast<int>(attribute) + 100;
  return CUDA_SUCCESS;
}
CUresult FakeDriver::cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                    unsigned int gridDimZ, unsigned int blockDimX,
                                    unsigned int blockDimY, unsigned int blockDimZ,
                                    unsigned int sharedMemBytes, CUstream hStream,
                                    void** kernelParams, void** extra) {
  FAKE_ENTER("cuLaunchKernel");
  const KernelDescription* description = Describe(f);
  if (description == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Launch launch = {
      .kernel = description->name,
      .geometry = {gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes},
      .stream = hStream,
      .params = {}};
  for (size_t i = 0; i < description->params.size(); ++i) {
    const char* bytes = static_cast<const char*>(kernelParams[i]);
    launch.params.emplace_back(bytes, bytes + description->params[i].second);
  }
  if (launch.kernel == "fill") {
    uint64_t destination = 0;
    uint32_t count = 0;
    std::memcpy(&destination, kernelParams[0], 8);
    std::memcpy(&count, kernelParams[1], 4);
    std::memset(reinterpret_cast<void*>(destination), *static_cast<char*>(kernelParams[2]), count);
  }
  MutexLock lock(&mutex_);
  launches_.push_back(std::move(launch));
  return CUDA_SUCCESS;
}

}  // namespace fargpu::server
