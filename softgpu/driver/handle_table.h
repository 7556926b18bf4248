#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "common/mutex.h"

namespace fargpu::softgpu {

// Handles of all kinds come from one counter and are never used again, so that a stale handle, or
// one of another kind, is recognised instead of hitting a newer object at the same address. Small
// numbers stay free: CUDA gives 1 and 2 a meaning (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD).
inline uint64_t NewHandleValue() {
  static std::atomic<uint64_t> next{0x10000};
  return next.fetch_add(0x10, std::memory_order_relaxed);
}

// The live objects behind handles of one kind. Objects are shared: a call may still use one that
// another thread destroys meanwhile. Thread-safe; its mutex is taken last and held briefly.
template <typename T, typename Handle>
class HandleTable {
 public:
  static Handle NewHandle() { return reinterpret_cast<Handle>(NewHandleValue()); }

  void Insert(Handle handle, std::shared_ptr<T> object) {
    MutexLock lock(&mutex_);
    objects_[handle] = std::move(object);
  }
  // nullptr if there is no such object.
  std::shared_ptr<T> Find(Handle handle) const {
    MutexLock lock(&mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  // The object, which is then in the table no more; nullptr if it was not there.
  std::shared_ptr<T> Remove(Handle handle) {
    MutexLock lock(&mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  template <typename Predicate>
  std::vector<std::pair<Handle, std::shared_ptr<T>>> RemoveIf(Predicate predicate) {
    std::vector<std::pair<Handle, std::shared_ptr<T>>> removed;
    MutexLock lock(&mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      if (!predicate(*it->second)) {
        ++it;
        continue;
      }
      removed.emplace_back(it->first, std::move(it->second));
      objects_.erase(it++);
    }
    return removed;
  }
  std::vector<std::shared_ptr<T>> All() const {
    std::vector<std::shared_ptr<T>> all;
    MutexLock lock(&mutex_);
    for (const auto& [handle, object] : objects_) all.push_back(object);
    return all;
  }

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<Handle, std::shared_ptr<T>> objects_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::softgpu
