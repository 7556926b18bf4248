#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/mutex.h"
#include "server/worker/reply_sender.h"
#include "server/worker/session_resources.h"
#include "transport/link.h"

namespace fargpu::server {

// What kernels have printed: printf to stdout, assertions to stderr.
struct PrintedText {
  std::string out;
  std::string error;
};

struct DispatchRow;

// Serves one client: takes the calls out of its frames in the order in which they were made, runs
// each one's handler and sends the replies (DESIGN D6).
//
// One thread at a time dispatches. A call that may wait for the card is run by the thread that
// comes upon it, which gives the dispatching up first: other threads of the session take it over as
// soon as a frame comes, and if none comes, nobody was woken for nothing. A client thread's waiting
// calls run one after another; its next other call starts only when they are done, because to the
// program they have returned by then.
class Session {
 public:
  struct Options {
    transport::LinkOptions link;
    // Frames that wait to be dispatched hold at most about so many bytes: beyond it the link is
    // made to wait, and the client with it.
    size_t max_queued_bytes = 64 << 20;
    int max_threads = 512;
  };

  // `resources` must outlive the session. `printed` takes what kernels have printed since it was
  // last called; it is called after calls that make the driver print.
  Session(SessionResources* resources, std::unique_ptr<transport::Connection> connection,
          Options options, std::function<PrintedText()> printed);
  // Waits for handlers that are running.
  ~Session();

  // Returns when the session is over: kUnavailable, the client is gone or said goodbye;
  // kInvalidArgument, it broke the protocol; kCancelled, End() was called.
  absl::Status Wait();
  void End();

  std::string Describe() const { return link_->Describe(); }

 private:
  struct Work {
    const DispatchRow* row = nullptr;
    wire::CallHeader header;
    uint64_t number = 0;
    absl::Span<const char> payload;
    absl::Span<const char> bulk;
    // Shared with the other calls of the frame, and with copies that outlive their call.
    std::shared_ptr<const transport::IncomingFrame> frame;
  };
  // Calls of one client thread that may wait for the card.
  struct Lane {
    std::deque<Work> waiting;
  };

  void OnFrame(transport::IncomingFrame frame);
  absl::Status EndHostFunction(const transport::IncomingFrame& frame);
  void Fail(const absl::Status& cause);

  void RunThread();
  // Dispatches until somebody else does or the session ends.
  void Dispatch();
  // The next call; false when the session has ended. Only the dispatching thread.
  bool NextWork(Work* work);
  bool NextFrame();
  absl::Status ReadWork(Work* work);
  void DispatchBlocking(Work work);
  void WaitForLane(uint32_t client_thread);
  void StartThreadIfNoneIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run(const Work& work);
  absl::Status MakeCurrent(wire::ContextId id);

  SessionResources& resources_;
  const Options options_;
  const std::function<PrintedText()> printed_;
  // Number of this session within the process, so that threads know whose context is current.
  const uint64_t instance_;

  // Order of locks: mutex_ before those of the link and of the reply sender.
  Mutex mutex_;
  CondVar dispatcher_wanted_;  // an idle thread should dispatch
  CondVar changed_;            // a lane became empty, a frame was taken, the session ended
  std::deque<transport::IncomingFrame> frames_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dispatching_ ABSL_GUARDED_BY(mutex_) = false;
  int idle_threads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, Lane> lanes_ ABSL_GUARDED_BY(mutex_);  // those with work
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> ended_{false};
  std::atomic<int> frames_waiting_{0};  // frames_.size(), for a look without the lock

  // Only the dispatching thread; handed over under mutex_.
  std::shared_ptr<const transport::IncomingFrame> frame_;
  absl::Span<const char> records_;
  uint16_t records_left_ = 0;
  uint64_t next_call_ = 1;
  uint32_t only_client_thread_ = 0;
  bool many_client_threads_ = false;

  // The link goes first: it may still be sending bytes that the sender owns.
  std::unique_ptr<ReplySender> replies_;
  std::unique_ptr<transport::Link> link_;
  std::atomic<transport::Link*> started_link_{nullptr};  // once the constructor is through with it
};

}  // namespace fargpu::server
