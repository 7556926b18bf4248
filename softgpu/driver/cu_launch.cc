// Kernel launches.

#include <cstring>

#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/edge.h"
#include "softgpu/driver/function_attributes.h"

namespace fargpu::softgpu {
namespace {

struct LaunchRequest {
  Dim3 grid;
  Dim3 block;
  unsigned shared_bytes = 0;
  bool cooperative = false;
  void** params = nullptr;
  void** extra = nullptr;
  // Recorded when the kernel has ended (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT and the like).
  CUevent event = nullptr;
};

uint64_t Count(const Dim3& dim) { return static_cast<uint64_t>(dim.x) * dim.y * dim.z; }

absl::Status CheckShape(const Function& function, const LaunchRequest& request,
                        int multiprocessors) {
  const KernelInfo& info = function.info;
  const unsigned grid[3] = {request.grid.x, request.grid.y, request.grid.z};
  const unsigned block[3] = {request.block.x, request.block.y, request.block.z};
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || grid[i] > kMaxGridDim[i] || block[i] == 0 || block[i] > kMaxBlockDim[i]) {
      return InvalidValue(absl::StrCat("kernel ", info.name, ": grid ", grid[0], "x", grid[1], "x",
                                       grid[2], ", block ", block[0], "x", block[1], "x",
                                       block[2]));
    }
  }
  const uint64_t threads = Count(request.block);
  const uint64_t limit = std::min<uint64_t>(kMaxThreadsPerBlock, info.max_threads_per_block);
  if (threads > limit) {
    return InvalidValue(
        absl::StrCat("kernel ", info.name, ": ", threads, " threads in a block; at most ", limit));
  }
  const int shared_limit = MaxDynamicSharedBytes(info, *function.settings);
  if (request.shared_bytes > static_cast<unsigned>(shared_limit)) {
    return InvalidValue(absl::StrCat("kernel ", info.name, ": ", request.shared_bytes,
                                     " bytes of dynamic shared memory; at most ", shared_limit));
  }
  if (request.cooperative) {
    const uint64_t together = static_cast<uint64_t>(ActiveBlocksPerMultiprocessor(
                                  info, static_cast<int>(threads), request.shared_bytes)) *
                              static_cast<uint64_t>(multiprocessors);
    if (Count(request.grid) > together) {
      return CudaError(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                       absl::StrCat("kernel ", info.name, ": ", Count(request.grid),
                                    " blocks; at most ", together, " run at once"));
    }
  }
  return absl::OkStatus();
}

// Copies the parameters into one block, as the caller may reuse them at once.
absl::StatusOr<std::vector<char>> CollectParams(const KernelInfo& info,
                                                const LaunchRequest& request) {
  std::vector<char> block(info.param_bytes, 0);
  if (request.params != nullptr && request.extra != nullptr) {
    return InvalidValue("both kernelParams and extra are given");
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
        return InvalidValue("extra holds an item that cuda.h does not know");
      }
    }
    const size_t needed =
        info.params.empty() ? 0 : info.params.back().offset + info.params.back().size;
    if (size == nullptr || (buffer == nullptr && needed > 0) || *size < needed) {
      return InvalidValue(absl::StrCat("kernel ", info.name, ": parameters in extra have ",
                                       size == nullptr ? 0 : *size, " bytes, ", needed, " needed"));
    }
    if (!block.empty()) std::memcpy(block.data(), buffer, std::min(*size, block.size()));
    return block;
  }
  if (request.params == nullptr && !info.params.empty()) {
    return InvalidValue(absl::StrCat("kernel ", info.name, " takes ", info.params.size(),
                                     " parameters and was given none"));
  }
  for (size_t i = 0; i < info.params.size(); ++i) {
    RETURN_IF_NULL(request.params[i]);
    std::memcpy(block.data() + info.params[i].offset, request.params[i], info.params[i].size);
  }
  return block;
}

absl::Status QueueLaunch(Driver& driver, Context& context, Stream& stream,
                         std::shared_ptr<Function> function, const LaunchRequest& request) {
  ASSIGN_OR_RETURN(std::vector<char> params, CollectParams(function->info, request));
  if (driver.config().mode == ExecutionMode::kNull) {
    // Only the order is left of a kernel.
    return context.Enqueue(stream, nullptr, RunOn::kAnyThread, Wake::kYes, Context::Eager::kYes)
        .status();
  }
  // The context outlives the queue's items, which hold it.
  const auto run = [function = std::move(function), params = std::move(params), &context,
                    grid = request.grid, block = request.block, shared_bytes = request.shared_bytes,
                    cooperative = request.cooperative]() -> absl::Status {
    LaunchConfig config;
    config.grid = grid;
    config.block = block;
    config.dynamic_shared_bytes = shared_bytes;
    config.cooperative = cooperative;
    config.params = params;
    config.printf_sink = [&context](absl::string_view text) { context.printf_buffer.Append(text); };
    return function->program->Launch(function->index, config);
  };
  return context.Enqueue(stream, run, RunOn::kWorker).status();
}

