// Kernel launches and occupancy. A launch carries the bytes of its parameters, whose layout came
// with the function, and is not waited for; what CUDA refuses at once is refused here.
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/capture.h"
#include "client/cuda/edge.h"
#include "client/cuda/events.h"
#include "client/cuda/launch_params.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

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

// Launches `f`, or adds it to the graph of a stream that is being captured.
absl::Status Launch(Session& session, CUfunction f, const Geometry& geometry, CUstream stream,
                    DefaultStream default_stream, const LaunchAttributes& attributes, void** params,
                    void** extra) {
  ASSIGN_OR_RETURN(const Function* function, session.FindFunction(f));
  wire::StreamId stream_id;
  RETURN_IF_ERROR(session.ToWire(stream, default_stream, &stream_id));
  if (IsCapturing(session, stream_id)) {
    ASSIGN_OR_RETURN(KernelWork work, KernelWorkOf(session, *function, geometry, params, extra));
    // cuGraphKernelNodeGetParams tells a kernel of a library as one, with its context.
    if (function->library != nullptr) {
      work.given_kernel = reinterpret_cast<CUkernel>(f);
      work.given_context = session.current_context();
    } else {
      work.given_function = f;
    }
    work.attributes = attributes.values;
    return CaptureWork(session, stream_id, std::move(work));
  }
  RETURN_IF_ERROR(CheckGeometry(session, *function, geometry));
  ParameterBytes bytes;
  RETURN_IF_ERROR(PackParameters(*function, params, extra, &bytes));
  RETURN_IF_ERROR(session.shared().MapReferenced({bytes.data(), bytes.size()}));
  std::vector<CUlaunchAttribute> travelling;
  if (!attributes.values.empty()) travelling = TravellingAttributes(attributes.values);
  const bool only_cooperative =
      travelling.size() == 1 && travelling[0].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  if (travelling.empty() || only_cooperative) {
    wire::LaunchKernelRequest request;
    request.function = function->id;
    FillGeometry(geometry, &request);
    request.hStream = stream_id;
    request.cooperative = only_cooperative;
    request.params = absl::MakeConstSpan(bytes.data(), bytes.size());
    return session.Send(request);
  }
  wire::LaunchKernelExRequest request;
  request.function = function->id;
  FillGeometry(geometry, &request);
  request.hStream = stream_id;
  request.attributes = std::move(travelling);
  request.params = absl::MakeConstSpan(bytes.data(), bytes.size());
  return session.Send(request);
}

LaunchAttributes CooperativeOnly() {
  LaunchAttributes attributes;
  attributes.values[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative = 1;
  return attributes;
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
    return Launch(session, f, geometry, hStream, default_stream, {}, kernelParams, extra);
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
    return Launch(session, f, geometry, hStream, default_stream, CooperativeOnly(), kernelParams,
                  nullptr);
  });
}

CUresult cuLaunchKernelEx(DefaultStream default_stream, const CUlaunchConfig* config, CUfunction f,
                          void** kernelParams, void** extra) {
  return AtCudaEdge("cuLaunchKernelEx", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(config, "config"));
    ASSIGN_OR_RETURN(const LaunchAttributes attributes,
                     ReadLaunchAttributes(config->attrs, config->numAttrs));
    const Geometry geometry = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                               {config->blockDimX, config->blockDimY, config->blockDimZ},
                               config->sharedMemBytes};
    RETURN_IF_ERROR(Launch(session, f, geometry, config->hStream, default_stream, attributes,
                           kernelParams, extra));
    if (attributes.event == nullptr) return absl::OkStatus();
    return RecordEvent(session, attributes.event, config->hStream, default_stream);
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
