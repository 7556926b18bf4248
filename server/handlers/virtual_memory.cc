// The program's own use of the virtual memory interface. Addresses come from the session's window,
// physical memory is charged to the lease until handle and mappings are gone.
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

constexpr size_t kMaxAccessDescriptions = 64;

// Device numbers of the client become the driver's. Only memory on a device of the lease that stays
// in the worker's process.
absl::Status TranslateLocation(Call& call, CUmemLocation* location) {
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                     absl::StrCat("memory at a location of type ", location->type));
  }
  RETURN_IF_ERROR(call.resources().CheckDevice(location->id));
  location->id = call.resources().devices[static_cast<size_t>(location->id)];
  return absl::OkStatus();
}

absl::Status TranslateProperties(Call& call, CUmemAllocationProp* properties) {
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("an allocation of type ", properties->type));
  }
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, "memory that other processes can import");
  }
  properties->win32HandleMetaData = nullptr;
  return TranslateLocation(call, &properties->location);
}

}  // namespace

absl::Status MemAddressReserve(const wire::MemAddressReserveRequest& request, Call& call,
                               wire::MemAddressReserveReply* reply) {
  if (request.flags != 0) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", request.flags));
  }
  ASSIGN_OR_RETURN(reply->ptr, call.resources().allocator->ReserveAddresses(
                                   request.size, request.alignment, request.addr));
  return absl::OkStatus();
}

absl::Status MemAddressFree(const wire::MemAddressFreeRequest& request, Call& call,
                            wire::MemAddressFreeReply* reply) {
  if (call.resources().program_mappings.Overlaps(request.ptr, request.size)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "memory is still mapped in the range");
  }
  return call.resources().allocator->ReleaseAddresses(request.ptr, request.size);
}

absl::Status MemCreate(const wire::MemCreateRequest& request, Call& call,
                       wire::MemCreateReply* reply) {
  CUmemAllocationProp properties = request.prop;
  const int device = properties.location.id;
  RETURN_IF_ERROR(TranslateProperties(call, &properties));
  // What no card would give is not a question of quota.
  size_t granularity = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuMemGetAllocationGranularity(
      &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  if (request.size == 0 || (granularity != 0 && request.size % granularity != 0)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat(request.size, " bytes, not a multiple of ", granularity));
  }
  ASSIGN_OR_RETURN(memory::Reservation charge,
                   call.resources().ledger->Reserve(device, request.size));
  PhysicalMemory memory;
  RETURN_IF_CUDA_ERROR(
      call.driver().cuMemCreate(&memory.handle, request.size, &properties, request.flags));
  memory.bytes = request.size;
  memory.device = device;
  memory.charge = std::make_shared<memory::Reservation>(std::move(charge));
  const CUmemGenericAllocationHandle handle = memory.handle;
  const absl::Status named =
      call.Named(call.objects().physical_memory.Insert(request.handle, std::move(memory)));
  if (!named.ok()) call.driver().cuMemRelease(handle);
  return named;
}

absl::Status MemRelease(const wire::MemReleaseRequest& request, Call& call,
                        wire::MemReleaseReply* reply) {
  PhysicalMemory memory;
  RETURN_IF_ERROR(call.objects().physical_memory.Find(request.handle, &memory));
  RETURN_IF_CUDA_ERROR(call.driver().cuMemRelease(memory.handle));
  call.objects().physical_memory.Erase(request.handle);
  return absl::OkStatus();
}

absl::Status MemMap(const wire::MemMapRequest& request, Call& call, wire::MemMapReply* reply) {
  PhysicalMemory memory;
  RETURN_IF_ERROR(call.objects().physical_memory.Find(request.handle, &memory));
  // Only into ranges that the program has reserved: the rest of the window is cuMemAlloc's.
  if (!call.resources().allocator->IsReserved(request.ptr, request.size)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("no reserved range holds ", request.size, " bytes at 0x",
                                  absl::Hex(request.ptr)));
  }
  RETURN_IF_CUDA_ERROR(call.driver().cuMemMap(request.ptr, request.size, request.offset,
                                              memory.handle, request.flags));
  call.resources().program_mappings.Add(request.ptr, request.size, memory.charge);
  return absl::OkStatus();
}

absl::Status MemUnmap(const wire::MemUnmapRequest& request, Call& call,
                      wire::MemUnmapReply* reply) {
  if (!call.resources().allocator->IsReserved(request.ptr, request.size)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "no reserved range holds the mapping");
  }
  RETURN_IF_CUDA_ERROR(call.driver().cuMemUnmap(request.ptr, request.size));
  call.resources().program_mappings.Remove(request.ptr, request.size);
  return absl::OkStatus();
}

absl::Status MemSetAccess(const wire::MemSetAccessRequest& request, Call& call,
                          wire::MemSetAccessReply* reply) {
  if (!call.resources().allocator->IsReserved(request.ptr, request.size)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "no reserved range holds the memory");
  }
  if (request.desc.empty() || request.desc.size() > kMaxAccessDescriptions) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat(request.desc.size(), " access descriptions"));
  }
  std::vector<CUmemAccessDesc> descriptions = request.desc;
  for (CUmemAccessDesc& description : descriptions) {
    RETURN_IF_ERROR(TranslateLocation(call, &description.location));
  }
  RETURN_IF_CUDA_ERROR(call.driver().cuMemSetAccess(request.ptr, request.size, descriptions.data(),
                                                    descriptions.size()));
  return absl::OkStatus();
}

absl::Status MemGetAccess(const wire::MemGetAccessRequest& request, Call& call,
                          wire::MemGetAccessReply* reply) {
  CUmemLocation location = request.location;
  RETURN_IF_ERROR(TranslateLocation(call, &location));
  unsigned long long flags = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuMemGetAccess(&flags, &location, request.ptr));
  reply->flags = flags;
  return absl::OkStatus();
}

absl::Status MemGetAllocationGranularity(const wire::MemGetAllocationGranularityRequest& request,
                                         Call& call,
                                         wire::MemGetAllocationGranularityReply* reply) {
  CUmemAllocationProp properties = request.prop;
  RETURN_IF_ERROR(TranslateProperties(call, &properties));
  size_t granularity = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuMemGetAllocationGranularity(
      &granularity, &properties, static_cast<CUmemAllocationGranularity_flags>(request.option)));
  reply->granularity = granularity;
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
