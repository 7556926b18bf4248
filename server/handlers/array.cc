// CUDA arrays and mipmapped arrays. The driver keeps them where it wants, so what they cost is
// computed: rows at the pitch that cards use.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "memory/address_space.h"
#include "protocol/array_format.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

constexpr uint64_t kRowAlignment = 512;
// Of formats without elements of a size of their own; no format has more.
constexpr uint64_t kMostElementBytes = 16;

absl::StatusOr<uint64_t> ArrayBytes(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  uint64_t element = ArrayElementBytes(descriptor.Format, descriptor.NumChannels);
  if (element == 0) element = kMostElementBytes;
  uint64_t row = 0, slice = 0, bytes = 0;
  const bool overflow = __builtin_mul_overflow(descriptor.Width, element, &row);
  const std::optional<uint64_t> pitch = memory::RoundUp(row, kRowAlignment);
  if (overflow || !pitch.has_value() ||
      __builtin_mul_overflow(*pitch, std::max<uint64_t>(descriptor.Height, 1), &slice) ||
      __builtin_mul_overflow(slice, std::max<uint64_t>(descriptor.Depth, 1), &bytes)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("an array of ", descriptor.Width, "x", descriptor.Height, "x",
                                  descriptor.Depth));
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<memory::Reservation>> Charge(Call& call, uint64_t bytes) {
  Context context;
  RETURN_IF_ERROR(call.CurrentContext(&context));
  ASSIGN_OR_RETURN(memory::Reservation charge,
                   call.resources().ledger->Reserve(context.device, bytes));
  return std::make_shared<memory::Reservation>(std::move(charge));
}

}  // namespace

absl::Status Array3DCreateV2(const wire::Array3DCreateV2Request& request, Call& call,
                             wire::Array3DCreateV2Reply* reply) {
  if (request.array.value == 0) return call.Malformed("an array is given the id 0");
  ASSIGN_OR_RETURN(const uint64_t bytes, ArrayBytes(request.descriptor));
  Array array;
  ASSIGN_OR_RETURN(array.charge, Charge(call, bytes));
  RETURN_IF_CUDA_ERROR(call.driver().cuArray3DCreate_v2(&array.handle, &request.descriptor));
  const CUarray handle = array.handle;
  const absl::Status named = call.Named(
      call.objects().arrays.Insert(request.array, std::move(array), call.header().context));
  if (!named.ok()) call.driver().cuArrayDestroy(handle);
  return named;
}

absl::Status ArrayDestroy(const wire::ArrayDestroyRequest& request, Call& call,
                          wire::ArrayDestroyReply* reply) {
  Array array;
  RETURN_IF_ERROR(call.objects().arrays.Find(request.array, &array));
  if (array.mipmapped_array != 0) return call.Malformed("a level is destroyed by itself");
  RETURN_IF_CUDA_ERROR(call.driver().cuArrayDestroy(array.handle));
  call.objects().arrays.Erase(request.array);
  return absl::OkStatus();
}

absl::Status MipmappedArrayCreate(const wire::MipmappedArrayCreateRequest& request, Call& call,
                                  wire::MipmappedArrayCreateReply* reply) {
  if (request.levels > kMaxMipmapLevels || request.array.value == 0 ||
      request.first_level.value == 0) {
    return call.Malformed(absl::StrCat("a mipmapped array of ", request.levels, " levels"));
  }
  uint64_t bytes = 0;
  for (unsigned level = 0; level < request.levels; ++level) {
    ASSIGN_OR_RETURN(const uint64_t more,
                     ArrayBytes(MipmapLevelDescriptor(request.descriptor, level)));
    if (__builtin_add_overflow(bytes, more, &bytes)) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "a mipmapped array that is too large");
    }
  }
  MipmappedArray array;
  ASSIGN_OR_RETURN(array.charge, Charge(call, bytes));
  RETURN_IF_CUDA_ERROR(
      call.driver().cuMipmappedArrayCreate(&array.handle, &request.descriptor, request.levels));
  const CUmipmappedArray handle = array.handle;
  absl::Status named = call.Named(call.objects().mipmapped_arrays.Insert(
      request.array, std::move(array), call.header().context));
  // The driver may have made fewer than were asked for.
  for (unsigned level = 0; level < request.levels && named.ok(); ++level) {
    Array part;
    if (call.driver().cuMipmappedArrayGetLevel(&part.handle, handle, level) != CUDA_SUCCESS) break;
    part.mipmapped_array = request.array.value;
    named = call.Named(call.objects().arrays.Insert({request.first_level.value + level},
                                                    std::move(part), call.header().context));
    reply->levels = level + 1;
  }
  if (!named.ok()) call.driver().cuMipmappedArrayDestroy(handle);
  return named;
}

absl::Status MipmappedArrayDestroy(const wire::MipmappedArrayDestroyRequest& request, Call& call,
                                   wire::MipmappedArrayDestroyReply* reply) {
  MipmappedArray array;
  RETURN_IF_ERROR(call.objects().mipmapped_arrays.Find(request.array, &array));
  RETURN_IF_CUDA_ERROR(call.driver().cuMipmappedArrayDestroy(array.handle));
  call.objects().arrays.EraseIf([&](const Array& level, wire::ContextId) {
    return level.mipmapped_array == request.array.value;
  });
  call.objects().mipmapped_arrays.Erase(request.array);
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
