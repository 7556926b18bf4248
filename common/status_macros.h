#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define FARGPU_CONCAT_INNER(a, b) a##b
#define FARGPU_CONCAT(a, b) FARGPU_CONCAT_INNER(a, b)

// Returns from the enclosing function if `expression` is not OK.
#define RETURN_IF_ERROR(expression)                                                           \
  do {                                                                                        \
    if (absl::Status fargpu_status = (expression); !fargpu_status.ok()) return fargpu_status; \
  } while (false)

// ASSIGN_OR_RETURN(auto value, MakeValue()): unwraps a StatusOr or returns its status.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(FARGPU_CONCAT(fargpu_status_or_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return std::move(result).status();         \
  declaration = std::move(result).value()

// Returns a Status that carries the CUresult if a driver call failed (common/cuda_error.h).
#define RETURN_IF_CUDA_ERROR(expression)                                        \
  do {                                                                          \
    if (CUresult fargpu_result = (expression); fargpu_result != CUDA_SUCCESS) { \
      return ::fargpu::CudaError(fargpu_result, #expression);                   \
    }                                                                           \
  } while (false)
