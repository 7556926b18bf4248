// Contexts: primary ones, own ones, the current one of a thread, and their settings.

#include <utility>

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

constexpr unsigned kKnownContextFlags = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST |
                                        CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_COREDUMP_ENABLE |
                                        CU_CTX_USER_COREDUMP_ENABLE | CU_CTX_SYNC_MEMOPS;

absl::Status CheckContextFlags(unsigned flags) {
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  if ((flags & ~kKnownContextFlags) != 0 ||
      (schedule != CU_CTX_SCHED_AUTO && schedule != CU_CTX_SCHED_SPIN &&
       schedule != CU_CTX_SCHED_YIELD && schedule != CU_CTX_SCHED_BLOCKING_SYNC)) {
    return InvalidValue(absl::StrCat("context flags 0x", absl::Hex(flags)));
  }
  return absl::OkStatus();
}

// Ends the primary context if it is active; the caller has dropped its references. Returns the
// context to destroy, which must happen without `primary.mutex`: destructors of context-local
// storage may call back.
std::shared_ptr<Context> TakeActive(Driver& driver, PrimaryContext& primary) {
  return driver.contexts.Find(primary.handle);
}

absl::Status ReleasePrimary(Driver& driver, CUdevice device) {
  RETURN_IF_ERROR(driver.CheckDevice(device));
  PrimaryContext& primary = *driver.primaries[device];
  std::shared_ptr<Context> ended;
  {
    MutexLock lock(&primary.mutex);
    if (primary.references == 0) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT,
                       absl::StrCat("the primary context of device ", device, " is not retained"));
    }
    if (--primary.references == 0) ended = TakeActive(driver, primary);
  }
  if (ended != nullptr) driver.DestroyContext(ended);
  return absl::OkStatus();
}

absl::Status ResetPrimary(Driver& driver, CUdevice device) {
  RETURN_IF_ERROR(driver.CheckDevice(device));
  PrimaryContext& primary = *driver.primaries[device];
  std::shared_ptr<Context> ended;
  {
    MutexLock lock(&primary.mutex);
    // Whoever retained it has to do so again: their references are to what is gone.
    primary.references = 0;
    ended = TakeActive(driver, primary);
  }
  if (ended != nullptr) driver.DestroyContext(ended);
  return absl::OkStatus();
}

absl::Status SetPrimaryFlags(Driver& driver, CUdevice device, unsigned flags) {
  RETURN_IF_ERROR(driver.CheckDevice(device));
  RETURN_IF_ERROR(CheckContextFlags(flags));
  PrimaryContext& primary = *driver.primaries[device];
  MutexLock lock(&primary.mutex);
  primary.flags = flags;
  if (const auto context = driver.contexts.Find(primary.handle)) context->flags = flags;
  return absl::OkStatus();
}

CUresult CreateContext(const char* call, CUcontext* out, unsigned flags, CUdevice device) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(CheckContextFlags(flags));
    RETURN_IF_ERROR(driver.CheckDevice(device));
    const CUcontext handle = driver.contexts.NewHandle();
    driver.CreateContext(handle, device, flags, /*primary=*/false);
    CurrentContextStack().push_back(handle);
    *out = handle;
    return absl::OkStatus();
  });
}

CUresult DestroyContext(const char* call, CUcontext handle) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    if (driver.PrimaryDevice(handle) >= 0) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT, "a primary context is released, not destroyed");
    }
    const std::shared_ptr<Context> context = driver.contexts.Find(handle);
    if (context == nullptr) return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such context");
    if (context->primary) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT,
                       "a green context is destroyed by cuGreenCtxDestroy");
    }
    driver.DestroyContext(context);
    // On the calling thread the context is popped; on others it stays, as a destroyed one.
    std::vector<CUcontext>& stack = CurrentContextStack();
    if (!stack.empty() && stack.back() == handle) stack.pop_back();
    return absl::OkStatus();
  });
}

CUresult PushContext(const char* call, CUcontext handle) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    if (!driver.IsContextHandle(handle)) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such context");
    }
    CurrentContextStack().push_back(handle);
    return absl::OkStatus();
  });
}

CUresult PopContext(const char* call, CUcontext* out) {
  return WithDriver(call, [&](Driver&) -> absl::Status {
    std::vector<CUcontext>& stack = CurrentContextStack();
    if (stack.empty()) return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no context is current");
    if (out != nullptr) *out = stack.back();
    stack.pop_back();
    return absl::OkStatus();
  });
}

