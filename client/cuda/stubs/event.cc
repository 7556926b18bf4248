// Recording events and waiting for them, which captures turn into dependencies, and events under
// the names of older versions; all else is generated.
#include "absl/strings/str_cat.h"

#include "client/cuda/capture.h"
#include "client/cuda/edge.h"
#include "client/cuda/events.h"
#include "client_api.h"

namespace fargpu::client {

absl::Status RecordEvent(Session& session, CUevent event, CUstream stream,
                         DefaultStream default_stream) {
  wire::EventRecordRequest request;
  RETURN_IF_ERROR(session.ToWire(stream, default_stream, &request.hStream));
  RETURN_IF_ERROR(session.ToWire(event, &request.hEvent));
  if (IsCapturing(session, request.hStream)) {
    return CaptureRecord(session, request.hStream, request.hEvent);
  }
  RETURN_IF_ERROR(session.Send(request));
  ForgetCapturedEvent(session, request.hEvent);
  return absl::OkStatus();
}

namespace api {

CUresult cuEventDestroy(CUevent hEvent) { return api::cuEventDestroy_v2(hEvent); }

CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return api::cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

CUresult cuEventRecord(DefaultStream default_stream, CUevent hEvent, CUstream hStream) {
  return AtCudaEdge("cuEventRecord", [&](Session& session) {
    return RecordEvent(session, hEvent, hStream, default_stream);
  });
}

CUresult cuEventRecordWithFlags(DefaultStream default_stream, CUevent hEvent, CUstream hStream,
                                unsigned int flags) {
  return AtCudaEdge("cuEventRecordWithFlags", [&](Session& session) -> absl::Status {
    wire::EventRecordWithFlagsRequest request{.flags = flags};
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &request.hStream));
    if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", flags));
    }
    RETURN_IF_ERROR(session.ToWire(hEvent, &request.hEvent));
    if (!IsCapturing(session, request.hStream)) {
      RETURN_IF_ERROR(session.Send(request));
      ForgetCapturedEvent(session, request.hEvent);
      return absl::OkStatus();
    }
    if (flags != CU_EVENT_RECORD_EXTERNAL) {
      return CaptureRecord(session, request.hStream, request.hEvent);
    }
    return CaptureWork(session, request.hStream, RecordWork{.event = hEvent, .id = request.hEvent});
  });
}

CUresult cuStreamWaitEvent(DefaultStream default_stream, CUstream hStream, CUevent hEvent,
                           unsigned int Flags) {
  return AtCudaEdge("cuStreamWaitEvent", [&](Session& session) -> absl::Status {
    wire::StreamWaitEventRequest request{.Flags = Flags};
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &request.hStream));
    RETURN_IF_ERROR(session.ToWire(hEvent, &request.hEvent));
    if ((Flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", Flags));
    }
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(CheckImplicitCapture(session, request.hStream));
    if (Flags == CU_EVENT_WAIT_EXTERNAL && IsCapturing(session, request.hStream)) {
      return CaptureWork(session, request.hStream, WaitWork{.event = hEvent, .id = request.hEvent});
    }
    const absl::Status captured =
        CaptureWait(session, request.hStream, session.FindStream(hStream), request.hEvent);
    if (!absl::IsNotFound(captured)) return captured;
    return session.Send(request);
  });
}

}  // namespace api
}  // namespace fargpu::client
