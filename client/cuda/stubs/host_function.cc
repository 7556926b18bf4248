// Functions of the program that streams call.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/capture.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

// Queues what `token` names; not to be run if that fails.
template <typename Request>
absl::Status Queue(Session& session, DefaultStream default_stream, CUstream stream,
                   uint64_t token) {
  Request request{.hStream = {}, .token = token};
  absl::Status status = session.ToWire(stream, default_stream, &request.hStream);
  if (status.ok()) status = session.Send(request);
  // Somebody may wait for what it does, and not for the card.
  if (status.ok()) status = session.calls().Flush();
  if (!status.ok()) session.calls().host_functions().Forget(token);
  return status;
}

}  // namespace

CUresult cuLaunchHostFunc(DefaultStream default_stream, CUstream hStream, CUhostFn fn,
                          void* userData) {
  return AtCudaEdge("cuLaunchHostFunc", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &stream));
    RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(fn), "fn"));
    if (IsCapturing(session, stream)) {
      return CaptureWork(session, stream, HostWork{.function = fn, .data = userData});
    }
    return Queue<wire::LaunchHostFuncRequest>(session, default_stream, hStream,
                                              session.calls().host_functions().Add(fn, userData));
  });
}

CUresult cuStreamAddCallback(DefaultStream default_stream, CUstream hStream,
                             CUstreamCallback callback, void* userData, unsigned int flags) {
  return AtCudaEdge("cuStreamAddCallback", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(callback), "callback"));
    if (flags != 0) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", flags, ": must be 0"));
    }
    const HostFunctions::Callback function = {.function = callback, .stream = hStream};
    return Queue<wire::StreamAddCallbackRequest>(
        session, default_stream, hStream, session.calls().host_functions().Add(function, userData));
  });
}

}  // namespace fargpu::client::api
