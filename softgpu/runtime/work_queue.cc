#include "softgpu/runtime/work_queue.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>

#include "common/log.h"

namespace fargpu::softgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// How long an idle worker stays. Long enough that a program which synchronises between launches
// keeps its thread, short enough that a burst of streams leaves nothing behind.
constexpr seconds kWorkerIdleTime{10};
// Waits look again now and then, so that a lost wake-up would be a delay and not a hang.
constexpr seconds kRecheck{1};
// How long a worker looks for more before it sleeps. To wake it costs both sides some microseconds,
// more than a small kernel takes; programs launch those one after another.
constexpr std::chrono::microseconds kLinger{30};
// How long a wait goes on after StopWorkers() without any progress.
constexpr milliseconds kLastWait{100};

// Handlers of the application belong on its own threads. Faults are deliverable, although the
// thread was created with all signals blocked: the execution engine turns those of kernels into
// CUDA errors.
void BlockAllButFaults() {
  sigset_t set;
  sigfillset(&set);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&set, fault);
  pthread_sigmask(SIG_SETMASK, &set, nullptr);
}

}  // namespace

// Threads that run queues. Never destroyed: threads may be inside it when the process ends.
class WorkerPool {
 public:
  static WorkerPool& Get() {
    static WorkerPool* const pool = new WorkerPool;
    return *pool;
  }

  void Run(std::shared_ptr<WorkQueue> queue) {
    {
      MutexLock lock(&mutex_);
      ready_.push_back(std::move(queue));
      // Each queue in `ready_` has a waiting worker of its own: a queue that waits for another one
      // must never keep that one from running.
      if (ready_.size() <= waiting_) {
        work_.Signal();
        return;
      }
    }
    // Created with all signals blocked, so that none slips in before the thread blocks them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { Loop(); }).detach();
    } catch (const std::system_error& error) {
      // The queue stays in `ready_`; a worker that becomes free takes it.
      FARGPU_LOG(kError, "softgpu: no thread for a busy stream: ", error.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void Stop(milliseconds patience) {
    const auto deadline = steady_clock::now() + patience;
    MutexLock lock(&mutex_);
    stopping_.store(true, std::memory_order_release);
    while (busy_ > 0) {
      const auto left = deadline - steady_clock::now();
      if (left <= steady_clock::duration::zero()) return;
      ended_.WaitFor(&mutex_, left);
    }
  }

  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

 private:
  void Loop() {
    BlockAllButFaults();
    MutexLock lock(&mutex_);
    while (true) {
      const auto deadline = steady_clock::now() + kWorkerIdleTime;
      ++waiting_;
      while (ready_.empty()) {
        const auto left = deadline - steady_clock::now();
        if (left <= steady_clock::duration::zero() || stopping()) break;
        work_.WaitFor(&mutex_, left);
      }
      --waiting_;
      // Queues that are ready are taken even when stopping: RunOnWorker() then only gives them
      // back.
      if (ready_.empty()) return;
      std::shared_ptr<WorkQueue> queue = std::move(ready_.front());
      ready_.pop_front();
      ++busy_;
      mutex_.Unlock();
      queue->RunOnWorker();
      queue.reset();
      mutex_.Lock();
      --busy_;
      if (stopping()) ended_.SignalAll();
    }
  }

  Mutex mutex_;
  CondVar work_;
  CondVar ended_;
  std::deque<std::shared_ptr<WorkQueue>> ready_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t busy_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> stopping_{false};
};

uint64_t WorkQueue::Submit(std::function<void()> work, std::vector<Dependency> dependencies,
                           RunOn run_on, Wake wake) {
  MutexLock lock(&mutex_);
  items_.push_back({std::move(work), std::move(dependencies), run_on});
  const uint64_t position = submitted_.load(std::memory_order_relaxed) + 1;
  submitted_.store(position, std::memory_order_release);
  if (wake == Wake::kYes) WakeWorker();
  return position;
}

void WorkQueue::WakeWorker() {
  if (running_ || WorkersStopped()) return;
  running_ = true;
  if (lingering_) {
    lingering_ = false;
    called_.store(true, std::memory_order_release);
    return;
  }
  WorkerPool::Get().Run(shared_from_this());
}

void WorkQueue::RunOnWorker() {
  MutexLock lock(&mutex_);
  do {
    RunItems(RunOn::kWorker, std::numeric_limits<uint64_t>::max());
  } while (Linger());
}

bool WorkQueue::Linger() {
  // Not if a thread that waits has taken over, or another worker was asked to.
  if (running_ || lingering_ || WorkersStopped()) return false;
  lingering_ = true;
  called_.store(false, std::memory_order_relaxed);
  mutex_.Unlock();
  const auto deadline = steady_clock::now() + kLinger;
  while (!called_.load(std::memory_order_acquire) && steady_clock::now() < deadline) {
    sched_yield();  // whoever is to call may need this core
  }
  mutex_.Lock();
  if (called_.load(std::memory_order_relaxed)) return true;
  lingering_ = false;
  return false;
}

void WorkQueue::RunItems(RunOn caller, uint64_t last) {
  while (!items_.empty() && completed_.load(std::memory_order_relaxed) < last) {
    // Checked for each item: workers start nothing more once the process is ending, and threads
    // of the application then drop what only a worker may run.
    const bool stopped = WorkersStopped();
    if (caller == RunOn::kWorker && stopped) break;
    if (caller != RunOn::kWorker && items_.front().run_on == RunOn::kWorker && !stopped) break;
    Item item = std::move(items_.front());
    items_.pop_front();
    mutex_.Unlock();
    for (const Dependency& dependency : item.dependencies) {
      dependency.queue->Wait(dependency.position);
    }
    if (item.work && (caller == RunOn::kWorker || item.run_on == RunOn::kAnyThread)) item.work();
    // What the item holds on to (buffers, modules) goes before anyone is told that it is done.
    item = Item{};
    mutex_.Lock();
    const uint64_t completed = completed_.fetch_add(1, std::memory_order_release) + 1;
    if (completed >= wanted_) {
      wanted_ = std::numeric_limits<uint64_t>::max();
      progress_.SignalAll();
    }
  }
  running_ = false;
  if (!items_.empty()) WakeWorker();
  progress_.SignalAll();
}

void WorkQueue::Wait(uint64_t position) {
  if (Completed(position)) return;
  MutexLock lock(&mutex_);
  while (!Completed(position)) {
    if (!running_) {
      running_ = true;
      RunItems(RunOn::kAnyThread, position);
    } else if (!WorkersStopped()) {
      wanted_ = std::min(wanted_, position);
      progress_.WaitFor(&mutex_, kRecheck);
    } else if (wanted_ = std::min(wanted_, completed_.load() + 1);
               !progress_.WaitFor(&mutex_, kLastWait)) {
      return;  // the worker is stuck in a kernel that the end of the process does not wait for
    }
  }
}

bool WorkQueue::WaitUntil(uint64_t position, steady_clock::time_point deadline) {
  MutexLock lock(&mutex_);
  while (!Completed(position)) {
    const auto left = deadline - steady_clock::now();
    if (left <= steady_clock::duration::zero() || WorkersStopped()) return false;
    WakeWorker();
    wanted_ = std::min(wanted_, position);
    progress_.WaitFor(&mutex_, std::min<steady_clock::duration>(left, kRecheck));
  }
  return true;
}

void StopWorkers(milliseconds patience) { WorkerPool::Get().Stop(patience); }
bool WorkersStopped() { return WorkerPool::Get().stopping(); }

}  // namespace fargpu::softgpu
