#include "softgpu/driver/edge.h"

#include "protocol/driver_abi/local/driver_log.h"

namespace fargpu::softgpu {

CUresult EdgeResult(const char* call, const absl::Status& status) noexcept {
  const CUresult result = ToCuResult(status);
  // Programs poll with cuStreamQuery and cuEventQuery; "not ready" is an answer, not an error.
  if (result != CUDA_ERROR_NOT_READY) {
    const char* const name = CuResultName(result);
    FARGPU_LOG(kDebug, "softgpu: ", call, ": ", name == nullptr ? "unknown error" : name, ": ",
               std::string(status.message()));
    driver_abi::AddToDriverLog(call, result, status.message());
  }
  return result;
}

}  // namespace fargpu::softgpu
