// What CUDA refuses at once of calls that are sent and not waited for.
#include "absl/strings/str_cat.h"

#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status CheckFlags(unsigned flags, unsigned known) {
  if ((flags & ~known) == 0) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags 0x", absl::Hex(flags)));
}

}  // namespace

absl::Status Check_cuEventCreate(Session& session, CUevent* phEvent, unsigned int Flags) {
  RETURN_IF_ERROR(
      CheckFlags(Flags, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
  if ((Flags & CU_EVENT_INTERPROCESS) != 0 && (Flags & CU_EVENT_DISABLE_TIMING) == 0) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "an event between processes has no timing");
  }
  return absl::OkStatus();
}

absl::Status Check_cuStreamDestroy_v2(Session& session, CUstream hStream) {
  if (session.FindStream(hStream) != nullptr) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_HANDLE, "a default stream cannot be destroyed");
}

}  // namespace fargpu::client::api
