#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cuda.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "common/mutex.h"
#include "softgpu/runtime/work_queue.h"

namespace fargpu::softgpu {

class Context;
struct Capture;
struct CapturedEvent;
class SharedEvent;

// Smaller numbers are more urgent. Priorities are kept and reported; all streams run at once.
inline constexpr int kLeastStreamPriority = 0;
inline constexpr int kGreatestStreamPriority = -5;

// A stream is a work queue and what cuStreamGet* tell of it. Streams 0, 1 and 2 (legacy and
// per-thread default) are objects like the others, without a handle of their own.
struct Stream : std::enable_shared_from_this<Stream> {
  CUstream handle = nullptr;
  uint64_t id = 0;
  std::weak_ptr<Context> context;
  std::shared_ptr<WorkQueue> queue = WorkQueue::Create();
  unsigned flags = CU_STREAM_DEFAULT;
  int priority = 0;
  bool legacy = false;
  CUgreenCtx green = nullptr;  // that it was made for
  bool destroyed = false;      // guarded by the context's mutex

  Mutex attributes_mutex;
  std::map<int, CUstreamAttrValue> attributes ABSL_GUARDED_BY(attributes_mutex);

  // Whether `capture` is set, to be asked without a lock.
  std::atomic<bool> capturing{false};
  bool is_capturing() const { return capturing.load(std::memory_order_acquire); }
  // The capture that the stream takes part in; guarded by Driver::graph_mutex.
  std::shared_ptr<Capture> capture;
};

// One moment of a stream: where an event was recorded.
struct EventRecord {
  std::shared_ptr<WorkQueue> queue;
  uint64_t position = 0;
  std::atomic<int64_t> time_ns{0};  // of the steady clock, set when the stream gets there
  // Set where the moment lies inside an item of the queue (a node of a graph).
  std::atomic<bool> reached{false};
  bool Done() const {
    return reached.load(std::memory_order_acquire) || queue->Completed(position);
  }
};

struct Event {
  CUevent handle = nullptr;
  std::weak_ptr<Context> context;
  unsigned flags = 0;

  // Set for events between processes; `record` is then of no use.
  std::shared_ptr<SharedEvent> shared;

  Mutex mutex;
  // The latest cuEventRecord; nullptr before the first.
  std::shared_ptr<EventRecord> record ABSL_GUARDED_BY(mutex);
  // Set if the latest record was part of a capture; guarded by Driver::graph_mutex.
  std::shared_ptr<CapturedEvent> captured;
  std::atomic<bool> was_captured{false};  // whether `captured` may be set, without a lock
};

// Text that kernels printed and that has not reached stdout yet. A ring: where what was printed is
// more than the limit (CU_LIMIT_PRINTF_FIFO_SIZE), the oldest lines are lost.
class PrintfBuffer {
 public:
  // What one printf of a thread gave. At most `limit` bytes are kept, and always this one.
  void Append(absl::string_view text, size_t limit);
  // Writes what there is to the process's stdout, in order. Called where CUDA flushes.
  void Flush();

 private:
  Mutex mutex_;
  std::deque<std::string> texts_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What work on a stream does; its error makes the context fail (see Context::Fail).
using StreamWork = std::function<absl::Status()>;

class Context : public std::enable_shared_from_this<Context> {
 public:
  Context(CUcontext handle, int device, unsigned flags, bool primary);

  const CUcontext handle;
  const uint64_t id;  // never used again, also not by a primary context that starts anew
  const int device;
  const bool primary;
  std::atomic<unsigned> flags;
  std::atomic<int> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  PrintfBuffer printf_buffer;
  // Ends kernels of the context that run when it is destroyed (InterruptLaunches).
  std::atomic<bool> interrupted{false};

  // The first error of work that ran on the device. It stays: every later call of the context
  // gives it, and work that is still queued is skipped.
  absl::Status error() const;
  bool failed() const { return error_.load(std::memory_order_acquire) != CUDA_SUCCESS; }
  void Fail(const absl::Status& status);
  // The context is being destroyed: work that is still queued is skipped.
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool skips_work() const { return failed() || cancelled_.load(std::memory_order_acquire); }

