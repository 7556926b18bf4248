#pragma once

#include <cstddef>
#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/driver/module.h"

namespace fargpu::softgpu {

// The attributes of a kernel under its settings.
absl::StatusOr<int> GetFunctionAttribute(const KernelInfo& info, const FunctionSettings& settings,
                                         CUfunction_attribute attribute);
absl::Status SetFunctionAttribute(const KernelInfo& info, FunctionSettings& settings,
                                  CUfunction_attribute attribute, int value);
// The cluster that every launch of the kernel has; zeros if that is not said.
Dim3 RequiredCluster(const KernelInfo& info, const FunctionSettings& settings);
// How many blocks a cluster may have.
inline constexpr int kMaxClusterBlocks = 8;
inline constexpr int kMaxNonPortableClusterBlocks = 16;
uint32_t MaxClusterBlocks(const KernelInfo& info, const FunctionSettings& settings);

// The most dynamic shared memory that a launch may ask for.
int MaxDynamicSharedBytes(const KernelInfo& info, const FunctionSettings& settings);

// How many blocks of that size a multiprocessor holds at once: the occupancy formula over the
// limits in device_attributes.h.
int ActiveBlocksPerMultiprocessor(const KernelInfo& info, int block_threads,
                                  size_t dynamic_shared_bytes);

}  // namespace fargpu::softgpu
