// Stream-ordered allocation and its pools.

#include "softgpu/driver/edge.h"
#include "softgpu/driver/node_params.h"

namespace fargpu::softgpu {
namespace {

void CountUse(MemPool& pool, uint64_t bytes) {
  const uint64_t used = pool.used.fetch_add(bytes) + bytes;
  uint64_t high = pool.used_high.load();
  while (used > high && !pool.used_high.compare_exchange_weak(high, used)) {
  }
}

absl::Status AllocateFrom(Driver& driver, Context& context, Stream& stream, MemPool& pool,
                          CUdeviceptr* out, size_t size) {
  RETURN_IF_NULL(out);
  if (pool.imported) return InvalidValue("memory of another process's pool comes from there");
  if (stream.is_capturing()) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = pool.device};
    params.bytesize = size;
    ASSIGN_OR_RETURN(NodeWork work, ReadAllocParams(driver, &params));
    const CUdeviceptr address = std::get<AllocNode>(work).params.dptr;
    RETURN_IF_ERROR(CaptureWork(driver, stream, std::move(work)));
    *out = address;
    return absl::OkStatus();
  }
  const auto allocate = [&] {
    return driver.memory.Allocate(AllocationKind::kDevice, pool.device, context.id, size);
  };
  absl::StatusOr<uint64_t> address = allocate();
  if (!address.ok() && ToCuResult(address.status()) == CUDA_ERROR_OUT_OF_MEMORY) {
    // What was freed in stream order is given back when the streams get there.
    driver.WaitForDevice(pool.device);
    address = allocate();
  }
  if (!address.ok()) return address.status();
  CountUse(pool, size);
  *out = *address;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<MemPool>> FindPool(Driver& driver, CUmemoryPool handle) {
  if (std::shared_ptr<MemPool> pool = driver.pools.Find(handle)) return pool;
  return InvalidValue("not a memory pool");
}

std::shared_ptr<MemPool> CurrentPool(Driver& driver, int device) {
  DevicePools& pools = *driver.device_pools[device];
  MutexLock lock(&pools.mutex);
  return pools.current;
}

absl::Status SetCurrentPool(Driver& driver, CUdevice device, CUmemoryPool handle) {
  RETURN_IF_ERROR(driver.CheckDevice(device));
  ASSIGN_OR_RETURN(std::shared_ptr<MemPool> pool, FindPool(driver, handle));
  if (pool->device != device) {
    return InvalidValue(absl::StrCat("the pool belongs to device ", pool->device));
  }
  DevicePools& pools = *driver.device_pools[device];
  MutexLock lock(&pools.mutex);
  pools.current = std::move(pool);
  return absl::OkStatus();
}

absl::Status FreeInOrder(Driver& driver, Context& context, Stream& stream, CUdeviceptr address) {
  if (stream.is_capturing()) {
    ASSIGN_OR_RETURN(NodeWork work, ReadFreeParams(driver, address));
    return CaptureWork(driver, stream, std::move(work));
  }
  const auto found = driver.memory.Find(address);
  const bool of_graph = found && found->kind == AllocationKind::kGraph;
  if (found && found->kind == AllocationKind::kShared) {
    const uint64_t base = found->base;
    return context.EnqueueAlways(
        stream, [&driver, base] { (void)driver.memory.Free(base); }, RunOn::kAnyThread);
  }
  if (!found || found->base != address || (found->kind != AllocationKind::kDevice && !of_graph)) {
    return InvalidValue(absl::StrCat("0x", absl::Hex(address), " is no allocation"));
  }
  if (of_graph) {
    return context
        .Enqueue(
            stream, [&driver, address] { return driver.memory.DecommitGraphRange(address); },
            RunOn::kAnyThread)
        .status();
  }
  ASSIGN_OR_RETURN(const Allocation allocation, driver.memory.Detach(address));
  const std::shared_ptr<MemPool> pool = CurrentPool(driver, allocation.device);
  // Not a reason to keep memory: it is given back even if what came before has failed.
  const absl::Status queued = context.EnqueueAlways(
      stream,
      [&driver, allocation, pool] {
        driver.memory.FreeDetached(allocation);
        uint64_t used = pool->used.load();
        while (!pool->used.compare_exchange_weak(
            used, used - std::min<uint64_t>(used, allocation.size))) {
        }
      },
      RunOn::kAnyThread);
  if (!queued.ok()) driver.memory.FreeDetached(allocation);
  return queued;
}

template <typename T>
absl::Status GetNumber(void* out, T value) {
  *static_cast<T*>(out) = value;
  return absl::OkStatus();
}

absl::Status GetAttribute(const MemPool& pool, CUmemPool_attribute attribute, void* out) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return GetNumber<int>(out, pool.reuse_follow_event_dependencies);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return GetNumber<int>(out, pool.reuse_allow_opportunistic);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return GetNumber<int>(out, pool.reuse_allow_internal_dependencies);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return GetNumber<cuuint64_t>(out, pool.release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return GetNumber<cuuint64_t>(out, pool.used);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return GetNumber<cuuint64_t>(out, pool.used_high);
    default:
      return InvalidValue(absl::StrCat("pool attribute ", static_cast<int>(attribute)));
  }
}

