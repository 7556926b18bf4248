// What streams do and are besides work that has a group of its own.
#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {

absl::Status StreamBatchMemOpV2(const wire::StreamBatchMemOpV2Request& request, Call& call,
                                wire::StreamBatchMemOpV2Reply* reply) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  std::vector<CUstreamBatchMemOpParams> operations = request.operations;
  RETURN_IF_CUDA_ERROR(call.driver().cuStreamBatchMemOp_v2(
      stream, static_cast<unsigned>(operations.size()), operations.data(), request.flags));
  return absl::OkStatus();
}

absl::Status StreamSetAttribute(const wire::StreamSetAttributeRequest& request, Call& call,
                                wire::StreamSetAttributeReply* reply) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  RETURN_IF_CUDA_ERROR(
      call.driver().cuStreamSetAttribute(stream, request.attribute.id, &request.attribute.value));
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
