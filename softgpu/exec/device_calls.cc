#include "softgpu/exec/device_calls.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <cuda.h>
#include <map>
#include <utility>

#include "common/mutex.h"
#include "softgpu/exec/device_launch.h"
#include "softgpu/exec/launch_failure.h"
#include "softgpu/exec/param_blocks.h"
#include "softgpu/passes/device_functions.h"

namespace fargpu::softgpu {
namespace {

// Parameters that a kernel fills in for a launch, by their address, between its two calls.
class LaunchBuffers {
 public:
  struct Buffer {
    uint64_t function = 0;  // as device code names it; 0: a plain buffer
    Dim3 grid;
    Dim3 block;
    uint32_t dynamic_shared_bytes = 0;
  };
  static LaunchBuffers& Get() {
    static LaunchBuffers* const buffers = new LaunchBuffers;
    return *buffers;
  }
  uint64_t Add(const Buffer& buffer) {
    const uint64_t address = ParamBlocks::Get().Take();
    if (address == 0) return 0;
    MutexLock lock(&mutex_);
    buffers_[address] = buffer;
    return address;
  }
  // The block of parameters is the caller's to give back. False if there is none.
  bool Remove(uint64_t address, Buffer* buffer) {
    MutexLock lock(&mutex_);
    const auto at = buffers_.find(address);
    if (at == buffers_.end()) return false;
    *buffer = at->second;
    buffers_.erase(at);
    return true;
  }

 private:
  Mutex mutex_;
  std::map<uint64_t, Buffer> buffers_ ABSL_GUARDED_BY(mutex_);
};

// One lane's call.
class LaneCall {
 public:
  LaneCall(const OperationCall& call, int lane)
      : call_(call), lane_(lane), launch_(WarpOf(call.context)->block->launch) {}

  // The result, of 32 or 64 bits.
  uint64_t Run();

 private:
  uint32_t Word(unsigned argument) const { return call_.slots.Of<uint32_t>(1 + argument)[lane_]; }
  uint64_t Long(unsigned argument) const { return call_.slots.Of<uint64_t>(1 + argument)[lane_]; }
  Dim3 Triple(unsigned argument) const {
    return {Word(argument), Word(argument + 1), Word(argument + 2)};
  }

  template <typename T>
  T Load(uint64_t address) const {
    T value;
    std::memcpy(&value,
                reinterpret_cast<const void*>(
                    PlainAddress(call_, lane_, false, address, sizeof(T), alignof(T))),
                sizeof(T));
    return value;
  }
  template <typename T>
  void Store(uint64_t address, T value) const {
    std::memcpy(
        reinterpret_cast<void*>(PlainAddress(call_, lane_, false, address, sizeof(T), alignof(T))),
        &value, sizeof(T));
  }

  DeviceRuntime::Thread From() const {
    const WarpContext& c = *call_.context;
    return {launch_->DeviceGridOf(),
            c.block_index[0] + uint64_t{c.grid_size[0]} *
                                   (c.block_index[1] + uint64_t{c.grid_size[1]} * c.block_index[2]),
            c.warp_index * kWarpSize + static_cast<uint32_t>(lane_)};
  }

  DeviceError StartKernel(LaunchBuffers::Buffer what, uint64_t params, uint64_t stream) const;
  DeviceError LaunchBuffered(uint64_t address, uint64_t stream) const;
  DeviceError LaunchPlain() const;
  DeviceError CreateHandle(bool stream) const;
  DeviceError FunctionAttribute() const;
  DeviceError ActiveBlocks() const;
  DeviceError Attribute() const;
  DeviceError Limit() const;

