#include "softgpu/driver/function_attributes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "softgpu/driver/device_attributes.h"

namespace fargpu::softgpu {
namespace {

// Granularities in which current cards deal out registers (per warp) and shared memory.
constexpr int kRegisterUnit = 256;
constexpr int kQuarters = 4;
constexpr size_t kSharedUnit = 128;

int MaxThreads(const KernelInfo& info) {
  return std::min<int>(kMaxThreadsPerBlock, static_cast<int>(info.max_threads_per_block));
}

// The compiler gives a kernel no more registers than its largest block can have.
int Registers(const KernelInfo& info) {
  const int warps = (MaxThreads(info) + kWarpSize - 1) / kWarpSize;
  const int most =
      kRegistersPerMultiprocessor / std::max(warps, 1) / kRegisterUnit * kRegisterUnit / kWarpSize;
  return std::min(static_cast<int>(info.registers), std::max(most, 1));
}

}  // namespace

int MaxDynamicSharedBytes(const KernelInfo& info, const FunctionSettings& settings) {
  const int set = settings.max_dynamic_shared_bytes;
  if (set >= 0) return set;
  return std::max(0, kSharedBytesPerBlock - static_cast<int>(info.static_shared_bytes));
}

Dim3 RequiredCluster(const KernelInfo& info, const FunctionSettings& settings) {
  if (info.cluster.x != 0) return info.cluster;
  const Dim3 set = {static_cast<uint32_t>(settings.cluster[0].load()),
                    static_cast<uint32_t>(settings.cluster[1].load()),
                    static_cast<uint32_t>(settings.cluster[2].load())};
  if (set.x == 0 && set.y == 0 && set.z == 0) return set;
  return {std::max(set.x, 1u), std::max(set.y, 1u), std::max(set.z, 1u)};
}

uint32_t MaxClusterBlocks(const KernelInfo& info, const FunctionSettings& settings) {
  const uint32_t limit =
      settings.non_portable_cluster_size != 0 ? kMaxNonPortableClusterBlocks : kMaxClusterBlocks;
  return info.max_cluster_blocks != 0 ? std::min(limit, info.max_cluster_blocks) : limit;
}

absl::StatusOr<int> GetFunctionAttribute(const KernelInfo& info, const FunctionSettings& settings,
                                         CUfunction_attribute attribute) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return MaxThreads(info);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return static_cast<int>(info.static_shared_bytes);
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      return static_cast<int>(info.const_bytes);
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return static_cast<int>(info.local_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return Registers(info);
    // The virtual architecture, not the version of the language, whatever the name says: libraries
    // choose their launch parameters by it.
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      return info.ptx_version;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return info.binary_version;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return MaxDynamicSharedBytes(info, settings);
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return settings.preferred_carveout.load();
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return settings.non_portable_cluster_size.load();
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      return info.needs_cluster ? 1 : 0;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      return static_cast<int>(RequiredCluster(info, settings).x);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      return static_cast<int>(RequiredCluster(info, settings).y);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      return static_cast<int>(RequiredCluster(info, settings).z);
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return settings.cluster_scheduling.load();
    default:
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("function attribute ", static_cast<int>(attribute)));
  }
}

absl::Status SetFunctionAttribute(const KernelInfo& info, FunctionSettings& settings,
                                  CUfunction_attribute attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
      const int limit = kSharedBytesPerBlockOptIn - static_cast<int>(info.static_shared_bytes);
      if (value < 0 || value > limit) {
        return CudaError(CUDA_ERROR_INVALID_VALUE,
                         absl::StrCat("kernel ", info.name, ": ", value,
                                      " bytes of dynamic shared memory; at most ", limit));
      }
      settings.max_dynamic_shared_bytes = value;
      return absl::OkStatus();
    }
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) {
        return CudaError(CUDA_ERROR_INVALID_VALUE,
                         absl::StrCat("carveout ", value, ": -1 to 100 per cent"));
      }
      settings.preferred_carveout = value;
      return absl::OkStatus();
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      settings.non_portable_cluster_size = value != 0 ? 1 : 0;
      return absl::OkStatus();
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: {
      if (info.cluster.x != 0) {
        // As cuda.h says: what the kernel was compiled with cannot be changed.
        return CudaError(CUDA_ERROR_NOT_PERMITTED,
                         absl::StrCat("kernel ", info.name, ": its clusters are of ",
                                      info.cluster.x, "x", info.cluster.y, "x", info.cluster.z));
      }
      if (value < 0 || value > kMaxNonPortableClusterBlocks) {
        return CudaError(CUDA_ERROR_INVALID_VALUE,
                         absl::StrCat("kernel ", info.name, ": a cluster side of ", value,
                                      " blocks; 0 to ", kMaxNonPortableClusterBlocks));
      }
      settings.cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = value;
      return absl::OkStatus();
    }
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      if (value < CU_CLUSTER_SCHEDULING_POLICY_DEFAULT ||
          value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING) {
        return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("scheduling policy ", value));
      }
      settings.cluster_scheduling = value;
      return absl::OkStatus();
    default:
      return CudaError(
          CUDA_ERROR_INVALID_VALUE,
          absl::StrCat("function attribute ", static_cast<int>(attribute), " cannot be set"));
  }
}

int ActiveBlocksPerMultiprocessor(const KernelInfo& info, int block_threads,
                                  size_t dynamic_shared_bytes) {
  if (block_threads <= 0 || block_threads > MaxThreads(info)) return 0;
  const int warps = (block_threads + kWarpSize - 1) / kWarpSize;
  int blocks =
      std::min(kMaxBlocksPerMultiprocessor, kMaxThreadsPerMultiprocessor / kWarpSize / warps);
  const int registers_per_warp = (std::max(Registers(info), 1) * kWarpSize + kRegisterUnit - 1) /
                                 kRegisterUnit * kRegisterUnit;
  // Each quarter of a multiprocessor has registers of its own.
  const int warps_with_registers =
      kRegistersPerMultiprocessor / kQuarters / registers_per_warp * kQuarters;
  blocks = std::min(blocks, warps_with_registers / warps);
  const size_t shared = info.static_shared_bytes + dynamic_shared_bytes;
  if (shared > static_cast<size_t>(kSharedBytesPerBlockOptIn)) return 0;
  const size_t shared_taken =
      (shared + kReservedSharedBytesPerBlock + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
  return std::min(blocks, static_cast<int>(kSharedBytesPerMultiprocessor / shared_taken));
}

}  // namespace fargpu::softgpu
