#pragma once

#include <cstdint>
#include <cuda.h>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/mutex.h"

namespace fargpu::client {

// A pool of stream-ordered memory. The worker gives freed memory back to the lease at once, so what
// the release threshold would keep is always nothing; reserved and used are the same.
struct MemPool {
  CUmemoryPool handle = nullptr;
  int device = 0;
  bool is_default = false;
  uint64_t release_threshold = 0;
  int reuse_follow_event_dependencies = 1;
  int reuse_allow_opportunistic = 1;
  int reuse_allow_internal_dependencies = 1;
  uint64_t used = 0;
  uint64_t used_high = 0;
};

// The session's pools. They are this process's business alone: the worker knows allocations only.
// Any thread.
class MemPools {
 public:
  // Handles are addresses of memory of ours, and never used again.
  explicit MemPools(int device_count);

  CUmemoryPool Default(int device) const { return default_[static_cast<size_t>(device)]; }
  CUmemoryPool Current(int device) const;
  // CUDA_ERROR_INVALID_VALUE for what is no pool, or one of another device.
  absl::Status SetCurrent(int device, CUmemoryPool pool);
  CUmemoryPool Create(int device);
  absl::Status Destroy(CUmemoryPool pool);
  absl::StatusOr<int> DeviceOf(CUmemoryPool pool) const;

  // cuMemPoolGetAttribute and cuMemPoolSetAttribute.
  absl::Status GetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) const;
  absl::Status SetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, const void* value);

  // An allocation was made from a pool, or one of it was freed.
  void CountUse(CUmemoryPool pool, uint64_t bytes);
  void CountFree(CUmemoryPool pool, uint64_t bytes);

 private:
  MemPool* Find(CUmemoryPool pool) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<MemPool*> FindOrError(CUmemoryPool pool) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CUmemoryPool Add(int device, bool is_default) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::vector<CUmemoryPool> default_;  // by device; does not change
  std::vector<CUmemoryPool> current_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<CUmemoryPool, MemPool*> pools_ ABSL_GUARDED_BY(mutex_);
  // Also those that were destroyed, so that no handle comes twice.
  std::vector<std::unique_ptr<MemPool>> all_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::client