absl::Status SetAttribute(MemPool& pool, CUmemPool_attribute attribute, const void* value) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool.reuse_follow_event_dependencies = *static_cast<const int*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool.reuse_allow_opportunistic = *static_cast<const int*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool.reuse_allow_internal_dependencies = *static_cast<const int*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool.release_threshold = *static_cast<const cuuint64_t*>(value);
      return absl::OkStatus();
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<const cuuint64_t*>(value) != 0) {
        return InvalidValue("a high-water mark can only be set to 0");
      }
      pool.used_high = pool.used.load();
      return absl::OkStatus();
    default:
      return InvalidValue(absl::StrCat("pool attribute ", static_cast<int>(attribute)));
  }
}

}  // namespace

CUresult Do_cuMemAllocAsync(const char* call, NullStream null, CUdeviceptr* out, size_t size,
                            CUstream handle) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) {
        return AllocateFrom(driver, context, stream, *CurrentPool(driver, context.device), out,
                            size);
      },
      OnCapture::kRecord);
}

CUresult Do_cuMemAllocFromPoolAsync(const char* call, NullStream null, CUdeviceptr* out,
                                    size_t size, CUmemoryPool pool_handle, CUstream handle) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        ASSIGN_OR_RETURN(const std::shared_ptr<MemPool> pool, FindPool(driver, pool_handle));
        return AllocateFrom(driver, context, stream, *pool, out, size);
      },
      OnCapture::kRecord);
}

CUresult Do_cuMemFreeAsync(const char* call, NullStream null, CUdeviceptr address,
                           CUstream handle) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        // As with cuMemFree; cuSPARSE's cusparseDestroyCsrilu02Info relies on it.
        if (address == 0) return absl::OkStatus();
        return FreeInOrder(driver, context, stream, address);
      },
      OnCapture::kRecord);
}

}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API_TWINS(cuMemAllocAsync, _ptsz, (CUdeviceptr * out, size_t size, CUstream stream), out, size,
             stream);
CU_API_TWINS(cuMemAllocFromPoolAsync, _ptsz,
             (CUdeviceptr * out, size_t size, CUmemoryPool pool, CUstream stream), out, size, pool,
             stream);
CU_API_TWINS(cuMemFreeAsync, _ptsz, (CUdeviceptr address, CUstream stream), address, stream);

CU_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  return WithDriver("cuDeviceGetDefaultMemPool", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    *out = driver.device_pools[device]->default_pool->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  return WithDriver("cuDeviceGetMemPool", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    *out = CurrentPool(driver, device)->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return WithDriver("cuDeviceSetMemPool",
                    [&](Driver& driver) { return SetCurrentPool(driver, device, pool); });
}

CU_API CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  return WithDriver("cuMemPoolCreate", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(properties);
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return InvalidValue("only pools of pinned memory on a device");
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        properties->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return NotSupported(absl::StrCat("handle types ", static_cast<int>(properties->handleTypes)));
    }
    RETURN_IF_ERROR(driver.CheckDevice(properties->location.id));
    auto pool = std::make_shared<MemPool>();
    pool->handle = driver.pools.NewHandle();
    pool->device = properties->location.id;
    pool->exportable = properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    driver.pools.Insert(pool->handle, pool);
    *out = pool->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return WithDriver("cuMemPoolDestroy", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<MemPool> pool, FindPool(driver, handle));
    if (pool->is_default) return InvalidValue("the default pool of a device stays");
    driver.pools.Remove(handle);
    DevicePools& pools = *driver.device_pools[pool->device];
    MutexLock lock(&pools.mutex);
    if (pools.current == pool) pools.current = pools.default_pool;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return WithDriver("cuMemPoolTrimTo",
                    [&](Driver& driver) { return FindPool(driver, handle).status(); });
}

CU_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void* value) {
  return WithDriver("cuMemPoolGetAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(value);
    ASSIGN_OR_RETURN(const std::shared_ptr<MemPool> pool, FindPool(driver, handle));
    return GetAttribute(*pool, attribute, value);
  });
}

CU_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void* value) {
  return WithDriver("cuMemPoolSetAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(value);
    ASSIGN_OR_RETURN(const std::shared_ptr<MemPool> pool, FindPool(driver, handle));
    return SetAttribute(*pool, attribute, value);
  });
}

// All devices reach all memory; only what can be asked for is checked.
CU_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access,
                                   size_t count) {
  return WithDriver("cuMemPoolSetAccess", [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(FindPool(driver, handle).status());
    if (count > 0) RETURN_IF_NULL(access);
    for (size_t i = 0; i < count; ++i) {
      if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return InvalidValue("only access of devices can be set");
      }
      RETURN_IF_ERROR(driver.CheckDevice(access[i].location.id));
    }
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                   CUmemLocation* location) {
  return WithDriver("cuMemPoolGetAccess", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(flags);
    RETURN_IF_NULL(location);
    RETURN_IF_ERROR(FindPool(driver, handle).status());
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return InvalidValue("only access of devices can be asked for");
    }
    RETURN_IF_ERROR(driver.CheckDevice(location->id));
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return absl::OkStatus();
  });
}
