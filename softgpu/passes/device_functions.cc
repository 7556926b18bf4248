#include "softgpu/passes/device_functions.h"

namespace fargpu::softgpu {
namespace {

constexpr DeviceFunction kFunctions[] = {
    {"__cuda_syscall_cnpv2GetParameterBuffer", DeviceCall::kGetParameterBuffer, "ii", 'l'},
    {"__cuda_syscall_cnpv2GetParameterBufferV2", DeviceCall::kGetParameterBufferV2, "liiiiiii",
     'l'},
    {"__cuda_syscall_cnpv2LaunchDevice", DeviceCall::kLaunch, "llllil", 'i'},
    {"__cuda_syscall_cnpv2LaunchDeviceV2", DeviceCall::kLaunchV2, "ll", 'i'},
    {"__cuda_syscall_cnpv2StreamCreate", DeviceCall::kStreamCreate, "li", 'i'},
    {"__cuda_syscall_cnpv2StreamDestroy", DeviceCall::kStreamDestroy, "l", 'i'},
    {"__cuda_syscall_cnpv2StreamWaitEvent", DeviceCall::kStreamWaitEvent, "lli", 'i'},
    {"__cuda_syscall_cnpv2EventCreate", DeviceCall::kEventCreate, "li", 'i'},
    {"__cuda_syscall_cnpv2EventRecord", DeviceCall::kEventRecord, "ll", 'i'},
    {"__cuda_syscall_cnpv2EventDestroy", DeviceCall::kEventDestroy, "l", 'i'},
    {"__cuda_syscall_cnpv2GetLastError", DeviceCall::kGetLastError, "", 'i'},
    {"__cuda_syscall_cnpv2SetLastError", DeviceCall::kSetLastError, "i", 'i'},
    {"__cuda_syscall_cnpv2GetDevice", DeviceCall::kGetDevice, "l", 'i'},
    {"__cuda_syscall_cnpv2GetDeviceCount", DeviceCall::kGetDeviceCount, "l", 'i'},
    {"__cuda_syscall_cnpv2DeviceGetAttribute", DeviceCall::kDeviceGetAttribute, "lii", 'i'},
    {"__cuda_syscall_cnpv2GetLimit", DeviceCall::kGetLimit, "li", 'i'},
    {"__cuda_syscall_cnpv2GetCacheConfig", DeviceCall::kGetCacheConfig, "l", 'i'},
    {"__cuda_syscall_cnpv2GetSharedMemConfig", DeviceCall::kGetSharedMemConfig, "l", 'i'},
    {"__cuda_syscall_cnpv2FuncGetAttribute", DeviceCall::kFuncGetAttribute, "lil", 'i'},
    {"__cuda_syscall_cnpv2MaxActiveBlocksPerMultiprocessor", DeviceCall::kMaxActiveBlocks, "llil",
     'i'},
    {"__cuda_syscall_cnpv2MaxActiveBlocksPerMultiprocessorWithFlags",
     DeviceCall::kMaxActiveBlocksWithFlags, "llili", 'i'},
    {"cudaGraphSetConditional", DeviceCall::kGraphSetConditional, "li", '-'},
};

}  // namespace

const DeviceFunction* FindDeviceFunction(absl::string_view name) {
  for (const DeviceFunction& function : kFunctions) {
    if (name == function.name) return &function;
  }
  return nullptr;
}

}  // namespace fargpu::softgpu
