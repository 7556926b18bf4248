// Copies and fills.

#include "softgpu/driver/copy.h"
#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

CopyPlan Plain(uint64_t destination, Side destination_side, uint64_t source, Side source_side,
               size_t bytes) {
  CopyPlan plan;
  plan.destination = destination;
  plan.destination_side = destination_side;
  plan.source = source;
  plan.source_side = source_side;
  plan.width = bytes;
  return plan;
}

uint64_t Address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult Now(const char* call, NullStream null_stream, const CopyPlan& plan) {
  return WithStream(call, null_stream, nullptr,
                    [&](Driver& driver, Context& context, Stream& stream) {
                      return CopyNow(driver, context, stream, plan);
                    });
}

CUresult Async(const char* call, NullStream null_stream, CUstream handle, const CopyPlan& plan) {
  return WithStream(call, null_stream, handle,
                    [&](Driver& driver, Context& context, Stream& stream) {
                      return CopyAsync(driver, context, stream, plan);
                    });
}

absl::StatusOr<std::pair<uint64_t, Side>> Place(CUmemorytype type, const void* host,
                                                CUdeviceptr device) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      return std::make_pair(Address(host), Side::kHost);
    case CU_MEMORYTYPE_DEVICE:
      return std::make_pair(static_cast<uint64_t>(device), Side::kDevice);
    case CU_MEMORYTYPE_UNIFIED:
      return std::make_pair(static_cast<uint64_t>(device), Side::kUnified);
    case CU_MEMORYTYPE_ARRAY:
      return NotSupported("CUDA arrays");
  }
  return InvalidValue(absl::StrCat("memory type ", static_cast<int>(type)));
}

// Makes a plan of one of cuda.h's copy structs, which name their fields alike.
template <typename Params>
absl::StatusOr<CopyPlan> PlanOf(const Params* params) {
  RETURN_IF_NULL(params);
  ASSIGN_OR_RETURN(const auto source,
                   Place(params->srcMemoryType, params->srcHost, params->srcDevice));
  ASSIGN_OR_RETURN(const auto destination,
                   Place(params->dstMemoryType, params->dstHost, params->dstDevice));
  CopyPlan plan = Plain(destination.first, destination.second, source.first, source.second,
                        params->WidthInBytes);
  plan.height = params->Height;
  plan.source_pitch = params->srcPitch == 0 ? params->WidthInBytes : params->srcPitch;
  plan.destination_pitch = params->dstPitch == 0 ? params->WidthInBytes : params->dstPitch;
  if (plan.source != 0) {
    plan.source += params->srcXInBytes + params->srcY * plan.source_pitch;
  }
  if (plan.destination != 0) {
    plan.destination += params->dstXInBytes + params->dstY * plan.destination_pitch;
  }
  return plan;
}

template <typename Params>
absl::StatusOr<CopyPlan> PlanOf3D(const Params* params) {
  ASSIGN_OR_RETURN(CopyPlan plan, PlanOf(params));
  plan.depth = params->Depth;
  const size_t source_rows = params->srcHeight == 0 ? params->Height : params->srcHeight;
  const size_t destination_rows = params->dstHeight == 0 ? params->Height : params->dstHeight;
  plan.source_slice = plan.source_pitch * source_rows;
  plan.destination_slice = plan.destination_pitch * destination_rows;
  if (plan.source != 0) plan.source += params->srcZ * plan.source_slice;
  if (plan.destination != 0) plan.destination += params->dstZ * plan.destination_slice;
  return plan;
}

