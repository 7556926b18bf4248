// Messages of ours that are no CUDA call.
#include "common/status_macros.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {

absl::Status SessionImageBegin(const wire::SessionImageBeginRequest& request, Call& call,
                               wire::SessionImageBeginReply* reply) {
  return call.Named(call.resources().images.Begin(request.image, request.kind, request.part_bytes));
}

absl::Status SessionImagePart(const wire::SessionImagePartRequest& request, Call& call,
                              wire::SessionImagePartReply* reply) {
  return call.Named(
      call.resources().images.Append(request.image, request.part, request.offset, call.bulk()));
}

}  // namespace fargpu::server::handlers
