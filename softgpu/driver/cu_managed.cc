// Managed memory: host and devices touch the same bytes, so that advice and prefetches only leave
// their traces in what can be asked for.

#include <algorithm>

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

absl::Status CheckManaged(Driver& driver, CUdeviceptr address, size_t size) {
  const auto allocation = driver.memory.Find(address);
  if (!allocation || allocation->kind != AllocationKind::kManaged || size == 0 ||
      size > allocation->size - (address - allocation->base)) {
    return InvalidValue(
        absl::StrCat("0x", absl::Hex(address), " + ", size, " is not managed memory"));
  }
  return absl::OkStatus();
}

// The old calls name a device, or CU_DEVICE_CPU.
CUmemLocation LocationOf(CUdevice device) {
  CUmemLocation location = {};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

absl::Status CheckLocation(Driver& driver, const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return driver.CheckDevice(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return absl::OkStatus();
    default:
      return InvalidValue(absl::StrCat("location type ", static_cast<int>(location.type)));
  }
}

CUresult Prefetch(const char* call, NullStream null, CUdeviceptr address, size_t size,
                  const CUmemLocation& location, unsigned flags, CUstream handle) {
  return WithStream(
      call, null, handle, [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags));
        RETURN_IF_ERROR(CheckLocation(driver, location));
        RETURN_IF_ERROR(CheckManaged(driver, address, size));
        return context
            .Enqueue(
                stream,
                [&driver, address, size, location] {
                  driver.managed.Apply(address, size, [&](ManagedRanges::Facts& facts) {
                    facts.last_prefetch = location;
                  });
                  return absl::OkStatus();
                },
                RunOn::kAnyThread, Wake::kYes, Context::Eager::kYes)
            .status();
      });
}

absl::Status Advise(Driver& driver, CUdeviceptr address, size_t size, CUmem_advise advice,
                    const CUmemLocation& location) {
  RETURN_IF_ERROR(CheckManaged(driver, address, size));
  const bool needs_location = advice != CU_MEM_ADVISE_SET_READ_MOSTLY &&
                              advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
                              advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  if (needs_location) RETURN_IF_ERROR(CheckLocation(driver, location));
  const int who =
      location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : static_cast<int>(CU_DEVICE_CPU);
  const auto apply = [&](auto change) {
    driver.managed.Apply(address, size, change);
    return absl::OkStatus();
  };
  using Facts = ManagedRanges::Facts;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      return apply([](Facts& facts) { facts.read_mostly = true; });
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      return apply([](Facts& facts) { facts.read_mostly = false; });
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return apply([&](Facts& facts) { facts.preferred = location; });
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return apply([](Facts& facts) { facts.preferred = Facts{}.preferred; });
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      return apply([&](Facts& facts) { facts.accessed_by.insert(who); });
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return apply([&](Facts& facts) { facts.accessed_by.erase(who); });
  }
  return InvalidValue(absl::StrCat("advice ", static_cast<int>(advice)));
}

bool SameLocation(const CUmemLocation& a, const CUmemLocation& b) {
  return a.type == b.type && (a.type != CU_MEM_LOCATION_TYPE_DEVICE || a.id == b.id);
}

// What all parts agree on, or "invalid".
CUmemLocation Common(const std::vector<ManagedRanges::Facts>& parts,
                     CUmemLocation ManagedRanges::Facts::*field) {
  for (const ManagedRanges::Facts& part : parts) {
    if (!SameLocation(part.*field, parts[0].*field)) return ManagedRanges::Facts{}.preferred;
  }
  return parts.empty() ? ManagedRanges::Facts{}.preferred : parts[0].*field;
}

int OldDevice(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id;
    case CU_MEM_LOCATION_TYPE_INVALID:
      return CU_DEVICE_INVALID;
    default:
      return CU_DEVICE_CPU;
  }
}

