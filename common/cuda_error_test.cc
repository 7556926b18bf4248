#include "common/cuda_error.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_macros.h"
#include "common/status_matchers.h"

namespace fargpu {
namespace {

TEST(CudaErrorTest, ResultTravelsBitExact) {
  for (int result : {1, 2, 46, 700, 719, 999, 12345}) {
    EXPECT_EQ(ToCuResult(CudaError(static_cast<CUresult>(result), "why")), result);
  }
}

TEST(CudaErrorTest, MessageNamesTheError) {
  EXPECT_THAT(std::string(CudaError(CUDA_ERROR_ILLEGAL_ADDRESS, "kernel k").message()),
              testing::AllOf(testing::HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"),
                             testing::HasSubstr("700"), testing::HasSubstr("kernel k")));
}

TEST(CudaErrorTest, EveryStatusCodeHasItsRow) {
  const struct {
    absl::StatusCode code;
    CUresult result;
  } rows[] = {
      {absl::StatusCode::kOk, CUDA_SUCCESS},
      {absl::StatusCode::kInvalidArgument, CUDA_ERROR_INVALID_VALUE},
      {absl::StatusCode::kOutOfRange, CUDA_ERROR_INVALID_VALUE},
      {absl::StatusCode::kNotFound, CUDA_ERROR_NOT_FOUND},
      {absl::StatusCode::kResourceExhausted, CUDA_ERROR_OUT_OF_MEMORY},
      {absl::StatusCode::kUnimplemented, CUDA_ERROR_NOT_SUPPORTED},
      {absl::StatusCode::kPermissionDenied, CUDA_ERROR_NOT_PERMITTED},
      {absl::StatusCode::kUnauthenticated, CUDA_ERROR_NOT_PERMITTED},
      {absl::StatusCode::kUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE},
      {absl::StatusCode::kDeadlineExceeded, CUDA_ERROR_DEVICE_UNAVAILABLE},
      {absl::StatusCode::kAborted, CUDA_ERROR_DEVICE_UNAVAILABLE},
      {absl::StatusCode::kInternal, CUDA_ERROR_UNKNOWN},
      {absl::StatusCode::kUnknown, CUDA_ERROR_UNKNOWN},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(ToCuResult(absl::Status(row.code, "x")), row.result)
        << absl::StatusCodeToString(row.code);
  }
}

TEST(CudaErrorTest, NamesAndTexts) {
  EXPECT_STREQ(CuResultName(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_STREQ(CuResultDescription(CUDA_ERROR_OUT_OF_MEMORY), "out of memory");
  EXPECT_EQ(CuResultName(static_cast<CUresult>(12345)), nullptr);
}

absl::Status Fails() {
  RETURN_IF_CUDA_ERROR(CUDA_ERROR_INVALID_HANDLE);
  return absl::OkStatus();
}

TEST(CudaErrorTest, MacroCarriesTheResult) {
  EXPECT_THAT(Fails(), IsCudaError(CUDA_ERROR_INVALID_HANDLE));
}

}  // namespace
}  // namespace fargpu
