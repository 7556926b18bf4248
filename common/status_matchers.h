#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

// Matchers for tests: EXPECT_THAT(status, IsOk()), StatusIs(code), IsCudaError(CUDA_ERROR_...).
namespace fargpu {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}
MATCHER_P(StatusIs, code, "has the status code " + absl::StatusCodeToString(code)) {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}
MATCHER_P(IsCudaError, result, "carries the CUresult " + std::to_string(result)) {
  *result_listener << StatusOf(arg).ToString();
  return ToCuResult(StatusOf(arg)) == result;
}

}  // namespace fargpu

#define ASSERT_OK(expression) ASSERT_THAT((expression), ::fargpu::IsOk())
#define EXPECT_OK(expression) EXPECT_THAT((expression), ::fargpu::IsOk())
#define ASSERT_OK_AND_ASSIGN(declaration, expression) \
  ASSERT_OK_AND_ASSIGN_IMPL(FARGPU_CONCAT(fargpu_status_or_, __LINE__), declaration, expression)
#define ASSERT_OK_AND_ASSIGN_IMPL(result, declaration, expression) \
  auto result = (expression);                                      \
  ASSERT_THAT(result, ::fargpu::IsOk());                           \
  declaration = std::move(result).value()
