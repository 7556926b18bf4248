#pragma once

#include <cuda.h>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "client/cuda/edge.h"
#include "client/cuda/fake_worker.h"
#include "common/status_matchers.h"

namespace fargpu::client {

// Each test has a session with a FakeWorker behind the exported entry points.
class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(worker_of_test, nullptr);
    worker = std::make_unique<FakeWorker>();
    worker_of_test = worker.get();
    SetConnectorForTest(
        []() -> absl::StatusOr<SessionParts> { return worker_of_test->TakeParts(); });
  }
  void TearDown() override {
    ResetProcessForTest();
    worker_of_test = nullptr;
  }

  // cuInit, and device 0's primary context made current as the runtime does it.
  void Begin() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  CUdeviceptr Allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  uint64_t RoundTrips() const {
    return SessionOrNull()->calls().stats().waiting_round_trips.load();
  }
  // Any image will do.
  static constexpr char kPtx[] = ".version 9.0\n.target sm_75\n.address_size 64\n";

  std::unique_ptr<FakeWorker> worker;
  static inline FakeWorker* worker_of_test = nullptr;
};

}  // namespace fargpu::client
