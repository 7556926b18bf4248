#pragma once

#include <cuda.h>

#include "softgpu/runtime/device_config.h"

namespace fargpu::softgpu {

// What bounds a multiprocessor and a block; attributes, launches and occupancy agree on these.
inline constexpr int kWarpSize = 32;
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxThreadsPerMultiprocessor = 2048;
inline constexpr int kMaxBlocksPerMultiprocessor = 32;
inline constexpr int kRegistersPerMultiprocessor = 65536;
inline constexpr int kSharedBytesPerBlock = 48 << 10;
inline constexpr int kSharedBytesPerBlockOptIn = 227 << 10;
inline constexpr int kSharedBytesPerMultiprocessor = 228 << 10;
inline constexpr int kReservedSharedBytesPerBlock = 1 << 10;
inline constexpr unsigned kMaxBlockDim[3] = {1024, 1024, 64};
inline constexpr unsigned kMaxGridDim[3] = {0x7fffffff, 65535, 65535};
inline constexpr unsigned kMaxConstBytes = 64 << 10;

// cuDeviceGetAttribute: 0 for a number that is not known, as programs of other versions expect.
int DeviceAttribute(const DeviceSpec& device, int attribute);

}  // namespace fargpu::softgpu
