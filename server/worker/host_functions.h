#pragma once

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

#include "common/mutex.h"
#include "driver.h"
#include "protocol/wire/codec.h"
#include "protocol/wire/host_function.h"
#include "transport/connection.h"

namespace fargpu::server {

class HostFunctions;

// What a stream or a graph does with the client's help whenever it comes to it: calls a function of
// the program, fetches bytes of its memory, or sends it bytes. The driver is given Entry and a
// pointer to this as a host function, so it must stay until the driver is through; when it goes,
// the client hears that its token will not be named again.
class HostWork {
 public:
  enum class Kind { kFunction, kPull, kPush };

  // A buffer in pinned memory, which `context` owns and which is used again; nullptr in it: none.
  struct Buffer {
    char* memory = nullptr;
    size_t bytes = 0;
    wire::ContextId context;
  };
  HostWork(HostFunctions* owner, Kind kind, uint64_t token, size_t bytes, const Buffer& pinned);
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  static void CUDA_CB Entry(void* work);

  // Where the bytes lie on our side.
  char* bytes() { return pinned_.memory != nullptr ? pinned_.memory : bytes_.get(); }
  size_t size() const { return size_; }

 private:
  friend class HostFunctions;
  HostFunctions* const owner_;
  const Kind kind_;
  const uint64_t token_;
  const std::unique_ptr<char[]> bytes_;  // unless it has pinned memory
  const Buffer pinned_;
  const size_t size_;
};

// The client's part in the work of streams. When a stream comes to it, the driver calls us on a
// thread of its own, on which no CUDA call is allowed; our own thread tells the client, after the
// bytes of copies that were done before; the driver's waits until the client has answered, and the
// stream with it. Thread-safe.
class HostFunctions {
 public:
  // What works hold of bytes at a time.
  static constexpr uint64_t kMaxBytes = uint64_t{2} << 30;

  explicit HostFunctions(Driver* driver) : driver_(driver) {}
  ~HostFunctions() { Stop(); }

  // How the client is reached; called by our thread only, until Stop(). Before the first function
  // is queued.
  using Send = std::function<void(const wire::HostFunctionRun&)>;
  using SendBytes = std::function<void(uint64_t token, absl::Span<const char> bytes)>;
  void SetSend(Send send, SendBytes send_bytes) {
    send_ = std::move(send);
    send_bytes_ = std::move(send_bytes);
  }

  // Queue what the client calls `token` on a stream of the current context.
  absl::Status Launch(CUstream stream, uint64_t token);
  absl::Status AddCallback(CUstream stream, uint64_t token);
  // Work for whoever queues it himself. CUDA_ERROR_OUT_OF_MEMORY over kMaxBytes.
  absl::StatusOr<std::shared_ptr<HostWork>> NewWork(HostWork::Kind kind, uint64_t token,
                                                    uint64_t bytes);
  // The same with its bytes in pinned memory of the current context: for a pull before a copy in a
  // stream, which drivers take to read other memory at the call.
  absl::StatusOr<std::shared_ptr<HostWork>> NewPinnedPull(uint64_t token, uint64_t bytes,
                                                          wire::ContextId context);
  // The context goes, and its pinned memory with it.
  void ForgetContext(wire::ContextId context);

  // The client says that a run has ended, or sends bytes that one waits for. kInvalidArgument if
  // there is none of that name, or the bytes do not fit.
  absl::Status Done(const wire::HostFunctionDone& done, absl::Span<const char> bytes);
  // The client is gone: nobody is waited for any more.
  void End();
  // The same, and neither is `send` called nor does a thread of the driver wait here when this
  // returns.
  void Stop();

 private:
  friend class HostWork;
  // What the driver gets as the data of a function that is called once. Stays until the stream has
  // come to it, which may be never: a host function is not called when work before it failed.
  struct Queued {
    HostFunctions* owner = nullptr;
    uint64_t token = 0;
  };
  // What our thread is to send.
  struct Message {
    wire::HostFunctionRun run;
    HostWork* push = nullptr;  // its bytes instead; the driver's thread waits in RunWork()
  };
  // A run that the client has not ended yet.
  struct Running {
    HostWork* pull = nullptr;
    uint64_t missing = 0;
  };
  Queued* Add(uint64_t token);
  void Forget(Queued* queued);
  // On the driver's thread.
  void Run(Queued* queued, CUresult result);
  void RunWork(HostWork* work);
  void Gone(HostWork* work);
  void WaitForRun(uint64_t run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Reserve(uint64_t bytes);
  absl::StatusOr<HostWork::Buffer> TakePinned(uint64_t bytes, wire::ContextId context);
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunThread();

  Driver* const driver_;
  Send send_;
  SendBytes send_bytes_;
  Mutex mutex_;
  CondVar changed_;
  absl::flat_hash_map<Queued*, std::unique_ptr<Queued>> queued_ ABSL_GUARDED_BY(mutex_);
  std::deque<Message> to_send_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Running> running_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads of the driver in Run() or RunWork()
  uint64_t last_run_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all works
  std::vector<HostWork::Buffer> idle_buffers_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // from the first function on; made under mutex_
};

}  // namespace fargpu::server
