#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

// Functions that PTX calls without any module defining them, because the device gives them: those
// below libcudadevrt (dynamic parallelism) and of device-side graphs.
namespace fargpu::softgpu {

enum class DeviceCall : uint32_t {
  kGetParameterBuffer,
  kGetParameterBufferV2,
  kLaunch,
  kLaunchV2,
  kStreamCreate,
  kStreamDestroy,
  kStreamWaitEvent,
  kEventCreate,
  kEventRecord,
  kEventDestroy,
  kGetLastError,
  kSetLastError,
  kGetDevice,
  kGetDeviceCount,
  kDeviceGetAttribute,
  kGetLimit,
  kGetCacheConfig,
  kGetSharedMemConfig,
  kFuncGetAttribute,
  kMaxActiveBlocks,
  kMaxActiveBlocksWithFlags,
  kGraphSetConditional,
};

struct DeviceFunction {
  const char* name;
  DeviceCall call;
  // A letter per word: 'l' has 64 bits, 'i' 32. Arguments that are structures are words of 32 bits.
  const char* arguments;
  char result;  // '-' without
};

// Null for any other name.
const DeviceFunction* FindDeviceFunction(absl::string_view name);

}  // namespace fargpu::softgpu
