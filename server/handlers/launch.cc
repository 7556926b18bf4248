// Launches and occupancy.
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server/handlers/box_places.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// Pointers to the parameters of one launch inside the block of bytes that the client sent.
absl::Status ParameterPointers(const Function& function, wire::Bytes block, Call& call,
                               std::vector<void*>* pointers) {
  const Function::Layout& layout = *function.layout;
  if (block.size() < layout.bytes) {
    return call.Malformed(absl::StrCat("a launch with ", block.size(), " bytes of parameters; the ",
                                       "kernel takes ", layout.bytes));
  }
  pointers->clear();
  for (uint32_t offset : layout.offsets) {
    pointers->push_back(const_cast<char*>(block.data()) + offset);
  }
  return absl::OkStatus();
}

struct Prepared {
  Function function;
  CUstream stream = nullptr;
  std::vector<void*> params;
};

template <typename Request>
absl::Status Prepare(const Request& request, Call& call, Prepared* prepared) {
  RETURN_IF_ERROR(call.objects().functions.Find(request.function, &prepared->function));
  RETURN_IF_ERROR(call.Resolve(request.hStream, &prepared->stream));
  RETURN_IF_ERROR(ParameterPointers(prepared->function, request.params, call, &prepared->params));
  Context context;
  RETURN_IF_ERROR(call.CurrentContext(&context));
  return call.resources().admission->Admit({.device = context.device, .stream = prepared->stream});
}

}  // namespace

bool IsPlainAttribute(CUlaunchAttributeID id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return true;
    default:
      return false;
  }
}

absl::Status LaunchKernel(const wire::LaunchKernelRequest& request, Call& call,
                          wire::LaunchKernelReply* reply) {
  Prepared launch;
  RETURN_IF_ERROR(Prepare(request, call, &launch));
  if (request.cooperative) {
    RETURN_IF_CUDA_ERROR(call.driver().cuLaunchCooperativeKernel(
        launch.function.handle, request.gridDimX, request.gridDimY, request.gridDimZ,
        request.blockDimX, request.blockDimY, request.blockDimZ, request.sharedMemBytes,
        launch.stream, launch.params.data()));
    return absl::OkStatus();
  }
  RETURN_IF_CUDA_ERROR(call.driver().cuLaunchKernel(
      launch.function.handle, request.gridDimX, request.gridDimY, request.gridDimZ,
      request.blockDimX, request.blockDimY, request.blockDimZ, request.sharedMemBytes,
      launch.stream, launch.params.data(), nullptr));
  return absl::OkStatus();
}

absl::Status LaunchKernelEx(const wire::LaunchKernelExRequest& request, Call& call,
                            wire::LaunchKernelExReply* reply) {
  Prepared launch;
  RETURN_IF_ERROR(Prepare(request, call, &launch));
  std::vector<CUlaunchAttribute> attributes = request.attributes;
  for (const CUlaunchAttribute& attribute : attributes) {
    if (!IsPlainAttribute(attribute.id)) {
      return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                       absl::StrCat("launch attribute ", static_cast<int>(attribute.id)));
    }
  }
  CUlaunchConfig config = {};
  config.gridDimX = request.gridDimX;
  config.gridDimY = request.gridDimY;
  config.gridDimZ = request.gridDimZ;
  config.blockDimX = request.blockDimX;
  config.blockDimY = request.blockDimY;
  config.blockDimZ = request.blockDimZ;
  config.sharedMemBytes = request.sharedMemBytes;
  config.hStream = launch.stream;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  RETURN_IF_CUDA_ERROR(call.driver().cuLaunchKernelEx(&config, launch.function.handle,
                                                      launch.params.data(), nullptr));
  return absl::OkStatus();
}

absl::Status OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    const wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsRequest& request, Call& call,
    wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsReply* reply) {
  Function function;
  RETURN_IF_ERROR(call.objects().functions.Find(request.function, &function));
  RETURN_IF_CUDA_ERROR(call.driver().cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      &reply->numBlocks, function.handle, request.blockSize, request.dynamicSMemSize,
      request.flags));
  return absl::OkStatus();
}

absl::Status OccupancyAvailableDynamicSMemPerBlock(
    const wire::OccupancyAvailableDynamicSMemPerBlockRequest& request, Call& call,
    wire::OccupancyAvailableDynamicSMemPerBlockReply* reply) {
  Function function;
  RETURN_IF_ERROR(call.objects().functions.Find(request.function, &function));
  size_t bytes = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuOccupancyAvailableDynamicSMemPerBlock(
      &bytes, function.handle, request.numBlocks, request.blockSize));
  reply->dynamicSmemSize = bytes;
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
