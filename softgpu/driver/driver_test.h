#pragma once

#include <atomic>
#include <chrono>
#include <cuda.h>
#include <string>
#include <vector>

#include "gmock/gmock.h"

#include "common/mutex.h"
#include "softgpu/driver/fake_program.h"

// What the unit tests of the driver share. They call cu* functions, linked to the library's objects
// and to FakeProgram in place of the compiler. Each test program runs with two cards of 256 MiB.
namespace fargpu::softgpu {

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kTestDeviceBytes = 256 * kMiB;

#define EXPECT_CU(expected, call) EXPECT_EQ(static_cast<int>(expected), static_cast<int>(call))
#define ASSERT_CU(expected, call) ASSERT_EQ(static_cast<int>(expected), static_cast<int>(call))
#define EXPECT_SUCCESS(call) EXPECT_CU(CUDA_SUCCESS, call)
#define ASSERT_SUCCESS(call) ASSERT_CU(CUDA_SUCCESS, call)

// Opens once; fake kernels wait for it so that tests decide when a stream goes on.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    opened_.SignalAll();
  }
  // False if nobody opened it for ten seconds.
  bool Pass() {
    MutexLock lock(&mutex_);
    for (int i = 0; i < 10 && !open_; ++i) opened_.WaitFor(&mutex_, std::chrono::seconds(1));
    return open_;
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

// With the primary context of device 0 current, which is reset afterwards.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context_, 0));
    ASSERT_SUCCESS(cuCtxSetCurrent(context_));
  }
  void TearDown() override {
    cuDevicePrimaryCtxReset(0);
    cuDevicePrimaryCtxReset(1);
    cuCtxSetCurrent(nullptr);
  }

  // A function whose body is `body`; loads a module that holds it alone.
  CUfunction Load(KernelInfo info, FakeKernelBody body) {
    const std::string text = ".version 9.0\n.entry " + info.name + "\n";
    RegisterFakeKernel(std::move(info), std::move(body));
    CUmodule module = nullptr;
    EXPECT_SUCCESS(cuModuleLoadData(&module, text.c_str()));
    CUfunction function = nullptr;
    const std::string name = text.substr(text.find(".entry ") + 7);
    EXPECT_SUCCESS(cuModuleGetFunction(&function, module, name.substr(0, name.size() - 1).c_str()));
    return function;
  }
  CUfunction Load(const char* name, FakeKernelBody body) {
    return Load(FakeKernelInfo(name, {}), std::move(body));
  }
  // Launches one thread without parameters.
  static CUresult Launch(CUfunction function, CUstream stream = nullptr) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  }

  CUcontext context_ = nullptr;
};

}  // namespace fargpu::softgpu
