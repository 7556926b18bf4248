#pragma once

#include "absl/status/status.h"

#include "messages.h"

// What captures forbid. Checked where requests leave (Session::Send), so that no call is forgotten:
// what can be captured does not come there.
namespace fargpu::client {

class Session;

// For calls that a capture in progress forbids, such as allocations: what the thread's mode says
// (cuThreadExchangeStreamCaptureMode). CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED spoils the capture.
absl::Status CheckAllowedDuringCapture(Session& session);
// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT if `stream` is the legacy one, which everything of a capturing
// stream would have to wait for.
absl::Status CheckImplicitCapture(Session& session, wire::StreamId stream);
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, spoiling the capture, if `stream` is capturing.
absl::Status RefuseWhileCapturing(Session& session, wire::StreamId stream);
// CUDA_ERROR_CAPTURED_EVENT, spoiling the capture, if the event was recorded in one.
absl::Status CheckEventNotCaptured(Session& session, wire::EventId event);

// Calls that wait for the card or change what memory there is.
template <typename Request>
inline constexpr bool kForbiddenDuringCapture = false;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::MemAllocV2Request> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::MemAllocPitchV2Request> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::MemFreeV2Request> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::MemcpyHtoDV2Request> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::MemcpyDtoHV2Request> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::Array3DCreateV2Request> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::ArrayDestroyRequest> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::MipmappedArrayCreateRequest> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::MipmappedArrayDestroyRequest> = true;
template <>
inline constexpr bool kForbiddenDuringCapture<wire::CtxSynchronizeRequest> = true;

// Calls about a stream that need not be in its order.
template <typename Request>
inline constexpr bool kAboutStreamOnly = false;
template <>
inline constexpr bool kAboutStreamOnly<wire::StreamDestroyV2Request> = true;
template <>
inline constexpr bool kAboutStreamOnly<wire::StreamSetAttributeRequest> = true;

// May `request` be sent while a capture is in progress, or an event was recorded in one?
template <typename Request>
absl::Status CheckAgainstCaptures(Session& session, const Request& request) {
  const auto check_stream = [&](wire::StreamId stream) -> absl::Status {
    if (absl::Status status = CheckImplicitCapture(session, stream); !status.ok()) return status;
    return RefuseWhileCapturing(session, stream);
  };
  absl::Status status;
  if constexpr (kAboutStreamOnly<Request>) {
    return status;
  } else if constexpr (requires { request.hStream; }) {
    status = check_stream(request.hStream);
  } else if constexpr (requires { request.stream; }) {
    status = check_stream(request.stream);
  } else if constexpr (requires { request.per_thread; }) {
    status = check_stream({request.per_thread ? uint64_t{2} : uint64_t{0}});
  } else if constexpr (std::is_same_v<Request, wire::EventQueryRequest> ||
                       std::is_same_v<Request, wire::EventSynchronizeRequest>) {
    status = CheckEventNotCaptured(session, request.hEvent);
  } else if constexpr (std::is_same_v<Request, wire::EventElapsedTimeV2Request>) {
    status = CheckEventNotCaptured(session, request.hStart);
    if (status.ok()) status = CheckEventNotCaptured(session, request.hEnd);
  }
  if constexpr (kForbiddenDuringCapture<Request>) {
    if (status.ok()) status = CheckAllowedDuringCapture(session);
  }
  return status;
}

}  // namespace fargpu::client
