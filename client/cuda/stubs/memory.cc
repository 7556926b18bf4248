// Device memory.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/device_memory.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  return AtCudaEdge("cuMemAlloc_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(dptr, "dptr"));
    return AllocateDeviceMemory(session, bytesize, nullptr, dptr);
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  return AtCudaEdge("cuMemAllocPitch_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(dptr, "dptr"));
    RETURN_IF_ERROR(NotNull(pPitch, "pPitch"));
    if (WidthInBytes == 0 || Height == 0) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "width or height is 0");
    }
    wire::MemAllocPitchV2Request request{
        .WidthInBytes = WidthInBytes, .Height = Height, .ElementSizeBytes = ElementSizeBytes};
    wire::MemAllocPitchV2Reply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    size_t bytes = 0;
    if (__builtin_mul_overflow(reply.pitch, Height, &bytes)) {
      return CudaError(CUDA_ERROR_UNKNOWN, absl::StrCat("a pitch of ", reply.pitch, " bytes"));
    }
    RETURN_IF_ERROR(RememberDeviceMemory(session, reply.dptr, bytes, nullptr));
    *dptr = reply.dptr;
    *pPitch = reply.pitch;
    return absl::OkStatus();
  });
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  return AtCudaEdge("cuMemFree_v2", [&](Session& session) -> absl::Status {
    if (dptr == 0) return absl::OkStatus();
    return FreeDeviceMemory(session, dptr);
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  return AtCudaEdge("cuMemGetAddressRange_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    const std::optional<MemoryRange> range = session.device_memory().Find(dptr);
    if (!range.has_value()) {
      return CudaError(CUDA_ERROR_NOT_FOUND,
                       absl::StrCat("0x", absl::Hex(dptr), " lies in no allocation"));
    }
    if (pbase != nullptr) *pbase = range->begin;
    if (psize != nullptr) *psize = range->bytes;
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
