#include "softgpu/driver/launch.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/function_attributes.h"

namespace fargpu::softgpu {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

uint64_t Count(const Dim3& dim) { return static_cast<uint64_t>(dim.x) * dim.y * dim.z; }

bool IsCooperative(const KernelNode& launch) {
  if (launch.attributes.empty()) return false;
  const auto found = launch.attributes.find(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  return found != launch.attributes.end() && found->second.cooperative != 0;
}

// The cluster that the launch or the kernel asks for; zeros if neither does.
Dim3 ClusterOf(const KernelNode& launch) {
  const auto found = launch.attributes.find(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  if (found != launch.attributes.end() && found->second.clusterDim.x != 0) {
    const auto& dim = found->second.clusterDim;
    return {dim.x, dim.y, dim.z};
  }
  return RequiredCluster(launch.function->info, *launch.function->settings);
}

absl::Status CheckCluster(const KernelNode& launch) {
  const KernelInfo& info = launch.function->info;
  const FunctionSettings& settings = *launch.function->settings;
  const Dim3 cluster = ClusterOf(launch);
  const auto invalid = [&](absl::string_view what) {
    return CudaError(CUDA_ERROR_INVALID_CLUSTER_SIZE,
                     absl::StrCat("kernel ", info.name, ": clusters of ", cluster.x, "x", cluster.y,
                                  "x", cluster.z, " blocks: ", what));
  };
  if (cluster.x == 0) return info.needs_cluster ? invalid("the launch must say") : absl::OkStatus();
  const Dim3 required = RequiredCluster(info, settings);
  if (required.x != 0 &&
      (required.x != cluster.x || required.y != cluster.y || required.z != cluster.z)) {
    return invalid(
        absl::StrCat("the kernel requires ", required.x, "x", required.y, "x", required.z));
  }
  const uint64_t limit = MaxClusterBlocks(info, settings);
  if (Count(cluster) == 0 || Count(cluster) > limit) {
    return invalid(absl::StrCat("at most ", limit));
  }
  if (launch.grid.x % cluster.x != 0 || launch.grid.y % cluster.y != 0 ||
      launch.grid.z % cluster.z != 0) {
    return invalid(
        absl::StrCat("the grid is ", launch.grid.x, "x", launch.grid.y, "x", launch.grid.z));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<char>> CollectParams(const KernelInfo& info,
                                                const LaunchRequest& request) {
  std::vector<char> block(info.param_bytes, 0);
  if (request.params != nullptr && request.extra != nullptr) {
    return Invalid("both kernelParams and extra are given");
  }
  if (request.extra != nullptr) {
    const void* buffer = nullptr;
    const size_t* size = nullptr;
    for (void** item = request.extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
      if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        buffer = item[1];
      } else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        size = static_cast<const size_t*>(item[1]);
      } else {
        return Invalid("extra holds an item that cuda.h does not know");
      }
    }
    const size_t needed =
        info.params.empty() ? 0 : info.params.back().offset + info.params.back().size;
    if (size == nullptr || (buffer == nullptr && needed > 0) || *size < needed) {
      return Invalid(absl::StrCat("kernel ", info.name, ": parameters in extra have ",
                                  size == nullptr ? 0 : *size, " bytes, ", needed, " needed"));
    }
    if (!block.empty()) std::memcpy(block.data(), buffer, std::min(*size, block.size()));
    return block;
  }
  if (request.params == nullptr && !info.params.empty()) {
    return Invalid(absl::StrCat("kernel ", info.name, " takes ", info.params.size(),
                                " parameters and was given none"));
  }
  for (size_t i = 0; i < info.params.size(); ++i) {
    if (request.params[i] == nullptr) {
      return Invalid(absl::StrCat("kernel ", info.name, ": parameter ", i, " is null"));
    }
    std::memcpy(block.data() + info.params[i].offset, request.params[i], info.params[i].size);
  }
  return block;
}

class ContextQueries : public DeviceQueries {
 public:
  ContextQueries(const Driver& driver, const Context& context)
      : driver_(driver), context_(context) {}
  int device() const override { return context_.device; }
  int device_count() const override { return driver_.device_count(); }
  bool Attribute(int attribute, int device, int* value) const override {
    if (device < 0 || device >= device_count()) return false;
    *value = DeviceAttribute(driver_.config().devices[device], attribute);
    return true;
  }
  bool Limit(int limit, uint64_t* value) const override {
    const absl::StatusOr<size_t> found = context_.GetLimit(static_cast<CUlimit>(limit));
    if (found.ok()) *value = *found;
    return found.ok();
  }
  int ActiveBlocksPerMultiprocessor(const KernelInfo& kernel, int block_threads,
                                    uint64_t dynamic_shared_bytes) const override {
    return softgpu::ActiveBlocksPerMultiprocessor(kernel, block_threads, dynamic_shared_bytes);
  }

 private:
  const Driver& driver_;
  const Context& context_;
};

}  // namespace

absl::Status CheckLaunch(Driver& driver, const KernelNode& launch) {
  const Function& function = *launch.function;
  const KernelInfo& info = function.info;
  const unsigned grid[3] = {launch.grid.x, launch.grid.y, launch.grid.z};
  const unsigned block[3] = {launch.block.x, launch.block.y, launch.block.z};
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || grid[i] > kMaxGridDim[i] || block[i] == 0 || block[i] > kMaxBlockDim[i]) {
      return Invalid(absl::StrCat("kernel ", info.name, ": grid ", grid[0], "x", grid[1], "x",
                                  grid[2], ", block ", block[0], "x", block[1], "x", block[2]));
    }
  }
  const uint64_t threads = Count(launch.block);
  const uint64_t limit = std::min<uint64_t>(kMaxThreadsPerBlock, info.max_threads_per_block);
  if (threads > limit) {
    return Invalid(
        absl::StrCat("kernel ", info.name, ": ", threads, " threads in a block; at most ", limit));
  }
  const int shared_limit = MaxDynamicSharedBytes(info, *function.settings);
  if (launch.shared_bytes > static_cast<unsigned>(shared_limit)) {
    return Invalid(absl::StrCat("kernel ", info.name, ": ", launch.shared_bytes,
                                " bytes of dynamic shared memory; at most ", shared_limit));
  }
  RETURN_IF_ERROR(CheckCluster(launch));
  if (IsCooperative(launch)) {
    const int multiprocessors = driver.config().devices[function.device].multiprocessors;
    const uint64_t together = static_cast<uint64_t>(ActiveBlocksPerMultiprocessor(
                                  info, static_cast<int>(threads), launch.shared_bytes)) *
                              static_cast<uint64_t>(multiprocessors);
    if (Count(launch.grid) > together) {
      return CudaError(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                       absl::StrCat("kernel ", info.name, ": ", Count(launch.grid),
                                    " blocks; at most ", together, " run at once"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<KernelNode> PrepareLaunch(Driver& driver, std::shared_ptr<Function> function,
                                         const LaunchRequest& request) {
  KernelNode launch;
  launch.function = std::move(function);
  launch.grid = request.grid;
  launch.block = request.block;
  launch.shared_bytes = request.shared_bytes;
  launch.attributes = request.attributes;
  const KernelInfo& info = launch.function->info;
  if (info.blocks_are_clusters) {
    launch.grid.x *= std::max(info.cluster.x, 1u);
    launch.grid.y *= std::max(info.cluster.y, 1u);
    launch.grid.z *= std::max(info.cluster.z, 1u);
  }
  RETURN_IF_ERROR(CheckLaunch(driver, launch));
  ASSIGN_OR_RETURN(launch.params, CollectParams(launch.function->info, request));
  return launch;
}

absl::Status RunKernel(Driver& driver, const KernelNode& launch) {
  if (driver.config().mode == ExecutionMode::kNull) return absl::OkStatus();
  const Function& function = *launch.function;
  const std::shared_ptr<Context> context = function.context.lock();
  if (context == nullptr) {
    return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED,
                     absl::StrCat("kernel ", function.info.name, ": its context is gone"));
  }
  LaunchConfig config;
  config.grid = launch.grid;
  config.block = launch.block;
  config.dynamic_shared_bytes = launch.shared_bytes;
  config.cooperative = IsCooperative(launch);
  if (const Dim3 cluster = ClusterOf(launch); cluster.x != 0) {
    config.cluster = cluster;
    config.explicit_cluster = true;
  }
  config.params = launch.params;
  ASSIGN_OR_RETURN(config.heap_bytes, context->GetLimit(CU_LIMIT_MALLOC_HEAP_SIZE));
  config.heap = context->id;
  ASSIGN_OR_RETURN(config.stack_bytes, context->GetLimit(CU_LIMIT_STACK_SIZE));
  ASSIGN_OR_RETURN(const size_t printf_bytes, context->GetLimit(CU_LIMIT_PRINTF_FIFO_SIZE));
  config.printf_sink = [&context, printf_bytes](absl::string_view text) {
    context->printf_buffer.Append(text, printf_bytes);
  };
  config.interrupted = &context->interrupted;
  const ContextQueries queries(driver, *context);
  config.queries = &queries;
  return function.program->Launch(function.index, config);
}

absl::Status CheckLaunchAttribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      if (value.deviceUpdatableKernelNode.deviceUpdatable == 0) return absl::OkStatus();
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "kernel nodes that the device updates");
    // Events are recorded when the kernel has ended; the rest are hints: where data should be
    // cached, how early the next kernel may start, how urgent it is.
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return absl::OkStatus();
    default:
      return Invalid(absl::StrCat("launch attribute ", static_cast<int>(id)));
  }
}

}  // namespace fargpu::softgpu
