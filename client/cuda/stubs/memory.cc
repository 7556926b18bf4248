// Device memory. Every allocation is known here, so that wrong pointers are refused at once and
// questions about pointers need no round trip.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status Remember(Session& session, CUdeviceptr dptr, size_t bytes) {
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  const absl::Status inserted = session.device_memory().Insert(
      {.begin = dptr, .bytes = bytes, .context = context->handle, .device = context->device});
  const bool inside = !session.window().known() || session.window().Contains(dptr);
  if (inserted.ok() && inside && dptr != 0) return absl::OkStatus();
  session.calls().Distrust(absl::InvalidArgumentError(
      absl::StrCat("the worker allocates 0x", absl::Hex(dptr),
                   inside ? ", which overlaps what it gave before" : " outside the window")));
  return session.calls().status();
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  return AtCudaEdge("cuMemAlloc_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(dptr, "dptr"));
    if (bytesize == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "bytesize is 0");
    wire::MemAllocV2Request request{.bytesize = bytesize};
    wire::MemAllocV2Reply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    RETURN_IF_ERROR(Remember(session, reply.dptr, bytesize));
    *dptr = reply.dptr;
    return absl::OkStatus();
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
    RETURN_IF_ERROR(Remember(session, reply.dptr, bytes));
    *dptr = reply.dptr;
    *pPitch = reply.pitch;
    return absl::OkStatus();
  });
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  return AtCudaEdge("cuMemFree_v2", [&](Session& session) -> absl::Status {
    if (dptr == 0) return absl::OkStatus();
    const std::optional<MemoryRange> range = session.device_memory().Find(dptr);
    if (!range.has_value() || range->begin != dptr || range->reserved || range->variable) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("0x", absl::Hex(dptr), " begins no allocation"));
    }
    // Removed first: once it is sent, another thread may be given the same address.
    session.device_memory().Remove(dptr);
    const absl::Status sent = session.Send(wire::MemFreeV2Request{.dptr = dptr});
    if (!sent.ok()) session.device_memory().Insert(*range).IgnoreError();
    return sent;
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
