// Copies and sets. Which way a copy goes decides how it travels; see copying.h.
#include <cstring>

#include "client/cuda/arguments.h"
#include "client/cuda/capture.h"
#include "client/cuda/copying.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

void* AsHost(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Addresses are unified: they say themselves on which side they are.
absl::Status CopyUnified(Session& session, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                         DefaultStream default_stream) {
  const bool to_device = session.IsDeviceAddress(to);
  const bool from_device = session.IsDeviceAddress(from);
  if (to_device && from_device) {
    return CopyDeviceToDevice(session, to, from, bytes, default_stream);
  }
  if (to_device) return CopyHostToDevice(session, to, AsHost(from), bytes, default_stream);
  if (from_device) return CopyDeviceToHost(session, AsHost(to), from, bytes, default_stream);
  RETURN_IF_ERROR(session.CurrentActive().status());
  RETURN_IF_ERROR(CheckAllowedDuringCapture(session));
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(NotNull(AsHost(to), "dst"));
  RETURN_IF_ERROR(NotNull(AsHost(from), "src"));
  SettleDeliveries(session, AsHost(from), bytes);
  // What kernels are still to write there comes first.
  if (session.shared().OnCard(to, bytes) + session.shared().OnCard(from, bytes) != 0) {
    RETURN_IF_ERROR(SynchronizeContext(session));
  }
  std::memmove(AsHost(to), AsHost(from), bytes);
  return absl::OkStatus();
}

absl::Status CheckFill(Session& session, CUdeviceptr address, size_t count, size_t bytes_each) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, bytes_each, &bytes)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "N is too large");
  }
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  if (address % bytes_each != 0) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "dstDevice is not aligned to its elements");
  }
  return CheckDeviceRange(session, address, bytes);
}

absl::Status CaptureFillOf(Session& session, wire::StreamId stream, CUdeviceptr address,
                           uint32_t value, size_t count, size_t bytes_each) {
  return CaptureFill(session, stream,
                     {.dst = address,
                      .pitch = 0,
                      .value = value,
                      .elementSize = static_cast<unsigned>(bytes_each),
                      .width = count,
                      .height = 1,
                      .ctx = nullptr});
}

template <typename Request>
absl::Status Set(Session& session, Request request, uint32_t value, size_t bytes_each,
                 DefaultStream default_stream) {
  RETURN_IF_ERROR(CheckFill(session, request.dstDevice, request.N, bytes_each));
  if (request.N == 0) return absl::OkStatus();
  request.per_thread = default_stream == DefaultStream::kPerThread;
  const wire::StreamId stream = {request.per_thread ? uint64_t{2} : uint64_t{1}};
  if (IsCapturing(session, stream)) {
    return CaptureFillOf(session, stream, request.dstDevice, value, request.N, bytes_each);
  }
  RETURN_IF_ERROR(session.Send(request));
  return SettleShared(session, request.dstDevice, request.N * bytes_each);
}

template <typename Request>
absl::Status SetAsync(Session& session, Request request, uint32_t value, size_t bytes_each,
                      CUstream stream, DefaultStream default_stream) {
  RETURN_IF_ERROR(session.ToWire(stream, default_stream, &request.hStream));
  RETURN_IF_ERROR(CheckFill(session, request.dstDevice, request.N, bytes_each));
  if (request.N == 0) return absl::OkStatus();
  if (IsCapturing(session, request.hStream)) {
    return CaptureFillOf(session, request.hStream, request.dstDevice, value, request.N, bytes_each);
  }
  return session.Send(request);
}

}  // namespace

CUresult cuMemcpyHtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, const void* srcHost,
                         size_t ByteCount) {
  return AtCudaEdge("cuMemcpyHtoD_v2", [&](Session& session) {
    return CopyHostToDevice(session, dstDevice, srcHost, ByteCount, default_stream);
  });
}

CUresult cuMemcpyDtoH_v2(DefaultStream default_stream, void* dstHost, CUdeviceptr srcDevice,
                         size_t ByteCount) {
  return AtCudaEdge("cuMemcpyDtoH_v2", [&](Session& session) {
    return CopyDeviceToHost(session, dstHost, srcDevice, ByteCount, default_stream);
  });
}

CUresult cuMemcpyDtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                         size_t ByteCount) {
  return AtCudaEdge("cuMemcpyDtoD_v2", [&](Session& session) {
    return CopyDeviceToDevice(session, dstDevice, srcDevice, ByteCount, default_stream);
  });
}

CUresult cuMemcpyHtoDAsync_v2(DefaultStream default_stream, CUdeviceptr dstDevice,
                              const void* srcHost, size_t ByteCount, CUstream hStream) {
  return AtCudaEdge("cuMemcpyHtoDAsync_v2", [&](Session& session) -> absl::Status {
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &stream));
    return CopyHostToDeviceAsync(session, dstDevice, srcHost, ByteCount, stream);
  });
}

