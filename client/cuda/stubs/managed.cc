// Managed memory: pages of this process and memory of the card at one address (shared_memory.h).
// Advice and prefetches are remembered for whoever asks; a prefetch to the host brings pages at the
// next wait, so that nothing needs to be fetched when they are touched.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/copying.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"
#include "protocol/driver_abi/managed_ranges.h"

namespace fargpu::client::api {
namespace {

using driver_abi::ManagedRanges;

absl::Status CheckManaged(Session& session, CUdeviceptr address, size_t bytes) {
  const std::optional<MemoryRange> range = session.device_memory().Find(address);
  if (range.has_value() && range->managed && bytes > 0 && bytes <= range->end() - address) {
    return absl::OkStatus();
  }
  return CudaError(CUDA_ERROR_INVALID_VALUE,
                   absl::StrCat("0x", absl::Hex(address), " + ", bytes, " is not managed memory"));
}

void NotePrefetch(Session& session, CUdeviceptr address, size_t bytes,
                  const CUmemLocation& location) {
  session.managed_ranges().Apply(
      address, bytes, [&](ManagedRanges::Facts& facts) { facts.last_prefetch = location; });
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) session.shared().WantOnHost(address, bytes);
}

absl::Status Prefetch(Session& session, CUdeviceptr address, size_t bytes,
                      const CUmemLocation& location, unsigned flags, CUstream stream,
                      DefaultStream default_stream) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  wire::StreamId id;
  RETURN_IF_ERROR(session.ToWire(stream, default_stream, &id));
  if (flags != 0) return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", flags));
  RETURN_IF_ERROR(driver_abi::CheckLocation(location, session.devices().count()));
  RETURN_IF_ERROR(CheckManaged(session, address, bytes));
  NotePrefetch(session, address, bytes, location);
  return absl::OkStatus();
}

absl::Status PrefetchBatch(Session& session, const driver_abi::RangeBatch& batch, CUstream stream,
                           DefaultStream default_stream) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  wire::StreamId id;
  RETURN_IF_ERROR(session.ToWire(stream, default_stream, &id));
  // Not for the default streams, as cuda.h has it.
  if (id.value < Session::kFirstId) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "batches are not for default streams");
  }
  RETURN_IF_ERROR(driver_abi::CheckBatch(batch, session.devices().count()));
  for (size_t i = 0; i < batch.count; ++i) {
    RETURN_IF_ERROR(CheckManaged(session, batch.addresses[i], batch.sizes[i]));
  }
  if (!batch.has_locations) return absl::OkStatus();
  for (size_t i = 0; i < batch.count; ++i) {
    NotePrefetch(session, batch.addresses[i], batch.sizes[i],
                 driver_abi::LocationInBatch(batch, i));
  }
  return absl::OkStatus();
}

absl::Status Advise(Session& session, CUdeviceptr address, size_t bytes, CUmem_advise advice,
                    const CUmemLocation& location) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  RETURN_IF_ERROR(CheckManaged(session, address, bytes));
  return driver_abi::Advise(&session.managed_ranges(), session.devices().count(), address, bytes,
                            advice, location);
}

absl::Status RangeAttribute(Session& session, void* data, size_t size,
                            CUmem_range_attribute attribute, CUdeviceptr address, size_t count) {
  RETURN_IF_ERROR(CheckManaged(session, address, count));
  return driver_abi::WriteRangeAttribute(session.managed_ranges(), address, count, attribute, data,
                                         size);
}

}  // namespace

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  return AtCudaEdge("cuMemAllocManaged", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    RETURN_IF_ERROR(NotNull(dptr, "dptr"));
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("attach flags ", flags));
    }
    if (bytesize == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "bytesize is 0");
    ASSIGN_OR_RETURN(const uintptr_t address, session.shared().AllocateManaged(bytesize));
    const absl::Status known = session.device_memory().Insert({.begin = address,
                                                               .bytes = bytesize,
                                                               .context = context->handle,
                                                               .device = context->device,
                                                               .managed = true});
    if (!known.ok()) {
      session.shared().Free(address);
      return known;
    }
    session.managed_ranges().Add(address, bytesize);
    *dptr = address;
    return absl::OkStatus();
  });
}

