#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "common/mutex.h"

namespace fargpu::softgpu {

// Which thread may run an item. Kernels and host functions need a thread of ours: an application's
// may have a small stack, or hold a lock that the host function wants. Copies and markers may run
// on a thread that waits for them anyway, which spares two thread switches.
enum class RunOn { kAnyThread, kWorker };
// Whether Submit() wakes a worker. kNo: the caller waits for the item next and will run it itself.
enum class Wake { kYes, kNo };

// A stream: items run one after another, in the order of Submit(). Positions count items from 1.
//
// Shared by its owner (the stream's handle), by everything queued behind it and by the worker that
// runs it, hence shared_ptr. Thread-safe. Workers are threads of a process-wide pool that grows
// with the number of queues that are busy at one time and shrinks when they have nothing to do.
class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  // The item waits until `queue` has completed `position`. Dependencies must point to items
  // submitted earlier, so that they cannot form a circle.
  struct Dependency {
    std::shared_ptr<WorkQueue> queue;
    uint64_t position = 0;
  };

  static std::shared_ptr<WorkQueue> Create() { return std::shared_ptr<WorkQueue>(new WorkQueue); }

  // Returns the item's position. `work` may be empty: then it is only a marker.
  uint64_t Submit(std::function<void()> work, std::vector<Dependency> dependencies, RunOn run_on,
                  Wake wake);

  uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }
  bool Completed(uint64_t position) const {
    return completed_.load(std::memory_order_acquire) >= position;
  }
  bool idle() const { return Completed(submitted()); }

  // Returns when `position` has completed. It ends when the work does: like the real driver's, this
  // wait is as long as the kernels are.
  void Wait(uint64_t position);
  void WaitIdle() { Wait(submitted()); }
  // The same until `deadline`, leaving the work to other threads. Whether `position` has completed.
  bool WaitUntil(uint64_t position, std::chrono::steady_clock::time_point deadline);

 private:
  friend class WorkerPool;
  struct Item {
    std::function<void()> work;
    std::vector<Dependency> dependencies;
    RunOn run_on;
  };

  WorkQueue() = default;
  // Runs items until the queue is empty, or until `last` is done, or (for a caller that is not a
  // worker) until one needs a worker. The caller owns `running_`.
  void RunItems(RunOn caller, uint64_t last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a worker run this queue if nobody does.
  void WakeWorker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunOnWorker();
  // Waits a moment for more to do. True: it is there, and the caller owns `running_`.
  bool Linger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> completed_{0};

  Mutex mutex_;
  CondVar progress_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  // A thread is running items, or a worker has been asked to.
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  // The first position that somebody waits for: who waits is not woken for each item before it.
  uint64_t wanted_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<uint64_t>::max();
  bool lingering_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> called_{false};  // set instead of waking a worker while one lingers
};

// For the end of the process: workers start no further items, and those that run get `patience` to
// end. After it, items that may run on any thread still run when someone waits for them, items for
// workers are dropped, and no wait blocks on a worker that did not end.
void StopWorkers(std::chrono::milliseconds patience);
bool WorkersStopped();

}  // namespace fargpu::softgpu
