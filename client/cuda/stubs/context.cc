// Contexts. Which one is current is per-thread client state and never crosses the wire: each call
// carries its context.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"
#include "protocol/driver_abi/context_storage.h"

namespace fargpu::client::api {
namespace {

absl::Status CheckFlags(unsigned flags) {
  const unsigned scheduling = flags & CU_CTX_SCHED_MASK;
  if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0 ||
      (scheduling & (scheduling - 1)) != 0) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags 0x", absl::Hex(flags)));
  }
  return absl::OkStatus();
}

absl::Status Push(CUcontext context) {
  ThreadState& thread = CurrentThread();
  if (thread.depth == ThreadState::kMaxContexts) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("the stack has ", thread.depth, " contexts already"));
  }
  thread.stack[thread.depth++] = context;
  return absl::OkStatus();
}

absl::Status Synchronize(Session& session, const Context& context) {
  wire::CtxSynchronizeRequest request{.context = context.id};
  wire::CtxSynchronizeReply reply;
  return session.Call(request, &reply);
}

// The context an argument means: nullptr stands for the current one.
absl::StatusOr<Context*> ArgumentOrCurrent(Session& session, CUcontext context) {
  if (context == nullptr) return session.CurrentActive();
  ASSIGN_OR_RETURN(Context * found, session.FindContext(context));
  if (!found->active.load(std::memory_order_acquire)) {
    return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED, "nobody retains this primary context");
  }
  return found;
}

absl::Status CreateContext(Session& session, CUcontext* pctx, unsigned flags, CUdevice dev) {
  RETURN_IF_ERROR(NotNull(pctx, "pctx"));
  RETURN_IF_ERROR(CheckFlags(flags));
  RETURN_IF_ERROR(session.devices().Check(dev));
  ASSIGN_OR_RETURN(Context * context, session.AddContext(dev));
  context->flags = flags;
  wire::CtxCreateV2Request request{.context = context->id, .flags = flags, .device = dev};
  wire::CtxCreateV2Reply reply;
  absl::Status created = session.Call(request, &reply);
  if (created.ok()) created = Push(context->handle);
  if (!created.ok()) {
    session.RemoveContext(context);
    return created;
  }
  context->active.store(true, std::memory_order_release);
  *pctx = context->handle;
  return absl::OkStatus();
}

absl::Status DestroyContext(Session& session, CUcontext ctx) {
  ASSIGN_OR_RETURN(Context * context, session.FindContext(ctx));
  if (context->primary) {
    return CudaError(CUDA_ERROR_INVALID_CONTEXT, "a primary context is released, not destroyed");
  }
  driver_abi::DestroyContextStorage(ctx);
  wire::CtxDestroyV2Request request{.context = context->id};
  wire::CtxDestroyV2Reply reply;
  const absl::Status destroyed = session.Call(request, &reply);
  // Gone in any case: nobody can use it again.
  session.RemoveContext(context);
  ThreadState& thread = CurrentThread();
  if (thread.current() == ctx) --thread.depth;
  return destroyed;
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return AtCudaEdge("cuDevicePrimaryCtxRetain", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pctx, "pctx"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    Context* context = session.primary(dev);
    MutexLock lock(&session.context_mutex());
    if (!context->active.load(std::memory_order_relaxed)) {
      RETURN_IF_ERROR(
          session.Send(wire::DevicePrimaryCtxRetainRequest{.context = context->id, .device = dev}));
      context->active.store(true, std::memory_order_release);
    }
    ++context->retained;
    *pctx = context->handle;
    return absl::OkStatus();
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return AtCudaEdge("cuDevicePrimaryCtxRelease_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.devices().Check(dev));
    Context* context = session.primary(dev);
    {
      MutexLock lock(&session.context_mutex());
      if (context->retained == 0) {
        return CudaError(CUDA_ERROR_INVALID_CONTEXT, "nobody retains the primary context");
      }
      if (--context->retained > 0 || !context->active.load(std::memory_order_relaxed)) {
        return absl::OkStatus();
      }
      context->active.store(false, std::memory_order_release);
      context->broken.store(CUDA_SUCCESS);
      RETURN_IF_ERROR(session.Send(wire::DevicePrimaryCtxReleaseV2Request{.context = context->id}));
    }
    driver_abi::DestroyContextStorage(context->handle);
    session.DropObjectsOf(*context);
    return absl::OkStatus();
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return api::cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  return AtCudaEdge("cuDevicePrimaryCtxSetFlags_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.devices().Check(dev));
    RETURN_IF_ERROR(CheckFlags(flags));
    // How the CPU waits for the card is decided here, not on the card's machine.
    session.primary(dev)->flags = flags;
    return absl::OkStatus();
  });
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return api::cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  return AtCudaEdge("cuDevicePrimaryCtxGetState", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(flags, "flags"));
    RETURN_IF_ERROR(NotNull(active, "active"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    *flags = session.primary(dev)->flags;
    *active = session.primary(dev)->active.load(std::memory_order_acquire) ? 1 : 0;
    return absl::OkStatus();
  });
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return AtCudaEdge("cuDevicePrimaryCtxReset_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.devices().Check(dev));
    Context* context = session.primary(dev);
    driver_abi::DestroyContextStorage(context->handle);
    context->broken.store(CUDA_SUCCESS);
    if (!context->active.exchange(false)) return absl::OkStatus();
    session.DropObjectsOf(*context);
    wire::DevicePrimaryCtxResetV2Request request{.device = dev, .context = context->id};
    wire::DevicePrimaryCtxResetV2Reply reply;
    return session.Call(request, &reply);
  });
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return api::cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return AtCudaEdge("cuCtxCreate_v2", [&](Session& session) -> absl::Status {
    return CreateContext(session, pctx, flags, dev);
  });
}

CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return api::cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                        unsigned int flags, CUdevice dev) {
  return AtCudaEdge("cuCtxCreate_v3", [&](Session& session) -> absl::Status {
    if (numParams != 0) {
      return CudaError(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "execution affinity");
    }
    return CreateContext(session, pctx, flags, dev);
  });
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) {
  return AtCudaEdge("cuCtxCreate_v4", [&](Session& session) -> absl::Status {
    if (ctxCreateParams != nullptr && ctxCreateParams->numExecAffinityParams != 0) {
      return CudaError(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "execution affinity");
    }
    if (ctxCreateParams != nullptr && ctxCreateParams->cigParams != nullptr) {
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "contexts for graphics");
    }
    return CreateContext(session, pctx, flags, dev);
  });
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return AtCudaEdge("cuCtxDestroy_v2",
                    [&](Session& session) { return DestroyContext(session, ctx); });
}

CUresult cuCtxDestroy(CUcontext ctx) { return api::cuCtxDestroy_v2(ctx); }

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  return AtCudaEdge("cuCtxPushCurrent_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.FindContext(ctx).status());
    return Push(ctx);
  });
}

CUresult cuCtxPushCurrent(CUcontext ctx) { return api::cuCtxPushCurrent_v2(ctx); }

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  return AtCudaEdge("cuCtxPopCurrent_v2", [&](Session&) -> absl::Status {
    ThreadState& thread = CurrentThread();
    if (thread.depth == 0) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context");
    }
    --thread.depth;
    if (pctx != nullptr) *pctx = thread.stack[thread.depth];
    return absl::OkStatus();
  });
}

CUresult cuCtxPopCurrent(CUcontext* pctx) { return api::cuCtxPopCurrent_v2(pctx); }

CUresult cuCtxSetCurrent(CUcontext ctx) {
  return AtCudaEdge("cuCtxSetCurrent", [&](Session& session) -> absl::Status {
    ThreadState& thread = CurrentThread();
    if (ctx == nullptr) {
      if (thread.depth > 0) --thread.depth;
      return absl::OkStatus();
    }
    // The runtime makes a primary context current before it retains it.
    RETURN_IF_ERROR(session.FindContext(ctx).status());
    if (thread.depth == 0) return Push(ctx);
    thread.stack[thread.depth - 1] = ctx;
    return absl::OkStatus();
  });
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  return AtCudaEdge("cuCtxGetCurrent", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pctx, "pctx"));
    *pctx = session.current_context();
    return absl::OkStatus();
  });
}

