#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace fargpu {

// std::mutex with Clang's thread-safety annotations. We use it instead of absl::Mutex because
// ThreadSanitizer sees through pthread mutexes but not through Debian's uninstrumented abseil.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits are always inside a loop over the condition they wait for, and always have an end.
class CondVar {
 public:
  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

  // Returns false if `timeout` passed without a signal.
  bool WaitFor(Mutex* mutex, std::chrono::nanoseconds timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const auto outcome = condition_.wait_until(lock, std::chrono::system_clock::now() + timeout);
    lock.release();
    return outcome == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace fargpu
