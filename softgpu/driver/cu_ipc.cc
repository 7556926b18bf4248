// Memory and events between processes of one user on one machine. A handle names a descriptor of
// the process that made it, which must still be alive, as CUDA wants it anyway.

#include <unistd.h>

#include <cstring>

#include "softgpu/driver/edge.h"
#include "softgpu/driver/shared_event.h"

namespace fargpu::softgpu {
namespace {

template <typename Handle>
Handle Pack(const SharedFileName& name) {
  Handle handle = {};
  static_assert(sizeof(name) <= sizeof(handle));
  std::memcpy(&handle, &name, sizeof(name));
  return handle;
}
template <typename Handle>
SharedFileName Unpack(const Handle& handle) {
  SharedFileName name;
  std::memcpy(static_cast<void*>(&name), &handle, sizeof(name));
  return name;
}

absl::Status OpenMemory(Driver& driver, Context& context, CUdeviceptr* out,
                        const CUipcMemHandle& handle, unsigned flags) {
  RETURN_IF_NULL(out);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return InvalidValue(absl::StrCat("flags ", flags));
  }
  const SharedFileName name = Unpack(handle);
  if (name.pid == getpid()) {
    return CudaError(CUDA_ERROR_INVALID_CONTEXT, "the handle was made by this process");
  }
  ASSIGN_OR_RETURN(*out, driver.memory.OpenShared(name, context.id));
  return absl::OkStatus();
}

absl::Status CloseShared(Driver& driver, CUdeviceptr address) {
  const auto found = driver.memory.Find(address);
  if (!found || found->kind != AllocationKind::kShared) {
    return InvalidValue(absl::StrCat("0x", absl::Hex(address), " is not another process's memory"));
  }
  driver.WaitForDevice(found->device);
  return driver.memory.Free(found->base);
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return WithContext("cuIpcGetMemHandle", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(handle);
    // The bytes move to a file in memory; nobody may be writing them meanwhile.
    driver.WaitForDevice(context.device);
    ASSIGN_OR_RETURN(const SharedFileName name, driver.memory.Share(address));
    *handle = Pack<CUipcMemHandle>(name);
    return absl::OkStatus();
  });
}

CU_API CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return WithContext("cuIpcOpenMemHandle", [&](Driver& driver, Context& context) {
    return OpenMemory(driver, context, out, handle, flags);
  });
}
CU_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return WithContext("cuIpcOpenMemHandle_v2", [&](Driver& driver, Context& context) {
    return OpenMemory(driver, context, out, handle, flags);
  });
}

CU_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return WithContext("cuIpcCloseMemHandle",
                     [&](Driver& driver, Context&) { return CloseShared(driver, address); });
}

CU_API CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  return WithContext("cuIpcGetEventHandle", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(handle);
    const std::shared_ptr<Event> event = driver.events.Find(event_handle);
    if (event == nullptr) return InvalidHandle("not an event");
    if (event->shared == nullptr) {
      return InvalidHandle("the event was created without CU_EVENT_INTERPROCESS");
    }
    *handle = Pack<CUipcEventHandle>(event->shared->name());
    return absl::OkStatus();
  });
}

CU_API CUresult cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  return WithContext("cuIpcOpenEventHandle", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(std::shared_ptr<SharedEvent> shared, SharedEvent::Open(Unpack(handle)));
    auto event = std::make_shared<Event>();
    event->handle = driver.events.NewHandle();
    event->context = context.weak_from_this();
    event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    event->shared = std::move(shared);
    driver.events.Insert(event->handle, event);
    *out = event->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags) {
  return WithDriver("cuMemExportToShareableHandle", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return NotSupported(absl::StrCat("handle type ", static_cast<int>(type)));
    }
    ASSIGN_OR_RETURN(UniqueFd fd, driver.memory.ExportPhysical(handle));
    *static_cast<int*>(out) = fd.release();
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* handle,
                                               CUmemAllocationHandleType type) {
  return WithDriver("cuMemImportFromShareableHandle", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return NotSupported(absl::StrCat("handle type ", static_cast<int>(type)));
    }
    // The descriptor is the pointer's value.
    ASSIGN_OR_RETURN(
        *out, driver.memory.ImportPhysical(static_cast<int>(reinterpret_cast<intptr_t>(handle))));
    return absl::OkStatus();
  });
}

// A pool that is exported is a name only: its allocations cross one by one.
CU_API CUresult cuMemPoolExportToShareableHandle(void* out, CUmemoryPool handle,
                                                 CUmemAllocationHandleType type,
                                                 unsigned long long flags) {
  return WithDriver("cuMemPoolExportToShareableHandle", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    const std::shared_ptr<MemPool> pool = driver.pools.Find(handle);
    if (pool == nullptr || flags != 0) return InvalidValue("not a memory pool, or flags");
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !pool->exportable) {
      return InvalidValue("the pool was not created for that type of handle");
    }
    absl::StatusOr<SharedFile> file = CreateSharedFile(kBlockBytes, pool->device);
    if (!file.ok()) return CudaError(CUDA_ERROR_OPERATING_SYSTEM, file.status().message());
    *static_cast<int*>(out) = file->fd.release();
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* handle,
                                                   CUmemAllocationHandleType type,
                                                   unsigned long long flags) {
  return WithDriver("cuMemPoolImportFromShareableHandle", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) {
      return InvalidValue(absl::StrCat("handle type ", static_cast<int>(type), ", flags ", flags));
    }
    const absl::StatusOr<int> device =
        DeviceOfSharedFile(static_cast<int>(reinterpret_cast<intptr_t>(handle)));
    if (!device.ok()) return InvalidValue(device.status().message());
    RETURN_IF_ERROR(driver.CheckDevice(*device));
    auto pool = std::make_shared<MemPool>();
    pool->handle = driver.pools.NewHandle();
    pool->device = *device;
    pool->imported = true;
    driver.pools.Insert(pool->handle, pool);
    *out = pool->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  return WithDriver("cuMemPoolExportPointer", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    const auto found = driver.memory.Find(address);
    if (!found || found->base != address) {
      return InvalidValue(absl::StrCat("0x", absl::Hex(address), " is no allocation"));
    }
    driver.WaitForDevice(found->device);
    ASSIGN_OR_RETURN(const SharedFileName name, driver.memory.Share(address));
    *out = Pack<CUmemPoolPtrExportData>(name);
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool handle,
                                       CUmemPoolPtrExportData* data) {
  return WithDriver("cuMemPoolImportPointer", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(data);
    const std::shared_ptr<MemPool> pool = driver.pools.Find(handle);
    if (pool == nullptr || !pool->imported) return InvalidValue("not an imported memory pool");
    ASSIGN_OR_RETURN(*out, driver.memory.OpenShared(Unpack(*data), /*context=*/0));
    return absl::OkStatus();
  });
}
