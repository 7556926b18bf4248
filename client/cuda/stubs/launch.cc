// Kernel launches and occupancy. A launch carries the bytes of its parameters, whose layout came
// with the function, and is not waited for; what CUDA refuses at once is refused here.
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/driver_limits.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

struct Geometry {
  std::array<unsigned, 3> grid;
  std::array<unsigned, 3> block;
  unsigned shared_bytes;
};

// Parameters of most kernels fit without an allocation.
using ParameterBytes = absl::InlinedVector<char, 512>;

absl::Status CheckGeometry(Session& session, const Function& function, const Geometry& geometry) {
  const auto refuse = [&](const std::string& why) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("launch of ", function.name, ": ", why));
  };
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  const auto limit = [&](int attribute) -> uint64_t {
    const int value = session.devices().Attribute(context->device, attribute);
    // A device that does not tell a limit has none.
    return value > 0 ? static_cast<uint64_t>(value) : std::numeric_limits<uint64_t>::max();
  };
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    const uint64_t most_blocks = limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
    if (geometry.grid[i] == 0 || geometry.grid[i] > most_blocks) {
      return refuse(
          absl::StrCat("grid dimension ", i, " is ", geometry.grid[i], ", limit ", most_blocks));
    }
    const uint64_t most_threads = limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    if (geometry.block[i] == 0 || geometry.block[i] > most_threads) {
      return refuse(
          absl::StrCat("block dimension ", i, " is ", geometry.block[i], ", limit ", most_threads));
    }
    threads *= geometry.block[i];
  }
  const int of_function = function.attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  const uint64_t most = std::min(
      limit(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
      of_function > 0 ? static_cast<uint64_t>(of_function) : std::numeric_limits<uint64_t>::max());
  if (threads > most) return refuse(absl::StrCat(threads, " threads in a block, limit ", most));
  // What the function has raised its limit to, or else what every function may have.
  const auto dynamic = static_cast<uint64_t>(
      std::max(0, function.attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)));
  const uint64_t most_shared =
      std::max(dynamic, limit(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  if (geometry.shared_bytes > most_shared) {
    return refuse(absl::StrCat(geometry.shared_bytes, " bytes of dynamic shared memory, limit ",
                               most_shared));
  }
  return absl::OkStatus();
}

absl::Status PackExtra(const Function& function, void** extra, ParameterBytes* bytes) {
  const void* buffer = nullptr;
  const size_t* size = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const size_t*>(extra[1]);
    } else {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "an unknown key in extra");
    }
  }
  if (buffer == nullptr || size == nullptr || *size < function.param_bytes) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("extra has ", size != nullptr ? *size : 0, " of the ",
                                  function.param_bytes, " parameter bytes of ", function.name));
  }
  std::memcpy(bytes->data(), buffer, function.param_bytes);
  return absl::OkStatus();
}

absl::Status PackParameters(const Function& function, void** params, void** extra,
                            ParameterBytes* bytes) {
  if (params != nullptr && extra != nullptr) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "both kernelParams and extra are given");
  }
  // Gaps between parameters are zero.
  bytes->resize(function.param_bytes);
  if (extra != nullptr) return PackExtra(function, extra, bytes);
  if (params == nullptr && !function.param_offsets.empty()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat(function.name, " needs parameters, none are given"));
  }
  for (size_t i = 0; i < function.param_offsets.size(); ++i) {
    if (params[i] == nullptr) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("parameter ", i, " of ", function.name, " is null"));
    }
    std::memcpy(bytes->data() + function.param_offsets[i], params[i], function.param_sizes[i]);
  }
  return absl::OkStatus();
}

// Fields that both launch requests have.
template <typename Request>
void FillGeometry(const Geometry& geometry, Request* request) {
  request->gridDimX = geometry.grid[0];
  request->gridDimY = geometry.grid[1];
  request->gridDimZ = geometry.grid[2];
  request->blockDimX = geometry.block[0];
  request->blockDimY = geometry.block[1];
  request->blockDimZ = geometry.block[2];
  request->sharedMemBytes = geometry.shared_bytes;
}

enum class Cooperative { kNo, kYes };

