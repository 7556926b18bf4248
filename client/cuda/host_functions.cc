#include "client/cuda/host_functions.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cuda/thread_state.h"

namespace fargpu::client {

HostFunctions::HostFunctions(std::function<void(uint64_t run)> done) : done_(std::move(done)) {}

void HostFunctions::Stop() {
  if (changed_ == nullptr) return;  // after a fork
  std::unique_ptr<std::thread> thread;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_->SignalAll();
    thread = std::move(thread_);
  }
  if (thread != nullptr) thread->join();
}

uint64_t HostFunctions::Add(CUhostFn function, void* data) {
  return Insert({.host = function, .callback = {}, .data = data});
}

uint64_t HostFunctions::Add(Callback callback, void* data) {
  return Insert({.host = nullptr, .callback = callback, .data = data});
}

uint64_t HostFunctions::Insert(Function function) {
  MutexLock lock(&mutex_);
  if (thread_ == nullptr) {
    // The program's signal handlers must not run on a thread that it does not know. What its
    // functions do wrong is its business, and faults in managed memory are ours.
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::make_unique<std::thread>([this] { RunThread(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_->native_handle(), "fargpu-host-fn");
  }
  functions_[++last_token_] = function;
  pending_.fetch_add(1);
  return last_token_;
}

void HostFunctions::Forget(uint64_t token) {
  MutexLock lock(&mutex_);
  if (functions_.erase(token) > 0) pending_.fetch_sub(1);
}

absl::Status HostFunctions::Start(const wire::HostFunctionRun& run) {
  MutexLock lock(&mutex_);
  const auto found = functions_.find(run.token);
  if (found == functions_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a stream has come to host function ", run.token, ", which nobody queued"));
  }
  due_.push_back(
      {.run = run.run, .function = found->second, .result = static_cast<CUresult>(run.result)});
  functions_.erase(found);
  changed_->SignalAll();
  return absl::OkStatus();
}

void HostFunctions::End(CUresult why) {
  MutexLock lock(&mutex_);
  for (const auto& [token, function] : functions_) {
    if (function.host == nullptr) {
      due_.push_back({.run = 0, .function = function, .result = why});
    } else {
      pending_.fetch_sub(1);
    }
  }
  functions_.clear();
  changed_->SignalAll();
}

void HostFunctions::AbandonAfterFork() {
  // The lock may be held by a thread that is not here; nobody else is.
  [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { thread_.release(); }();
  changed_.release();  // destroying it would wait for waiters that do not exist here
}

void HostFunctions::RunThread() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (due_.empty()) {
      changed_->WaitFor(&mutex_, std::chrono::seconds(60));
      continue;
    }
    const Run run = due_.front();
    due_.pop_front();
    mutex_.Unlock();
    if (before_ != nullptr) before_();
    CurrentThread().in_host_function = true;
    if (run.function.host == nullptr) {
      run.function.callback.function(run.function.callback.stream, run.result, run.function.data);
    } else if (run.result == CUDA_SUCCESS) {
      run.function.host(run.function.data);
    }
    CurrentThread().in_host_function = false;
    if (after_ != nullptr) after_();
    if (run.run != 0) done_(run.run);
    pending_.fetch_sub(1);
    mutex_.Lock();
  }
}

}  // namespace fargpu::client
