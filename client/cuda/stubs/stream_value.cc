// Streams that write values to memory and wait for values there. The single forms are batches of
// one.
#include "client/cuda/capture.h"
#include "client/cuda/edge.h"
#include "client/cuda/node_params.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

CUresult Perform(const char* call, DefaultStream default_stream, CUstream handle, unsigned count,
                 CUstreamBatchMemOpParams* operations, unsigned flags) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    wire::StreamBatchMemOpV2Request request;
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(session.ToWire(handle, default_stream, &request.hStream));
    RETURN_IF_ERROR(CheckImplicitCapture(session, request.hStream));
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {};
    params.count = count;
    params.paramArray = operations;
    params.flags = flags;
    ASSIGN_OR_RETURN(NodeWork work, ReadValueParams(session, &params));
    if (IsCapturing(session, request.hStream)) {
      return CaptureWork(session, request.hStream, std::move(work));
    }
    request.operations = std::get<ValueWork>(work).operations;
    request.flags = flags;
    RETURN_IF_ERROR(session.Send(request));
    // Somebody may wait for the value, and not for the card.
    return session.calls().Flush();
  });
}

CUresult Wait(const char* call, DefaultStream default_stream, CUstream stream,
              CUstreamBatchMemOpType type, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation = {};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = flags;
  return Perform(call, default_stream, stream, 1, &operation, 0);
}

CUresult Write(const char* call, DefaultStream default_stream, CUstream stream,
               CUstreamBatchMemOpType type, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation = {};
  operation.writeValue.operation = type;
  operation.writeValue.address = address;
  operation.writeValue.value64 = value;
  operation.writeValue.flags = flags;
  return Perform(call, default_stream, stream, 1, &operation, 0);
}

}  // namespace

CUresult cuStreamWaitValue32_v2(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                                cuuint32_t value, unsigned int flags) {
  return Wait("cuStreamWaitValue32_v2", default_stream, stream, CU_STREAM_MEM_OP_WAIT_VALUE_32,
              addr, value, flags);
}
CUresult cuStreamWaitValue64_v2(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                                cuuint64_t value, unsigned int flags) {
  return Wait("cuStreamWaitValue64_v2", default_stream, stream, CU_STREAM_MEM_OP_WAIT_VALUE_64,
              addr, value, flags);
}
CUresult cuStreamWriteValue32_v2(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                                 cuuint32_t value, unsigned int flags) {
  return Write("cuStreamWriteValue32_v2", default_stream, stream, CU_STREAM_MEM_OP_WRITE_VALUE_32,
               addr, value, flags);
}
CUresult cuStreamWriteValue64_v2(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                                 cuuint64_t value, unsigned int flags) {
  return Write("cuStreamWriteValue64_v2", default_stream, stream, CU_STREAM_MEM_OP_WRITE_VALUE_64,
               addr, value, flags);
}
CUresult cuStreamBatchMemOp_v2(DefaultStream default_stream, CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return Perform("cuStreamBatchMemOp_v2", default_stream, stream, count, paramArray, flags);
}

// The first versions, which NVIDIA's driver lets do the same.
CUresult cuStreamWaitValue32(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                             cuuint32_t value, unsigned int flags) {
  return api::cuStreamWaitValue32_v2(default_stream, stream, addr, value, flags);
}
CUresult cuStreamWaitValue64(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                             cuuint64_t value, unsigned int flags) {
  return api::cuStreamWaitValue64_v2(default_stream, stream, addr, value, flags);
}
CUresult cuStreamWriteValue32(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                              cuuint32_t value, unsigned int flags) {
  return api::cuStreamWriteValue32_v2(default_stream, stream, addr, value, flags);
}
CUresult cuStreamWriteValue64(DefaultStream default_stream, CUstream stream, CUdeviceptr addr,
                              cuuint64_t value, unsigned int flags) {
  return api::cuStreamWriteValue64_v2(default_stream, stream, addr, value, flags);
}
CUresult cuStreamBatchMemOp(DefaultStream default_stream, CUstream stream, unsigned int count,
                            CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return api::cuStreamBatchMemOp_v2(default_stream, stream, count, paramArray, flags);
}

}  // namespace fargpu::client::api
