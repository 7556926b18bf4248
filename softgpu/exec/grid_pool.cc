#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cuda.h>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "softgpu/exec/launch.h"
#include "softgpu/exec/worker.h"

namespace fargpu::softgpu {

void Launch::Fail(absl::Status new_status) {
  MutexLock lock(&mutex);
  if (status.ok()) status = std::move(new_status);
  failed.store(true, std::memory_order_relaxed);
}

DeviceRuntime& Launch::Device() {
  DeviceRuntime* runtime = device_runtime.load(std::memory_order_acquire);
  if (runtime != nullptr) return *runtime;
  MutexLock lock(&mutex);
  if (own_runtime == nullptr) {
    own_runtime = std::make_unique<DeviceRuntime>(runner, this);
    device_runtime.store(own_runtime.get(), std::memory_order_release);
  }
  return *own_runtime;
}

void Launch::Print(absl::string_view text) {
  MutexLock lock(&print_mutex);
  if (config->printf_sink) config->printf_sink(text);
}

void Launch::PrintError(absl::string_view text) {
  MutexLock lock(&print_mutex);
  if (config->error_sink) {
    config->error_sink(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
}

namespace {

// Independent blocks are taken several at a time, few enough for all threads to end together and
// for an error to stop the others soon.
constexpr uint64_t kSharesPerThread = 16;
constexpr uint64_t kMaxBlocksAtOnce = 256;

int Cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

uint32_t NextWorkerNumber() {
  static std::atomic<uint32_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed) % WorkerCount();
}

Worker* ThreadWorker() {
  static thread_local std::unique_ptr<Worker> worker;
  if (worker == nullptr) worker = std::make_unique<Worker>(NextWorkerNumber());
  return worker.get();
}

// Threads that help with grids that have more than one block. They live as long as the process
// does, and are never joined: the process may end at any time.
class Pool {
 public:
  static Pool& Get() {
    static Pool* const pool = new Pool;
    return *pool;
  }

  void Run(Launch* launch) {
    if (launch->extent == Extent::kBlocks) {
      const uint64_t shares = static_cast<uint64_t>(threads_ + 1) * kSharesPerThread;
      launch->blocks_at_once =
          static_cast<uint32_t>(std::clamp<uint64_t>(launch->blocks / shares, 1, kMaxBlocksAtOnce));
    }
    const bool shared = launch->blocks > launch->blocks_at_once && threads_ > 0;
    if (shared) {
      MutexLock lock(&mutex_);
      Start();
      queue_.push_back(launch);
      work_.SignalAll();
    }
    ThreadWorker()->RunBlocks(launch);
    if (!shared) return;
    MutexLock lock(&mutex_);
    const auto at = std::find(queue_.begin(), queue_.end(), launch);
    if (at != queue_.end()) queue_.erase(at);
    while (launch->helpers > 0) done_.WaitFor(&mutex_, std::chrono::seconds(1));
  }

 private:
  Pool() : threads_(Cores() - 1) {}

  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (started_) return;
    started_ = true;
    for (int k = 0; k < threads_; ++k) std::thread([this] { Help(); }).detach();
  }

  void Help() {
    mutex_.Lock();
    while (true) {
      while (queue_.empty()) work_.WaitFor(&mutex_, std::chrono::seconds(60));
      Launch* launch = queue_.front();
      if (launch->next_block.load(std::memory_order_relaxed) >= launch->blocks ||
          launch->failed.load(std::memory_order_relaxed)) {
        queue_.pop_front();
        continue;
      }
      ++launch->helpers;
      mutex_.Unlock();
      ThreadWorker()->RunBlocks(launch);
      mutex_.Lock();
      if (--launch->helpers == 0) done_.SignalAll();
    }
  }

  const int threads_;
  Mutex mutex_;
  CondVar work_;
  CondVar done_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Launch*> queue_ ABSL_GUARDED_BY(mutex_);
};

// All blocks at once, spread over threads of their own: blocks of two cooperative grids that wait
// for each other's threads would never end.
void RunCooperative(Launch* launch) {
  const uint64_t count =
      std::min<uint64_t>(launch->blocks / launch->cluster_blocks, static_cast<uint64_t>(Cores()));
  std::vector<std::thread> threads;
  for (uint64_t k = 1; k < count; ++k) {
    threads.emplace_back([launch, k, count] {
      Worker worker(static_cast<uint32_t>(k));
      worker.RunTogether(launch, k, count);
    });
  }
  ThreadWorker()->RunTogether(launch, 0, count);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

uint32_t WorkerCount() {
  static const uint32_t count = static_cast<uint32_t>(Cores());
  return count;
}

absl::Status RunGrid(Launch* launch) {
  if (launch->config->interrupted != nullptr && launch->config->interrupted->load()) {
    launch->Fail(CudaError(CUDA_ERROR_LAUNCH_FAILED,
                           absl::StrCat("kernel ", launch->kernel_name, " was interrupted")));
  }
  launch->blocks_at_once = launch->cluster_blocks;
  if (launch->config->cooperative) {
    RunCooperative(launch);
  } else {
    Pool::Get().Run(launch);
  }
  MutexLock lock(&launch->mutex);
  return launch->status;
}

}  // namespace fargpu::softgpu