  const OperationCall& call_;
  const int lane_;
  Launch* const launch_;
};

DeviceError LaneCall::StartKernel(LaunchBuffers::Buffer what, uint64_t params,
                                  uint64_t stream) const {
  const absl::StatusOr<size_t> kernel = launch_->runner->KernelAt(what.function);
  if (!kernel.ok()) return DeviceError::kInvalidValue;
  ChildLaunch child;
  child.kernel = *kernel;
  child.grid = what.grid;
  child.block = what.block;
  child.dynamic_shared_bytes = what.dynamic_shared_bytes;
  const KernelInfo& info = launch_->runner->Info(*kernel);
  if (info.param_bytes > 0) {
    const char* const bytes = reinterpret_cast<const char*>(params);
    child.params.assign(bytes, bytes + info.param_bytes);
  }
  return launch_->Device().Launch(From(), stream, std::move(child));
}

DeviceError LaneCall::LaunchBuffered(uint64_t address, uint64_t stream) const {
  LaunchBuffers::Buffer buffer;
  if (!LaunchBuffers::Get().Remove(address, &buffer)) return DeviceError::kInvalidValue;
  const DeviceError error = StartKernel(buffer, address, stream);
  ParamBlocks::Get().Give(address);
  return error;
}

DeviceError LaneCall::LaunchPlain() const {
  // Read what the kernel points at before anything is taken: a wild pointer ends it here.
  LaunchBuffers::Buffer what;
  what.function = Long(0);
  const auto triple = [&](uint64_t address) {
    return Dim3{Load<uint32_t>(address), Load<uint32_t>(address + 4), Load<uint32_t>(address + 8)};
  };
  what.grid = triple(Long(2));
  what.block = triple(Long(3));
  what.dynamic_shared_bytes = Word(4);
  LaunchBuffers::Buffer buffer;
  if (!LaunchBuffers::Get().Remove(Long(1), &buffer)) {
    // A kernel without parameters needs no buffer.
    const absl::StatusOr<size_t> kernel = launch_->runner->KernelAt(what.function);
    if (!kernel.ok() || launch_->runner->Info(*kernel).param_bytes > 0) {
      return DeviceError::kInvalidValue;
    }
    return StartKernel(what, 0, Long(5));
  }
  const DeviceError error = StartKernel(what, Long(1), Long(5));
  ParamBlocks::Get().Give(Long(1));
  return error;
}

DeviceError LaneCall::CreateHandle(bool stream) const {
  // Streams that wait for the default stream and events that measure time exist on the host only.
  const uint32_t needed =
      stream ? uint32_t{CU_STREAM_NON_BLOCKING} : uint32_t{CU_EVENT_DISABLE_TIMING};
  if (Word(1) != needed) return DeviceError::kInvalidValue;
  (void)PlainAddress(call_, lane_, false, Long(0), 8, 8);
  uint64_t handle = 0;
  DeviceRuntime& device = launch_->Device();
  const DeviceError error = stream ? device.CreateStream(launch_->DeviceGridOf(), &handle)
                                   : device.CreateEvent(launch_->DeviceGridOf(), &handle);
  if (error == DeviceError::kNone) Store<uint64_t>(Long(0), handle);
  return error;
}

DeviceError LaneCall::FunctionAttribute() const {
  const absl::StatusOr<size_t> kernel = launch_->runner->KernelAt(Long(2));
  if (!kernel.ok()) return DeviceError::kInvalidValue;
  const KernelInfo& info = launch_->runner->Info(*kernel);
  switch (Word(1)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      Store<uint32_t>(Long(0), info.max_threads_per_block);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      Store<uint32_t>(Long(0), info.static_shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      Store<uint32_t>(Long(0), info.const_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      Store<uint32_t>(Long(0), info.local_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      Store<uint32_t>(Long(0), info.registers);
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      Store<uint32_t>(Long(0), static_cast<uint32_t>(info.ptx_version));
      break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      Store<uint32_t>(Long(0), static_cast<uint32_t>(info.binary_version));
      break;
    default:
      return DeviceError::kInvalidValue;
  }
  return DeviceError::kNone;
}

DeviceError LaneCall::ActiveBlocks() const {
  const absl::StatusOr<size_t> kernel = launch_->runner->KernelAt(Long(1));
  const DeviceQueries* const queries = launch_->config->queries;
  const int threads = static_cast<int>(Word(2));
  if (!kernel.ok() || queries == nullptr || threads <= 0) return DeviceError::kInvalidValue;
  Store<int>(Long(0), queries->ActiveBlocksPerMultiprocessor(launch_->runner->Info(*kernel),
                                                             threads, Long(3)));
  return DeviceError::kNone;
}

DeviceError LaneCall::Attribute() const {
  int value = 0;
  const DeviceQueries* const queries = launch_->config->queries;
  if (queries == nullptr ||
      !queries->Attribute(static_cast<int>(Word(1)), static_cast<int>(Word(2)), &value)) {
    return DeviceError::kInvalidValue;
  }
  Store<int>(Long(0), value);
  return DeviceError::kNone;
}

DeviceError LaneCall::Limit() const {
  uint64_t value = 0;
  const DeviceQueries* const queries = launch_->config->queries;
  if (queries == nullptr || !queries->Limit(static_cast<int>(Word(1)), &value)) {
    return DeviceError::kInvalidValue;
  }
  Store<uint64_t>(Long(0), value);
  return DeviceError::kNone;
}

uint64_t LaneCall::Run() {
  const auto number = [](DeviceError error) { return static_cast<uint64_t>(error); };
  const DeviceQueries* const queries = launch_->config->queries;
  switch (static_cast<DeviceCall>(call_.code)) {
    case DeviceCall::kGetParameterBuffer:
      if (Word(1) > kParamBlockBytes) return 0;
      return LaunchBuffers::Get().Add({});
    case DeviceCall::kGetParameterBufferV2:
      return LaunchBuffers::Get().Add({Long(0), Triple(1), Triple(4), Word(7)});
    case DeviceCall::kLaunch:
      return number(LaunchPlain());
    case DeviceCall::kLaunchV2:
      return number(LaunchBuffered(Long(0), Long(1)));
    case DeviceCall::kStreamCreate:
      return number(CreateHandle(true));
    case DeviceCall::kStreamDestroy:
      return number(launch_->Device().DestroyStream(launch_->DeviceGridOf(), Long(0)));
    case DeviceCall::kStreamWaitEvent:
      return number(launch_->Device().WaitEvent(From(), Long(0), Long(1)));
    case DeviceCall::kEventCreate:
      return number(CreateHandle(false));
    case DeviceCall::kEventRecord:
      return number(launch_->Device().RecordEvent(From(), Long(0), Long(1)));
    case DeviceCall::kEventDestroy:
      return number(launch_->Device().DestroyEvent(Long(0)));
    case DeviceCall::kGetLastError:
      return launch_->Device().LastError(From());
    case DeviceCall::kSetLastError:
      // Its result is what libcudadevrt's functions return.
      launch_->Device().SetLastError(From(), Word(0));
      return Word(0);
    case DeviceCall::kGetDevice:
      if (queries == nullptr) return number(DeviceError::kInvalidValue);
      Store<int>(Long(0), queries->device());
      return 0;
    case DeviceCall::kGetDeviceCount:
      if (queries == nullptr) return number(DeviceError::kInvalidValue);
      Store<int>(Long(0), queries->device_count());
      return 0;
    case DeviceCall::kDeviceGetAttribute:
      return number(Attribute());
    case DeviceCall::kGetLimit:
      return number(Limit());
    case DeviceCall::kGetCacheConfig:      // cudaFuncCachePreferNone
    case DeviceCall::kGetSharedMemConfig:  // cudaSharedMemBankSizeDefault
      Store<uint32_t>(Long(0), 0);
      return 0;
    case DeviceCall::kFuncGetAttribute:
      return number(FunctionAttribute());
    case DeviceCall::kMaxActiveBlocks:
    case DeviceCall::kMaxActiveBlocksWithFlags:
      return number(ActiveBlocks());
    case DeviceCall::kGraphSetConditional:
      // A handle is the address of the value (softgpu/driver/graph.h).
      Store<uint32_t>(Long(0), Word(1));
      return 0;
  }
  return number(DeviceError::kInvalidValue);
}

}  // namespace

void RunDeviceCall(const OperationCall& call) {
  for (uint32_t mask = call.mask; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    call.slots.Of<uint64_t>(0)[lane] = LaneCall(call, lane).Run();
  }
}

}  // namespace fargpu::softgpu
