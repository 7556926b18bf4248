// Streams, what waits for them, and host functions on them.

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

CUresult CreateStream(const char* call, CUstream* out, unsigned flags, int priority) {
  return WithContext(call, [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    if (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING) {
      return InvalidValue(absl::StrCat("stream flags 0x", absl::Hex(flags)));
    }
    // Out of range is not an error; the nearest priority is taken.
    priority = std::max(kGreatestStreamPriority, std::min(kLeastStreamPriority, priority));
    const std::shared_ptr<Stream> stream = context.CreateStream(flags, priority);
    stream->handle = driver.streams.NewHandle();
    driver.streams.Insert(stream->handle, stream);
    *out = stream->handle;
    return absl::OkStatus();
  });
}

CUresult DestroyStream(const char* call, CUstream handle) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    const std::shared_ptr<Stream> stream = driver.streams.Remove(handle);
    if (stream == nullptr) return InvalidHandle("not a stream that was created");
    ForgetCaptureOf(driver, *stream);
    if (const auto context = stream->context.lock()) context->ForgetStream(stream);
    return absl::OkStatus();
  });
}

CUresult GetContextOfStream(const char* call, NullStream null, CUstream handle, CUcontext* out) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context& context, Stream&) -> absl::Status {
        RETURN_IF_NULL(out);
        *out = context.handle;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

}  // namespace

CUresult Do_cuStreamGetPriority(const char* call, NullStream null, CUstream handle, int* priority) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context&, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(priority);
        *priority = stream.priority;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamGetFlags(const char* call, NullStream null, CUstream handle, unsigned* flags) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context&, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(flags);
        *flags = stream.flags;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamGetId(const char* call, NullStream null, CUstream handle,
                          unsigned long long* id) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context&, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(id);
        *id = stream.id;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamGetDevice(const char* call, NullStream null, CUstream handle,
                              CUdevice* device) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context& context, Stream&) -> absl::Status {
        RETURN_IF_NULL(device);
        *device = context.device;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamGetCtx(const char* call, NullStream null, CUstream handle, CUcontext* out) {
  return GetContextOfStream(call, null, handle, out);
}

CUresult Do_cuStreamQuery(const char* call, NullStream null, CUstream handle) {
  return WithStream(call, null, handle,
                    [&](Driver&, Context& context, Stream& stream) -> absl::Status {
                      if (!context.Idle(stream)) {
                        return CudaError(CUDA_ERROR_NOT_READY, "the stream is busy");
                      }
                      return context.error();
                    });
}

CUresult Do_cuStreamSynchronize(const char* call, NullStream null, CUstream handle) {
  return WithStream(call, null, handle, [&](Driver&, Context& context, Stream& stream) {
    return context.Synchronize(stream);
  });
}

CUresult Do_cuStreamWaitEvent(const char* call, NullStream null, CUstream handle,
                              CUevent event_handle, unsigned flags) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        const std::shared_ptr<Event> event = driver.events.Find(event_handle);
        if (event == nullptr) return InvalidHandle("not an event");
        if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) {
          return InvalidValue(absl::StrCat("flags ", flags));
        }
        if (driver.capture_count.load(std::memory_order_acquire) > 0) {
          if (flags == CU_EVENT_WAIT_EXTERNAL && stream.is_capturing()) {
            return CaptureWork(driver, stream, WaitNode{.event = event_handle});
          }
          const absl::Status captured = CaptureWait(driver, stream.shared_from_this(), *event);
          if (!absl::IsNotFound(captured)) return captured;
        }
        return WaitForEvent(context, stream, *event);
      },
      OnCapture::kRecord);
}

CUresult Do_cuLaunchHostFunc(const char* call, NullStream null, CUstream handle, CUhostFn function,
                             void* data) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(function);
        if (stream.is_capturing()) {
          return CaptureWork(driver, stream, HostNode{.function = function, .data = data});
        }
        return context
            .Enqueue(
                stream,
                [function, data] {
                  HostFunctionScope scope;
                  function(data);
                  return absl::OkStatus();
                },
                RunOn::kWorker)
            .status();
      },
      OnCapture::kRecord);
}

CUresult Do_cuStreamAddCallback(const char* call, NullStream null, CUstream handle,
                                CUstreamCallback callback, void* data, unsigned flags) {
  return WithStream(call, null, handle,
                    [&](Driver&, Context& context, Stream& stream) -> absl::Status {
                      RETURN_IF_NULL(callback);
                      if (flags != 0) {
                        return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
                      }
                      // Unlike a host function, a callback is also called when the work before it
                      // failed, and is told so.
                      return context.EnqueueAlways(stream, [&context, callback, data, handle] {
                        HostFunctionScope scope;
                        callback(handle, ToCuResult(context.error()), data);
                      });
                    });
}

}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return CreateStream("cuStreamCreate", out, flags, 0);
}
CU_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return CreateStream("cuStreamCreateWithPriority", out, flags, priority);
}
CU_API CUresult cuStreamDestroy(CUstream stream) {
  return DestroyStream("cuStreamDestroy", stream);
}
CU_API CUresult cuStreamDestroy_v2(CUstream stream) {
  return DestroyStream("cuStreamDestroy_v2", stream);
}

CU_API_TWINS(cuStreamGetPriority, _ptsz, (CUstream stream, int* priority), stream, priority);
CU_API_TWINS(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned* flags), stream, flags);
CU_API_TWINS(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long* id), stream, id);
CU_API_TWINS(cuStreamGetDevice, _ptsz, (CUstream stream, CUdevice* device), stream, device);
CU_API_TWINS(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext* context), stream, context);
CU_API_TWINS(cuStreamQuery, _ptsz, (CUstream stream), stream);
CU_API_TWINS(cuStreamSynchronize, _ptsz, (CUstream stream), stream);
CU_API_TWINS(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags), stream,
             event, flags);
CU_API_TWINS(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void* data), stream,
             function, data);
CU_API_TWINS(cuStreamAddCallback, _ptsz,
             (CUstream stream, CUstreamCallback callback, void* data, unsigned flags), stream,
             callback, data, flags);