absl::Status Launch(Session& session, CUfunction f, const Geometry& geometry, CUstream stream,
                    DefaultStream default_stream, Cooperative cooperative,
                    const std::vector<CUlaunchAttribute>& attributes, void** params, void** extra) {
  ASSIGN_OR_RETURN(const Function* function, session.FindFunction(f));
  wire::StreamId stream_id;
  RETURN_IF_ERROR(session.ToWire(stream, default_stream, &stream_id));
  RETURN_IF_ERROR(CheckGeometry(session, *function, geometry));
  ParameterBytes bytes;
  RETURN_IF_ERROR(PackParameters(*function, params, extra, &bytes));
  RETURN_IF_ERROR(session.shared().MapReferenced({bytes.data(), bytes.size()}));
  if (attributes.empty()) {
    wire::LaunchKernelRequest request;
    request.function = function->id;
    FillGeometry(geometry, &request);
    request.hStream = stream_id;
    request.cooperative = cooperative == Cooperative::kYes;
    request.params = absl::MakeConstSpan(bytes.data(), bytes.size());
    return session.Send(request);
  }
  wire::LaunchKernelExRequest request;
  request.function = function->id;
  FillGeometry(geometry, &request);
  request.hStream = stream_id;
  request.attributes = attributes;
  if (cooperative == Cooperative::kYes) {
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    request.attributes.push_back(attribute);
  }
  request.params = absl::MakeConstSpan(bytes.data(), bytes.size());
  return session.Send(request);
}

