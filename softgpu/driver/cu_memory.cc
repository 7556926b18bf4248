// Device and host memory: allocation, what an address is, and how much is left.

#include <algorithm>
#include <limits>

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

// Rows of pitched allocations start at multiples of this, as on NVIDIA's cards.
constexpr size_t kPitchAlignment = 512;

absl::Status FreeDeviceMemory(Driver& driver, CUdeviceptr address) {
  // Freeing nothing is fine, as with free().
  if (address == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
  auto found = driver.memory.Find(address);
  // Of a block of another process's the program knows its part only.
  if (found && found->kind == AllocationKind::kShared) address = found->base;
  if (!found || found->base != address || found->kind == AllocationKind::kHost ||
      found->kind == AllocationKind::kArray) {
    return InvalidValue(absl::StrCat("0x", absl::Hex(address), " was not given by cuMemAlloc"));
  }
  if (found->kind == AllocationKind::kGraph) {
    driver.WaitForDevice(found->device);
    return driver.memory.DecommitGraphRange(address);
  }
  ASSIGN_OR_RETURN(const Allocation allocation, driver.memory.Detach(address));
  // Kernels that still run may use it. The call waits for them, as it does with NVIDIA's driver.
  driver.WaitForDevice(allocation.device);
  if (allocation.kind == AllocationKind::kManaged) {
    driver.managed.Remove(allocation.base, allocation.size);
  }
  driver.memory.FreeDetached(allocation);
  return absl::OkStatus();
}

// Pinned host memory may be in use on any device.
void WaitForAllDevices(Driver& driver) {
  for (int device = 0; device < driver.device_count(); ++device) driver.WaitForDevice(device);
}

absl::Status AllocateHost(Driver& driver, Context& context, void** out, size_t size,
                          unsigned flags) {
  RETURN_IF_NULL(out);
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if ((flags & ~kKnown) != 0) return InvalidValue(absl::StrCat("flags 0x", absl::Hex(flags)));
  RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
  // All of it is mapped for the device, as unified addressing has it.
  ASSIGN_OR_RETURN(const uint64_t address,
                   driver.memory.Allocate(AllocationKind::kHost, context.device, context.id, size,
                                          flags | CU_MEMHOSTALLOC_DEVICEMAP));
  *out = reinterpret_cast<void*>(address);
  return absl::OkStatus();
}

absl::Status RegisterHost(Driver& driver, Context& context, void* pointer, size_t size,
                          unsigned flags) {
  RETURN_IF_NULL(pointer);
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  if (size == 0 || (flags & ~kKnown) != 0 ||
      size > std::numeric_limits<uint64_t>::max() - address) {
    return InvalidValue(absl::StrCat(size, " bytes, flags 0x", absl::Hex(flags)));
  }
  if ((flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)) != 0) {
    return NotSupported(absl::StrCat("registration flags 0x", absl::Hex(flags)));
  }
  const bool added =
      !driver.memory.Find(address) &&
      driver.registered.Add({.base = address, .size = size, .flags = flags, .context = context.id});
  if (!added) {
    return CudaError(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                     absl::StrCat("0x", absl::Hex(address), " is pinned already"));
  }
  return absl::OkStatus();
}

// What cuPointerGetAttribute tells of `address`; `known` is false for memory of the program that
// CUDA knows nothing of.
struct PointerFacts {
  bool known = false;
  Allocation allocation;
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  bool device_reaches_it = false;
};

PointerFacts DescribePointer(Driver& driver, uint64_t address) {
  PointerFacts facts;
  if (const auto allocation = driver.memory.Find(address)) {
    facts.known = true;
    facts.allocation = *allocation;
    facts.device_reaches_it = true;
    facts.type =
        allocation->kind == AllocationKind::kHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  } else if (const auto range = driver.registered.Find(address)) {
    facts.known = true;
    facts.allocation = {.base = range->base,
                        .size = range->size,
                        .kind = AllocationKind::kHost,
                        .device = 0,
                        .context = range->context,
                        .buffer_id = 0,
                        .flags = range->flags};
    facts.device_reaches_it = true;
  }
  return facts;
}

