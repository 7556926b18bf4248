// Attributes of functions and kernels, their parameters, and occupancy.

#include <algorithm>

#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/edge.h"
#include "softgpu/driver/function_attributes.h"

namespace fargpu::softgpu {
namespace {

absl::StatusOr<std::shared_ptr<Kernel>> FindKernel(Driver& driver, CUkernel handle) {
  if (std::shared_ptr<Kernel> kernel = driver.kernels.Find(handle)) return kernel;
  return InvalidHandle("not a kernel");
}

absl::Status WriteParamInfo(const KernelInfo& info, size_t index, size_t* offset, size_t* size) {
  RETURN_IF_NULL(offset);
  if (index >= info.params.size()) {
    return InvalidValue(
        absl::StrCat("kernel ", info.name, ": parameter ", index, " of ", info.params.size()));
  }
  *offset = info.params[index].offset;
  if (size != nullptr) *size = info.params[index].size;
  return absl::OkStatus();
}

absl::Status CheckCacheConfig(CUfunc_cache config) {
  if (config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL) {
    return absl::OkStatus();
  }
  return InvalidValue(absl::StrCat("cache preference ", static_cast<int>(config)));
}

absl::Status ActiveBlocks(Driver& driver, int* out, CUfunction handle, int block_threads,
                          size_t dynamic_shared_bytes, unsigned flags) {
  RETURN_IF_NULL(out);
  if (block_threads <= 0) return InvalidValue(absl::StrCat("blocks of ", block_threads));
  if ((flags & ~unsigned{CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE}) != 0) {
    return InvalidValue(absl::StrCat("flags ", flags));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
  *out = ActiveBlocksPerMultiprocessor(function->info, block_threads, dynamic_shared_bytes);
  return absl::OkStatus();
}

// How many clusters of the launch in `config` the card holds at once: as many as its blocks make.
absl::StatusOr<int> ActiveClusters(Driver& driver, const Function& function,
                                   const CUlaunchConfig& config, uint64_t cluster_blocks) {
  const uint64_t threads = uint64_t{config.blockDimX} * config.blockDimY * config.blockDimZ;
  if (threads == 0 || threads > kMaxThreadsPerBlock) {
    return InvalidValue(absl::StrCat("blocks of ", threads, " threads"));
  }
  const int blocks = ActiveBlocksPerMultiprocessor(function.info, static_cast<int>(threads),
                                                   config.sharedMemBytes);
  return static_cast<int>(static_cast<uint64_t>(blocks) *
                          driver.config().devices[function.device].multiprocessors /
                          cluster_blocks);
}

// The cluster that `config`, or else the kernel, asks for: how many blocks it has.
absl::StatusOr<uint64_t> ClusterBlocksOf(const Function& function, const CUlaunchConfig& config) {
  Dim3 cluster = RequiredCluster(function.info, *function.settings);
  if (config.numAttrs > 0) RETURN_IF_NULL(config.attrs);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& dim = config.attrs[i].value.clusterDim;
    cluster = {dim.x, dim.y, dim.z};
  }
  const uint64_t blocks = uint64_t{cluster.x} * cluster.y * cluster.z;
  const uint64_t limit = MaxClusterBlocks(function.info, *function.settings);
  if (blocks == 0 || blocks > limit) {
    return CudaError(CUDA_ERROR_INVALID_CLUSTER_SIZE,
                     absl::StrCat("kernel ", function.info.name, ": clusters of ", blocks,
                                  " blocks; 1 to ", limit));
  }
  return blocks;
}

// The largest block that reaches the highest occupancy, found by trying all multiples of a warp.
absl::Status PotentialBlockSize(Driver& driver, Context& context, int* min_grid, int* block,
                                CUfunction handle, CUoccupancyB2DSize shared_of_block,
                                size_t dynamic_shared_bytes, int limit, unsigned flags) {
  RETURN_IF_NULL(min_grid);
  RETURN_IF_NULL(block);
  if (limit < 0 || (flags & ~unsigned{CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE}) != 0) {
    return InvalidValue(absl::StrCat("block size limit ", limit, ", flags ", flags));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
  int largest =
      std::min<int>(kMaxThreadsPerBlock, static_cast<int>(function->info.max_threads_per_block));
  if (limit > 0) largest = std::min(largest, limit);
  int best_threads = 0;
  *min_grid = 0;
  *block = 0;
  for (int threads = largest; threads > 0; threads = (threads - 1) / kWarpSize * kWarpSize) {
    const size_t shared =
        shared_of_block != nullptr ? shared_of_block(threads) : dynamic_shared_bytes;
    const int blocks = ActiveBlocksPerMultiprocessor(function->info, threads, shared);
    if (blocks * threads > best_threads) {
      best_threads = blocks * threads;
      *block = threads;
      *min_grid = blocks * driver.config().devices[context.device].multiprocessors;
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  return WithContext("cuFuncGetAttribute", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(value);
    ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
    ASSIGN_OR_RETURN(*value, GetFunctionAttribute(function->info, *function->settings, attribute));
    return absl::OkStatus();
  });
}

CU_API CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  return WithContext("cuFuncSetAttribute", [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
    return SetFunctionAttribute(function->info, *function->settings, attribute, value);
  });
}

CU_API CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  return WithContext("cuFuncSetCacheConfig", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_ERROR(driver.FindFunction(handle).status());
    return CheckCacheConfig(config);
  });
}

CU_API CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
  return WithContext("cuFuncSetSharedMemConfig", [&](Driver& driver, Context&) -> absl::Status {
    return driver.FindFunction(handle).status();
  });
}

