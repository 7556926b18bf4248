#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

#include "common/mutex.h"

namespace fargpu::softgpu {

// Memory of the program that it registered with cuMemHostRegister. Copies from it may run after the
// call that started them has returned, and kernels reach it at its own address (compiler.h).
// Thread-safe.
class HostRegistry {
 public:
  struct Range {
    uint64_t base = 0;
    uint64_t size = 0;
    uint32_t flags = 0;
    uint64_t context = 0;
  };

  // False if any of it is registered already.
  bool Add(const Range& range) {
    MutexLock lock(&mutex_);
    const auto next = ranges_.lower_bound(range.base);
    if (next != ranges_.end() && next->first - range.base < range.size) return false;
    if (next != ranges_.begin()) {
      const auto& previous = std::prev(next)->second;
      if (range.base - previous.base < previous.size) return false;
    }
    ranges_.emplace(range.base, range);
    return true;
  }
  // False if `base` is not the start of a registered range.
  bool Remove(uint64_t base) {
    MutexLock lock(&mutex_);
    return ranges_.erase(base) > 0;
  }
  void RemoveContext(uint64_t context) {
    MutexLock lock(&mutex_);
    for (auto it = ranges_.begin(); it != ranges_.end();) {
      it = it->second.context == context ? ranges_.erase(it) : std::next(it);
    }
  }
  std::optional<Range> Find(uint64_t address) const {
    MutexLock lock(&mutex_);
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) return std::nullopt;
    --it;
    if (address - it->first >= it->second.size) return std::nullopt;
    return it->second;
  }
  // Whether all of [address, address + size) is in one registered range.
  bool Covers(uint64_t address, uint64_t size) const {
    const std::optional<Range> range = Find(address);
    return range && size <= range->size - (address - range->base);
  }

 private:
  mutable Mutex mutex_;
  std::map<uint64_t, Range> ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::softgpu