CUcontext ContextOf(Driver& driver, const Allocation& allocation) {
  for (const auto& context : driver.contexts.All()) {
    if (context->id == allocation.context) return context->handle;
  }
  return nullptr;
}

template <typename T>
absl::Status Write(void* data, T value) {
  *static_cast<T*>(data) = value;
  return absl::OkStatus();
}

// The runtime passes an int that it has not set for what cuda.h calls a boolean.
absl::Status WriteBoolean(void* data, bool value) { return Write<unsigned>(data, value ? 1 : 0); }

absl::Status WritePointerAttribute(Driver& driver, const PointerFacts& facts, uint64_t address,
                                   CUpointer_attribute attribute, void* data) {
  const Allocation& allocation = facts.allocation;
  // Managed memory is the device's and has a host address as well.
  const bool is_host =
      facts.type == CU_MEMORYTYPE_HOST || allocation.kind == AllocationKind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return Write<CUcontext>(data, facts.known ? ContextOf(driver, allocation) : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Write<unsigned>(data, facts.known ? static_cast<unsigned>(facts.type) : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Write<CUdeviceptr>(data, facts.device_reaches_it ? address : 0);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return Write<void*>(data,
                          facts.known && is_host ? reinterpret_cast<void*>(address) : nullptr);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return NotSupported("P2P tokens");
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return WriteBoolean(data, false);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return WriteBoolean(data, allocation.kind == AllocationKind::kDevice);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return WriteBoolean(data, false);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return WriteBoolean(data, allocation.kind == AllocationKind::kManaged);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return Write<unsigned long long>(data, allocation.buffer_id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Write<int>(data, facts.known ? allocation.device : CU_DEVICE_INVALID);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Write<uint64_t>(data, allocation.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Write<size_t>(data, allocation.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return WriteBoolean(data, facts.device_reaches_it);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Write<unsigned long long>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Write<unsigned>(data, facts.device_reaches_it
                                       ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                                       : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Write<CUmemoryPool>(data, nullptr);
  }
  return InvalidValue(absl::StrCat("attribute ", static_cast<int>(attribute)));
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return WithContext("cuMemGetInfo_v2", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(free);
    RETURN_IF_NULL(total);
    *free = driver.memory.FreeBytes(context.device);
    *total = driver.memory.Capacity(context.device);
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t size) {
  return WithContext("cuMemAlloc_v2", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
    ASSIGN_OR_RETURN(
        *out, driver.memory.Allocate(AllocationKind::kDevice, context.device, context.id, size));
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                                   unsigned element) {
  return WithContext("cuMemAllocPitch_v2", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
    RETURN_IF_NULL(pitch);
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)) {
      return InvalidValue(
          absl::StrCat(width, " x ", height, " with elements of ", element, " bytes: 4, 8 or 16"));
    }
    const size_t row = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
    if (row < width || row > std::numeric_limits<size_t>::max() / height) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, absl::StrCat(width, " x ", height, " bytes"));
    }
    ASSIGN_OR_RETURN(*out, driver.memory.Allocate(AllocationKind::kDevice, context.device,
                                                  context.id, row * height));
    *pitch = row;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemFree_v2(CUdeviceptr address) {
  return WithContext("cuMemFree_v2",
                     [&](Driver& driver, Context&) { return FreeDeviceMemory(driver, address); });
}

CU_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  return WithContext("cuMemGetAddressRange_v2", [&](Driver& driver, Context&) -> absl::Status {
    const auto allocation = driver.memory.Find(address);
    if (!allocation) {
      return CudaError(CUDA_ERROR_NOT_FOUND,
                       absl::StrCat("0x", absl::Hex(address), " is in no allocation"));
    }
    if (base != nullptr) *base = allocation->base;
    if (size != nullptr) *size = allocation->size;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemAllocHost_v2(void** out, size_t size) {
  return WithContext("cuMemAllocHost_v2", [&](Driver& driver, Context& context) {
    return AllocateHost(driver, context, out, size, 0);
  });
}

CU_API CUresult cuMemHostAlloc(void** out, size_t size, unsigned flags) {
  return WithContext("cuMemHostAlloc", [&](Driver& driver, Context& context) {
    return AllocateHost(driver, context, out, size, flags);
  });
}

CU_API CUresult cuMemFreeHost(void* pointer) {
  return WithContext("cuMemFreeHost", [&](Driver& driver, Context&) -> absl::Status {
    if (pointer == nullptr) return absl::OkStatus();
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    const auto found = driver.memory.Find(address);
    if (!found || found->base != address || found->kind != AllocationKind::kHost) {
      return InvalidValue(
          absl::StrCat("0x", absl::Hex(address), " was not given by cuMemHostAlloc"));
    }
    ASSIGN_OR_RETURN(const Allocation allocation, driver.memory.Detach(address));
    WaitForAllDevices(driver);
    driver.memory.FreeDetached(allocation);
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  return WithContext("cuMemHostGetDevicePointer_v2", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(pointer);
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    const auto allocation = driver.memory.Find(address);
    if (allocation && allocation->kind == AllocationKind::kHost) {
      *out = address;
      return absl::OkStatus();
    }
    if (driver.registered.Find(address)) {
      *out = address;
      return absl::OkStatus();
    }
    return InvalidValue(absl::StrCat("0x", absl::Hex(address), " is not pinned host memory"));
  });
}

CU_API CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return WithContext("cuMemHostGetFlags", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(flags);
    RETURN_IF_NULL(pointer);
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    const auto allocation = driver.memory.Find(address);
    if (allocation && allocation->kind == AllocationKind::kHost) {
      *flags = allocation->flags;
      return absl::OkStatus();
    }
    if (const auto range = driver.registered.Find(address)) {
      *flags = range->flags;
      return absl::OkStatus();
    }
    return InvalidValue(absl::StrCat("0x", absl::Hex(address), " is not pinned host memory"));
  });
}

CU_API CUresult cuMemHostRegister(void* pointer, size_t size, unsigned flags) {
  return WithContext("cuMemHostRegister", [&](Driver& driver, Context& context) {
    return RegisterHost(driver, context, pointer, size, flags);
  });
}

CU_API CUresult cuMemHostRegister_v2(void* pointer, size_t size, unsigned flags) {
  return WithContext("cuMemHostRegister_v2", [&](Driver& driver, Context& context) {
    return RegisterHost(driver, context, pointer, size, flags);
  });
}

CU_API CUresult cuMemHostUnregister(void* pointer) {
  return WithContext("cuMemHostUnregister", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(pointer);
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    const auto range = driver.registered.Find(address);
    if (!range || range->base != address) {
      return CudaError(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                       absl::StrCat("0x", absl::Hex(address), " is not registered"));
    }
    // Copies that are queued read or write it; the program may free it right after this call.
    WaitForAllDevices(driver);
    driver.registered.Remove(address);
    return absl::OkStatus();
  });
}

CU_API CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                      CUdeviceptr address) {
  return WithDriver("cuPointerGetAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(data);
    const PointerFacts facts = DescribePointer(driver, address);
    if (!facts.known) {
      return InvalidValue(absl::StrCat("0x", absl::Hex(address), " is not memory of CUDA's"));
    }
    return WritePointerAttribute(driver, facts, address, attribute, data);
  });
}

// Unlike the singular form this one succeeds for any pointer: that is how the runtime finds out
// that one belongs to the program.
CU_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                       CUdeviceptr address) {
  return WithDriver("cuPointerGetAttributes", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(attributes);
    RETURN_IF_NULL(data);
    if (count == 0) return InvalidValue("no attributes");
    const PointerFacts facts = DescribePointer(driver, address);
    for (unsigned i = 0; i < count; ++i) {
      RETURN_IF_NULL(data[i]);
      RETURN_IF_ERROR(WritePointerAttribute(driver, facts, address, attributes[i], data[i]));
    }
    return absl::OkStatus();
  });
}

CU_API CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                      CUdeviceptr address) {
  return WithContext("cuPointerSetAttribute", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(value);
    // Copies are synchronous enough for SYNC_MEMOPS as they are; nothing else can be set.
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
      return InvalidValue(absl::StrCat("attribute ", static_cast<int>(attribute)));
    }
    if (!driver.memory.Find(address)) {
      return InvalidValue(absl::StrCat("0x", absl::Hex(address), " is in no allocation"));
    }
    return absl::OkStatus();
  });
}