CU_API CUresult cuFuncGetModule(CUmodule* out, CUfunction handle) {
  return WithContext("cuFuncGetModule", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
    *out = function->module;
    return absl::OkStatus();
  });
}

CU_API CUresult cuFuncGetName(const char** name, CUfunction handle) {
  return WithDriver("cuFuncGetName", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(name);
    ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
    *name = function->info.name.c_str();
    return absl::OkStatus();
  });
}

CU_API CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  return WithDriver("cuFuncGetParamInfo", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
    return WriteParamInfo(function->info, index, offset, size);
  });
}

CU_API CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  return WithContext("cuFuncIsLoaded", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(state);
    RETURN_IF_ERROR(driver.FindFunction(handle).status());
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return absl::OkStatus();
  });
}

CU_API CUresult cuFuncLoad(CUfunction handle) {
  return WithContext(
      "cuFuncLoad", [&](Driver& driver, Context&) { return driver.FindFunction(handle).status(); });
}

CU_API CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                                     CUdevice device) {
  return WithDriver("cuKernelGetAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(value);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    ASSIGN_OR_RETURN(const std::shared_ptr<Kernel> kernel, FindKernel(driver, handle));
    if (!kernel->has_code) {
      return CudaError(CUDA_ERROR_NO_BINARY_FOR_GPU,
                       absl::StrCat("kernel ", kernel->info.name, ": the image holds no PTX"));
    }
    ASSIGN_OR_RETURN(*value,
                     GetFunctionAttribute(kernel->info, *kernel->settings[device], attribute));
    return absl::OkStatus();
  });
}

CU_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                                     CUdevice device) {
  return WithDriver("cuKernelSetAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(driver.CheckDevice(device));
    ASSIGN_OR_RETURN(const std::shared_ptr<Kernel> kernel, FindKernel(driver, handle));
    return SetFunctionAttribute(kernel->info, *kernel->settings[device], attribute, value);
  });
}

CU_API CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device) {
  return WithDriver("cuKernelSetCacheConfig", [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(driver.CheckDevice(device));
    RETURN_IF_ERROR(FindKernel(driver, handle).status());
    return CheckCacheConfig(config);
  });
}

CU_API CUresult cuKernelGetName(const char** name, CUkernel handle) {
  return WithDriver("cuKernelGetName", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(name);
    ASSIGN_OR_RETURN(const std::shared_ptr<Kernel> kernel, FindKernel(driver, handle));
    *name = kernel->info.name.c_str();
    return absl::OkStatus();
  });
}

