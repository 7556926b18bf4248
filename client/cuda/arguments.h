#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"

namespace fargpu::client {

// CUDA_ERROR_INVALID_VALUE if a pointer that must be given was not.
inline absl::Status NotNull(const void* pointer, const char* name) {
  if (pointer != nullptr) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat(name, " is null"));
}

inline absl::Status CheckCacheConfig(CUfunc_cache config) {
  if (config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL) {
    return absl::OkStatus();
  }
  return CudaError(CUDA_ERROR_INVALID_VALUE,
                   absl::StrCat("cache configuration ", static_cast<int>(config)));
}

}  // namespace fargpu::client