CUresult Launch(const char* call, NullStream null, CUfunction handle, CUstream stream_handle,
                const LaunchRequest& request) {
  return WithStream(
      call, null, stream_handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        ASSIGN_OR_RETURN(std::shared_ptr<Function> function, driver.FindFunction(handle));
        if (function->context_id != context.id) {
          return InvalidHandle(absl::StrCat("kernel ", function->info.name,
                                            " and the stream belong to different contexts"));
        }
        RETURN_IF_ERROR(CheckShape(*function, request,
                                   driver.config().devices[context.device].multiprocessors));
        RETURN_IF_ERROR(QueueLaunch(driver, context, stream, std::move(function), request));
        if (request.event == nullptr) return absl::OkStatus();
        return RecordEvent(driver, context, stream, request.event);
      });
}

absl::Status ApplyAttribute(const CUlaunchAttribute& attribute, LaunchRequest* request) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      request->cooperative = attribute.value.cooperative != 0;
      return absl::OkStatus();
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
      const auto& dim = attribute.value.clusterDim;
      if (dim.x <= 1 && dim.y <= 1 && dim.z <= 1) return absl::OkStatus();
      return NotSupported(absl::StrCat("clusters of ", dim.x, "x", dim.y, "x", dim.z, " blocks"));
    }
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      request->event = attribute.value.programmaticEvent.event;
      return absl::OkStatus();
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      request->event = attribute.value.launchCompletionEvent.event;
      return absl::OkStatus();
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      if (attribute.value.deviceUpdatableKernelNode.deviceUpdatable == 0) return absl::OkStatus();
      return NotSupported("kernel nodes that the device updates");
    // Hints: where data should be cached, how early the next kernel may start, how urgent it is.
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
      return InvalidValue(absl::StrCat("launch attribute ", static_cast<int>(attribute.id)));
  }
}

}  // namespace

CUresult Do_cuLaunchKernel(const char* call, NullStream null, CUfunction function, unsigned grid_x,
                           unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                           unsigned block_z, unsigned shared_bytes, CUstream stream, void** params,
                           void** extra) {
  return Launch(call, null, function, stream,
                {.grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z},
                 .shared_bytes = shared_bytes,
                 .params = params,
                 .extra = extra});
}

CUresult Do_cuLaunchCooperativeKernel(const char* call, NullStream null, CUfunction function,
                                      unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                      unsigned block_x, unsigned block_y, unsigned block_z,
                                      unsigned shared_bytes, CUstream stream, void** params) {
  return Launch(call, null, function, stream,
                {.grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z},
                 .shared_bytes = shared_bytes,
                 .cooperative = true,
                 .params = params});
}

CUresult Do_cuLaunchKernelEx(const char* call, NullStream null, const CUlaunchConfig* config,
                             CUfunction function, void** params, void** extra) {
  LaunchRequest request;
  const CUresult checked = AtEdge(call, [&]() -> absl::Status {
    if (Driver::Get() == nullptr) return CudaError(CUDA_ERROR_NOT_INITIALIZED, "cuInit");
    RETURN_IF_NULL(config);
    request = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
               .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
               .shared_bytes = config->sharedMemBytes,
               .params = params,
               .extra = extra};
    if (config->numAttrs > 0) RETURN_IF_NULL(config->attrs);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      RETURN_IF_ERROR(ApplyAttribute(config->attrs[i], &request));
    }
    return absl::OkStatus();
  });
  if (checked != CUDA_SUCCESS) return checked;
  return Launch(call, null, function, config->hStream, request);
}

}  // namespace fargpu::softgpu

CU_API_TWINS(cuLaunchKernel, _ptsz,
             (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
              CUstream stream, void** params, void** extra),
             function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
             params, extra);
CU_API_TWINS(cuLaunchCooperativeKernel, _ptsz,
             (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
              CUstream stream, void** params),
             function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
             params);
CU_API_TWINS(cuLaunchKernelEx, _ptsz,
             (const CUlaunchConfig* config, CUfunction function, void** params, void** extra),
             config, function, params, extra);
