#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fargpu::transport {

// Names one message that was given to Connection::Send; tickets of a connection grow by one.
using SendTicket = uint64_t;

// One message as it arrived. Owns its bytes.
struct Message {
  std::unique_ptr<char[]> storage;
  size_t size = 0;
  absl::Span<const char> bytes() const { return {storage.get(), size}; }
};

// An ordered, reliable channel of whole messages between one client and one worker. It knows
// nothing of frames, heartbeats or waiting; Link (link.h) does that once for all connections.
//
// Implementations: UcxConnection (ucx/), InProcessConnection (inproc/). All must pass
// connection_conformance_test.cc. Calls on one connection may come from any thread; an
// implementation locks inside.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues the message `head` + `bulk`. `head` is copied; `bulk` is borrowed until IsSent(ticket),
  // and sent without a copy where the transport can. Never blocks on the peer.
  // Once any call returns kUnavailable the peer is gone and every later call does too.
  virtual absl::StatusOr<SendTicket> Send(absl::Span<const char> head,
                                          absl::Span<const char> bulk) = 0;

  // True once the message and all before it no longer borrow memory.
  virtual bool IsSent(SendTicket ticket) = 0;

  // Moves bytes if any can be moved, without blocking, and appends whole messages that arrived, in
  // the order in which they were sent. Returns whether anything at all happened.
  // kInvalidArgument: the peer broke the message format or a limit.
  virtual absl::StatusOr<bool> Progress(std::vector<Message>* arrived) = 0;

  // To sleep: Arm(); if it returns true, event_fd() becomes readable when Progress has work.
  // If it returns false there is work now.
  virtual int event_fd() const = 0;
  virtual absl::StatusOr<bool> Arm() = 0;

  // "ucx/tcp", "ucx/shm", "ucx/rc", "inproc": for logs and `fargpu pool`.
  virtual std::string Describe() const = 0;
};

}  // namespace fargpu::transport
