#include "common/cuda_error.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_results.inc"

namespace fargpu {
namespace {

constexpr char kPayloadUrl[] = "fargpu.io/CUresult";

}  // namespace

absl::Status CudaError(CUresult result, absl::string_view message) {
  const char* name = CuResultName(result);
  absl::Status status(absl::StatusCode::kFailedPrecondition,
                      absl::StrCat(name != nullptr ? name : "CUresult", " (",
                                   static_cast<int>(result), "): ", message));
  status.SetPayload(kPayloadUrl, absl::Cord(absl::StrCat(static_cast<int>(result))));
  return status;
}

absl::Status FromCuResult(CUresult result, absl::string_view message) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return CudaError(result, message);
}

CUresult ToCuResult(const absl::Status& status) {
  if (status.ok()) return CUDA_SUCCESS;
  if (auto payload = status.GetPayload(kPayloadUrl)) {
    int result = 0;
    if (absl::SimpleAtoi(std::string(*payload), &result)) return static_cast<CUresult>(result);
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return CUDA_ERROR_INVALID_VALUE;
    case absl::StatusCode::kNotFound:
      return CUDA_ERROR_NOT_FOUND;
    case absl::StatusCode::kResourceExhausted:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case absl::StatusCode::kUnimplemented:
      return CUDA_ERROR_NOT_SUPPORTED;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return CUDA_ERROR_NOT_PERMITTED;
    // The link died. Of all codes this one best says "the device went away under you"; it is the
    // documented code for a lost session (docs/guide).
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return CUDA_ERROR_DEVICE_UNAVAILABLE;
    default:
      return CUDA_ERROR_UNKNOWN;
  }
}

const char* CuResultName(CUresult result) {
  switch (result) {
#define FARGPU_CASE(name, text) \
  case name:                    \
    return #name;
    FARGPU_CUDA_RESULTS(FARGPU_CASE)
#undef FARGPU_CASE
  }
  return nullptr;
}

const char* CuResultDescription(CUresult result) {
  switch (result) {
#define FARGPU_CASE(name, text) \
  case name:                    \
    return text;
    FARGPU_CUDA_RESULTS(FARGPU_CASE)
#undef FARGPU_CASE
  }
  return nullptr;
}

}  // namespace fargpu
