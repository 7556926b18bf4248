#pragma once

#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <memory>

#include "common/mutex.h"

namespace fargpu::softgpu {

// A stream-ordered memory pool. Freed memory goes back to the device at once, so what the release
// threshold would keep is always 0; the counters are those that cuMemPoolGetAttribute reports.
struct MemPool {
  CUmemoryPool handle = nullptr;
  int device = 0;
  bool is_default = false;
  bool exportable = false;  // by descriptor
  bool imported = false;    // of another process: gives no memory of its own
  std::atomic<uint64_t> release_threshold{0};
  std::atomic<int> reuse_follow_event_dependencies{1};
  std::atomic<int> reuse_allow_opportunistic{1};
  std::atomic<int> reuse_allow_internal_dependencies{1};
  std::atomic<uint64_t> used{0};
  std::atomic<uint64_t> used_high{0};
};

// The pools that allocations of a device come from.
struct DevicePools {
  std::shared_ptr<MemPool> default_pool;

  Mutex mutex;
  std::shared_ptr<MemPool> current ABSL_GUARDED_BY(mutex);
};

}  // namespace fargpu::softgpu
