// Copies of 2 and 3 dimensions, and to and from arrays; see box_copy.h.
#include "client/cuda/box_copy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/capture.h"
#include "client/cuda/copying.h"
#include "client/cuda/edge.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

// The structs name their fields alike.
template <typename Params>
BoxSide SourceOf(const Params& p) {
  return {.type = p.srcMemoryType,
          .host = p.srcHost,
          .device = p.srcDevice,
          .array = p.srcArray,
          .x_bytes = p.srcXInBytes,
          .y = p.srcY,
          .pitch = p.srcPitch};
}
template <typename Params>
BoxSide DestinationOf(const Params& p) {
  return {.type = p.dstMemoryType,
          .host = p.dstHost,
          .device = p.dstDevice,
          .array = p.dstArray,
          .x_bytes = p.dstXInBytes,
          .y = p.dstY,
          .pitch = p.dstPitch};
}

absl::Status CopyAs(Session& session, const CUDA_MEMCPY2D& p, wire::StreamId stream, Waits waits) {
  return CopyBox(session, DestinationOf(p), SourceOf(p),
                 {.width = p.WidthInBytes, .height = p.Height, .depth = 1}, stream, waits);
}

template <typename Params>
absl::Status CopyOf3D(Session& session, const Params& p, wire::StreamId stream, Waits waits) {
  BoxSide to = DestinationOf(p);
  to.z = p.dstZ;
  to.rows = p.dstHeight;
  to.level = p.dstLOD;
  BoxSide from = SourceOf(p);
  from.z = p.srcZ;
  from.rows = p.srcHeight;
  from.level = p.srcLOD;
  return CopyBox(session, to, from, {.width = p.WidthInBytes, .height = p.Height, .depth = p.Depth},
                 stream, waits);
}

absl::Status CopyAs(Session& session, const CUDA_MEMCPY3D& p, wire::StreamId stream, Waits waits) {
  return CopyOf3D(session, p, stream, waits);
}

absl::Status CopyAs(Session& session, const CUDA_MEMCPY3D_PEER& p, wire::StreamId stream,
                    Waits waits) {
  RETURN_IF_ERROR(session.FindContext(p.dstContext).status());
  RETURN_IF_ERROR(session.FindContext(p.srcContext).status());
  return CopyOf3D(session, p, stream, waits);
}

template <typename Params>
CUresult Copy(const char* name, DefaultStream default_stream, const Params* params, CUstream stream,
              Waits waits) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(params, "pCopy"));
    wire::StreamId id;
    RETURN_IF_ERROR(session.ToWire(stream, default_stream, &id));
    return CopyAs(session, *params, id, waits);
  });
}

// One end of a copy by byte offset, the oldest form: an array whose rows are taken as one sequence
// of bytes, or memory.
struct End {
  CUarray array = nullptr;
  size_t offset = 0;
  BoxSide memory;
};

End ArrayEnd(CUarray array, size_t offset) {
  return {.array = array, .offset = offset, .memory = {}};
}
End HostEnd(const void* memory) { return {.memory = {.type = CU_MEMORYTYPE_HOST, .host = memory}}; }
End DeviceEnd(CUdeviceptr memory) {
  return {.memory = {.type = CU_MEMORYTYPE_DEVICE, .device = memory}};
}

// The side at `done` bytes of the copy, and how many bytes lie in one row from there on.
absl::StatusOr<BoxSide> SideAt(Session& session, const End& end, size_t done, size_t bytes,
                               size_t* room) {
  if (end.memory.type != CU_MEMORYTYPE_UNIFIED) {
    *room = bytes - done;
    BoxSide side = end.memory;
    side.x_bytes = done;
    return side;
  }
  ASSIGN_OR_RETURN(const Array* array, session.FindArray(end.array));
  const size_t total = array->row_bytes() * array->rows();
  if (array->slices() > 1) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "the array has layers or is of 3 dimensions");
  }
  if (end.offset > total || bytes > total - end.offset) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("offset ", end.offset, " + ", bytes,
                                                            " of an array of ", total, " bytes"));
  }
  const size_t at = end.offset + done;
  BoxSide side{.type = CU_MEMORYTYPE_ARRAY, .array = end.array};
  side.x_bytes = at % array->row_bytes();
  side.y = at / array->row_bytes();
  *room = array->row_bytes() - side.x_bytes;
  return side;
}

