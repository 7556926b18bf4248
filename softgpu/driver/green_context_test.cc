#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

class GreenContextTest : public DriverTest {
 protected:
  // The test card has four multiprocessors; parts of one are allowed only where they are asked for.
  static constexpr unsigned kFine = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;

  CUdevResource Whole() {
    CUdevResource whole = {};
    EXPECT_SUCCESS(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    return whole;
  }
  CUgreenCtx Create(unsigned multiprocessors) {
    const CUdevResource whole = Whole();
    CUdevResource part = {};
    unsigned groups = 1;
    EXPECT_SUCCESS(
        cuDevSmResourceSplitByCount(&part, &groups, &whole, nullptr, kFine, multiprocessors));
    CUdevResourceDesc description = nullptr;
    EXPECT_SUCCESS(cuDevResourceGenerateDesc(&description, &part, 1));
    CUgreenCtx green = nullptr;
    EXPECT_SUCCESS(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
  }
};

TEST_F(GreenContextTest, SplitsMultiprocessors) {
  const CUdevResource whole = Whole();
  EXPECT_EQ(whole.type, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(whole.sm.smCount, 4u);
  EXPECT_EQ(whole.sm.minSmPartitionSize, 4u);
  unsigned groups = 0;
  EXPECT_SUCCESS(cuDevSmResourceSplitByCount(nullptr, &groups, &whole, nullptr, kFine, 1));
  EXPECT_EQ(groups, 4u);
  EXPECT_SUCCESS(cuDevSmResourceSplitByCount(nullptr, &groups, &whole, nullptr, 0, 1));
  EXPECT_EQ(groups, 1u);
  CUdevResource parts[3] = {};
  CUdevResource rest = {};
  groups = 3;
  EXPECT_SUCCESS(cuDevSmResourceSplitByCount(parts, &groups, &whole, &rest, kFine, 1));
  EXPECT_EQ(groups, 3u);
  EXPECT_EQ(parts[2].sm.smCount, 1u);
  EXPECT_EQ(rest.sm.smCount, 1u);
  groups = 3;
  EXPECT_SUCCESS(cuDevSmResourceSplitByCount(parts, &groups, &whole, &rest, kFine, 3));
  EXPECT_EQ(groups, 1u);
  EXPECT_EQ(parts[0].sm.smCount, 3u);
  EXPECT_EQ(rest.sm.smCount, 1u);
  groups = 1;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuDevSmResourceSplitByCount(parts, &groups, &whole, &rest, kFine, 5));
  EXPECT_CU(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
            cuDevSmResourceSplitByCount(parts, &groups, &rest, nullptr, kFine, 1));
  CUdevResource forged = {};
  EXPECT_CU(CUDA_ERROR_INVALID_RESOURCE_TYPE,
            cuDevSmResourceSplitByCount(parts, &groups, &forged, nullptr, kFine, 1));
  forged.type = CU_DEV_RESOURCE_TYPE_SM;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuDevSmResourceSplitByCount(parts, &groups, &forged, nullptr, kFine, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_RESOURCE_TYPE,
            cuDeviceGetDevResource(0, &rest, CU_DEV_RESOURCE_TYPE_INVALID));
  // A description may join parts of one split, and of no other.
  CUdevResource others[2] = {};
  groups = 2;
  EXPECT_SUCCESS(cuDevSmResourceSplitByCount(others, &groups, &whole, nullptr, kFine, 1));
  CUdevResourceDesc description = nullptr;
  EXPECT_SUCCESS(cuDevResourceGenerateDesc(&description, others, 2));
  others[1] = parts[0];
  EXPECT_CU(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
            cuDevResourceGenerateDesc(&description, others, 2));
}

TEST_F(GreenContextTest, IsTheContextOfTheDeviceByAnotherName) {
  const CUgreenCtx green = Create(2);
  CUcontext context = nullptr;
  ASSERT_SUCCESS(cuCtxFromGreenCtx(&context, green));
  EXPECT_NE(context, context_);
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAlloc(&memory, 64));
  ASSERT_SUCCESS(cuCtxSetCurrent(context));
  EXPECT_SUCCESS(cuMemsetD8(memory, 3, 64));
  CUdevResource resource = {};
  EXPECT_SUCCESS(cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(resource.sm.smCount, 2u);
  EXPECT_SUCCESS(cuCtxGetDevResource(context_, &resource, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(resource.sm.smCount, 4u);
  EXPECT_SUCCESS(cuGreenCtxGetDevResource(green, &resource, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(resource.sm.smCount, 2u);
  CUdevice device = -1;
  EXPECT_SUCCESS(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 0);
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(context));
  ASSERT_SUCCESS(cuCtxSetCurrent(context_));
  EXPECT_SUCCESS(cuGreenCtxDestroy(green));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(green));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxFromGreenCtx(&context, green));
  EXPECT_SUCCESS(cuMemFree(memory));  // the primary context has lost nothing
}

TEST_F(GreenContextTest, KeepsThePrimaryContextAlive) {
  const CUgreenCtx green = Create(1);
  ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 0;
  int active = 0;
  EXPECT_SUCCESS(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  EXPECT_SUCCESS(cuGreenCtxDestroy(green));
  EXPECT_SUCCESS(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
}

TEST_F(GreenContextTest, ItsContextIsGoneAfterAReset) {
  const CUgreenCtx green = Create(1);
  CUcontext context = nullptr;
  ASSERT_SUCCESS(cuCtxFromGreenCtx(&context, green));
  ASSERT_SUCCESS(cuDevicePrimaryCtxReset(0));
  CUstream stream = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT,
            cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  EXPECT_SUCCESS(cuGreenCtxDestroy(green));
}

TEST_F(GreenContextTest, StreamsAndEvents) {
  const CUgreenCtx green = Create(2);
  CUstream stream = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0));
  ASSERT_SUCCESS(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  CUgreenCtx of_stream = nullptr;
  EXPECT_SUCCESS(cuStreamGetGreenCtx(stream, &of_stream));
  EXPECT_EQ(of_stream, green);
  CUcontext context = context_;
  EXPECT_SUCCESS(cuStreamGetCtx_v2(stream, &context, &of_stream));
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(of_stream, green);
  EXPECT_SUCCESS(cuStreamGetCtx_v2(nullptr, &context, &of_stream));
  EXPECT_EQ(context, context_);
  EXPECT_EQ(of_stream, nullptr);

  // An event of the whole green context is reached when its streams are through, and its streams
  // wait for one.
  Gate gate;
  std::atomic<int> ran{0};
  const CUfunction waits = Load("waits", [&](const LaunchConfig&) {
    EXPECT_TRUE(gate.Pass());
    ++ran;
    return absl::OkStatus();
  });
  CUevent event = nullptr;
  ASSERT_SUCCESS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  ASSERT_SUCCESS(Launch(waits, stream));
  ASSERT_SUCCESS(cuGreenCtxRecordEvent(green, event));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  CUstream other = nullptr;
  ASSERT_SUCCESS(cuGreenCtxStreamCreate(&other, green, CU_STREAM_NON_BLOCKING, 0));
  ASSERT_SUCCESS(cuGreenCtxWaitEvent(green, event));
  std::atomic<int> seen{-1};
  const CUfunction looks = Load("looks", [&](const LaunchConfig&) {
    seen = ran.load();
    return absl::OkStatus();
  });
  ASSERT_SUCCESS(Launch(looks, other));
  EXPECT_EQ(seen, -1);
  gate.Open();
  ASSERT_SUCCESS(cuEventSynchronize(event));
  ASSERT_SUCCESS(cuStreamSynchronize(other));
  EXPECT_EQ(seen, 1);
  // The same of a whole context.
  ASSERT_SUCCESS(cuCtxRecordEvent(context_, event));
  ASSERT_SUCCESS(cuEventSynchronize(event));
  EXPECT_SUCCESS(cuCtxWaitEvent(context_, event));
  EXPECT_SUCCESS(cuGreenCtxDestroy(green));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
}

}  // namespace
}  // namespace fargpu::softgpu
