#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/fd.h"
#include "common/mutex.h"
#include "transport/connection.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_library.h"

namespace fargpu::transport {

// A UCX context with one worker; destroyed in the right order. All calls on it are made under the
// mutex of the connection that owns it.
struct UcxWorker {
  explicit UcxWorker(const UcxLibrary& library) : ucx(library) {}
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const UcxLibrary& ucx;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  size_t max_header = 0;
  int event_fd = -1;      // UCX's own
  DescriptorSweep sweep;  // since before UCX opened anything for this worker
  std::vector<DescriptorSweep::Entry> descriptors;  // what it opened
};

// Messages are UCX active messages: small ones eager, large ones by rendezvous, into memory that is
// allocated only after the size was checked.
//
// Opening: UCX may reorder, and with rendezvous even aborts, while an endpoint is being wired up.
// So each side sends one small message (an opening frame that names the session) and queues all
// others until it has the peer's and its own endpoint is known to be wired (a flush completed).
// Nobody waits for that: the queue goes out from Progress().
class UcxConnection final : public Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Open(std::unique_ptr<UcxWorker> worker,
                                                          const UcxOptions& options,
                                                          absl::string_view remote_address);
  ~UcxConnection() override;

  absl::StatusOr<SendTicket> Send(absl::Span<const char> head,
                                  absl::Span<const char> bulk) override;
  bool IsSent(SendTicket ticket) override;
  absl::StatusOr<bool> Progress(std::vector<Message>* arrived) override;
  int event_fd() const override { return epoll_.get(); }
  absl::StatusOr<bool> Arm() override;
  void Abort() override;
  void AbandonAfterFork() override ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool IsOpen() override;
  std::string Describe() const override;

 private:
  struct Outgoing {
    SendTicket ticket = 0;
    Message head;  // a copy: UCX reads it until the request completes
    absl::Span<const char> bulk;
    void* request = nullptr;  // of UCX, while in flight
  };
  struct Incoming {
    Message message;
    size_t header_bytes = 0;  // already in place
    size_t size = 0;
    void* rendezvous = nullptr;  // of UCX: data that the peer offers and we have not asked for
    void* request = nullptr;     // of UCX, while the data comes
    bool ready = false;
  };

  UcxConnection(std::unique_ptr<UcxWorker> worker, const UcxOptions& options);

  absl::Status Start(absl::string_view remote_address);
  void SendOpening() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckOpened() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(Outgoing* outgoing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RetireSent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RetireReceived(std::vector<Message>* arrived) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartRendezvous() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDone(void** request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(absl::Status cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(absl::string_view what, ucs_status_t status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellPeerThatWeClose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SendFailure() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOpening(absl::Span<const char> bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchPeerProcess(uint32_t pid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ucs_status_t TakeMessage(absl::Span<const char> header, void* data, size_t length,
                           bool rendezvous) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  static ucs_status_t OnMessage(void* self, const void* header, size_t header_length, void* data,
                                size_t length,
                                const ucp_am_recv_param_t* param) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  static ucs_status_t OnClosing(void* self, const void* header, size_t header_length, void* data,
                                size_t length,
                                const ucp_am_recv_param_t* param) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  static void OnError(void* self, ucp_ep_h endpoint,
                      ucs_status_t status) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const UcxOptions options_;
  UniqueFd epoll_;  // UCX's descriptor, kick_, timer_ and peer_process_
  UniqueFd kick_;   // tells a sleeper that Send() left something to do
  UniqueFd timer_;  // wakes a sleeper now and then while sends are under way

  // Threads that want to send; who polls steps aside for them, because the mutex is not fair.
  std::atomic<int> senders_{0};
  std::atomic<SendTicket> sent_{0};  // all tickets up to this one have been sent

  mutable Mutex mutex_;
  std::unique_ptr<UcxWorker> ucx_ ABSL_GUARDED_BY(mutex_);
  ucp_ep_h endpoint_ ABSL_GUARDED_BY(mutex_) = nullptr;
  SendTicket last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);  // in flight, then not yet posted
  size_t posted_ ABSL_GUARDED_BY(mutex_) = 0;              // how many of them are in flight
  std::deque<Incoming> incoming_ ABSL_GUARDED_BY(mutex_);  // in the order of arrival
  size_t rendezvous_active_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t rendezvous_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool peer_opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool wired_ ABSL_GUARDED_BY(mutex_) = false;
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  Message opening_ ABSL_GUARDED_BY(mutex_);
  UniqueFd peer_process_ ABSL_GUARDED_BY(mutex_);  // a pidfd; only on the same machine
  void* opening_request_ ABSL_GUARDED_BY(mutex_) = nullptr;
  void* flush_request_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool armed_ ABSL_GUARDED_BY(mutex_) = false;
  long retry_nanos_ ABSL_GUARDED_BY(mutex_);
  bool timer_set_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;         // UCX knows that the peer is gone
  bool peer_closes_ ABSL_GUARDED_BY(mutex_) = false;  // it said so, or its process ended
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::string description_ ABSL_GUARDED_BY(mutex_) = "ucx";
  std::unique_ptr<DescriptorSweep> sweep_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::transport
