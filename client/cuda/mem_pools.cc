#include "client/cuda/mem_pools.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::client {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

absl::Status UnknownAttribute(CUmemPool_attribute attribute) {
  return Invalid(absl::StrCat("pool attribute ", static_cast<int>(attribute)));
}

}  // namespace

MemPools::MemPools(int device_count) {
  MutexLock lock(&mutex_);
  for (int device = 0; device < device_count; ++device) {
    default_.push_back(Add(device, /*is_default=*/true));
  }
  current_ = default_;
}

MemPool* MemPools::Find(CUmemoryPool pool) const {
  const auto found = pools_.find(pool);
  return found == pools_.end() ? nullptr : found->second;
}

absl::StatusOr<MemPool*> MemPools::FindOrError(CUmemoryPool pool) const {
  if (MemPool* found = Find(pool)) return found;
  return Invalid("not a memory pool");
}

CUmemoryPool MemPools::Add(int device, bool is_default) {
  auto pool = std::make_unique<MemPool>();
  pool->device = device;
  pool->is_default = is_default;
  pool->handle = reinterpret_cast<CUmemoryPool>(pool.get());
  const CUmemoryPool handle = pool->handle;
  pools_[handle] = pool.get();
  all_.push_back(std::move(pool));
  return handle;
}

CUmemoryPool MemPools::Current(int device) const {
  MutexLock lock(&mutex_);
  return current_[static_cast<size_t>(device)];
}

absl::Status MemPools::SetCurrent(int device, CUmemoryPool pool) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const MemPool* found, FindOrError(pool));
  if (found->device != device) {
    return Invalid(absl::StrCat("the pool belongs to device ", found->device, ", not ", device));
  }
  current_[static_cast<size_t>(device)] = pool;
  return absl::OkStatus();
}

CUmemoryPool MemPools::Create(int device) {
  MutexLock lock(&mutex_);
  return Add(device, /*is_default=*/false);
}

absl::Status MemPools::Destroy(CUmemoryPool pool) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const MemPool* found, FindOrError(pool));
  if (found->is_default) return Invalid("the default pool of a device stays");
  pools_.erase(pool);
  // What was allocated from it stays until it is freed.
  std::replace(current_.begin(), current_.end(), pool,
               default_[static_cast<size_t>(found->device)]);
  return absl::OkStatus();
}

absl::StatusOr<int> MemPools::DeviceOf(CUmemoryPool pool) const {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const MemPool* found, FindOrError(pool));
  return found->device;
}

absl::Status MemPools::GetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                    void* value) const {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const MemPool* pool, FindOrError(handle));
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *static_cast<int*>(value) = pool->reuse_follow_event_dependencies;
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *static_cast<int*>(value) = pool->reuse_allow_opportunistic;
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = pool->reuse_allow_internal_dependencies;
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = pool->release_threshold;
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = pool->used;
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = pool->used_high;
      return absl::OkStatus();
    default:
      return UnknownAttribute(attribute);
  }
}

absl::Status MemPools::SetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                    const void* value) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(MemPool * pool, FindOrError(handle));
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->reuse_follow_event_dependencies = *static_cast<const int*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->reuse_allow_opportunistic = *static_cast<const int*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse_allow_internal_dependencies = *static_cast<const int*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = *static_cast<const cuuint64_t*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<const cuuint64_t*>(value) != 0) {
        return Invalid("a high-water mark can only be set to 0");
      }
      pool->used_high = pool->used;
      return absl::OkStatus();
    default:
      return UnknownAttribute(attribute);
  }
}

void MemPools::CountUse(CUmemoryPool handle, uint64_t bytes) {
  MutexLock lock(&mutex_);
  MemPool* pool = Find(handle);
  if (pool == nullptr) return;
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
}

void MemPools::CountFree(CUmemoryPool handle, uint64_t bytes) {
  MutexLock lock(&mutex_);
  MemPool* pool = Find(handle);
  if (pool != nullptr) pool->used -= std::min(pool->used, bytes);
}

}  // namespace fargpu::client
