// The virtual memory calls. A CUmemGenericAllocationHandle is a number in CUDA, and here the id on
// the wire itself; the worker refuses numbers that it does not know.
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status CheckProp(Session& session, const CUmemAllocationProp* prop) {
  RETURN_IF_ERROR(NotNull(prop, "prop"));
  if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, "memory that is shared with other processes");
  }
  if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    return session.devices().Check(prop->location.id);
  }
  return CudaError(CUDA_ERROR_NOT_SUPPORTED, absl::StrCat("memory at a location of type ",
                                                          static_cast<int>(prop->location.type)));
}

absl::Status UnknownMemory(CUmemGenericAllocationHandle handle) {
  return CudaError(CUDA_ERROR_INVALID_VALUE,
                   absl::StrCat(handle, " is no allocation of cuMemCreate"));
}

}  // namespace

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  return AtCudaEdge("cuMemAddressReserve", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(ptr, "ptr"));
    if (size == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "size is 0");
    wire::MemAddressReserveRequest request{
        .size = size, .alignment = alignment, .addr = addr, .flags = flags};
    wire::MemAddressReserveReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    const bool inside =
        !session.window().known() ||
        (session.window().Contains(reply.ptr) && session.window().Contains(reply.ptr + size - 1));
    const absl::Status inserted =
        session.device_memory().Insert({.begin = reply.ptr, .bytes = size, .reserved = true});
    if (!inside || !inserted.ok()) {
      session.calls().Distrust(absl::InvalidArgumentError(
          absl::StrCat("the worker reserves ", size, " bytes at 0x", absl::Hex(reply.ptr),
                       inside ? ", which overlaps what it gave before" : ", outside the window")));
      return session.calls().status();
    }
    *ptr = reply.ptr;
    return absl::OkStatus();
  });
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  return AtCudaEdge("cuMemAddressFree", [&](Session& session) -> absl::Status {
    const std::optional<MemoryRange> range = session.device_memory().Find(ptr);
    if (!range.has_value() || !range->reserved || range->begin != ptr || range->bytes != size) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat(size, " bytes at 0x", absl::Hex(ptr), " were not reserved"));
    }
    wire::MemAddressFreeRequest request{.ptr = ptr, .size = size};
    wire::MemAddressFreeReply reply;
    // Before the reply: the next reservation may get the same addresses.
    session.device_memory().Remove(ptr);
    const absl::Status freed = session.Call(request, &reply);
    if (!freed.ok()) session.device_memory().Insert(*range).IgnoreError();
    return freed;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  return AtCudaEdge("cuMemCreate", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(handle, "handle"));
    RETURN_IF_ERROR(CheckProp(session, prop));
    wire::MemCreateRequest request{
        .handle = {session.NewId()}, .size = size, .prop = *prop, .flags = flags};
    wire::MemCreateReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    session.physical_memory().Insert(request.handle.value);
    *handle = request.handle.value;
    return absl::OkStatus();
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return AtCudaEdge("cuMemRelease", [&](Session& session) -> absl::Status {
    if (!session.physical_memory().Remove(handle)) return UnknownMemory(handle);
    return session.Send(wire::MemReleaseRequest{.handle = {handle}});
  });
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return AtCudaEdge("cuMemMap", [&](Session& session) -> absl::Status {
    if (!session.physical_memory().Contains(handle)) return UnknownMemory(handle);
    wire::MemMapRequest request{
        .ptr = ptr, .size = size, .offset = offset, .handle = {handle}, .flags = flags};
    wire::MemMapReply reply;
    return session.Call(request, &reply);
  });
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  return AtCudaEdge("cuMemUnmap", [&](Session& session) {
    wire::MemUnmapRequest request{.ptr = ptr, .size = size};
    wire::MemUnmapReply reply;
    return session.Call(request, &reply);
  });
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  return AtCudaEdge("cuMemSetAccess", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(desc, "desc"));
    if (count == 0 || count > static_cast<size_t>(session.devices().count())) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat(count, " descriptors"));
    }
    wire::MemSetAccessRequest request{.ptr = ptr, .size = size, .desc = {desc, desc + count}};
    wire::MemSetAccessReply reply;
    return session.Call(request, &reply);
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  return AtCudaEdge("cuMemGetAccess", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(flags, "flags"));
    RETURN_IF_ERROR(NotNull(location, "location"));
    // What cuMemAlloc gave is mapped too, which is the worker's business.
    const std::optional<MemoryRange> range = session.device_memory().Find(ptr);
    if (!range.has_value() || !range->reserved) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("0x", absl::Hex(ptr), " was not reserved"));
    }
    wire::MemGetAccessRequest request{.location = *location, .ptr = ptr};
    wire::MemGetAccessReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    *flags = reply.flags;
    return absl::OkStatus();
  });
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  return AtCudaEdge("cuMemGetAllocationGranularity", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(granularity, "granularity"));
    RETURN_IF_ERROR(CheckProp(session, prop));
    wire::MemGetAllocationGranularityRequest request{.prop = *prop,
                                                     .option = static_cast<uint32_t>(option)};
    wire::MemGetAllocationGranularityReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    *granularity = reply.granularity;
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
