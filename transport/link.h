#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "protocol/wire/frame.h"
#include "transport/connection.h"

namespace fargpu::transport {

// A frame as it arrived: checked header, and its bytes, owned.
struct IncomingFrame {
  wire::FrameHeader header;
  Message message;
  absl::Span<const char> body() const {
    return message.bytes().subspan(wire::kFrameHeaderBytes, header.body_bytes);
  }
  absl::Span<const char> bulk() const {
    return message.bytes().subspan(wire::kFrameHeaderBytes + header.body_bytes, header.bulk_bytes);
  }
};

struct LinkOptions {
  absl::Duration heartbeat = absl::Seconds(1);  // sent when nothing else was for so long
  // Nothing heard for so long: the peer is dead. Five seconds at most, telling everybody included.
  absl::Duration dead_after = absl::Seconds(4.5);
  // How long a waiting thread polls before it sleeps on the event fd. Zero when cores are short.
  absl::Duration spin = absl::Microseconds(50);
  // The side that waits for requests keeps polling for up to so long while the peer is active; how
  // long exactly follows the gaps between what arrives. Zero: `spin` and nothing more.
  absl::Duration active_spin = absl::ZeroDuration();
  // FARGPU_SPIN_US in the environment, where set, replaces `spin` and is the limit of
  // `active_spin`.
};

// One side of a session's data path, the same on client and worker: numbers and acknowledges
// frames, checks their order, keeps the connection alive and notices when it is not.
//
// Frames that arrive go to `handler`, one at a time and in order, called by a thread that is inside
// WaitUntil() (it polls, so a reply needs no thread switch) or, while none is, by the link's own
// thread, which otherwise sleeps on the event fd: an idle link costs no CPU. The handler must be
// quick and must not call WaitUntil; it may Send. Heartbeats and opening frames do not reach it. A
// goodbye frame does, and then the link is dead: kUnavailable "the peer said goodbye".
//
// The link's own thread also sends heartbeats. No CUDA call ever runs on it, so a worker whose
// card hangs stays alive for its peer.
class Link {
 public:
  using Handler = std::function<void(IncomingFrame)>;
  using DeathHandler = std::function<void(const absl::Status& cause)>;

  // `on_death` is called once, by a thread that is in WaitUntil or by the link's own, when the peer
  // is gone (kUnavailable) or sent nonsense (kInvalidArgument); not when the link is destroyed.
  static std::unique_ptr<Link> Start(std::unique_ptr<Connection> connection, LinkOptions options,
                                     Handler handler, DeathHandler on_death);
  // Ends the link's thread. Does not wait for the peer; frames not yet sent may be lost.
  virtual ~Link() = default;

  // Any thread. Frames leave in the order of these calls. `body` is copied, `bulk` is borrowed
  // until WaitSent(ticket) returns OK or the cause of death. Fails with the cause of death once the
  // link is dead; kInvalidArgument, and the link lives on, when body or bulk are over the limits.
  virtual absl::StatusOr<SendTicket> Send(wire::FrameKind kind, uint16_t record_count,
                                          uint64_t first_call, absl::Span<const char> body,
                                          absl::Span<const char> bulk) = 0;
  virtual absl::Status WaitSent(SendTicket ticket, absl::Time deadline) = 0;

  // Any thread. Returns OK as soon as done() is true; it is evaluated before waiting and after each
  // frame that was handled, on the calling thread. Otherwise the cause of death, or
  // kDeadlineExceeded. Wake() makes every waiting thread evaluate done() again.
  virtual absl::Status WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline) = 0;
  virtual void Wake() = 0;
  // The same, until both ends have heard from each other. Sending need not wait for that.
  virtual absl::Status WaitOpen(absl::Time deadline) = 0;

  // OK while the link lives, else the first cause of death.
  virtual absl::Status status() const = 0;
  // Highest sequence number that the peer has acknowledged.
  virtual uint64_t acknowledged() const = 0;
  virtual std::string Describe() const = 0;

  // Ends the use of the connection for good: when this returns, no thread touches it any more, and
  // every call fails with kUnavailable. For the end of the process, when the transport's own
  // library is about to go. Waits for no peer, and at most a second for threads of this process;
  // on_death is not called. Not from the handler.
  virtual void Stop() = 0;

  // After fork() in the child: gives up all resources without touching the parent's connection:
  // closes the child's copies of the descriptors, joins nothing, frees nothing that UCX owns. The
  // link may be destroyed afterwards; nothing else may be called.
  virtual void AbandonAfterFork() = 0;
};

}  // namespace fargpu::transport
