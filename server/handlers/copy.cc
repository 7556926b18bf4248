// Copies and memsets. Bytes come as the bulk of a frame and leave as the bulk of a reply, or, for
// asynchronous copies to the host, in delivery frames.
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "protocol/wire/frame.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// The default stream that a call without a stream argument means.
absl::StatusOr<CUstream> DefaultStream(Call& call, bool per_thread) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(wire::StreamId{per_thread ? Call::kPerThreadStream : 0}, &stream));
  return stream;
}

absl::Status CheckBulk(Call& call, uint64_t bytes) {
  if (call.bulk().size() == bytes) return absl::OkStatus();
  return call.Malformed(absl::StrCat("a copy of ", bytes, " bytes came with ", call.bulk().size()));
}

absl::Status CheckReplyBytes(Call& call, uint64_t bytes) {
  if (bytes <= wire::kMaxBulkBytes) return absl::OkStatus();
  return call.Malformed(absl::StrCat("a copy of ", bytes, " bytes to the host; a frame carries ",
                                     wire::kMaxBulkBytes));
}

}  // namespace

absl::Status MemcpyHtoDV2(const wire::MemcpyHtoDV2Request& request, Call& call,
                          wire::MemcpyHtoDV2Reply* reply) {
  RETURN_IF_ERROR(CheckBulk(call, request.ByteCount));
  if (!request.per_thread) {
    RETURN_IF_CUDA_ERROR(
        call.driver().cuMemcpyHtoD_v2(request.dstDevice, call.bulk().data(), call.bulk().size()));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CUstream stream, DefaultStream(call, true));
  RETURN_IF_CUDA_ERROR(call.driver().cuMemcpyHtoDAsync_v2(request.dstDevice, call.bulk().data(),
                                                          call.bulk().size(), stream));
  RETURN_IF_CUDA_ERROR(call.driver().cuStreamSynchronize(stream));
  return absl::OkStatus();
}

absl::Status MemcpyDtoHV2(const wire::MemcpyDtoHV2Request& request, Call& call,
                          wire::MemcpyDtoHV2Reply* reply) {
  RETURN_IF_ERROR(CheckReplyBytes(call, request.ByteCount));
  transport::Message bytes = transport::NewMessage(request.ByteCount);
  if (!request.per_thread) {
    RETURN_IF_CUDA_ERROR(
        call.driver().cuMemcpyDtoH_v2(bytes.storage.get(), request.srcDevice, request.ByteCount));
  } else {
    ASSIGN_OR_RETURN(const CUstream stream, DefaultStream(call, true));
    const CUresult copied = call.driver().cuMemcpyDtoHAsync_v2(
        bytes.storage.get(), request.srcDevice, request.ByteCount, stream);
    // Also after a failure: the buffer must not be in the driver's hands when it goes.
    const CUresult waited = call.driver().cuStreamSynchronize(stream);
    RETURN_IF_CUDA_ERROR(copied);
    RETURN_IF_CUDA_ERROR(waited);
  }
  call.SetReplyBulk(std::move(bytes));
  return absl::OkStatus();
}

absl::Status MemcpyDtoDV2(const wire::MemcpyDtoDV2Request& request, Call& call,
                          wire::MemcpyDtoDV2Reply* reply) {
  if (!request.per_thread) {
    RETURN_IF_CUDA_ERROR(
        call.driver().cuMemcpyDtoD_v2(request.dstDevice, request.srcDevice, request.ByteCount));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CUstream stream, DefaultStream(call, true));
  RETURN_IF_CUDA_ERROR(call.driver().cuMemcpyDtoDAsync_v2(request.dstDevice, request.srcDevice,
                                                          request.ByteCount, stream));
  return absl::OkStatus();
}

absl::Status MemcpyHtoDAsyncV2(const wire::MemcpyHtoDAsyncV2Request& request, Call& call,
                               wire::MemcpyHtoDAsyncV2Reply* reply) {
  RETURN_IF_ERROR(CheckBulk(call, request.ByteCount));
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  return call.resources().copies.ToDevice(call.header().context, request.dstDevice, call.bulk(),
                                          stream, call.frame());
}

absl::Status MemcpyDtoHAsyncV2(const wire::MemcpyDtoHAsyncV2Request& request, Call& call,
                               wire::MemcpyDtoHAsyncV2Reply* reply) {
  RETURN_IF_ERROR(CheckReplyBytes(call, request.ByteCount));
  if (request.delivery == 0) return call.Malformed("delivery token 0 is for what kernels print");
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  return call.resources().copies.FromDevice(call.header().context, request.srcDevice,
                                            request.ByteCount, stream, request.delivery,
                                            request.offset);
}

absl::Status MemsetD8V2(const wire::MemsetD8V2Request& request, Call& call,
                        wire::MemsetD8V2Reply* reply) {
  if (!request.per_thread) {
    RETURN_IF_CUDA_ERROR(call.driver().cuMemsetD8_v2(request.dstDevice, request.uc, request.N));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CUstream stream, DefaultStream(call, true));
  RETURN_IF_CUDA_ERROR(
      call.driver().cuMemsetD8Async(request.dstDevice, request.uc, request.N, stream));
  return absl::OkStatus();
}

absl::Status MemsetD16V2(const wire::MemsetD16V2Request& request, Call& call,
                         wire::MemsetD16V2Reply* reply) {
  if (!request.per_thread) {
    RETURN_IF_CUDA_ERROR(call.driver().cuMemsetD16_v2(request.dstDevice, request.us, request.N));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CUstream stream, DefaultStream(call, true));
  RETURN_IF_CUDA_ERROR(
      call.driver().cuMemsetD16Async(request.dstDevice, request.us, request.N, stream));
  return absl::OkStatus();
}

absl::Status MemsetD32V2(const wire::MemsetD32V2Request& request, Call& call,
                         wire::MemsetD32V2Reply* reply) {
  if (!request.per_thread) {
    RETURN_IF_CUDA_ERROR(call.driver().cuMemsetD32_v2(request.dstDevice, request.ui, request.N));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CUstream stream, DefaultStream(call, true));
  RETURN_IF_CUDA_ERROR(
      call.driver().cuMemsetD32Async(request.dstDevice, request.ui, request.N, stream));
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
