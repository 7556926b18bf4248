#pragma once

#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "client/cuda/deliveries.h"
#include "client/cuda/host_functions.h"
#include "client/cuda/stats.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "protocol/wire/print_stream.h"
#include "protocol/wire/record.h"
#include "transport/link.h"

namespace fargpu::client {

// The reply to one call, from before it is sent until it was taken. Stays where it is.
struct PendingReply {
  uint64_t call = 0;
  uint16_t op = 0;
  // Where bulk bytes of the reply go; it must bring exactly so many if the call succeeded.
  absl::Span<char> bulk;

  // Valid once `done`.
  std::atomic<bool> done{false};
  CUresult result = CUDA_SUCCESS;
  std::vector<char> payload;
};

// The calls of one process on their way to the worker, in the order in which they were made (DESIGN
// D6): they gather in one open frame, under a short lock. It leaves when it is full, when somebody
// waits for a reply, when bulk bytes belong to its last call, or after a few microseconds by a
// small thread. Replies and deliveries come back through the link.
//
// Any thread may call anything. All failures are the death of the link: kUnavailable, sticky, and
// every wait ends with it.
class CallStream {
 public:
  // `print` gets what kernels print, and where to. Called by whatever thread receives; must not
  // call back.
  CallStream(std::unique_ptr<transport::Connection> connection, transport::LinkOptions options,
             std::function<void(wire::PrintStream, absl::Span<const char>)> print);
  ~CallStream();

  // Sends a call that nobody waits for. `header` has context and thread.
  template <typename Request>
  absl::Status Send(wire::CallHeader header, const Request& request) {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(Append(header, request, nullptr));
    return FlushIfFull();
  }

  // Sends a call whose reply will be wanted sooner or later; `pending` must stay until it is done
  // or was forgotten.
  template <typename Request>
  absl::Status Send(wire::CallHeader header, const Request& request, PendingReply* pending) {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(Append(header, request, pending));
    return FlushIfFull();
  }

  // Sends a call with bulk bytes. kCopied: they may change when this returns. kBorrowed: they must
  // stay until WaitSent(ticket).
  enum class Bulk { kCopied, kBorrowed };
  template <typename Request>
  absl::StatusOr<transport::SendTicket> SendBulk(wire::CallHeader header, const Request& request,
                                                 absl::Span<const char> bytes, Bulk how) {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(Append(header, request, nullptr));
    return FlushWithBulk(bytes, how);
  }
  absl::Status WaitSent(transport::SendTicket ticket);

  // Sends what has gathered. What follows is not held up.
  absl::Status Flush();

  // Waits until `pending` is done: for the card if need be, but not longer than the link lives. On
  // failure it is forgotten. Does not count as a round trip; see CountRoundTrip().
  absl::Status Wait(PendingReply* pending);
  // Nobody will ask for the reply any more.
  void Abandon(std::unique_ptr<PendingReply> pending);
  void CountRoundTrip() { stats_.waiting_round_trips.fetch_add(1, std::memory_order_relaxed); }

  // The first error of calls that nobody waited for since this was last asked; CUDA_SUCCESS if
  // none.
  CUresult TakeDeferredError() {
    if (deferred_.load(std::memory_order_relaxed) == CUDA_SUCCESS) return CUDA_SUCCESS;
    return static_cast<CUresult>(deferred_.exchange(CUDA_SUCCESS));
  }

  // OK while the link lives.
  absl::Status status() const;
  // Ends the session because of what the worker sent: nothing it says is believed any more.
  void Distrust(const absl::Status& why);

  // The process ends: sends what has gathered and an orderly end, waits at most `limit` for the
  // bytes to leave, and lets no thread touch the connection afterwards. Every call then fails with
  // CUDA_ERROR_DEINITIALIZED.
  void SayGoodbye(absl::Duration limit);
  // In the child of a fork: gives up all resources. Nothing may be called afterwards.
  void AbandonAfterFork();

  Deliveries& deliveries() { return deliveries_; }
  HostFunctions& host_functions() { return host_functions_; }
  Stats& stats() { return stats_; }
  std::string Describe() const { return link_->Describe(); }
  absl::Status WaitOpen(absl::Time deadline) { return link_->WaitOpen(deadline); }

 private:
  struct Copy {
    transport::SendTicket ticket;
    std::vector<char> bytes;
  };

  template <typename Request>
  absl::Status Append(wire::CallHeader header, const Request& request, PendingReply* pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (dead_.load(std::memory_order_acquire)) return status();
    const size_t start = body_.size();
    header.op = Request::kOp;
    if (pending != nullptr) {
      header.flags = wire::kWantsReply;
      pending->op = Request::kOp;
      pending->call = next_call_;
    }
    wire::AppendRecord(header, request, &body_);
    return Appended(start, pending);
  }
  absl::Status Appended(size_t start, PendingReply* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FlushIfFull() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<transport::SendTicket> FlushWithBulk(absl::Span<const char> bytes, Bulk how)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<transport::SendTicket> SendFrame(uint16_t records, absl::Span<const char> body,
                                                  absl::Span<const char> bulk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropSentCopies() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Handle(const transport::IncomingFrame& frame);
  absl::Status HandleReplies(const transport::IncomingFrame& frame);
  absl::Status HandleDelivery(const transport::IncomingFrame& frame);
  absl::Status HandleHostFunction(const transport::IncomingFrame& frame);
  void EndHostFunction(uint64_t run);
  void SendHostBytes(uint64_t run, uint64_t offset, absl::Span<const char> bytes);
  // Nothing is written into `pending` any more.
  void Forget(PendingReply* pending);
  void Die(const absl::Status& cause);
  void RunFlusher();

  const std::function<void(wire::PrintStream, absl::Span<const char>)> print_;
  Stats stats_;
  Deliveries deliveries_;
  HostFunctions host_functions_;

  // Order of locks: mutex_, then pending_mutex_ or a lock of the link. The link's handler takes
  // pending_mutex_ and the deliveries' lock only.
  Mutex mutex_;
  std::vector<char> body_ ABSL_GUARDED_BY(mutex_);
  uint16_t records_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_call_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t opened_at_ ABSL_GUARDED_BY(mutex_) = 0;  // when the open frame got its first record
  std::deque<Copy> copies_ ABSL_GUARDED_BY(mutex_);
  size_t copied_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool flusher_idle_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<CondVar> flusher_wake_ = std::make_unique<CondVar>();

  Mutex pending_mutex_;
  absl::flat_hash_map<uint64_t, PendingReply*> pending_ ABSL_GUARDED_BY(pending_mutex_);
  std::vector<std::unique_ptr<PendingReply>> abandoned_ ABSL_GUARDED_BY(pending_mutex_);

  std::atomic<int> deferred_{CUDA_SUCCESS};
  std::atomic<bool> dead_{false};
  std::atomic<bool> leaving_{false};  // we said goodbye: the end is no news
  mutable Mutex death_mutex_;
  absl::Status death_ ABSL_GUARDED_BY(death_mutex_);

  std::unique_ptr<transport::Link> link_;
  std::unique_ptr<std::thread> flusher_;
};

}  // namespace fargpu::client