// The context that `handle` names, or the current one for nullptr.
absl::StatusOr<std::shared_ptr<Context>> ContextOrCurrent(Driver& driver, CUcontext handle) {
  if (handle == nullptr) return driver.CurrentContext();
  return driver.FindContext(handle);
}

CUresult SynchronizeContext(const char* call, CUcontext handle) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    if (InHostFunction()) {
      return CudaError(CUDA_ERROR_NOT_PERMITTED, "called from a host function of a stream");
    }
    ASSIGN_OR_RETURN(const auto context, ContextOrCurrent(driver, handle));
    RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
    return context->SynchronizeAll();
  });
}

// The device needs no active context: the handle of a primary one says it.
CUresult GetContextDevice(const char* call, CUdevice* device, CUcontext handle) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(device);
    const CUcontext meant = handle == nullptr ? CurrentContextHandle() : handle;
    if (const int primary = driver.PrimaryDevice(meant); primary >= 0) {
      *device = primary;
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const auto context, ContextOrCurrent(driver, handle));
    *device = context->device;
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  return WithDriver("cuDevicePrimaryCtxRetain", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    PrimaryContext& primary = *driver.primaries[device];
    MutexLock lock(&primary.mutex);
    if (driver.contexts.Find(primary.handle) == nullptr) {
      driver.CreateContext(primary.handle, device, primary.flags, /*primary=*/true);
      primary.was_active = true;
    }
    ++primary.references;
    *out = primary.handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return WithDriver("cuDevicePrimaryCtxRelease",
                    [&](Driver& driver) { return ReleasePrimary(driver, device); });
}
CU_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return WithDriver("cuDevicePrimaryCtxRelease_v2",
                    [&](Driver& driver) { return ReleasePrimary(driver, device); });
}

CU_API CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return WithDriver("cuDevicePrimaryCtxReset",
                    [&](Driver& driver) { return ResetPrimary(driver, device); });
}
CU_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return WithDriver("cuDevicePrimaryCtxReset_v2",
                    [&](Driver& driver) { return ResetPrimary(driver, device); });
}

CU_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return WithDriver("cuDevicePrimaryCtxSetFlags",
                    [&](Driver& driver) { return SetPrimaryFlags(driver, device, flags); });
}
CU_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return WithDriver("cuDevicePrimaryCtxSetFlags_v2",
                    [&](Driver& driver) { return SetPrimaryFlags(driver, device, flags); });
}

