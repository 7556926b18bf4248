// Kernel launches.

#include "softgpu/driver/edge.h"
#include "softgpu/driver/launch.h"

namespace fargpu::softgpu {
namespace {

absl::Status QueueLaunch(Driver& driver, Context& context, Stream& stream, KernelNode launch) {
  if (driver.config().mode == ExecutionMode::kNull) {
    // Only the order is left of a kernel.
    return context.Enqueue(stream, nullptr, RunOn::kAnyThread, Wake::kYes, Context::Eager::kYes)
        .status();
  }
  return context
      .Enqueue(
          stream, [&driver, launch = std::move(launch)] { return RunKernel(driver, launch); },
          RunOn::kWorker)
      .status();
}

// The event that an attribute wants recorded when the kernel has ended.
CUevent EventOf(const LaunchRequest& request) {
  if (request.attributes.empty()) return nullptr;
  const auto programmatic = request.attributes.find(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  if (programmatic != request.attributes.end()) {
    return programmatic->second.programmaticEvent.event;
  }
  const auto completion = request.attributes.find(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  if (completion != request.attributes.end()) {
    return completion->second.launchCompletionEvent.event;
  }
  return nullptr;
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
        ASSIGN_OR_RETURN(KernelNode launch, PrepareLaunch(driver, std::move(function), request));
        if (stream.is_capturing()) {
          // cuGraphKernelNodeGetParams tells a kernel of a library as one, with its context.
          if (driver.kernels.Find(reinterpret_cast<CUkernel>(handle)) != nullptr) {
            launch.given_kernel = reinterpret_cast<CUkernel>(handle);
            launch.given_context = context.handle;
          } else {
            launch.given_function = handle;
          }
          RETURN_IF_ERROR(CaptureWork(driver, stream, std::move(launch)));
        } else {
          RETURN_IF_ERROR(QueueLaunch(driver, context, stream, std::move(launch)));
        }
        const CUevent event = EventOf(request);
        if (event == nullptr) return absl::OkStatus();
        return RecordEvent(driver, context, stream, event);
      },
      OnCapture::kRecord);
}

LaunchRequest RequestOf(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void** params,
                        void** extra) {
  LaunchRequest request;
  request.grid = {grid_x, grid_y, grid_z};
  request.block = {block_x, block_y, block_z};
  request.shared_bytes = shared_bytes;
  request.params = params;
  request.extra = extra;
  return request;
}

}  // namespace

CUresult Do_cuLaunchKernel(const char* call, NullStream null, CUfunction function, unsigned grid_x,
                           unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                           unsigned block_z, unsigned shared_bytes, CUstream stream, void** params,
                           void** extra) {
  return Launch(
      call, null, function, stream,
      RequestOf(grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, params, extra));
}

CUresult Do_cuLaunchCooperativeKernel(const char* call, NullStream null, CUfunction function,
                                      unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                      unsigned block_x, unsigned block_y, unsigned block_z,
                                      unsigned shared_bytes, CUstream stream, void** params) {
  LaunchRequest request =
      RequestOf(grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, params, nullptr);
  request.attributes[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative = 1;
  return Launch(call, null, function, stream, request);
}

CUresult Do_cuLaunchKernelEx(const char* call, NullStream null, const CUlaunchConfig* config,
                             CUfunction function, void** params, void** extra) {
  LaunchRequest request;
  const CUresult checked = AtEdge(call, [&]() -> absl::Status {
    if (Driver::Get() == nullptr) return CudaError(CUDA_ERROR_NOT_INITIALIZED, "cuInit");
    RETURN_IF_NULL(config);
    request =
        RequestOf(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                  config->blockDimY, config->blockDimZ, config->sharedMemBytes, params, extra);
    if (config->numAttrs > 0) RETURN_IF_NULL(config->attrs);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const CUlaunchAttribute& attribute = config->attrs[i];
      RETURN_IF_ERROR(CheckLaunchAttribute(attribute.id, attribute.value));
      request.attributes[attribute.id] = attribute.value;
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