CUresult NowOrError(const char* call, NullStream null_stream,
                    const absl::StatusOr<CopyPlan>& plan) {
  if (Driver::Get() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (!plan.ok()) return EdgeResult(call, plan.status());
  return Now(call, null_stream, *plan);
}

CUresult AsyncOrError(const char* call, NullStream null_stream, CUstream stream,
                      const absl::StatusOr<CopyPlan>& plan) {
  if (Driver::Get() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (!plan.ok()) return EdgeResult(call, plan.status());
  return Async(call, null_stream, stream, *plan);
}

CUresult Fill(const char* call, NullStream null_stream, CUstream handle, CUdeviceptr destination,
              size_t pitch, uint32_t value, size_t element, size_t width, size_t height) {
  return WithStream(call, null_stream, handle,
                    [&](Driver& driver, Context& context, Stream& stream) {
                      return FillAsync(driver, context, stream,
                                       {.destination = destination,
                                        .pitch = pitch,
                                        .value = value,
                                        .element = element,
                                        .width = width,
                                        .height = height});
                    });
}

}  // namespace

CUresult Do_cuMemcpy(const char* call, NullStream null, CUdeviceptr dst, CUdeviceptr src,
                     size_t bytes) {
  return Now(call, null, Plain(dst, Side::kUnified, src, Side::kUnified, bytes));
}
CUresult Do_cuMemcpyHtoD_v2(const char* call, NullStream null, CUdeviceptr dst, const void* src,
                            size_t bytes) {
  return Now(call, null, Plain(dst, Side::kDevice, Address(src), Side::kHost, bytes));
}
CUresult Do_cuMemcpyDtoH_v2(const char* call, NullStream null, void* dst, CUdeviceptr src,
                            size_t bytes) {
  return Now(call, null, Plain(Address(dst), Side::kHost, src, Side::kDevice, bytes));
}
CUresult Do_cuMemcpyDtoD_v2(const char* call, NullStream null, CUdeviceptr dst, CUdeviceptr src,
                            size_t bytes) {
  // Asynchronous to the host, as cuda.h says of copies within devices.
  return Async(call, null, nullptr, Plain(dst, Side::kDevice, src, Side::kDevice, bytes));
}
CUresult Do_cuMemcpyPeer(const char* call, NullStream null, CUdeviceptr dst, CUcontext dst_context,
                         CUdeviceptr src, CUcontext src_context, size_t bytes) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(driver.FindContext(dst_context).status());
    RETURN_IF_ERROR(driver.FindContext(src_context).status());
    const CUresult result =
        Async(call, null, nullptr, Plain(dst, Side::kDevice, src, Side::kDevice, bytes));
    return FromCuResult(result, "copy between peers");
  });
}

CUresult Do_cuMemcpyAsync(const char* call, NullStream null, CUdeviceptr dst, CUdeviceptr src,
                          size_t bytes, CUstream stream) {
  return Async(call, null, stream, Plain(dst, Side::kUnified, src, Side::kUnified, bytes));
}
CUresult Do_cuMemcpyHtoDAsync_v2(const char* call, NullStream null, CUdeviceptr dst,
                                 const void* src, size_t bytes, CUstream stream) {
  return Async(call, null, stream, Plain(dst, Side::kDevice, Address(src), Side::kHost, bytes));
}
CUresult Do_cuMemcpyDtoHAsync_v2(const char* call, NullStream null, void* dst, CUdeviceptr src,
                                 size_t bytes, CUstream stream) {
  return Async(call, null, stream, Plain(Address(dst), Side::kHost, src, Side::kDevice, bytes));
}
CUresult Do_cuMemcpyDtoDAsync_v2(const char* call, NullStream null, CUdeviceptr dst,
                                 CUdeviceptr src, size_t bytes, CUstream stream) {
  return Async(call, null, stream, Plain(dst, Side::kDevice, src, Side::kDevice, bytes));
}
CUresult Do_cuMemcpyPeerAsync(const char* call, NullStream null, CUdeviceptr dst,
                              CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                              size_t bytes, CUstream stream) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(driver.FindContext(dst_context).status());
    RETURN_IF_ERROR(driver.FindContext(src_context).status());
    const CUresult result =
        Async(call, null, stream, Plain(dst, Side::kDevice, src, Side::kDevice, bytes));
    return FromCuResult(result, "copy between peers");
  });
}