// Which attributes of a launch travel. Those that only change speed stay here; those that would
// change what the program can observe, and cannot be kept, are refused.
absl::Status TakeLaunchAttributes(const CUlaunchConfig& config, Cooperative* cooperative,
                                  std::vector<CUlaunchAttribute>* travelling) {
  if (config.numAttrs > 0) RETURN_IF_ERROR(NotNull(config.attrs, "config->attrs"));
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    // Copied by members: padding of the program's struct is nobody's business.
    CUlaunchAttribute copy = {};
    copy.id = attribute.id;
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
        break;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        if (attribute.value.cooperative != 0) *cooperative = Cooperative::kYes;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        copy.value.clusterDim = attribute.value.clusterDim;
        travelling->push_back(copy);
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        copy.value.clusterSchedulingPolicyPreference =
            attribute.value.clusterSchedulingPolicyPreference;
        travelling->push_back(copy);
        break;
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        copy.value.priority = attribute.value.priority;
        travelling->push_back(copy);
        break;
      default:
        return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                         absl::StrCat("launch attribute ", static_cast<int>(attribute.id)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ActiveBlocks(Session& session, const Function& function, int block_size,
                                 size_t dynamic_shared, unsigned flags) {
  wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsRequest request{
      .function = function.id,
      .blockSize = block_size,
      .dynamicSMemSize = dynamic_shared,
      .flags = flags};
  wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsReply reply;
  RETURN_IF_ERROR(session.Call(request, &reply));
  return reply.numBlocks;
}

}  // namespace

CUresult cuLaunchKernel(DefaultStream default_stream, CUfunction f, unsigned int gridDimX,
                        unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
                        CUstream hStream, void** kernelParams, void** extra) {
  return AtCudaEdge("cuLaunchKernel", [&](Session& session) {
    const Geometry geometry = {
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
    return Launch(session, f, geometry, hStream, default_stream, Cooperative::kNo, {}, kernelParams,
                  extra);
  });
}

CUresult cuLaunchCooperativeKernel(DefaultStream default_stream, CUfunction f,
                                   unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) {
  return AtCudaEdge("cuLaunchCooperativeKernel", [&](Session& session) {
    const Geometry geometry = {
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
    return Launch(session, f, geometry, hStream, default_stream, Cooperative::kYes, {},
                  kernelParams, nullptr);
  });
}

CUresult cuLaunchKernelEx(DefaultStream default_stream, const CUlaunchConfig* config, CUfunction f,
                          void** kernelParams, void** extra) {
  return AtCudaEdge("cuLaunchKernelEx", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(config, "config"));
    Cooperative cooperative = Cooperative::kNo;
    std::vector<CUlaunchAttribute> attributes;
    RETURN_IF_ERROR(TakeLaunchAttributes(*config, &cooperative, &attributes));
    const Geometry geometry = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                               {config->blockDimX, config->blockDimY, config->blockDimZ},
                               config->sharedMemBytes};
    return Launch(session, f, geometry, config->hStream, default_stream, cooperative, attributes,
                  kernelParams, extra);
  });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return api::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      numBlocks, func, blockSize, dynamicSMemSize, CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags) {
  return AtCudaEdge("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
                    [&](Session& session) -> absl::Status {
                      RETURN_IF_ERROR(NotNull(numBlocks, "numBlocks"));
                      ASSIGN_OR_RETURN(const Function* function, session.FindFunction(func));
                      ASSIGN_OR_RETURN(*numBlocks, ActiveBlocks(session, *function, blockSize,
                                                                dynamicSMemSize, flags));
                      return absl::OkStatus();
                    });
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize) {
  return AtCudaEdge("cuOccupancyAvailableDynamicSMemPerBlock",
                    [&](Session& session) -> absl::Status {
                      RETURN_IF_ERROR(NotNull(dynamicSmemSize, "dynamicSmemSize"));
                      ASSIGN_OR_RETURN(const Function* function, session.FindFunction(func));
                      wire::OccupancyAvailableDynamicSMemPerBlockRequest request{
                          .function = function->id, .numBlocks = numBlocks, .blockSize = blockSize};
                      wire::OccupancyAvailableDynamicSMemPerBlockReply reply;
                      RETURN_IF_ERROR(session.Call(request, &reply));
                      *dynamicSmemSize = reply.dynamicSmemSize;
                      return absl::OkStatus();
                    });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
  return api::cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
                                                        blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                        blockSizeLimit, CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags) {
  return AtCudaEdge(
      "cuOccupancyMaxPotentialBlockSizeWithFlags", [&](Session& session) -> absl::Status {
        RETURN_IF_ERROR(NotNull(minGridSize, "minGridSize"));
        RETURN_IF_ERROR(NotNull(blockSize, "blockSize"));
        ASSIGN_OR_RETURN(const Function* function, session.FindFunction(func));
        ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
        const auto device = [&](int attribute) {
          return session.devices().Attribute(context->device, attribute);
        };
        const int warp = std::max(1, device(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
        int most = device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
        const int of_function = function->attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
        if (of_function > 0) most = std::min(most, of_function);
        if (blockSizeLimit > 0) most = std::min(most, blockSizeLimit);
        if (most <= 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "no block size is possible");
        // Every size is asked for at once: one round trip.
        using Request = wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsRequest;
        struct Question {
          int block = 0;
          PendingReply pending;
        };
        std::deque<Question> questions;
        absl::Status status;
        for (int block = most; block > 0 && status.ok();
             block = block % warp != 0 ? block / warp * warp : block - warp) {
          Question& question = questions.emplace_back();
          question.block = block;
          status = session.Send(Request{.function = function->id,
                                        .blockSize = block,
                                        .dynamicSMemSize = blockSizeToDynamicSMemSize != nullptr
                                                               ? blockSizeToDynamicSMemSize(block)
                                                               : dynamicSMemSize,
                                        .flags = flags},
                                &question.pending);
          if (!status.ok()) questions.pop_back();
        }
        session.calls().CountRoundTrip();
        int best_block = 0;
        int best_blocks = 0;
        // The largest block of those that keep the most threads busy.
        for (Question& question : questions) {
          absl::Status waited = session.calls().Wait(&question.pending);
          if (waited.ok()) waited = session.ResultOf(Request::kName, question.pending);
          wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsReply reply;
          if (waited.ok()) waited = session.DecodeReply(question.pending, &reply);
          if (status.ok()) status = waited;
          if (int64_t{reply.numBlocks} * question.block > int64_t{best_blocks} * best_block) {
            best_blocks = reply.numBlocks;
            best_block = question.block;
          }
        }
        RETURN_IF_ERROR(status);
        *blockSize = best_block;
        *minGridSize = best_blocks * device(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        return absl::OkStatus();
      });
}

}  // namespace fargpu::client::api
