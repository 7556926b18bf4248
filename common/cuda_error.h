#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fargpu {

// A Status that carries `result` bit for bit as a payload, so that what the driver (or we, in its
// place) decided reaches the program unchanged. `result` must not be CUDA_SUCCESS.
absl::Status CudaError(CUresult result, absl::string_view message);

// The CUresult that a program sees for `status`: the one it carries, or, for a Status of our own
// making, the row of the table in cuda_error.cc. CUDA_SUCCESS for OK.
CUresult ToCuResult(const absl::Status& status);

// OK for CUDA_SUCCESS, else CudaError(result, message).
absl::Status FromCuResult(CUresult result, absl::string_view message);

// "CUDA_ERROR_INVALID_VALUE"; nullptr for a number that cuda.h does not know.
const char* CuResultName(CUresult result);
// The description cuGetErrorString gives; nullptr for a number that cuda.h does not know.
const char* CuResultDescription(CUresult result);

}  // namespace fargpu