CUresult Do_cuMemcpy2D_v2(const char* call, NullStream null, const CUDA_MEMCPY2D* copy) {
  return NowOrError(call, null, PlanOf(copy));
}
CUresult Do_cuMemcpy2DUnaligned_v2(const char* call, NullStream null, const CUDA_MEMCPY2D* copy) {
  return NowOrError(call, null, PlanOf(copy));
}
CUresult Do_cuMemcpy2DAsync_v2(const char* call, NullStream null, const CUDA_MEMCPY2D* copy,
                               CUstream stream) {
  return AsyncOrError(call, null, stream, PlanOf(copy));
}
CUresult Do_cuMemcpy3D_v2(const char* call, NullStream null, const CUDA_MEMCPY3D* copy) {
  return NowOrError(call, null, PlanOf3D(copy));
}
CUresult Do_cuMemcpy3DAsync_v2(const char* call, NullStream null, const CUDA_MEMCPY3D* copy,
                               CUstream stream) {
  return AsyncOrError(call, null, stream, PlanOf3D(copy));
}
CUresult Do_cuMemcpy3DPeer(const char* call, NullStream null, const CUDA_MEMCPY3D_PEER* copy) {
  return NowOrError(call, null, PlanOf3D(copy));
}
CUresult Do_cuMemcpy3DPeerAsync(const char* call, NullStream null, const CUDA_MEMCPY3D_PEER* copy,
                                CUstream stream) {
  return AsyncOrError(call, null, stream, PlanOf3D(copy));
}

CUresult Do_cuMemsetD8_v2(const char* call, NullStream null, CUdeviceptr dst, unsigned char value,
                          size_t count) {
  return Fill(call, null, nullptr, dst, 0, value, 1, count, 1);
}
CUresult Do_cuMemsetD16_v2(const char* call, NullStream null, CUdeviceptr dst, unsigned short value,
                           size_t count) {
  return Fill(call, null, nullptr, dst, 0, value, 2, count, 1);
}
CUresult Do_cuMemsetD32_v2(const char* call, NullStream null, CUdeviceptr dst, unsigned value,
                           size_t count) {
  return Fill(call, null, nullptr, dst, 0, value, 4, count, 1);
}
CUresult Do_cuMemsetD2D8_v2(const char* call, NullStream null, CUdeviceptr dst, size_t pitch,
                            unsigned char value, size_t width, size_t height) {
  return Fill(call, null, nullptr, dst, pitch, value, 1, width, height);
}
CUresult Do_cuMemsetD2D16_v2(const char* call, NullStream null, CUdeviceptr dst, size_t pitch,
                             unsigned short value, size_t width, size_t height) {
  return Fill(call, null, nullptr, dst, pitch, value, 2, width, height);
}
CUresult Do_cuMemsetD2D32_v2(const char* call, NullStream null, CUdeviceptr dst, size_t pitch,
                             unsigned value, size_t width, size_t height) {
  return Fill(call, null, nullptr, dst, pitch, value, 4, width, height);
}
CUresult Do_cuMemsetD8Async(const char* call, NullStream null, CUdeviceptr dst, unsigned char value,
                            size_t count, CUstream stream) {
  return Fill(call, null, stream, dst, 0, value, 1, count, 1);
}
CUresult Do_cuMemsetD16Async(const char* call, NullStream null, CUdeviceptr dst,
                             unsigned short value, size_t count, CUstream stream) {
  return Fill(call, null, stream, dst, 0, value, 2, count, 1);
}
CUresult Do_cuMemsetD32Async(const char* call, NullStream null, CUdeviceptr dst, unsigned value,
                             size_t count, CUstream stream) {
  return Fill(call, null, stream, dst, 0, value, 4, count, 1);
}
CUresult Do_cuMemsetD2D8Async(const char* call, NullStream null, CUdeviceptr dst, size_t pitch,
                              unsigned char value, size_t width, size_t height, CUstream stream) {
  return Fill(call, null, stream, dst, pitch, value, 1, width, height);
}
CUresult Do_cuMemsetD2D16Async(const char* call, NullStream null, CUdeviceptr dst, size_t pitch,
                               unsigned short value, size_t width, size_t height, CUstream stream) {
  return Fill(call, null, stream, dst, pitch, value, 2, width, height);
}
CUresult Do_cuMemsetD2D32Async(const char* call, NullStream null, CUdeviceptr dst, size_t pitch,
                               unsigned value, size_t width, size_t height, CUstream stream) {
  return Fill(call, null, stream, dst, pitch, value, 4, width, height);
}

}  // namespace fargpu::softgpu

