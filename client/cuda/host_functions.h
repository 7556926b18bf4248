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
#include "absl/types/span.h"

#include "client/cuda/box_plan.h"
#include "common/mutex.h"
#include "protocol/wire/host_function.h"

namespace fargpu::client {

// Functions of the program that streams call. When a stream comes to one the worker says so, a
// thread of ours runs it, and the stream goes on when it has returned. As on a card, they run one
// at a time, and CUDA calls in them are refused (CUDA_ERROR_NOT_PERMITTED). Thread-safe.
class HostFunctions {
 public:
  // `done` tells the worker that a run has ended; `send` sends it bytes of a pull, which are not
  // needed any more when it returns. Both may fail: then the session is over.
  using Done = std::function<void(uint64_t run)>;
  using Send = std::function<void(uint64_t run, uint64_t offset, absl::Span<const char> bytes)>;
  HostFunctions(Done done, Send send);
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
  // For graphs, whose runs come to them again and again: the token stays until Gone(). Expect(): a
  // run is on its way.
  uint64_t AddRepeated(std::function<void()> function);
  void Expect(uint64_t token);
  // Memory whose bytes the worker fetches when a stream comes to a copy from it: once, or, for
  // graphs, whenever Expect() says that a run is on its way.
  enum class Fetched { kOnce, kRepeatedly };
  uint64_t AddSource(const HostBox& source, Fetched fetched);
  // Is anything of this memory still to be fetched?
  bool Reads(const void* memory, size_t bytes);
  // The memory goes: zeros are sent in its place.
  void GiveUp(const void* memory, size_t bytes);
  // The worker will not name it any more; or the call that was to queue it failed.
  void Gone(uint64_t token);
  void Forget(uint64_t token) { Gone(token); }
  // Tokens of this class, apart from those of deliveries.
  static bool IsToken(uint64_t token) { return (token & kTokenBit) != 0; }

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
  static constexpr uint64_t kTokenBit = uint64_t{1} << 63;

  struct Function {
    CUhostFn host = nullptr;  // or one of the others
    Callback callback;
    void* data = nullptr;
    std::shared_ptr<const std::function<void()>> repeated;  // shared with its runs
    std::shared_ptr<const HostBox> source;                  // likewise
    uint64_t due = 0;  // repeated ones and sources: runs on their way
  };
  struct Run {
    uint64_t run = 0;
    uint64_t token = 0;
    Function function;
    CUresult result = CUDA_SUCCESS;
  };
  // A thread of ours and what it has to do. Pulls do not wait for functions of the program, which
  // may wait for a stream that waits for bytes.
  struct Queue {
    std::deque<Run> due;
    std::unique_ptr<std::thread> thread;  // from the first function on
  };
  uint64_t Insert(Function function);
  void EndDue(uint64_t token);
  void StartThread(Queue* queue, const char* name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunThread(Queue* queue);
  void RunFunction(const Run& run);
  void SendSource(const Run& run);

  const Done done_;
  const Send send_;
  std::function<void()> before_, after_;
  std::atomic<int> pending_{0};  // queued, due or running
  Mutex mutex_;
  std::unique_ptr<CondVar> changed_ = std::make_unique<CondVar>();
  uint64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Function> functions_ ABSL_GUARDED_BY(mutex_);
  Queue calls_ ABSL_GUARDED_BY(mutex_);
  Queue pulls_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fargpu::client
