// What is set, or asked, and never leaves the process: core dumps, checkpoints, notifications, the
// profiler, execution affinity.

#include <unistd.h>

#include <cstring>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/mutex.h"
#include "local_calls.h"
#include "protocol/array_format.h"
#include "protocol/driver_abi/local/edge.h"

namespace fargpu::driver_abi::local {
namespace {

constexpr size_t kMostPathBytes = 1023;
constexpr unsigned kKnownDumpFlags = CU_COREDUMP_LIGHTWEIGHT_FLAGS | CU_COREDUMP_SKIP_ABORT;

// Settings of core dumps of one context, or of the process. No dump is ever written: what would
// switch one on is refused, the rest is kept for whoever asks.
struct DumpSettings {
  bool trigger_host = true;
  bool lightweight = false;
  int flags = CU_COREDUMP_DEFAULT_FLAGS;
  std::string file = DefaultName("core.cuda.");
  std::string pipe = DefaultName("corepipe.cuda.");

  static std::string DefaultName(const char* prefix) {
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    return absl::StrCat(prefix, host, ".", getpid());
  }
};

struct Settings {
  Mutex mutex;
  DumpSettings process ABSL_GUARDED_BY(mutex);
  std::map<unsigned long long, DumpSettings> contexts ABSL_GUARDED_BY(mutex);  // by id
  uintptr_t last_notification ABSL_GUARDED_BY(mutex) = 0;
  std::map<uintptr_t, CUdevice> notifications ABSL_GUARDED_BY(mutex);
};

// Never destroyed: calls come in until the process has ended.
Settings& TheSettings() {
  static auto* const settings = new Settings;
  return *settings;
}

template <typename T>
CUresult Give(const T& setting, void* value, size_t* size) {
  if (*size < sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(value, &setting, sizeof(T));
  *size = sizeof(T);
  return CUDA_SUCCESS;
}

CUresult Give(const std::string& setting, void* value, size_t* size) {
  if (*size < setting.size() + 1) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(value, setting.c_str(), setting.size() + 1);
  *size = setting.size() + 1;
  return CUDA_SUCCESS;
}

CUresult GetDumpSetting(const DumpSettings& settings, CUcoredumpSettings which, void* value,
                        size_t* size) {
  if (value == nullptr || size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
      return Give(false, value, size);
    case CU_COREDUMP_TRIGGER_HOST:
      return Give(settings.trigger_host, value, size);
    case CU_COREDUMP_LIGHTWEIGHT:
      return Give(settings.lightweight, value, size);
    case CU_COREDUMP_FILE:
      return Give(settings.file, value, size);
    case CU_COREDUMP_PIPE:
      return Give(settings.pipe, value, size);
    case CU_COREDUMP_GENERATION_FLAGS:
      return Give(settings.flags, value, size);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

template <typename T>
CUresult Take(const void* value, const size_t* size, T* setting) {
  if (*size < sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(setting, value, sizeof(T));
  return CUDA_SUCCESS;
}

CUresult Take(const void* value, const size_t* size, std::string* setting) {
  const auto* const text = static_cast<const char*>(value);
  const size_t length = strnlen(text, *size);
  if (length > kMostPathBytes) return CUDA_ERROR_INVALID_VALUE;
  setting->assign(text, length);
  return CUDA_SUCCESS;
}

CUresult SetDumpSetting(DumpSettings& settings, CUcoredumpSettings which, const void* value,
                        const size_t* size, bool of_context) {
  if (value == nullptr || size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
    case CU_COREDUMP_PIPE:
      // These two are settings of the process.
      if (of_context) return CUDA_ERROR_NOT_PERMITTED;
      [[fallthrough]];
    case CU_COREDUMP_ENABLE_ON_EXCEPTION: {
      if (which == CU_COREDUMP_PIPE) return Take(value, size, &settings.pipe);
      bool enabled = false;
      FARGPU_RETURN_IF_FAILED(Take(value, size, &enabled));
      return enabled ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    }
    case CU_COREDUMP_TRIGGER_HOST:
      return Take(value, size, &settings.trigger_host);
    case CU_COREDUMP_LIGHTWEIGHT:
      return Take(value, size, &settings.lightweight);
    case CU_COREDUMP_FILE:
      return Take(value, size, &settings.file);
    case CU_COREDUMP_GENERATION_FLAGS: {
      int flags = 0;
      FARGPU_RETURN_IF_FAILED(Take(value, size, &flags));
      if ((static_cast<unsigned>(flags) & ~kKnownDumpFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
      settings.flags = flags;
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Runs body(settings) with those of the current context, which begin as the process's.
template <typename Body>
CUresult WithContextSettings(Body body) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckContext());
    unsigned long long id = 0;
    FARGPU_RETURN_IF_FAILED(::cuCtxGetId(nullptr, &id));
    Settings& settings = TheSettings();
    MutexLock lock(&settings.mutex);
    return body(settings.contexts.try_emplace(id, settings.process).first->second);
  });
}

template <typename Body>
CUresult WithProcessSettings(Body body) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckInitialised());
    Settings& settings = TheSettings();
    MutexLock lock(&settings.mutex);
    return body(settings.process);
  });
}

CUresult CheckDevice(CUdevice device) {
  int value = 0;
  return ::cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
}

// Pools are of pinned memory on a device.
CUresult CheckPoolPlace(const CUmemLocation* location, CUmemAllocationType type) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult cuCoredumpGetAttribute(CUcoredumpSettings attrib, void* value, size_t* size) {
  return WithContextSettings(
      [&](const DumpSettings& settings) { return GetDumpSetting(settings, attrib, value, size); });
}

CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, void* value, size_t* size) {
  return WithProcessSettings(
      [&](const DumpSettings& settings) { return GetDumpSetting(settings, attrib, value, size); });
}

CUresult cuCoredumpSetAttribute(CUcoredumpSettings attrib, void* value, size_t* size) {
  return WithContextSettings([&](DumpSettings& settings) {
    return SetDumpSetting(settings, attrib, value, size, /*of_context=*/true);
  });
}

CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, void* value, size_t* size) {
  return WithProcessSettings([&](DumpSettings& settings) {
    return SetDumpSetting(settings, attrib, value, size, /*of_context=*/false);
  });
}

// Processes cannot be checkpointed, so that ours is always running. Others are not ours to ask.
CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  if (state == nullptr || pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (pid != getpid()) return CUDA_ERROR_NOT_SUPPORTED;
  *state = CU_PROCESS_STATE_RUNNING;
  return CUDA_SUCCESS;
}

// cuda.h: so it answers since CUDA 12.
CUresult cuProfilerInitialize(const char* configFile, const char* outputFile,
                              CUoutput_mode outputMode) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Memory of a card is never taken back from the program, which is all that there is to be told of.
CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callbackFunc,
                                           void* userData, CUasyncCallbackHandle* callback) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckInitialised());
    FARGPU_RETURN_IF_FAILED(CheckDevice(device));
    if (callbackFunc == nullptr || callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Settings& settings = TheSettings();
    MutexLock lock(&settings.mutex);
    const uintptr_t id = ++settings.last_notification;
    settings.notifications[id] = device;
    *callback = reinterpret_cast<CUasyncCallbackHandle>(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckInitialised());
    FARGPU_RETURN_IF_FAILED(CheckDevice(device));
    Settings& settings = TheSettings();
    MutexLock lock(&settings.mutex);
    const auto found = settings.notifications.find(reinterpret_cast<uintptr_t>(callback));
    if (found == settings.notifications.end() || found->second != device) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    settings.notifications.erase(found);
    return CUDA_SUCCESS;
  });
}