CU_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return WithDriver("cuDevicePrimaryCtxGetState", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(flags);
    RETURN_IF_NULL(active);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    PrimaryContext& primary = *driver.primaries[device];
    MutexLock lock(&primary.mutex);
    *flags = primary.flags;
    *active = driver.contexts.Find(primary.handle) != nullptr ? 1 : 0;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxCreate(CUcontext* out, unsigned flags, CUdevice device) {
  return CreateContext("cuCtxCreate", out, flags, device);
}
CU_API CUresult cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) {
  return CreateContext("cuCtxCreate_v2", out, flags, device);
}
CU_API CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* affinity, int count,
                               unsigned flags, CUdevice device) {
  if (count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return CreateContext("cuCtxCreate_v3", out, flags, device);
}
CU_API CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned flags,
                               CUdevice device) {
  if (params != nullptr) {
    if (params->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (params->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CreateContext("cuCtxCreate_v4", out, flags, device);
}

CU_API CUresult cuCtxDestroy(CUcontext context) { return DestroyContext("cuCtxDestroy", context); }
CU_API CUresult cuCtxDestroy_v2(CUcontext context) {
  return DestroyContext("cuCtxDestroy_v2", context);
}

// Attaching counts references of an own context; nothing newer than CUDA 4 needs the count.
CU_API CUresult cuCtxAttach(CUcontext* out, unsigned flags) {
  return WithContext("cuCtxAttach", [&](Driver&, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    *out = context.handle;
    return absl::OkStatus();
  });
}
CU_API CUresult cuCtxDetach(CUcontext context) { return DestroyContext("cuCtxDetach", context); }

CU_API CUresult cuCtxPushCurrent(CUcontext context) {
  return PushContext("cuCtxPushCurrent", context);
}
CU_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return PushContext("cuCtxPushCurrent_v2", context);
}
CU_API CUresult cuCtxPopCurrent(CUcontext* out) { return PopContext("cuCtxPopCurrent", out); }
CU_API CUresult cuCtxPopCurrent_v2(CUcontext* out) { return PopContext("cuCtxPopCurrent_v2", out); }

CU_API CUresult cuCtxSetCurrent(CUcontext handle) {
  return WithDriver("cuCtxSetCurrent", [&](Driver& driver) -> absl::Status {
    // The runtime makes a primary context current before it retains it.
    if (handle != nullptr && !driver.IsContextHandle(handle)) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such context");
    }
    std::vector<CUcontext>& stack = CurrentContextStack();
    if (!stack.empty()) stack.pop_back();
    if (handle != nullptr) stack.push_back(handle);
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetCurrent(CUcontext* out) {
  return WithDriver("cuCtxGetCurrent", [&](Driver&) -> absl::Status {
    RETURN_IF_NULL(out);
    *out = CurrentContextHandle();
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetDevice(CUdevice* device) {
  return GetContextDevice("cuCtxGetDevice", device, nullptr);
}
CU_API CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  return GetContextDevice("cuCtxGetDevice_v2", device, context);
}

CU_API CUresult cuCtxSynchronize() { return SynchronizeContext("cuCtxSynchronize", nullptr); }
CU_API CUresult cuCtxSynchronize_v2(CUcontext context) {
  return SynchronizeContext("cuCtxSynchronize_v2", context);
}

CU_API CUresult cuCtxGetFlags(unsigned* flags) {
  return WithContext("cuCtxGetFlags", [&](Driver&, Context& context) -> absl::Status {
    RETURN_IF_NULL(flags);
    *flags = context.flags;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxSetFlags(unsigned flags) {
  return WithContext("cuCtxSetFlags", [&](Driver&, Context& context) -> absl::Status {
    RETURN_IF_ERROR(CheckContextFlags(flags));
    context.flags = flags;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return WithDriver("cuCtxGetId", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(id);
    ASSIGN_OR_RETURN(const auto context, ContextOrCurrent(driver, handle));
    *id = context->id;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return WithDriver("cuCtxGetApiVersion", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(version);
    RETURN_IF_ERROR(ContextOrCurrent(driver, handle).status());
    *version = 3020;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return WithContext("cuCtxSetLimit",
                     [&](Driver&, Context& context) { return context.SetLimit(limit, value); });
}

CU_API CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return WithContext("cuCtxGetLimit", [&](Driver&, Context& context) -> absl::Status {
    RETURN_IF_NULL(value);
    ASSIGN_OR_RETURN(*value, context.GetLimit(limit));
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return WithContext("cuCtxGetCacheConfig", [&](Driver&, Context& context) -> absl::Status {
    RETURN_IF_NULL(config);
    *config = static_cast<CUfunc_cache>(context.cache_config.load());
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return WithContext("cuCtxSetCacheConfig", [&](Driver&, Context& context) -> absl::Status {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) {
      return InvalidValue(absl::StrCat("cache preference ", static_cast<int>(config)));
    }
    context.cache_config = config;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return WithContext("cuCtxGetSharedMemConfig", [&](Driver&, Context&) -> absl::Status {
    RETURN_IF_NULL(config);
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return WithContext("cuCtxSetSharedMemConfig", [&](Driver&, Context&) -> absl::Status {
    if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE ||
        config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) {
      return InvalidValue(absl::StrCat("bank size ", static_cast<int>(config)));
    }
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return WithContext("cuCtxGetStreamPriorityRange", [&](Driver&, Context&) -> absl::Status {
    if (least != nullptr) *least = kLeastStreamPriority;
    if (greatest != nullptr) *greatest = kGreatestStreamPriority;
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxResetPersistingL2Cache() {
  return WithContext("cuCtxResetPersistingL2Cache",
                     [](Driver&, Context&) { return absl::OkStatus(); });
}

// Peers reach each other's memory anyway; the calls keep the rules that programs rely on.
CU_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return WithContext(
      "cuCtxEnablePeerAccess", [&](Driver& driver, Context& context) -> absl::Status {
        if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
        const std::shared_ptr<Context> other = driver.contexts.Find(peer);
        if (other == nullptr || other->device == context.device) {
          return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no context of another device");
        }
        return context.EnablePeer(other->id);
      });
}

CU_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return WithContext("cuCtxDisablePeerAccess",
                     [&](Driver& driver, Context& context) -> absl::Status {
                       const std::shared_ptr<Context> other = driver.contexts.Find(peer);
                       if (other == nullptr)
                         return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such context");
                       return context.DisablePeer(other->id);
                     });
}