CU_API CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  return WithDriver("cuKernelGetParamInfo", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Kernel> kernel, FindKernel(driver, handle));
    return WriteParamInfo(kernel->info, index, offset, size);
  });
}

CU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                            int block_threads,
                                                            size_t dynamic_shared_bytes) {
  return WithContext("cuOccupancyMaxActiveBlocksPerMultiprocessor", [&](Driver& driver, Context&) {
    return ActiveBlocks(driver, blocks, function, block_threads, dynamic_shared_bytes, 0);
  });
}

CU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                     CUfunction function,
                                                                     int block_threads,
                                                                     size_t dynamic_shared_bytes,
                                                                     unsigned flags) {
  return WithContext(
      "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", [&](Driver& driver, Context&) {
        return ActiveBlocks(driver, blocks, function, block_threads, dynamic_shared_bytes, flags);
      });
}

CU_API CUresult cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, CUfunction function,
                                                 CUoccupancyB2DSize shared_of_block,
                                                 size_t dynamic_shared_bytes, int limit) {
  return WithContext("cuOccupancyMaxPotentialBlockSize", [&](Driver& driver, Context& context) {
    return PotentialBlockSize(driver, context, min_grid, block, function, shared_of_block,
                              dynamic_shared_bytes, limit, 0);
  });
}

CU_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* block,
                                                          CUfunction function,
                                                          CUoccupancyB2DSize shared_of_block,
                                                          size_t dynamic_shared_bytes, int limit,
                                                          unsigned flags) {
  return WithContext(
      "cuOccupancyMaxPotentialBlockSizeWithFlags", [&](Driver& driver, Context& context) {
        return PotentialBlockSize(driver, context, min_grid, block, function, shared_of_block,
                                  dynamic_shared_bytes, limit, flags);
      });
}

CU_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle,
                                                        int blocks, int block_threads) {
  return WithContext(
      "cuOccupancyAvailableDynamicSMemPerBlock", [&](Driver& driver, Context&) -> absl::Status {
        RETURN_IF_NULL(bytes);
        if (blocks <= 0 || block_threads <= 0) {
          return InvalidValue(absl::StrCat(blocks, " blocks of ", block_threads));
        }
        ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
        const KernelInfo& info = function->info;
        if (ActiveBlocksPerMultiprocessor(info, block_threads, 0) < blocks) {
          *bytes = 0;
          return absl::OkStatus();
        }
        const int share = kSharedBytesPerMultiprocessor / blocks / 128 * 128 -
                          kReservedSharedBytesPerBlock - static_cast<int>(info.static_shared_bytes);
        *bytes = static_cast<size_t>(
            std::max(0, std::min(share, MaxDynamicSharedBytes(info, *function->settings))));
        return absl::OkStatus();
      });
}

CU_API CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle,
                                                   const CUlaunchConfig* config) {
  return WithContext(
      "cuOccupancyMaxPotentialClusterSize", [&](Driver& driver, Context&) -> absl::Status {
        RETURN_IF_NULL(size);
        RETURN_IF_NULL(config);
        ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
        int most = static_cast<int>(MaxClusterBlocks(function->info, *function->settings));
        // Sizes are powers of two, as far as the card holds one of them.
        while (most > 1) {
          ASSIGN_OR_RETURN(const int clusters,
                           ActiveClusters(driver, *function, *config, static_cast<uint64_t>(most)));
          if (clusters > 0) break;
          most /= 2;
        }
        *size = most;
        return absl::OkStatus();
      });
}

CU_API CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle,
                                             const CUlaunchConfig* config) {
  return WithContext("cuOccupancyMaxActiveClusters", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(clusters);
    RETURN_IF_NULL(config);
    ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FindFunction(handle));
    ASSIGN_OR_RETURN(const uint64_t blocks, ClusterBlocksOf(*function, *config));
    ASSIGN_OR_RETURN(*clusters, ActiveClusters(driver, *function, *config, blocks));
    return absl::OkStatus();
  });
}
