#pragma once

#include <cstdint>
#include <cuda.h>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "protocol/wire/record.h"
#include "server/worker/session_resources.h"
#include "transport/link.h"

namespace fargpu::server {

// One call of a client while its handler runs. The call's context is current on the calling thread.
class Call {
 public:
  Call(SessionResources* resources, const wire::CallHeader& header,
       std::shared_ptr<const transport::IncomingFrame> frame, absl::Span<const char> bulk)
      : resources_(*resources), header_(header), frame_(std::move(frame)), bulk_(bulk) {}

  Driver& driver() { return *resources_.driver; }
  SessionResources& resources() { return resources_; }
  Objects& objects() { return resources_.objects; }
  const wire::CallHeader& header() const { return header_; }

  // The driver's object for a client's id; CUDA_ERROR_INVALID_HANDLE or _INVALID_CONTEXT.
  absl::Status Resolve(wire::StreamId id, CUstream* stream);
  absl::Status Resolve(wire::EventId id, CUevent* event) {
    return objects().events.Find(id, event);
  }
  absl::Status Resolve(wire::ContextId id, Context* context) {
    return objects().contexts.Find(id, context);
  }
  // The call's context, for handlers that need more than that it is current.
  absl::Status CurrentContext(Context* context) { return Resolve(header_.context, context); }

  // Names the object that a call has made. The call's context owns it.
  absl::Status Insert(wire::StreamId id, CUstream stream) {
    if (id.value <= kLastSpecialStream) return Malformed("a stream is given a reserved id");
    return Named(objects().streams.Insert(id, stream, header_.context));
  }
  absl::Status Insert(wire::EventId id, CUevent event) {
    return Named(objects().events.Insert(id, event, header_.context));
  }
  void Erase(wire::StreamId id) { objects().streams.Erase(id); }
  void Erase(wire::EventId id) { objects().events.Erase(id); }

  // Bytes that came with the call; valid as long as frame().
  absl::Span<const char> bulk() const { return bulk_; }
  // Shared, because copies that are queued outlive the call.
  const std::shared_ptr<const transport::IncomingFrame>& frame() const { return frame_; }

  // Bytes that leave with the reply.
  void SetReplyBulk(transport::Message bytes) { reply_bulk_ = std::move(bytes); }
  transport::Message TakeReplyBulk() { return std::move(reply_bulk_); }

  // The client broke the protocol: the session ends when the handler returns. Returns an error for
  // the handler to return.
  absl::Status Malformed(absl::string_view why);
  const absl::Status& malformed() const { return malformed_; }
  // Turns what no client of ours does (a duplicate id) into Malformed().
  absl::Status Named(absl::Status status);

  // Stream ids 0, 1 and 2 mean what CUDA's stream handles of these values mean.
  static constexpr uint64_t kLegacyStream = 1;
  static constexpr uint64_t kPerThreadStream = 2;
  static constexpr uint64_t kLastSpecialStream = 2;

 private:
  SessionResources& resources_;
  const wire::CallHeader header_;
  const std::shared_ptr<const transport::IncomingFrame> frame_;
  const absl::Span<const char> bulk_;
  transport::Message reply_bulk_;
  absl::Status malformed_;
};

}  // namespace fargpu::server
