#pragma once

#include <cstdint>
#include <cuda.h>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"

#include "common/mutex.h"

namespace fargpu::driver_abi {

// What programs said of ranges of managed memory (cuMemAdvise, cuMemPrefetchAsync), to be told to
// whoever asks (cuMemRangeGetAttribute). Thread-safe.
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

// The old calls name a device, or CU_DEVICE_CPU.
CUmemLocation LocationOfDevice(CUdevice device);

// CUDA_ERROR_INVALID_DEVICE, or CUDA_ERROR_INVALID_VALUE for what is no location.
absl::Status CheckLocation(const CUmemLocation& location, int device_count);

// cuMemAdvise for a range that is managed memory.
absl::Status Advise(ManagedRanges* ranges, int device_count, uint64_t address, uint64_t size,
                    CUmem_advise advice, const CUmemLocation& location);

// cuMemRangeGetAttribute for a range that is managed memory.
absl::Status WriteRangeAttribute(const ManagedRanges& ranges, uint64_t address, uint64_t count,
                                 CUmem_range_attribute attribute, void* data, size_t size);

// The lists of cuMemPrefetchBatchAsync and of the discarding calls, which have no locations.
struct RangeBatch {
  const CUdeviceptr* addresses = nullptr;
  const size_t* sizes = nullptr;
  size_t count = 0;
  bool has_locations = false;
  const CUmemLocation* locations = nullptr;
  const size_t* location_indices = nullptr;  // of the range from which on a location is meant
  size_t location_count = 0;
  unsigned long long flags = 0;
};
// CUDA_ERROR_INVALID_VALUE or CUDA_ERROR_INVALID_DEVICE; what the ranges are is not looked at.
absl::Status CheckBatch(const RangeBatch& batch, int device_count);
// Of range `index` of a batch that was checked.
CUmemLocation LocationInBatch(const RangeBatch& batch, size_t index);

}  // namespace fargpu::driver_abi
