// Memory shared by processes of one lease (cuIpc*).
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {

absl::Status IpcGetMemHandle(const wire::IpcGetMemHandleRequest& request, Call& call,
                             wire::IpcGetMemHandleReply* reply) {
  ASSIGN_OR_RETURN(const memory::DeviceAllocator::Shared shared,
                   call.resources().allocator->Share(request.dptr));
  ASSIGN_OR_RETURN(reply->words, call.resources().memory_exchange.Offer(shared));
  return absl::OkStatus();
}

absl::Status IpcOpenMemHandleV2(const wire::IpcOpenMemHandleV2Request& request, Call& call,
                                wire::IpcOpenMemHandleV2Reply* reply) {
  if (request.words.size() != MemoryExchange::kHandleWords) {
    return call.Malformed(absl::StrCat("a memory handle of ", request.words.size(), " words"));
  }
  Context context;
  RETURN_IF_ERROR(call.CurrentContext(&context));
  ASSIGN_OR_RETURN(const MemoryExchange::Taken taken,
                   call.resources().memory_exchange.Take(request.words));
  if (taken.shared.device != context.device) {
    return CudaError(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                     absl::StrCat("memory of device ", taken.shared.device,
                                  " opened in a context of device ", context.device));
  }
  ASSIGN_OR_RETURN(reply->dptr,
                   call.resources().allocator->Import(reinterpret_cast<uint64_t>(context.handle),
                                                      taken.shared, taken.fd.get()));
  reply->bytes = taken.shared.bytes;
  return absl::OkStatus();
}

absl::Status IpcCloseMemHandle(const wire::IpcCloseMemHandleRequest& request, Call& call,
                               wire::IpcCloseMemHandleReply* reply) {
  return call.resources().allocator->Free(request.dptr);
}

}  // namespace fargpu::server::handlers
