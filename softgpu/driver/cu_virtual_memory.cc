// The virtual memory interface: reservations, physical memory, mappings and access.

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

// Only memory on a device, which other processes get by descriptor at most.
absl::Status CheckProperties(Driver& driver, const CUmemAllocationProp& properties) {
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return InvalidValue(absl::StrCat("allocation type ", static_cast<int>(properties.type)));
  }
  if (properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return NotSupported(
        absl::StrCat("handle types ", static_cast<int>(properties.requestedHandleTypes)));
  }
  switch (properties.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return driver.CheckDevice(properties.location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return NotSupported("physical memory on the host");
    default:
      return InvalidValue(
          absl::StrCat("location type ", static_cast<int>(properties.location.type)));
  }
}

absl::StatusOr<Access> ToAccess(CUmemAccess_flags flags) {
  switch (flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_NONE:
      return Access::kNone;
    case CU_MEM_ACCESS_FLAGS_PROT_READ:
      return Access::kRead;
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
      return Access::kReadWrite;
    default:
      return InvalidValue(absl::StrCat("access flags ", static_cast<int>(flags)));
  }
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t alignment,
                                    CUdeviceptr hint, unsigned long long flags) {
  return WithDriver("cuMemAddressReserve", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    ASSIGN_OR_RETURN(*out, driver.memory.Reserve(size, alignment, hint));
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return WithDriver("cuMemAddressFree",
                    [&](Driver& driver) { return driver.memory.Unreserve(address, size); });
}

CU_API CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t size,
                            const CUmemAllocationProp* properties, unsigned long long flags) {
  return WithDriver("cuMemCreate", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(properties);
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    RETURN_IF_ERROR(CheckProperties(driver, *properties));
    const bool exportable =
        properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ASSIGN_OR_RETURN(*out, driver.memory.CreatePhysical(properties->location.id, size,
                                                        exportable ? DeviceMemory::Export::kYes
                                                                   : DeviceMemory::Export::kNo));
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return WithDriver("cuMemRelease",
                    [&](Driver& driver) { return driver.memory.ReleasePhysical(handle); });
}

CU_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  return WithDriver("cuMemRetainAllocationHandle", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(*out, driver.memory.RetainPhysical(reinterpret_cast<uint64_t>(address)));
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return WithDriver("cuMemMap", [&](Driver& driver) -> absl::Status {
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    return driver.memory.Map(address, size, offset, handle);
  });
}

CU_API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return WithDriver("cuMemUnmap", [&](Driver& driver) -> absl::Status {
    // Whatever still runs may use it. The real driver synchronises here too.
    if (const auto mapping = driver.memory.Find(address)) driver.WaitForDevice(mapping->device);
    return driver.memory.Unmap(address, size);
  });
}

CU_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                               size_t count) {
  return WithDriver("cuMemSetAccess", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(access);
    if (count == 0) return InvalidValue("no access descriptors");
    // One page table serves all devices, so the widest of the rights counts.
    Access widest = Access::kNone;
    for (size_t i = 0; i < count; ++i) {
      if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return InvalidValue(
            absl::StrCat("location type ", static_cast<int>(access[i].location.type)));
      }
      RETURN_IF_ERROR(driver.CheckDevice(access[i].location.id));
      ASSIGN_OR_RETURN(const Access wanted, ToAccess(access[i].flags));
      widest = std::max(widest, wanted);
    }
    return driver.memory.SetAccess(address, size, widest);
  });
}

CU_API CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                               CUdeviceptr address) {
  return WithDriver("cuMemGetAccess", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(flags);
    RETURN_IF_NULL(location);
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return InvalidValue(absl::StrCat("location type ", static_cast<int>(location->type)));
    }
    RETURN_IF_ERROR(driver.CheckDevice(location->id));
    ASSIGN_OR_RETURN(const Access access, driver.memory.GetAccess(address));
    *flags = access == Access::kReadWrite ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : access == Access::kRead    ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                          : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                              const CUmemAllocationProp* properties,
                                              CUmemAllocationGranularity_flags option) {
  return WithDriver("cuMemGetAllocationGranularity", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(granularity);
    RETURN_IF_NULL(properties);
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
        option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
      return InvalidValue(absl::StrCat("option ", static_cast<int>(option)));
    }
    RETURN_IF_ERROR(CheckProperties(driver, *properties));
    *granularity = kBlockBytes;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                       CUmemGenericAllocationHandle handle) {
  return WithDriver("cuMemGetAllocationPropertiesFromHandle", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(properties);
    ASSIGN_OR_RETURN(const int device, driver.memory.PhysicalDevice(handle));
    *properties = CUmemAllocationProp{};
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = device;
    if (driver.memory.ExportPhysical(handle).ok()) {
      properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    return absl::OkStatus();
  });
}
