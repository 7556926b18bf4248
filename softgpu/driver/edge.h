#pragma once

#include <cuda.h>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/no_cancellation.h"
#include "common/status_macros.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/driver.h"

// The way from a cu* function into the driver and back. Every file that defines such functions
// includes this; nothing else of the library is extern "C".
//
// These files are compiled with __CUDA_API_VERSION_INTERNAL, with which cuda.h declares every
// symbol (old ABIs and per-thread twins too) under its own name, so that the compiler compares each
// of our definitions with NVIDIA's prototype.
#define CU_API extern "C" __attribute__((visibility("default")))

// Defines `symbol` and its per-thread-default-stream twin. Both call Do<symbol>(name, NullStream,
// arguments...), which must be declared before.
#define CU_API_TWINS(symbol, twin_suffix, parameters, ...)                                         \
  CU_API CUresult symbol parameters {                                                              \
    return ::fargpu::softgpu::Do_##symbol(#symbol, ::fargpu::softgpu::NullStream::kLegacy,         \
                                          __VA_ARGS__);                                            \
  }                                                                                                \
  CU_API CUresult symbol##twin_suffix parameters {                                                 \
    return ::fargpu::softgpu::Do_##symbol(#symbol #twin_suffix,                                    \
                                          ::fargpu::softgpu::NullStream::kPerThread, __VA_ARGS__); \
  }                                                                                                \
  static_assert(true, "so that the macro ends in a semicolon")

namespace fargpu::softgpu {

// What stream 0 means for a call.
enum class NullStream { kLegacy, kPerThread };

// The result of a call that ended with `status`; errors are logged at debug level.
CUresult EdgeResult(const char* call, const absl::Status& status) noexcept;

// Runs `body`, which returns a Status, and lets no exception out.
template <typename Body>
CUresult AtEdge(const char* call, Body body) noexcept {
  const NoCancellation whole;
  try {
    const absl::Status status = body();
    if (status.ok()) return CUDA_SUCCESS;
    return EdgeResult(call, status);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// For calls that need cuInit: body(Driver&).
template <typename Body>
CUresult WithDriver(const char* call, Body body) noexcept {
  Driver* const driver = Driver::Get();
  if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  return AtEdge(call, [&] { return body(*driver); });
}

// For calls that need a current context which has not failed: body(Driver&, Context&).
template <typename Body>
CUresult WithContext(const char* call, Body body) noexcept {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    if (InHostFunction()) {
      return CudaError(CUDA_ERROR_NOT_PERMITTED, "called from a host function of a stream");
    }
    ASSIGN_OR_RETURN(const std::shared_ptr<Context> context, driver.CurrentContext());
    if (context->failed()) return context->error();
    return body(driver, *context);
  });
}

// What a call on a stream does if the stream is being captured.
enum class OnCapture {
  kRefuse,  // it cannot be captured: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
  kRecord,  // the body adds a node instead (Stream::is_capturing)
  kIgnore,  // it only asks something of the stream
};

// For calls on a stream: body(Driver&, Context&, Stream&), where the context is the stream's.
template <typename Body>
CUresult WithStream(const char* call, NullStream null_stream, CUstream handle, Body body,
                    OnCapture on_capture = OnCapture::kRefuse) noexcept {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    if (InHostFunction()) {
      return CudaError(CUDA_ERROR_NOT_PERMITTED, "called from a host function of a stream");
    }
    ASSIGN_OR_RETURN(const std::shared_ptr<Context> current, driver.CurrentContext());
    if (current->failed()) return current->error();
    ASSIGN_OR_RETURN(const std::shared_ptr<Stream> stream,
                     driver.FindStream(*current, handle, null_stream == NullStream::kPerThread));
    std::shared_ptr<Context> context = current;
    if (stream->handle != nullptr) {
      context = stream->context.lock();
      if (context == nullptr) {
        return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the stream's context is gone");
      }
      if (context->failed()) return context->error();
    }
    if (on_capture != OnCapture::kIgnore) {
      RETURN_IF_ERROR(CheckImplicitCapture(driver, *context, *stream));
    }
    if (on_capture == OnCapture::kRefuse) RETURN_IF_ERROR(RefuseWhileCapturing(driver, *stream));
    return body(driver, *context, *stream);
  });
}

// cuEventRecord (cu_event.cc).
absl::Status RecordEvent(Driver& driver, Context& context, Stream& stream, CUevent event);
// cuStreamWaitEvent outside of captures (cu_event.cc).
absl::Status WaitForEvent(Context& context, Stream& stream, Event& event);

inline absl::Status InvalidValue(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}
inline absl::Status InvalidHandle(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_HANDLE, message);
}
inline absl::Status NotSupported(absl::string_view message) {
  return CudaError(CUDA_ERROR_NOT_SUPPORTED, message);
}

// Returns CUDA_ERROR_INVALID_VALUE from the enclosing function if `pointer` is null.
#define RETURN_IF_NULL(pointer)                                                            \
  do {                                                                                     \
    if ((pointer) == nullptr) return ::fargpu::softgpu::InvalidValue(#pointer " is null"); \
  } while (false)

}  // namespace fargpu::softgpu