CUresult cuMemPrefetchAsync(DefaultStream default_stream, CUdeviceptr devPtr, size_t count,
                            CUdevice dstDevice, CUstream hStream) {
  return AtCudaEdge("cuMemPrefetchAsync", [&](Session& session) {
    return Prefetch(session, devPtr, count, driver_abi::LocationOfDevice(dstDevice), 0, hStream,
                    default_stream);
  });
}

CUresult cuMemPrefetchAsync_v2(DefaultStream default_stream, CUdeviceptr devPtr, size_t count,
                               CUmemLocation location, unsigned int flags, CUstream hStream) {
  return AtCudaEdge("cuMemPrefetchAsync_v2", [&](Session& session) {
    return Prefetch(session, devPtr, count, location, flags, hStream, default_stream);
  });
}

CUresult cuMemPrefetchBatchAsync(DefaultStream default_stream, CUdeviceptr* dptrs, size_t* sizes,
                                 size_t count, CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                 size_t numPrefetchLocs, unsigned long long flags,
                                 CUstream hStream) {
  return AtCudaEdge("cuMemPrefetchBatchAsync", [&](Session& session) {
    return PrefetchBatch(
        session, {dptrs, sizes, count, true, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags},
        hStream, default_stream);
  });
}

// Discarding leaves the bytes as they are: a program may rely on nothing.
CUresult cuMemDiscardAndPrefetchBatchAsync(DefaultStream default_stream, CUdeviceptr* dptrs,
                                           size_t* sizes, size_t count, CUmemLocation* prefetchLocs,
                                           size_t* prefetchLocIdxs, size_t numPrefetchLocs,
                                           unsigned long long flags, CUstream hStream) {
  return AtCudaEdge("cuMemDiscardAndPrefetchBatchAsync", [&](Session& session) {
    return PrefetchBatch(
        session, {dptrs, sizes, count, true, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags},
        hStream, default_stream);
  });
}

CUresult cuMemDiscardBatchAsync(DefaultStream default_stream, CUdeviceptr* dptrs, size_t* sizes,
                                size_t count, unsigned long long flags, CUstream hStream) {
  return AtCudaEdge("cuMemDiscardBatchAsync", [&](Session& session) {
    return PrefetchBatch(session, {dptrs, sizes, count, false, nullptr, nullptr, 0, flags}, hStream,
                         default_stream);
  });
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  return AtCudaEdge("cuMemAdvise", [&](Session& session) {
    return Advise(session, devPtr, count, advice, driver_abi::LocationOfDevice(device));
  });
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location) {
  return AtCudaEdge("cuMemAdvise_v2", [&](Session& session) {
    return Advise(session, devPtr, count, advice, location);
  });
}

CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  return AtCudaEdge("cuMemRangeGetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    return RangeAttribute(session, data, dataSize, attribute, devPtr, count);
  });
}

CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  return AtCudaEdge("cuMemRangeGetAttributes", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(data, "data"));
    RETURN_IF_ERROR(NotNull(dataSizes, "dataSizes"));
    RETURN_IF_ERROR(NotNull(attributes, "attributes"));
    for (size_t i = 0; i < numAttributes; ++i) {
      RETURN_IF_ERROR(RangeAttribute(session, data[i], dataSizes[i], attributes[i], devPtr, count));
    }
    return absl::OkStatus();
  });
}

// Which stream may use memory while the host does not is not enforced: whatever the program waits
// for, it sees what kernels have written by then.
CUresult cuStreamAttachMemAsync(DefaultStream default_stream, CUstream hStream, CUdeviceptr dptr,
                                size_t length, unsigned int flags) {
  return AtCudaEdge("cuStreamAttachMemAsync", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    wire::StreamId id;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &id));
    const std::optional<MemoryRange> range = session.device_memory().Find(dptr);
    if (!range.has_value() || !range->managed || range->begin != dptr ||
        (length != 0 && length != range->bytes)) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("0x", absl::Hex(dptr), " + ", length,
                                                              " is not a managed allocation"));
    }
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
        (flags != CU_MEM_ATTACH_SINGLE || id.value < Session::kFirstId)) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("attach flags ", flags));
    }
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
