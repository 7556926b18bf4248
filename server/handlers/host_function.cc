// Functions of the program that streams call; the client runs them (worker/host_functions.h).
#include "common/status_macros.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {

absl::Status LaunchHostFunc(const wire::LaunchHostFuncRequest& request, Call& call,
                            wire::LaunchHostFuncReply* reply) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  return call.resources().host_functions.Launch(stream, request.token);
}

absl::Status StreamAddCallback(const wire::StreamAddCallbackRequest& request, Call& call,
                               wire::StreamAddCallbackReply* reply) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  return call.resources().host_functions.AddCallback(stream, request.token);
}

}  // namespace fargpu::server::handlers