CUresult cuMemcpyDtoHAsync_v2(DefaultStream default_stream, void* dstHost, CUdeviceptr srcDevice,
                              size_t ByteCount, CUstream hStream) {
  return AtCudaEdge("cuMemcpyDtoHAsync_v2", [&](Session& session) -> absl::Status {
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &stream));
    return CopyDeviceToHostAsync(session, dstHost, srcDevice, ByteCount, stream);
  });
}

CUresult cuMemcpyDtoDAsync_v2(DefaultStream default_stream, CUdeviceptr dstDevice,
                              CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return AtCudaEdge("cuMemcpyDtoDAsync_v2", [&](Session& session) -> absl::Status {
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &stream));
    return CopyDeviceToDeviceAsync(session, dstDevice, srcDevice, ByteCount, stream);
  });
}

CUresult cuMemcpy(DefaultStream default_stream, CUdeviceptr dst, CUdeviceptr src,
                  size_t ByteCount) {
  return AtCudaEdge("cuMemcpy", [&](Session& session) {
    return CopyUnified(session, dst, src, ByteCount, default_stream);
  });
}

CUresult cuMemcpyAsync(DefaultStream default_stream, CUdeviceptr dst, CUdeviceptr src,
                       size_t ByteCount, CUstream hStream) {
  return AtCudaEdge("cuMemcpyAsync", [&](Session& session) -> absl::Status {
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &stream));
    return CopyUnifiedAsync(session, dst, src, ByteCount, stream);
  });
}

CUresult cuMemcpyPeer(DefaultStream default_stream, CUdeviceptr dstDevice, CUcontext dstContext,
                      CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount) {
  return AtCudaEdge("cuMemcpyPeer", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.FindContext(dstContext).status());
    RETURN_IF_ERROR(session.FindContext(srcContext).status());
    return CopyDeviceToDevice(session, dstDevice, srcDevice, ByteCount, default_stream);
  });
}

CUresult cuMemcpyPeerAsync(DefaultStream default_stream, CUdeviceptr dstDevice,
                           CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           size_t ByteCount, CUstream hStream) {
  return AtCudaEdge("cuMemcpyPeerAsync", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.FindContext(dstContext).status());
    RETURN_IF_ERROR(session.FindContext(srcContext).status());
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &stream));
    return CopyDeviceToDeviceAsync(session, dstDevice, srcDevice, ByteCount, stream);
  });
}

CUresult cuMemsetD8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned char uc,
                       size_t N) {
  return AtCudaEdge("cuMemsetD8_v2", [&](Session& session) {
    return Set(session, wire::MemsetD8V2Request{.dstDevice = dstDevice, .uc = uc, .N = N}, uc, 1,
               default_stream);
  });
}

CUresult cuMemsetD16_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned short us,
                        size_t N) {
  return AtCudaEdge("cuMemsetD16_v2", [&](Session& session) {
    return Set(session, wire::MemsetD16V2Request{.dstDevice = dstDevice, .us = us, .N = N}, us, 2,
               default_stream);
  });
}

CUresult cuMemsetD32_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned int ui,
                        size_t N) {
  return AtCudaEdge("cuMemsetD32_v2", [&](Session& session) {
    return Set(session, wire::MemsetD32V2Request{.dstDevice = dstDevice, .ui = ui, .N = N}, ui, 4,
               default_stream);
  });
}

CUresult cuMemsetD8Async(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned char uc,
                         size_t N, CUstream hStream) {
  return AtCudaEdge("cuMemsetD8Async", [&](Session& session) {
    return SetAsync(session, wire::MemsetD8AsyncRequest{.dstDevice = dstDevice, .uc = uc, .N = N},
                    uc, 1, hStream, default_stream);
  });
}

CUresult cuMemsetD16Async(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned short us,
                          size_t N, CUstream hStream) {
  return AtCudaEdge("cuMemsetD16Async", [&](Session& session) {
    return SetAsync(session, wire::MemsetD16AsyncRequest{.dstDevice = dstDevice, .us = us, .N = N},
                    us, 2, hStream, default_stream);
  });
}

CUresult cuMemsetD32Async(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned int ui,
                          size_t N, CUstream hStream) {
  return AtCudaEdge("cuMemsetD32Async", [&](Session& session) {
    return SetAsync(session, wire::MemsetD32AsyncRequest{.dstDevice = dstDevice, .ui = ui, .N = N},
                    ui, 4, hStream, default_stream);
  });
}

}  // namespace fargpu::client::api
