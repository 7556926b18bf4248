#pragma once

#include <cstdint>
#include <cuda.h>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "common/mutex.h"
#include "protocol/wire/host_function.h"
#include "protocol/wire/print_stream.h"
#include "protocol/wire/record.h"
#include "server/worker/async_copies.h"
#include "transport/link.h"

namespace fargpu::server {

// What goes back to the client: replies, gathered into frames, and before each one the bytes of
// asynchronous copies and the text of kernels that were due by then. Thread-safe. A link that has
// died swallows what is sent.
class ReplySender {
 public:
  // Bytes on their way to a client that does not take them; over it the sender waits for the
  // client.
  static constexpr uint64_t kMaxBorrowedBytes = 256 << 20;

  // Both must outlive the sender.
  ReplySender(transport::Link* link, AsyncCopies* copies) : link_(link), copies_(copies) {}

  // The CUresult of a call that nobody waits for; the first one leaves with the next reply.
  void NoteDeferred(CUresult result);

  // Adds a reply to the open frame. Deliveries that are done leave before it. A reply with bulk
  // bytes closes the frame.
  void Add(uint64_t call, uint16_t op, CUresult result, absl::Span<const char> fields,
           transport::Message bulk);
  void Flush();

  // Sends deliveries that are done, without a reply.
  void SendDone();

  // Tells the client that a stream has come to a function of the program. Deliveries that are done
  // leave before it: the function may read what they bring.
  void SendHostFunction(const wire::HostFunctionRun& run);
  // Bytes for the client's memory at which a graph has come to a copy; sent as deliveries, copied.
  void SendHostBytes(uint64_t token, absl::Span<const char> bytes);

  // Text that kernels printed, if any, as delivery 0.
  void SendPrinted(wire::PrintStream stream, absl::string_view text);

 private:
  struct Borrowed {
    transport::SendTicket ticket;
    transport::Message bytes;
  };
  void FlushLocked(transport::Message bulk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDoneLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDelivery(uint64_t token, uint64_t offset, transport::Message bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(transport::SendTicket ticket, transport::Message bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  transport::Link* const link_;
  AsyncCopies* const copies_;
  Mutex mutex_;
  std::vector<char> body_ ABSL_GUARDED_BY(mutex_);
  uint16_t records_ ABSL_GUARDED_BY(mutex_) = 0;
  CUresult deferred_ ABSL_GUARDED_BY(mutex_) = CUDA_SUCCESS;
  std::deque<Borrowed> borrowed_ ABSL_GUARDED_BY(mutex_);  // on their way, in order
  uint64_t borrowed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fargpu::server