absl::Status WriteRangeAttribute(Driver& driver, void* data, size_t size,
                                 CUmem_range_attribute attribute, CUdeviceptr address,
                                 size_t count) {
  RETURN_IF_NULL(data);
  RETURN_IF_ERROR(CheckManaged(driver, address, count));
  if (size < sizeof(int) || size % sizeof(int) != 0 ||
      (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && size != sizeof(int))) {
    return InvalidValue(absl::StrCat("data of ", size, " bytes"));
  }
  const std::vector<ManagedRanges::Facts> parts = driver.managed.Get(address, count);
  int* const out = static_cast<int*>(data);
  const CUmemLocation preferred = Common(parts, &ManagedRanges::Facts::preferred);
  const CUmemLocation prefetch = Common(parts, &ManagedRanges::Facts::last_prefetch);
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *out = std::all_of(parts.begin(), parts.end(),
                         [](const auto& part) { return part.read_mostly; });
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *out = OldDevice(preferred);
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *out = OldDevice(prefetch);
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *out = preferred.type;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *out = preferred.id;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *out = prefetch.type;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *out = prefetch.id;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      std::vector<int> all;
      if (!parts.empty()) all.assign(parts[0].accessed_by.begin(), parts[0].accessed_by.end());
      for (const auto& part : parts) {
        all.erase(std::remove_if(all.begin(), all.end(),
                                 [&](int who) { return part.accessed_by.count(who) == 0; }),
                  all.end());
      }
      for (size_t i = 0; i < size / sizeof(int); ++i) {
        out[i] = i < all.size() ? all[i] : static_cast<int>(CU_DEVICE_INVALID);
      }
      return absl::OkStatus();
    }
    default:
      return InvalidValue(absl::StrCat("range attribute ", static_cast<int>(attribute)));
  }
}

}  // namespace

CUresult Do_cuMemPrefetchAsync(const char* call, NullStream null, CUdeviceptr address, size_t size,
                               CUdevice device, CUstream stream) {
  return Prefetch(call, null, address, size, LocationOf(device), 0, stream);
}
CUresult Do_cuMemPrefetchAsync_v2(const char* call, NullStream null, CUdeviceptr address,
                                  size_t size, CUmemLocation location, unsigned flags,
                                  CUstream stream) {
  return Prefetch(call, null, address, size, location, flags, stream);
}

CUresult Do_cuStreamAttachMemAsync(const char* call, NullStream null, CUstream handle,
                                   CUdeviceptr address, size_t size, unsigned flags) {
  return WithStream(
      call, null, handle, [&](Driver& driver, Context&, Stream& stream) -> absl::Status {
        const auto allocation = driver.memory.Find(address);
        if (!allocation || allocation->kind != AllocationKind::kManaged ||
            allocation->base != address || (size != 0 && size != allocation->size)) {
          return InvalidValue(
              absl::StrCat("0x", absl::Hex(address), " + ", size, " is not a managed allocation"));
        }
        if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
            (flags != CU_MEM_ATTACH_SINGLE || stream.handle == nullptr)) {
          return InvalidValue(absl::StrCat("attach flags ", flags));
        }
        return absl::OkStatus();
      });
}

}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuMemAllocManaged(CUdeviceptr* out, size_t size, unsigned flags) {
  return WithContext("cuMemAllocManaged", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
      return InvalidValue(absl::StrCat("attach flags ", flags));
    }
    RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
    ASSIGN_OR_RETURN(
        *out, driver.memory.Allocate(AllocationKind::kManaged, context.device, context.id, size));
    driver.managed.Add(*out, size);
    return absl::OkStatus();
  });
}

CU_API CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice,
                            CUdevice device) {
  return WithContext("cuMemAdvise", [&](Driver& driver, Context&) {
    return Advise(driver, address, size, advice, LocationOf(device));
  });
}
CU_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice,
                               CUmemLocation location) {
  return WithContext("cuMemAdvise_v2", [&](Driver& driver, Context&) {
    return Advise(driver, address, size, advice, location);
  });
}

CU_API CUresult cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                                       CUdeviceptr address, size_t count) {
  return WithContext("cuMemRangeGetAttribute", [&](Driver& driver, Context&) {
    return WriteRangeAttribute(driver, data, size, attribute, address, count);
  });
}

CU_API CUresult cuMemRangeGetAttributes(void** data, size_t* sizes,
                                        CUmem_range_attribute* attributes, size_t attribute_count,
                                        CUdeviceptr address, size_t count) {
  return WithContext("cuMemRangeGetAttributes", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(data);
    RETURN_IF_NULL(sizes);
    RETURN_IF_NULL(attributes);
    for (size_t i = 0; i < attribute_count; ++i) {
      RETURN_IF_ERROR(
          WriteRangeAttribute(driver, data[i], sizes[i], attributes[i], address, count));
    }
    return absl::OkStatus();
  });
}

CU_API_TWINS(cuMemPrefetchAsync, _ptsz,
             (CUdeviceptr address, size_t size, CUdevice device, CUstream stream), address, size,
             device, stream);
CU_API_TWINS(cuMemPrefetchAsync_v2, _ptsz,
             (CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags,
              CUstream stream),
             address, size, location, flags, stream);
CU_API_TWINS(cuStreamAttachMemAsync, _ptsz,
             (CUstream stream, CUdeviceptr address, size_t size, unsigned flags), stream, address,
             size, flags);
