// Device memory: cuMemAlloc and friends. Reserve in the ledger first, then ask the driver; the
// allocator does both.
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "memory/address_space.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// What cuMemAllocPitch pads rows to on every card so far.
constexpr uint64_t kPitchAlignment = 512;

// A context in which a kernel has failed says so from every call. What is answered here without the
// driver must say it too, so the driver is asked something that it answers in any other state.
absl::Status CheckHealth(Call& call) {
  size_t free = 0;
  size_t total = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuMemGetInfo_v2(&free, &total));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Allocate(Call& call, uint64_t bytes) {
  Context context;
  RETURN_IF_ERROR(call.CurrentContext(&context));
  RETURN_IF_ERROR(CheckHealth(call));
  return call.resources().allocator->Allocate(context.device,
                                              reinterpret_cast<uint64_t>(context.handle), bytes);
}

}  // namespace

absl::Status MemGetInfoV2(const wire::MemGetInfoV2Request& request, Call& call,
                          wire::MemGetInfoV2Reply* reply) {
  Context context;
  RETURN_IF_ERROR(call.CurrentContext(&context));
  RETURN_IF_ERROR(CheckHealth(call));
  // The program sees the lease as its card.
  reply->total = call.resources().ledger->limit_bytes();
  reply->free = call.resources().allocator->FreeBytes(context.device);
  return absl::OkStatus();
}

absl::Status MemAllocV2(const wire::MemAllocV2Request& request, Call& call,
                        wire::MemAllocV2Reply* reply) {
  ASSIGN_OR_RETURN(reply->dptr, Allocate(call, request.bytesize));
  return absl::OkStatus();
}

absl::Status MemAllocPitchV2(const wire::MemAllocPitchV2Request& request, Call& call,
                             wire::MemAllocPitchV2Reply* reply) {
  const uint32_t element = request.ElementSizeBytes;
  if (element != 4 && element != 8 && element != 16) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("elements of ", element, " bytes; 4, 8 and 16 are possible"));
  }
  const std::optional<uint64_t> pitch = memory::RoundUp(request.WidthInBytes, kPitchAlignment);
  if (request.WidthInBytes == 0 || request.Height == 0) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "an allocation without width or height");
  }
  if (!pitch.has_value() || request.Height > UINT64_MAX / *pitch) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat(request.Height, " rows of ", request.WidthInBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(reply->dptr, Allocate(call, *pitch * request.Height));
  reply->pitch = *pitch;
  return absl::OkStatus();
}

absl::Status MemFreeV2(const wire::MemFreeV2Request& request, Call& call,
                       wire::MemFreeV2Reply* reply) {
  if (request.dptr == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckHealth(call));
  return call.resources().allocator->Free(request.dptr);
}

}  // namespace fargpu::server::handlers