CUresult CopyEnds(const char* name, DefaultStream default_stream, const End& to, const End& from,
                  size_t bytes, CUstream stream, Waits waits) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    wire::StreamId id;
    RETURN_IF_ERROR(session.ToWire(stream, default_stream, &id));
    size_t done = 0;
    do {
      size_t to_room = 0, from_room = 0;
      ASSIGN_OR_RETURN(const BoxSide to_side, SideAt(session, to, done, bytes, &to_room));
      ASSIGN_OR_RETURN(const BoxSide from_side, SideAt(session, from, done, bytes, &from_room));
      const size_t piece = std::min({bytes - done, to_room, from_room});
      RETURN_IF_ERROR(CopyBox(session, to_side, from_side,
                              {.width = piece, .height = 1, .depth = 1}, id, waits));
      done += piece;
    } while (done < bytes);
    return absl::OkStatus();
  });
}

template <typename Request>
CUresult SetRows(const char* name, DefaultStream default_stream, Request request, uint32_t value,
                 size_t bytes_each, CUstream stream) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(session.ToWire(stream, default_stream, &request.hStream));
    const auto invalid = [&](absl::string_view why) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat(request.Height, " rows of ", request.Width, " elements of ",
                                    bytes_each, " bytes, pitch ", request.dstPitch, ": ", why));
    };
    if (request.dstDevice % bytes_each != 0) return invalid("dstDevice is not aligned");
    if (request.Width == 0 || request.Height == 0) return absl::OkStatus();
    size_t row = 0, extent = 0;
    if (__builtin_mul_overflow(request.Width, bytes_each, &row)) return invalid("too wide");
    if (request.Height > 1 && (request.dstPitch < row || request.dstPitch % bytes_each != 0)) {
      return invalid("the pitch is too small or not a multiple of the element");
    }
    if (__builtin_mul_overflow(request.Height - 1, request.dstPitch, &extent) ||
        __builtin_add_overflow(extent, row, &extent)) {
      return invalid("too large");
    }
    RETURN_IF_ERROR(CheckDeviceRange(session, request.dstDevice, extent));
    if (IsCapturing(session, request.hStream)) {
      return CaptureFill(session, request.hStream,
                         {.dst = request.dstDevice,
                          .pitch = request.dstPitch,
                          .value = value,
                          .elementSize = static_cast<unsigned>(bytes_each),
                          .width = request.Width,
                          .height = request.Height,
                          .ctx = nullptr});
    }
    return session.Send(request);
  });
}

}  // namespace

CUresult cuMemcpy2D_v2(DefaultStream default_stream, const CUDA_MEMCPY2D* pCopy) {
  return Copy("cuMemcpy2D_v2", default_stream, pCopy, nullptr, Waits::kYes);
}
CUresult cuMemcpy2DUnaligned_v2(DefaultStream default_stream, const CUDA_MEMCPY2D* pCopy) {
  return Copy("cuMemcpy2DUnaligned_v2", default_stream, pCopy, nullptr, Waits::kYes);
}
CUresult cuMemcpy2DAsync_v2(DefaultStream default_stream, const CUDA_MEMCPY2D* pCopy,
                            CUstream hStream) {
  return Copy("cuMemcpy2DAsync_v2", default_stream, pCopy, hStream, Waits::kNo);
}
CUresult cuMemcpy3D_v2(DefaultStream default_stream, const CUDA_MEMCPY3D* pCopy) {
  return Copy("cuMemcpy3D_v2", default_stream, pCopy, nullptr, Waits::kYes);
}
CUresult cuMemcpy3DAsync_v2(DefaultStream default_stream, const CUDA_MEMCPY3D* pCopy,
                            CUstream hStream) {
  return Copy("cuMemcpy3DAsync_v2", default_stream, pCopy, hStream, Waits::kNo);
}
CUresult cuMemcpy3DPeer(DefaultStream default_stream, const CUDA_MEMCPY3D_PEER* pCopy) {
  return Copy("cuMemcpy3DPeer", default_stream, pCopy, nullptr, Waits::kYes);
}
CUresult cuMemcpy3DPeerAsync(DefaultStream default_stream, const CUDA_MEMCPY3D_PEER* pCopy,
                             CUstream hStream) {
  return Copy("cuMemcpy3DPeerAsync", default_stream, pCopy, hStream, Waits::kNo);
}

