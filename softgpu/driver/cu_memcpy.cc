// Copies and fills.

#include "softgpu/driver/copy.h"
#include "softgpu/driver/copy_params.h"
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

// Runs the copy that plan(Driver&) gives and waits for it.
template <typename MakePlan>
CUresult NowOf(const char* call, NullStream null_stream, MakePlan make_plan) {
  return WithStream(call, null_stream, nullptr,
                    [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
                      RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
                      ASSIGN_OR_RETURN(const CopyPlan plan, make_plan(driver));
                      return CopyNow(driver, context, stream, plan);
                    });
}

template <typename MakePlan>
CUresult AsyncOf(const char* call, NullStream null_stream, CUstream handle, MakePlan make_plan) {
  return WithStream(
      call, null_stream, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        ASSIGN_OR_RETURN(const CopyPlan plan, make_plan(driver));
        return CopyAsync(driver, context, stream, plan);
      },
      OnCapture::kRecord);
}

CUresult Now(const char* call, NullStream null_stream, const CopyPlan& plan) {
  return NowOf(call, null_stream, [&](Driver&) -> absl::StatusOr<CopyPlan> { return plan; });
}

CUresult Async(const char* call, NullStream null_stream, CUstream handle, const CopyPlan& plan) {
  return AsyncOf(call, null_stream, handle,
                 [&](Driver&) -> absl::StatusOr<CopyPlan> { return plan; });
}

// A plan of one of cuda.h's copy structs.
template <typename Params>
auto PlanFrom(const Params* params) {
  return [params](Driver& driver) -> absl::StatusOr<CopyPlan> {
    RETURN_IF_NULL(params);
    return PlanOf(driver, *params);
  };
}

CUresult Fill(const char* call, NullStream null_stream, CUstream handle, CUdeviceptr destination,
              size_t pitch, uint32_t value, size_t element, size_t width, size_t height) {
  return WithStream(
      call, null_stream, handle,
      [&](Driver& driver, Context& context, Stream& stream) {
        return FillAsync(driver, context, stream,
                         {.destination = destination,
                          .pitch = pitch,
                          .value = value,
                          .element = element,
                          .width = width,
                          .height = height});
      },
      OnCapture::kRecord);
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
  return NowOf(call, null, PlanFrom(copy));
}
CUresult Do_cuMemcpy2DUnaligned_v2(const char* call, NullStream null, const CUDA_MEMCPY2D* copy) {
  return NowOf(call, null, PlanFrom(copy));
}
CUresult Do_cuMemcpy2DAsync_v2(const char* call, NullStream null, const CUDA_MEMCPY2D* copy,
                               CUstream stream) {
  return AsyncOf(call, null, stream, PlanFrom(copy));
}
CUresult Do_cuMemcpy3D_v2(const char* call, NullStream null, const CUDA_MEMCPY3D* copy) {
  return NowOf(call, null, PlanFrom(copy));
}
CUresult Do_cuMemcpy3DAsync_v2(const char* call, NullStream null, const CUDA_MEMCPY3D* copy,
                               CUstream stream) {
  return AsyncOf(call, null, stream, PlanFrom(copy));
}
CUresult Do_cuMemcpy3DPeer(const char* call, NullStream null, const CUDA_MEMCPY3D_PEER* copy) {
  return NowOf(call, null, PlanFrom(copy));
}
CUresult Do_cuMemcpy3DPeerAsync(const char* call, NullStream null, const CUDA_MEMCPY3D_PEER* copy,
                                CUstream stream) {
  return AsyncOf(call, null, stream, PlanFrom(copy));
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
