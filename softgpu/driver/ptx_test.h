#pragma once

#include <cuda.h>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "softgpu/driver/driver_test.h"

// For tests that run PTX through the driver interface, with the compiler half linked in.
namespace fargpu::softgpu {

class PtxTest : public DriverTest {
 protected:
  // The function `name` of the module `text`, whose header (version, target) is added.
  CUfunction LoadPtx(const std::string& text, const char* name = "k") {
    CUmodule module = nullptr;
    const std::string whole = absl::StrCat(".version 8.7\n.target sm_90\n.address_size 64\n", text);
    EXPECT_SUCCESS(cuModuleLoadData(&module, whole.c_str()));
    CUfunction function = nullptr;
    EXPECT_SUCCESS(cuModuleGetFunction(&function, module, name));
    return function;
  }

  // Memory of the card that holds `values`; freed with the context.
  template <typename T>
  CUdeviceptr Upload(const std::vector<T>& values) {
    CUdeviceptr address = 0;
    EXPECT_SUCCESS(cuMemAlloc(&address, values.size() * sizeof(T)));
    EXPECT_SUCCESS(cuMemcpyHtoD(address, values.data(), values.size() * sizeof(T)));
    return address;
  }
  template <typename T>
  std::vector<T> Download(CUdeviceptr address, size_t count) {
    std::vector<T> values(count);
    EXPECT_SUCCESS(cuMemcpyDtoH(values.data(), address, count * sizeof(T)));
    return values;
  }

  template <typename... Args>
  static CUresult Run(CUfunction function, unsigned grid, unsigned block, Args... args) {
    void* params[] = {&args..., nullptr};
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, nullptr, params, nullptr);
  }

  // What a card is after cudaDeviceReset().
  void StartAnew() {
    ASSERT_SUCCESS(cuDevicePrimaryCtxReset(0));
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context_, 0));
    ASSERT_SUCCESS(cuCtxSetCurrent(context_));
  }
};

}  // namespace fargpu::softgpu
