#pragma once

#include <cstdint>
#include <cuda.h>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"

#include "common/mutex.h"

namespace fargpu::softgpu {

// What programs said of ranges of managed memory (cuMemAdvise, cuMemPrefetchAsync). It changes
// nothing here, as host and device touch the same bytes, and is told to whoever asks
// (cuMemRangeGetAttribute). Thread-safe.
class ManagedRanges {
 public:
  struct Facts {
    bool read_mostly = false;
    CUmemLocation preferred = {CU_MEM_LOCATION_TYPE_INVALID, 0};
    CUmemLocation last_prefetch = {CU_MEM_LOCATION_TYPE_INVALID, 0};
    std::set<int> accessed_by;  // devices, or CU_DEVICE_CPU
  };

  // Applies change(Facts&) to all of [address, address + size).
  template <typename Change>
  void Apply(uint64_t address, uint64_t size, Change change) {
    MutexLock lock(&mutex_);
    Split(address);
    Split(address + size);
    for (auto it = ranges_.lower_bound(address); it != ranges_.end() && it->first < address + size;
         ++it) {
      change(it->second.facts);
    }
  }
  // The facts of each part of [address, address + size).
  std::vector<Facts> Get(uint64_t address, uint64_t size) const;

  void Add(uint64_t address, uint64_t size);
  void Remove(uint64_t address, uint64_t size);

 private:
  struct Range {
    uint64_t size = 0;
    Facts facts;
  };
  // Makes a range start at `address`, if one contains it.
  void Split(uint64_t address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<uint64_t, Range> ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::softgpu
