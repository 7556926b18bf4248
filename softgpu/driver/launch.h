#pragma once

#include <cuda.h>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/driver/driver.h"
#include "softgpu/driver/graph.h"

namespace fargpu::softgpu {

// A launch as a program asks for it.
struct LaunchRequest {
  Dim3 grid;
  Dim3 block;
  unsigned shared_bytes = 0;
  void** params = nullptr;
  void** extra = nullptr;
  std::map<int, CUlaunchAttributeValue> attributes;  // by CUlaunchAttributeID
};

// Checks the launch and copies its parameters, as the caller may reuse them at once.
absl::StatusOr<KernelNode> PrepareLaunch(Driver& driver, std::shared_ptr<Function> function,
                                         const LaunchRequest& request);
// Checks shape and attributes again, after one of them has changed.
absl::Status CheckLaunch(Driver& driver, const KernelNode& launch);
// Runs the kernel and returns when it has ended.
absl::Status RunKernel(Driver& driver, const KernelNode& launch);

// CUDA_ERROR_INVALID_VALUE or CUDA_ERROR_NOT_SUPPORTED for what a launch cannot have.
absl::Status CheckLaunchAttribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value);

}  // namespace fargpu::softgpu
