#pragma once

#include <cstdint>
#include <cuda.h>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"

#include "common/mutex.h"
#include "driver.h"
#include "protocol/wire/host_function.h"

namespace fargpu::server {

// Functions of the program that streams call (cuLaunchHostFunc, cuStreamAddCallback). When a stream
// comes to one, the driver calls us on a thread of its own, on which no CUDA call is allowed; our
// own thread tells the client, after the bytes of copies that were done before; the driver's waits
// until the client has answered, and the stream with it. Thread-safe.
class HostFunctions {
 public:
  explicit HostFunctions(Driver* driver) : driver_(driver) {}
  ~HostFunctions() { Stop(); }

  // How the client is told; called by our thread only, until Stop(). Before the first function is
  // queued.
  using Send = std::function<void(const wire::HostFunctionRun&)>;
  void SetSend(Send send) { send_ = std::move(send); }

  // Queue what the client calls `token` on a stream of the current context.
  absl::Status Launch(CUstream stream, uint64_t token);
  absl::Status AddCallback(CUstream stream, uint64_t token);

  // The client says that a run has ended. kInvalidArgument if there is none of that name.
  absl::Status Done(uint64_t run);
  // The client is gone: nobody is waited for any more.
  void End();
  // The same, and neither is `send` called nor does a thread of the driver wait here when this
  // returns.
  void Stop();

 private:
  // What the driver gets as the function's data. Stays until the stream has come to it, which may
  // be never: a host function is not called when work before it failed.
  struct Queued {
    HostFunctions* owner = nullptr;
    uint64_t token = 0;
  };
  Queued* Add(uint64_t token);
  void Forget(Queued* queued);
  // On the driver's thread.
  void Run(Queued* queued, CUresult result);
  void RunThread();

  Driver* const driver_;
  Send send_;
  Mutex mutex_;
  CondVar changed_;
  absl::flat_hash_map<Queued*, std::unique_ptr<Queued>> queued_ ABSL_GUARDED_BY(mutex_);
  std::deque<wire::HostFunctionRun> to_send_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint64_t> running_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads of the driver in Run()
  uint64_t last_run_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // from the first function on; made under mutex_
};

}  // namespace fargpu::server