CUresult cuMemcpyDtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         CUdeviceptr srcDevice, size_t ByteCount) {
  return CopyEnds("cuMemcpyDtoA_v2", default_stream, ArrayEnd(dstArray, dstOffset),
                  DeviceEnd(srcDevice), ByteCount, nullptr, Waits::kYes);
}
CUresult cuMemcpyAtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, CUarray srcArray,
                         size_t srcOffset, size_t ByteCount) {
  return CopyEnds("cuMemcpyAtoD_v2", default_stream, DeviceEnd(dstDevice),
                  ArrayEnd(srcArray, srcOffset), ByteCount, nullptr, Waits::kYes);
}
CUresult cuMemcpyHtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         const void* srcHost, size_t ByteCount) {
  return CopyEnds("cuMemcpyHtoA_v2", default_stream, ArrayEnd(dstArray, dstOffset),
                  HostEnd(srcHost), ByteCount, nullptr, Waits::kYes);
}
CUresult cuMemcpyAtoH_v2(DefaultStream default_stream, void* dstHost, CUarray srcArray,
                         size_t srcOffset, size_t ByteCount) {
  return CopyEnds("cuMemcpyAtoH_v2", default_stream, HostEnd(dstHost),
                  ArrayEnd(srcArray, srcOffset), ByteCount, nullptr, Waits::kYes);
}
CUresult cuMemcpyAtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return CopyEnds("cuMemcpyAtoA_v2", default_stream, ArrayEnd(dstArray, dstOffset),
                  ArrayEnd(srcArray, srcOffset), ByteCount, nullptr, Waits::kYes);
}
CUresult cuMemcpyHtoAAsync_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                              const void* srcHost, size_t ByteCount, CUstream hStream) {
  return CopyEnds("cuMemcpyHtoAAsync_v2", default_stream, ArrayEnd(dstArray, dstOffset),
                  HostEnd(srcHost), ByteCount, hStream, Waits::kNo);
}
CUresult cuMemcpyAtoHAsync_v2(DefaultStream default_stream, void* dstHost, CUarray srcArray,
                              size_t srcOffset, size_t ByteCount, CUstream hStream) {
  return CopyEnds("cuMemcpyAtoHAsync_v2", default_stream, HostEnd(dstHost),
                  ArrayEnd(srcArray, srcOffset), ByteCount, hStream, Waits::kNo);
}

CUresult cuMemsetD2D8Async(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                           unsigned char uc, size_t Width, size_t Height, CUstream hStream) {
  return SetRows(
      "cuMemsetD2D8Async", default_stream,
      wire::MemsetD2D8AsyncRequest{
          .dstDevice = dstDevice, .dstPitch = dstPitch, .uc = uc, .Width = Width, .Height = Height},
      uc, 1, hStream);
}
CUresult cuMemsetD2D16Async(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                            unsigned short us, size_t Width, size_t Height, CUstream hStream) {
  return SetRows(
      "cuMemsetD2D16Async", default_stream,
      wire::MemsetD2D16AsyncRequest{
          .dstDevice = dstDevice, .dstPitch = dstPitch, .us = us, .Width = Width, .Height = Height},
      us, 2, hStream);
}
CUresult cuMemsetD2D32Async(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                            unsigned int ui, size_t Width, size_t Height, CUstream hStream) {
  return SetRows(
      "cuMemsetD2D32Async", default_stream,
      wire::MemsetD2D32AsyncRequest{
          .dstDevice = dstDevice, .dstPitch = dstPitch, .ui = ui, .Width = Width, .Height = Height},
      ui, 4, hStream);
}
// Setting device memory does not hold up the program, with a stream or without.
CUresult cuMemsetD2D8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                         unsigned char uc, size_t Width, size_t Height) {
  return cuMemsetD2D8Async(default_stream, dstDevice, dstPitch, uc, Width, Height, nullptr);
}
CUresult cuMemsetD2D16_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                          unsigned short us, size_t Width, size_t Height) {
  return cuMemsetD2D16Async(default_stream, dstDevice, dstPitch, us, Width, Height, nullptr);
}
CUresult cuMemsetD2D32_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                          unsigned int ui, size_t Width, size_t Height) {
  return cuMemsetD2D32Async(default_stream, dstDevice, dstPitch, ui, Width, Height, nullptr);
}

}  // namespace fargpu::client::api