CU_API_TWINS(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), dst, src, bytes);
CU_API_TWINS(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr dst, const void* src, size_t bytes), dst, src,
             bytes);
CU_API_TWINS(cuMemcpyDtoH_v2, _ptds, (void* dst, CUdeviceptr src, size_t bytes), dst, src, bytes);
CU_API_TWINS(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), dst, src,
             bytes);
CU_API_TWINS(cuMemcpyPeer, _ptds,
             (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
              size_t bytes),
             dst, dst_context, src, src_context, bytes);
CU_API_TWINS(cuMemcpyAsync, _ptsz,
             (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), dst, src, bytes,
             stream);
CU_API_TWINS(cuMemcpyHtoDAsync_v2, _ptsz,
             (CUdeviceptr dst, const void* src, size_t bytes, CUstream stream), dst, src, bytes,
             stream);
CU_API_TWINS(cuMemcpyDtoHAsync_v2, _ptsz,
             (void* dst, CUdeviceptr src, size_t bytes, CUstream stream), dst, src, bytes, stream);
CU_API_TWINS(cuMemcpyDtoDAsync_v2, _ptsz,
             (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), dst, src, bytes,
             stream);
CU_API_TWINS(cuMemcpyPeerAsync, _ptsz,
             (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
              size_t bytes, CUstream stream),
             dst, dst_context, src, src_context, bytes, stream);
CU_API_TWINS(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D* copy), copy);
CU_API_TWINS(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D* copy), copy);
CU_API_TWINS(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D* copy, CUstream stream), copy, stream);
CU_API_TWINS(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D* copy), copy);
CU_API_TWINS(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D* copy, CUstream stream), copy, stream);
CU_API_TWINS(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER* copy), copy);
CU_API_TWINS(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER* copy, CUstream stream), copy,
             stream);
CU_API_TWINS(cuMemsetD8_v2, _ptds, (CUdeviceptr dst, unsigned char value, size_t count), dst, value,
             count);
CU_API_TWINS(cuMemsetD16_v2, _ptds, (CUdeviceptr dst, unsigned short value, size_t count), dst,
             value, count);
CU_API_TWINS(cuMemsetD32_v2, _ptds, (CUdeviceptr dst, unsigned value, size_t count), dst, value,
             count);
CU_API_TWINS(cuMemsetD2D8_v2, _ptds,
             (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height), dst,
             pitch, value, width, height);
CU_API_TWINS(cuMemsetD2D16_v2, _ptds,
             (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height),
             dst, pitch, value, width, height);
CU_API_TWINS(cuMemsetD2D32_v2, _ptds,
             (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height), dst,
             pitch, value, width, height);
CU_API_TWINS(cuMemsetD8Async, _ptsz,
             (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream), dst, value,
             count, stream);
CU_API_TWINS(cuMemsetD16Async, _ptsz,
             (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream), dst, value,
             count, stream);
CU_API_TWINS(cuMemsetD32Async, _ptsz,
             (CUdeviceptr dst, unsigned value, size_t count, CUstream stream), dst, value, count,
             stream);
CU_API_TWINS(cuMemsetD2D8Async, _ptsz,
             (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
              CUstream stream),
             dst, pitch, value, width, height, stream);
CU_API_TWINS(cuMemsetD2D16Async, _ptsz,
             (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
              CUstream stream),
             dst, pitch, value, width, height, stream);
CU_API_TWINS(cuMemsetD2D32Async, _ptsz,
             (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height,
              CUstream stream),
             dst, pitch, value, width, height, stream);
