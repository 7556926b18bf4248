// What CUDA refuses at once of calls that are sent and not waited for.
#include "absl/strings/str_cat.h"

#include "client/cuda/copying.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status CheckFlags(unsigned flags, unsigned known) {
  if ((flags & ~known) == 0) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags 0x", absl::Hex(flags)));
}

// An event is recorded on streams of its own context only.
absl::Status CheckSameContext(Session& session, CUevent event, CUstream stream) {
  if (session.ContextOf(event) == session.ContextOf(stream)) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_HANDLE, "event and stream are of different contexts");
}

absl::Status CheckSet(Session& session, CUdeviceptr address, size_t count, size_t bytes_each) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, bytes_each, &bytes)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "N is too large");
  }
  return bytes == 0 ? absl::OkStatus() : CheckDeviceRange(session, address, bytes);
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
