// Contexts. Which one is current on which thread is the client's business; every call names its
// own.
#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {

absl::Status DevicePrimaryCtxRetain(const wire::DevicePrimaryCtxRetainRequest& request, Call& call,
                                    wire::DevicePrimaryCtxRetainReply* reply) {
  RETURN_IF_ERROR(call.resources().CheckDevice(request.device));
  if (request.context.value == 0) return call.Malformed("a context is given the id 0");
  Context context{.handle = nullptr, .device = request.device, .primary = true, .retains = 0};
  // A client names a primary context once and retains it again after a reset.
  if (call.Resolve(request.context, &context).ok() &&
      (!context.primary || context.device != request.device)) {
    return call.Malformed("a primary context takes the id of another context");
  }
  RETURN_IF_CUDA_ERROR(call.driver().cuDevicePrimaryCtxRetain(
      &context.handle, call.resources().devices[static_cast<size_t>(request.device)]));
  ++context.retains;
  call.objects().contexts.Erase(request.context);
  call.resources().context_epoch.fetch_add(1);
  return call.Named(call.objects().contexts.Insert(request.context, context));
}

absl::Status DevicePrimaryCtxReleaseV2(const wire::DevicePrimaryCtxReleaseV2Request& request,
                                       Call& call, wire::DevicePrimaryCtxReleaseV2Reply* reply) {
  Context context;
  RETURN_IF_ERROR(call.Resolve(request.context, &context));
  if (!context.primary) {
    return CudaError(CUDA_ERROR_INVALID_CONTEXT, "only primary contexts are released");
  }
  call.resources().DropContext(request.context, context);
  const CUdevice device = call.resources().devices[static_cast<size_t>(context.device)];
  for (int i = 0; i < context.retains; ++i) {
    RETURN_IF_CUDA_ERROR(call.driver().cuDevicePrimaryCtxRelease_v2(device));
  }
  return absl::OkStatus();
}

absl::Status DevicePrimaryCtxResetV2(const wire::DevicePrimaryCtxResetV2Request& request,
                                     Call& call, wire::DevicePrimaryCtxResetV2Reply* reply) {
  RETURN_IF_ERROR(call.resources().CheckDevice(request.device));
  const CUdevice device = call.resources().devices[static_cast<size_t>(request.device)];
  Context context;
  if (call.Resolve(request.context, &context).ok()) {
    if (!context.primary || context.device != request.device) {
      return call.Malformed("a reset names a context of another kind or device");
    }
    call.resources().DropContext(request.context, context);
  }
  const CUresult reset = call.driver().cuDevicePrimaryCtxReset_v2(device);
  // The client retains anew before it uses the context again, so what was retained ends here.
  for (int i = 0; i < context.retains; ++i) call.driver().cuDevicePrimaryCtxRelease_v2(device);
  return FromCuResult(reset, "cuDevicePrimaryCtxReset");
}

absl::Status CtxCreateV2(const wire::CtxCreateV2Request& request, Call& call,
                         wire::CtxCreateV2Reply* reply) {
  RETURN_IF_ERROR(call.resources().CheckDevice(request.device));
  if (request.context.value == 0) return call.Malformed("a context is given the id 0");
  Context context{.handle = nullptr, .device = request.device, .primary = false, .retains = 0};
  // How the client's CPU waits is decided over there; here nobody spins for it.
  const unsigned flags =
      (request.flags & ~static_cast<unsigned>(CU_CTX_SCHED_MASK)) | CU_CTX_SCHED_BLOCKING_SYNC;
  RETURN_IF_CUDA_ERROR(call.driver().cuCtxCreate_v2(
      &context.handle, flags, call.resources().devices[static_cast<size_t>(request.device)]));
  // Creating pushes it on this thread.
  CUcontext popped = nullptr;
  call.driver().cuCtxPopCurrent_v2(&popped);
  return call.Named(call.objects().contexts.Insert(request.context, context));
}

absl::Status CtxDestroyV2(const wire::CtxDestroyV2Request& request, Call& call,
                          wire::CtxDestroyV2Reply* reply) {
  Context context;
  RETURN_IF_ERROR(call.Resolve(request.context, &context));
  if (context.primary) {
    return CudaError(CUDA_ERROR_INVALID_CONTEXT, "primary contexts are released, not destroyed");
  }
  call.resources().DropContext(request.context, context);
  RETURN_IF_CUDA_ERROR(call.driver().cuCtxDestroy_v2(context.handle));
  return absl::OkStatus();
}

absl::Status CtxSynchronize(const wire::CtxSynchronizeRequest& request, Call& call,
                            wire::CtxSynchronizeReply* reply) {
  Context context;
  const wire::ContextId id = request.context.value != 0 ? request.context : call.header().context;
  RETURN_IF_ERROR(call.Resolve(id, &context));
  RETURN_IF_CUDA_ERROR(call.driver().cuCtxPushCurrent_v2(context.handle));
  const CUresult result = call.driver().cuCtxSynchronize();
  CUcontext popped = nullptr;
  call.driver().cuCtxPopCurrent_v2(&popped);
  return FromCuResult(result, "cuCtxSynchronize");
}

}  // namespace fargpu::server::handlers
