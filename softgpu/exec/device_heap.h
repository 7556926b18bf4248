#pragma once

#include <cstdint>
#include <map>

#include "common/mutex.h"

namespace fargpu::softgpu {

// The memory of malloc and free in kernels: one heap for each LaunchConfig::heap. Lies in the
// device window; its accounts do not, so that no kernel can spoil them. Any thread.
class DeviceHeap {
 public:
  // The heap of that number, made when first asked for; there until ReleaseHeap.
  static DeviceHeap& Of(uint64_t number);
  ~DeviceHeap();

  // Zero if `bytes` is zero, if more than `limit` bytes would be in use, or without room.
  uint64_t Allocate(uint64_t bytes, uint64_t limit);
  // False if Allocate did not return `address`, or it has been freed. Zero is nothing to free.
  bool Free(uint64_t address);

 private:
  uint64_t Take(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Give(uint64_t address, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mutex_);  // address -> bytes
  std::map<uint64_t, uint64_t> used_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> chunks_ ABSL_GUARDED_BY(mutex_);  // of the window
  uint64_t bytes_used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fargpu::softgpu