// A context may use all multiprocessors that there are; only MPS could limit it.
CUresult cuCtxGetExecAffinity(CUexecAffinityParam* pExecAffinity, CUexecAffinityType type) {
  FARGPU_RETURN_IF_FAILED(CheckContext());
  if (pExecAffinity == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  if (pi == nullptr || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
  FARGPU_RETURN_IF_FAILED(CheckDevice(dev));
  *pi = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format format,
                                            unsigned numChannels, CUdevice dev) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  if (maxWidthInElements == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FARGPU_RETURN_IF_FAILED(CheckDevice(dev));
  if ((numChannels != 1 && numChannels != 2 && numChannels != 4) ||
      ArrayElementBytes(format, numChannels) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int most = 0;
  FARGPU_RETURN_IF_FAILED(
      ::cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, dev));
  *maxWidthInElements = static_cast<size_t>(most);
  return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                CUmemAllocationType type) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FARGPU_RETURN_IF_FAILED(CheckPoolPlace(location, type));
  return ::cuDeviceGetDefaultMemPool(pool_out, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FARGPU_RETURN_IF_FAILED(CheckPoolPlace(location, type));
  return ::cuDeviceGetMemPool(pool, location->id);
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  FARGPU_RETURN_IF_FAILED(CheckPoolPlace(location, type));
  return ::cuDeviceSetMemPool(location->id, pool);
}

// No card of ours has CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, and then there is none.
CUresult cuLibraryGetUnifiedFunction(void** fptr, CUlibrary library, const char* symbol) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  if (fptr == nullptr || symbol == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned kernels = 0;
  FARGPU_RETURN_IF_FAILED(::cuLibraryGetKernelCount(&kernels, library));
  return CUDA_ERROR_NOT_FOUND;
}

// No link to a host does atomic operations of its own (CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_
// SUPPORTED is 0).
CUresult cuDeviceGetHostAtomicCapabilities(unsigned* capabilities,
                                           const CUatomicOperation* operations, unsigned count,
                                           CUdevice dev) {
  FARGPU_RETURN_IF_FAILED(CheckInitialised());
  FARGPU_RETURN_IF_FAILED(CheckDevice(dev));
  if (capabilities == nullptr || operations == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned k = 0; k < count; ++k) {
    if (operations[k] < 0 || operations[k] >= CU_ATOMIC_OPERATION_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (unsigned k = 0; k < count; ++k) capabilities[k] = 0;
  return CUDA_SUCCESS;
}

}  // namespace fargpu::driver_abi::local
