// Memory shared by processes of one lease.
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/copying.h"
#include "client/cuda/device_memory.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

constexpr size_t kHandleWords = sizeof(CUipcMemHandle) / sizeof(uint64_t);

absl::Status OpenMemory(Session& session, CUdeviceptr* pdptr, const CUipcMemHandle& handle,
                        unsigned flags) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  RETURN_IF_ERROR(NotNull(pdptr, "pdptr"));
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", flags, ", must be 1"));
  }
  wire::IpcOpenMemHandleV2Request request;
  request.words.resize(kHandleWords);
  std::memcpy(request.words.data(), handle.reserved, sizeof(handle.reserved));
  wire::IpcOpenMemHandleV2Reply reply;
  RETURN_IF_ERROR(session.Call(request, &reply));
  RETURN_IF_ERROR(RememberDeviceMemory(session, reply.dptr, reply.bytes, nullptr, Maker::kOther));
  *pdptr = reply.dptr;
  return absl::OkStatus();
}

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  return AtCudaEdge("cuIpcGetMemHandle", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(pHandle, "pHandle"));
    const std::optional<MemoryRange> range = session.device_memory().Find(dptr);
    if (!range.has_value() || range->reserved || range->variable || range->managed ||
        range->imported || range->graph || range->pool != nullptr) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("0x", absl::Hex(dptr), " is not memory of cuMemAlloc"));
    }
    wire::IpcGetMemHandleRequest request{.dptr = range->begin};
    wire::IpcGetMemHandleReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    if (reply.words.size() != kHandleWords) {
      session.calls().Distrust(absl::InvalidArgumentError(
          absl::StrCat("the worker gives a memory handle of ", reply.words.size(), " words")));
      return session.calls().status();
    }
    std::memcpy(pHandle->reserved, reply.words.data(), sizeof(pHandle->reserved));
    return absl::OkStatus();
  });
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return AtCudaEdge("cuIpcOpenMemHandle",
                    [&](Session& session) { return OpenMemory(session, pdptr, handle, Flags); });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return AtCudaEdge("cuIpcOpenMemHandle_v2",
                    [&](Session& session) { return OpenMemory(session, pdptr, handle, Flags); });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  return AtCudaEdge("cuIpcCloseMemHandle", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    const std::optional<MemoryRange> range = session.device_memory().Find(dptr);
    if (!range.has_value() || !range->imported || range->begin != dptr) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("0x", absl::Hex(dptr), " is not another process's memory"));
    }
    RETURN_IF_ERROR(SynchronizeContext(session));
    session.device_memory().Remove(dptr);
    return session.Send(wire::IpcCloseMemHandleRequest{.dptr = dptr});
  });
}

}  // namespace fargpu::client::api
