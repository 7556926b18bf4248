#pragma once

#include <cstdint>
#include <cuda.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "client/cuda/session.h"
#include "common/mutex.h"
#include "messages.h"
#include "transport/link.h"

namespace fargpu::client {

// A worker inside the test's process: takes the calls of a session from an in-process connection,
// plays a card with a little memory, and answers at once. What it does on a call can be changed
// with On(), before the first call.
class FakeWorker {
 public:
#if defined(__SANITIZE_THREAD__)
  static constexpr uint64_t kWindowBase = 0x7e9000000000;  // where ThreadSanitizer allows memory
#else
  static constexpr uint64_t kWindowBase = 0x200000000000;
#endif
  static constexpr uint64_t kWindowBytes = 1 << 30;
  static constexpr int kDevices = 2;

  struct Received {
    std::string name;
    wire::CallHeader header;
    uint64_t number = 0;
    std::vector<char> bulk;
  };

  // Over an in-process connection, whose other end TakeParts() gives.
  FakeWorker();
  explicit FakeWorker(std::unique_ptr<transport::Connection> connection);
  ~FakeWorker();

  // What a worker tells of itself and its devices.
  static Welcome MakeWelcome();
  // The client's side; call once.
  SessionParts TakeParts();
  // The functions that any image has.
  std::vector<wire::FunctionInfo> functions;

  // What a handler has beside the request.
  struct Call {
    wire::CallHeader header;
    absl::Span<const char> bulk;
    std::vector<char> reply_bulk;
  };
  // Replaces what happens on a call.
  template <typename Request>
  void On(std::function<CUresult(const Request&, typename Request::Reply*, Call*)> handler) {
    handlers_[Request::kOp] = [handler](absl::Span<const char> payload, Call* call,
                                        std::vector<char>* fields) {
      Request request;
      EXPECT_TRUE(wire::DecodePayload(payload, &request).ok()) << Request::kName;
      typename Request::Reply reply;
      const CUresult result = handler(request, &reply, call);
      wire::EncodeMessage(reply, fields);
      return result;
    };
  }
  // Calls of this name fail with `result`.
  template <typename Request>
  void Fail(CUresult result) {
    On<Request>([result](const Request&, typename Request::Reply*, Call*) { return result; });
  }

  // Calls in the order in which they came.
  std::vector<Received> received() const;
  std::vector<std::string> names() const;
  size_t Count(const std::string& name) const;
  size_t frames() const;
  bool said_goodbye() const;
  char* memory(uint64_t address) { return &memory_[address - kWindowBase]; }

  // Sends bytes as a delivery, as they are.
  void Deliver(uint64_t token, uint64_t offset, absl::Span<const char> bytes);
  // Says that a stream has come to a function of the program.
  void SendHostFunction(const wire::HostFunctionRun& run);
  // Runs that the client says have ended, in order.
  std::vector<uint64_t> ended_runs() const;
  // Bytes of its memory that the client has sent for pulls, in order.
  std::string pulled() const;
  // Sends a frame of replies, as it is.
  void SendReplies(uint16_t records, absl::Span<const char> body);
  void StopAnswering() { answers_.store(false); }
  void Die();

 private:
  using Handler = std::function<CUresult(absl::Span<const char> payload, Call* call,
                                         std::vector<char>* fields)>;
  struct PendingDelivery {
    uint64_t token;
    uint64_t offset;
    std::vector<char> bytes;
  };

  void Start(std::unique_ptr<transport::Connection> connection);
  void PlayCard();
  void Handle(const transport::IncomingFrame& frame);

  std::map<uint16_t, Handler> handlers_;
  std::vector<char> memory_;
  uint64_t next_address_ = kWindowBase + 4096;
  uint64_t next_shared_ = kWindowBase + (32 << 20);
  std::vector<PendingDelivery> deliveries_;  // link's handler only
  std::deque<std::vector<char>> kept_;       // what the link borrows; link's handler only
  CUresult deferred_ = CUDA_SUCCESS;         // link's handler only
  std::atomic<bool> answers_{true};
  mutable Mutex mutex_;
  std::vector<Received> received_ ABSL_GUARDED_BY(mutex_);
  size_t frames_ ABSL_GUARDED_BY(mutex_) = 0;
  bool goodbye_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> ended_runs_ ABSL_GUARDED_BY(mutex_);
  std::string pulled_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_call_ = 1;
  std::unique_ptr<transport::Connection> client_end_;
  std::atomic<transport::Link*> link_ptr_{nullptr};
  std::unique_ptr<transport::Link> link_;
};

}  // namespace fargpu::client