CUresult cuCtxGetDevice(CUdevice* device) { return api::cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  return AtCudaEdge("cuCtxGetDevice_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(device, "device"));
    const CUcontext asked = ctx != nullptr ? ctx : session.current_context();
    ASSIGN_OR_RETURN(const Context* context, session.FindContext(asked));
    *device = context->device;
    return absl::OkStatus();
  });
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  return AtCudaEdge("cuCtxGetFlags", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(flags, "flags"));
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    *flags = context->flags;
    return absl::OkStatus();
  });
}

CUresult cuCtxSetFlags(unsigned int flags) {
  return AtCudaEdge("cuCtxSetFlags", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Context * context, session.CurrentActive());
    RETURN_IF_ERROR(CheckFlags(flags));
    context->flags = flags;
    return absl::OkStatus();
  });
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  return AtCudaEdge("cuCtxGetId", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(ctxId, "ctxId"));
    ASSIGN_OR_RETURN(const Context* context, ArgumentOrCurrent(session, ctx));
    *ctxId = context->id.value;
    return absl::OkStatus();
  });
}

CUresult cuCtxSynchronize() { return api::cuCtxSynchronize_v2(nullptr); }

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  return AtCudaEdge("cuCtxSynchronize_v2", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(const Context* context, ArgumentOrCurrent(session, ctx));
    return Synchronize(session, *context);
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  return AtCudaEdge("cuCtxGetCacheConfig", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pconfig, "pconfig"));
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    *pconfig = context->cache_config;
    return absl::OkStatus();
  });
}

// A hint that changes no result, and that current cards ignore; it stays here.
CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return AtCudaEdge("cuCtxSetCacheConfig", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Context * context, session.CurrentActive());
    RETURN_IF_ERROR(CheckCacheConfig(config));
    context->cache_config = config;
    return absl::OkStatus();
  });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
  return AtCudaEdge("cuCtxGetSharedMemConfig", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pConfig, "pConfig"));
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    *pConfig = context->shared_config;
    return absl::OkStatus();
  });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return AtCudaEdge("cuCtxSetSharedMemConfig", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Context * context, session.CurrentActive());
    if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE ||
        config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("bank size ", static_cast<int>(config)));
    }
    context->shared_config = config;
    return absl::OkStatus();
  });
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  return AtCudaEdge("cuCtxGetApiVersion", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(version, "version"));
    const CUcontext asked = ctx != nullptr ? ctx : session.current_context();
    ASSIGN_OR_RETURN(const Context* context, session.FindContext(asked));
    if (!context->active.load(std::memory_order_acquire)) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT, "nobody retains this primary context");
    }
    *version = 3020;
    return absl::OkStatus();
  });
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return AtCudaEdge("cuCtxGetStreamPriorityRange", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    const DeviceInfo& device = session.devices()[context->device];
    if (leastPriority != nullptr) *leastPriority = device.least_stream_priority;
    if (greatestPriority != nullptr) *greatestPriority = device.greatest_stream_priority;
    return absl::OkStatus();
  });
}

// Only how fast things are depends on it.
CUresult cuCtxResetPersistingL2Cache() {
  return AtCudaEdge("cuCtxResetPersistingL2Cache", [&](Session& session) -> absl::Status {
    return session.CurrentActive().status();
  });
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  return AtCudaEdge("cuCtxAttach", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pctx, "pctx"));
    if (flags != 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    *pctx = context->handle;
    return absl::OkStatus();
  });
}

// Counts of attaching went out of use with CUDA 4: a context lives until it is destroyed.
CUresult cuCtxDetach(CUcontext ctx) {
  return AtCudaEdge("cuCtxDetach", [&](Session& session) -> absl::Status {
    return session.FindContext(ctx).status();
  });
}

// No card of a lease reaches another's memory, as cuDeviceCanAccessPeer says.
CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  return AtCudaEdge("cuCtxEnablePeerAccess", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(const Context* current, session.CurrentActive());
    if (Flags != 0) return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", Flags));
    const absl::StatusOr<Context*> peer = session.FindContext(peerContext);
    if (!peer.ok() || (*peer)->device == current->device) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no context of another device");
    }
    return CudaError(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                     absl::StrCat("device ", current->device, " cannot reach memory of device ",
                                  (*peer)->device));
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  return AtCudaEdge("cuCtxDisablePeerAccess", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    if (!session.FindContext(peerContext).ok()) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such context");
    }
    return CudaError(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled");
  });
}

}  // namespace fargpu::client::api
