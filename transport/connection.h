#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "protocol/wire/frame.h"

namespace fargpu::transport {

// Names one message that was given to Connection::Send; tickets of a connection grow by one.
using SendTicket = uint64_t;

// No message is larger: one frame with all that it may carry.
inline constexpr size_t kMaxMessageBytes =
    wire::kFrameHeaderBytes + wire::kMaxBodyBytes + wire::kMaxBulkBytes;

// Gives a buffer of NewMessage() back to the pool it came from.
struct ReturnToPool {
  size_t capacity = 0;
  void operator()(char* memory) const;
};

// One message as it arrived. Owns its bytes.
struct Message {
  std::unique_ptr<char[], ReturnToPool> storage;
  size_t size = 0;
  absl::Span<const char> bytes() const { return {storage.get(), size}; }
};

// A message with room for `size` bytes, not set to anything. Large buffers are kept and used again,
// because touching fresh memory costs more than the copy itself (0.7-1.9 GB/s measured).
Message NewMessage(size_t size);

// An ordered, reliable channel of whole messages between one client and one worker. It knows
// nothing of frames, heartbeats or waiting; Link (link.h) does that once for all connections.
//
// Implementations: UcxConnection (ucx/), InProcessConnection (inproc/). All must pass
// connection_conformance_test.cc. Calls on one connection may come from any thread; an
// implementation locks inside.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues the message `head` + `bulk`, at most kMaxMessageBytes. `head` is copied; `bulk` is
  // borrowed until IsSent(ticket), and sent without a copy where the transport can. Never blocks on
  // the peer. Once any call returns kUnavailable the peer is gone and every later call does too.
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

  // Gives the peer up: when it returns no memory is borrowed any more, and every later call returns
  // kUnavailable. May be called more than once.
  virtual void Abort() = 0;

  // In the child of a fork(): closes the child's copies of the descriptors and nothing else. The
  // object must not be used afterwards, and not be destroyed either: leak it.
  virtual void AbandonAfterFork() = 0;

  // True once both ends have heard from each other. From then on no descriptors are opened.
  virtual bool IsOpen() = 0;

  // "ucx/tcp", "ucx/shm", "ucx/rc", "inproc": for logs and `fargpu pool`.
  virtual std::string Describe() const = 0;
};

}  // namespace fargpu::transport