  // Queues `work` on `stream`, which belongs to this context, behind `after` and behind what the
  // rules of the legacy default stream demand. Work that may run on any thread runs at once if
  // the stream is idle and `eager` says that it is short. Returns the position to wait for.
  enum class Eager { kNo, kYes };
  absl::StatusOr<uint64_t> Enqueue(Stream& stream, StreamWork work, RunOn run_on,
                                   Wake wake = Wake::kYes, Eager eager = Eager::kNo,
                                   std::vector<WorkQueue::Dependency> after = {});
  // Queues `work` that also runs when the context has failed (stream callbacks, giving memory
  // back).
  absl::Status EnqueueAlways(Stream& stream, std::function<void()> work,
                             RunOn run_on = RunOn::kWorker);
  // Queues `work` and returns when it has run, with the context's error.
  absl::Status RunAndWait(Stream& stream, StreamWork work, Eager eager = Eager::kNo);
  // Waits for what was queued on `stream` so far, flushes printf, returns the context's error.
  absl::Status Synchronize(Stream& stream);
  absl::Status SynchronizeAll();
  // Waits for all that was queued so far, but no longer than `patience`. Whether it has run.
  bool SynchronizeAllFor(std::chrono::milliseconds patience);
  // Whether all that was queued on `stream` so far has run.
  bool Idle(const Stream& stream);

  const std::shared_ptr<Stream>& legacy_stream() const { return legacy_; }
  // The calling thread's default stream, made on first use.
  std::shared_ptr<Stream> PerThreadStream();
  // The thread of that number has ended, and its default stream with it.
  void ForgetThread(uint64_t thread);
  std::shared_ptr<Stream> CreateStream(unsigned stream_flags, int priority,
                                       CUgreenCtx green = nullptr);
  // All that have a handle or unfinished work, but for the legacy one.
  std::vector<std::shared_ptr<Stream>> Streams();
  // The stream takes no new work; what is queued still runs.
  void ForgetStream(const std::shared_ptr<Stream>& stream);

  absl::Status SetLimit(CUlimit limit, size_t value);
  absl::StatusOr<size_t> GetLimit(CUlimit limit) const;

  // Peer access to the context with that id: an error of CUDA's if it is enabled already, or not.
  absl::Status EnablePeer(uint64_t peer);
  absl::Status DisablePeer(uint64_t peer);

 private:
  void RunWork(const StreamWork& work);
  // Drops streams that were destroyed and have run dry. Busy ones stay: synchronisation and the
  // legacy stream still have to wait for them.
  void DropDeadStreams() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What work on `stream` has to wait for beside the stream itself.
  std::vector<WorkQueue::Dependency> ImplicitDependencies(const Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<CUresult> error_{CUDA_SUCCESS};
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<Stream> legacy_;

  // Held while work is queued: the order of the context's submissions is what dependencies point
  // back along. Taken before a queue's own mutex.
  Mutex mutex_;
  // All streams with unfinished work and all that still have a handle, without the legacy one.
  std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Stream>> per_thread_ ABSL_GUARDED_BY(mutex_);
  mutable Mutex settings_mutex_;
  std::array<size_t, CU_LIMIT_MAX> limits_ ABSL_GUARDED_BY(settings_mutex_);
  absl::flat_hash_set<uint64_t> peers_ ABSL_GUARDED_BY(settings_mutex_);
};

// Nanoseconds of the steady clock.
int64_t NowNs();
// A number that names the calling thread and is never used again.
uint64_t ThreadNumber();
// Whether the calling thread is inside a host function or stream callback, where CUDA calls are
// not permitted.
bool InHostFunction();
// Marks the calling thread so.
class HostFunctionScope {
 public:
  HostFunctionScope();
  ~HostFunctionScope();
};

}  // namespace fargpu::softgpu
