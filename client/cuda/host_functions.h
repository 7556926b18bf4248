#pragma once

#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "common/mutex.h"
#include "protocol/wire/host_function.h"

namespace fargpu::client {

// Functions of the program that streams call. When a stream comes to one the worker says so, a
// thread of ours runs it, and the stream goes on when it has returned. As on a card, they run one
// at a time, and CUDA calls in them are refused (CUDA_ERROR_NOT_PERMITTED). Thread-safe.
class HostFunctions {
 public:
  // `done` tells the worker that a run has ended. It may fail: then the session is over.
  explicit HostFunctions(std::function<void(uint64_t run)> done);
  ~HostFunctions() { Stop(); }
  // Waits for a function that runs; `done` is called no more when this returns.
  void Stop();

  // Called on our thread before and after each function of the program. Before the first is queued.
  void SetAround(std::function<void()> before, std::function<void()> after) {
    before_ = std::move(before);
    after_ = std::move(after);
  }

  struct Callback {
    CUstreamCallback function = nullptr;
    CUstream stream = nullptr;
  };
  // The token that names the function on the wire. Never 0. Each is called once.
  uint64_t Add(CUhostFn function, void* data);
  uint64_t Add(Callback callback, void* data);
  // The call that was to queue it failed: it will not be run.
  void Forget(uint64_t token);

  // Are functions queued that may still change what the program's memory holds?
  bool any_pending() const { return pending_.load(std::memory_order_acquire) > 0; }

  // From the worker. kInvalidArgument: nobody queued what it names.
  absl::Status Start(const wire::HostFunctionRun& run);
  // The session is over: callbacks are told so, because somebody may wait for them; host functions,
  // which are not called after an error, go.
  void End(CUresult why);

  // In the child of a fork: gives up the thread, which is the parent's.
  void AbandonAfterFork();

 private:
  struct Function {
    CUhostFn host = nullptr;  // or else the callback
    Callback callback;
    void* data = nullptr;
  };
  struct Run {
    uint64_t run = 0;
    Function function;
    CUresult result = CUDA_SUCCESS;
  };
  uint64_t Insert(Function function);
  void RunThread();

  const std::function<void(uint64_t run)> done_;
  std::function<void()> before_, after_;
  std::atomic<int> pending_{0};  // queued, due or running
  Mutex mutex_;
  std::unique_ptr<CondVar> changed_ = std::make_unique<CondVar>();
  uint64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Function> functions_ ABSL_GUARDED_BY(mutex_);
  std::deque<Run> due_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::thread> thread_ ABSL_GUARDED_BY(mutex_);  // from the first function on
};

}  // namespace fargpu::client
