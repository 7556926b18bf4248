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

CUresult Prefetch(const char* call, NullStream null, CUdeviceptr address, size_t size,
                  const CUmemLocation& location, unsigned flags, CUstream handle) {
  return WithStream(
      call, null, handle, [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags));
        RETURN_IF_ERROR(driver_abi::CheckLocation(location, driver.device_count()));
        RETURN_IF_ERROR(CheckManaged(driver, address, size));
        return context
            .Enqueue(
                stream,
                [&driver, address, size, location] {
                  driver.managed.Apply(address, size, [&](driver_abi::ManagedRanges::Facts& facts) {
                    facts.last_prefetch = location;
                  });
                  return absl::OkStatus();
                },
                RunOn::kAnyThread, Wake::kYes, Context::Eager::kYes)
            .status();
      });
}

absl::Status AdviseManaged(Driver& driver, CUdeviceptr address, size_t size, CUmem_advise advice,
                           const CUmemLocation& location) {
  RETURN_IF_ERROR(CheckManaged(driver, address, size));
  return driver_abi::Advise(&driver.managed, driver.device_count(), address, size, advice,
                            location);
}

absl::Status RangeAttribute(Driver& driver, void* data, size_t size,
                            CUmem_range_attribute attribute, CUdeviceptr address, size_t count) {
  RETURN_IF_ERROR(CheckManaged(driver, address, count));
  return driver_abi::WriteRangeAttribute(driver.managed, address, count, attribute, data, size);
}

// Discarding leaves the bytes as they are: a program may rely on nothing.
CUresult Batch(const char* call, NullStream null, const driver_abi::RangeBatch& batch,
               CUstream handle) {
  return WithStream(
      call, null, handle, [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        // Not for the default streams, as cuda.h has it.
        if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
          return CudaError(CUDA_ERROR_INVALID_VALUE, "batches are not for default streams");
        }
        RETURN_IF_ERROR(driver_abi::CheckBatch(batch, driver.device_count()));
        for (size_t i = 0; i < batch.count; ++i) {
          RETURN_IF_ERROR(CheckManaged(driver, batch.addresses[i], batch.sizes[i]));
        }
        if (!batch.has_locations) return absl::OkStatus();
        for (size_t i = 0; i < batch.count; ++i) {
          const CUmemLocation location = driver_abi::LocationInBatch(batch, i);
          driver.managed.Apply(
              batch.addresses[i], batch.sizes[i],
              [&](driver_abi::ManagedRanges::Facts& facts) { facts.last_prefetch = location; });
        }
        return absl::OkStatus();
      });
}

}  // namespace

CUresult Do_cuMemPrefetchBatchAsync(const char* call, NullStream null, CUdeviceptr* addresses,
                                    size_t* sizes, size_t count, CUmemLocation* locations,
                                    size_t* indices, size_t location_count,
                                    unsigned long long flags, CUstream stream) {
  return Batch(call, null,
               {addresses, sizes, count, true, locations, indices, location_count, flags}, stream);
}
CUresult Do_cuMemDiscardAndPrefetchBatchAsync(const char* call, NullStream null,
                                              CUdeviceptr* addresses, size_t* sizes, size_t count,
                                              CUmemLocation* locations, size_t* indices,
                                              size_t location_count, unsigned long long flags,
                                              CUstream stream) {
  return Batch(call, null,
               {addresses, sizes, count, true, locations, indices, location_count, flags}, stream);
}
CUresult Do_cuMemDiscardBatchAsync(const char* call, NullStream null, CUdeviceptr* addresses,
                                   size_t* sizes, size_t count, unsigned long long flags,
                                   CUstream stream) {
  return Batch(call, null, {addresses, sizes, count, false, nullptr, nullptr, 0, flags}, stream);
}

CUresult Do_cuMemPrefetchAsync(const char* call, NullStream null, CUdeviceptr address, size_t size,
                               CUdevice device, CUstream stream) {
  return Prefetch(call, null, address, size, driver_abi::LocationOfDevice(device), 0, stream);
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
    return AdviseManaged(driver, address, size, advice, driver_abi::LocationOfDevice(device));
  });
}
CU_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice,
                               CUmemLocation location) {
  return WithContext("cuMemAdvise_v2", [&](Driver& driver, Context&) {
    return AdviseManaged(driver, address, size, advice, location);
  });
}

CU_API CUresult cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                                       CUdeviceptr address, size_t count) {
  return WithContext("cuMemRangeGetAttribute", [&](Driver& driver, Context&) {
    return RangeAttribute(driver, data, size, attribute, address, count);
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
      RETURN_IF_ERROR(RangeAttribute(driver, data[i], sizes[i], attributes[i], address, count));
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
CU_API_TWINS(cuMemPrefetchBatchAsync, _ptsz,
             (CUdeviceptr * addresses, size_t* sizes, size_t count, CUmemLocation* locations,
              size_t* indices, size_t location_count, unsigned long long flags, CUstream stream),
             addresses, sizes, count, locations, indices, location_count, flags, stream);
CU_API_TWINS(cuMemDiscardAndPrefetchBatchAsync, _ptsz,
             (CUdeviceptr * addresses, size_t* sizes, size_t count, CUmemLocation* locations,
              size_t* indices, size_t location_count, unsigned long long flags, CUstream stream),
             addresses, sizes, count, locations, indices, location_count, flags, stream);
CU_API_TWINS(cuMemDiscardBatchAsync, _ptsz,
             (CUdeviceptr * addresses, size_t* sizes, size_t count, unsigned long long flags,
              CUstream stream),
             addresses, sizes, count, flags, stream);
