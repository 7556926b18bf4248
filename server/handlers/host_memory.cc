// Memory of the card that stands for memory of the client's process (docs/design/011).
#include <numeric>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "memory/address_space.h"
#include "protocol/wire/frame.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// Room that both cards and the memory of slabs are happy with.
constexpr uint64_t kUnit = 2 << 20;

// Runs `function` with a context that is current. Managed variables are used before the program has
// any: the primary context of the first device is borrowed then.
template <typename Function>
absl::Status InSomeContext(Call& call, Function function) {
  Context context;
  if (call.header().context.value != 0 && call.CurrentContext(&context).ok()) {
    return function(call.header().context);
  }
  const CUdevice device = call.resources().devices[0];
  RETURN_IF_CUDA_ERROR(call.driver().cuDevicePrimaryCtxRetain(&context.handle, device));
  const CUresult pushed = call.driver().cuCtxPushCurrent_v2(context.handle);
  absl::Status status = FromCuResult(pushed, "cuCtxPushCurrent");
  if (status.ok()) {
    status = function(wire::ContextId{});
    CUcontext popped = nullptr;
    call.driver().cuCtxPopCurrent_v2(&popped);
  }
  // Its streams go with the context if this was the last that held it.
  call.resources().shared_memory.ForgetContext(wire::ContextId{});
  call.driver().cuDevicePrimaryCtxRelease_v2(device);
  return status;
}

}  // namespace

absl::Status SharedReserve(const wire::SharedReserveRequest& request, Call& call,
                           wire::SharedReserveReply* reply) {
  if (request.bytes == 0 || request.bytes % kUnit != 0) {
    return call.Malformed(
        absl::StrCat("shared memory of ", request.bytes, " bytes; the unit is ", kUnit));
  }
  ASSIGN_OR_RETURN(reply->address,
                   call.resources().allocator->ReserveAddresses(request.bytes, kUnit, 0));
  return absl::OkStatus();
}

absl::Status SharedBack(const wire::SharedBackRequest& request, Call& call,
                        wire::SharedBackReply* reply) {
  Context context;
  RETURN_IF_ERROR(call.CurrentContext(&context));
  return call.resources().allocator->Back(
      context.device, reinterpret_cast<uint64_t>(context.handle), request.address, request.bytes);
}

absl::Status SharedRelease(const wire::SharedReleaseRequest& request, Call& call,
                           wire::SharedReleaseReply* reply) {
  call.resources().shared_memory.Unwatch(request.address);
  // It is gone already if its context is: the program hears of that elsewhere.
  if (call.resources().allocator->Free(request.address).ok()) return absl::OkStatus();
  call.resources().allocator->ReleaseAddresses(request.address, request.bytes).IgnoreError();
  return absl::OkStatus();
}

absl::Status SharedWrite(const wire::SharedWriteRequest& request, Call& call,
                         wire::SharedWriteReply* reply) {
  const uint64_t bytes = std::accumulate(request.sizes.begin(), request.sizes.end(), uint64_t{0});
  if (request.addresses.size() != request.sizes.size() || bytes != call.bulk().size()) {
    return call.Malformed(absl::StrCat(request.addresses.size(), " runs of ", bytes,
                                       " bytes came with ", call.bulk().size()));
  }
  return InSomeContext(call, [&](wire::ContextId context) {
    return call.resources().shared_memory.Write(context, request.addresses, request.sizes,
                                                call.bulk());
  });
}

absl::Status SharedRead(const wire::SharedReadRequest& request, Call& call,
                        wire::SharedReadReply* reply) {
  if (request.bytes == 0 || request.bytes > wire::kMaxBulkBytes) {
    return call.Malformed(
        absl::StrCat("a read of ", request.bytes, " bytes; a frame carries ", wire::kMaxBulkBytes));
  }
  transport::Message bytes = transport::NewMessage(request.bytes);
  RETURN_IF_ERROR(InSomeContext(call, [&](wire::ContextId context) {
    return call.resources().shared_memory.Read(
        context, request.address,
        absl::MakeSpan(bytes.storage.get(), static_cast<size_t>(request.bytes)));
  }));
  call.SetReplyBulk(std::move(bytes));
  return absl::OkStatus();
}

absl::Status SharedWatch(const wire::SharedWatchRequest& request, Call& call,
                         wire::SharedWatchReply* reply) {
  return call.resources().shared_memory.Watch(request.address, request.bytes);
}

absl::Status SharedUnwatch(const wire::SharedUnwatchRequest& request, Call& call,
                           wire::SharedUnwatchReply* reply) {
  call.resources().shared_memory.Unwatch(request.address);
  return absl::OkStatus();
}

absl::Status SharedChanges(const wire::SharedChangesRequest& request, Call& call,
                           wire::SharedChangesReply* reply) {
  return InSomeContext(call, [&](wire::ContextId context) -> absl::Status {
    ASSIGN_OR_RETURN(SharedMemory::Changes changes,
                     call.resources().shared_memory.TakeChanges(context, request.from));
    reply->addresses = std::move(changes.addresses);
    reply->sizes = std::move(changes.sizes);
    reply->words = std::move(changes.words);
    reply->next = changes.next;
    return absl::OkStatus();
  });
}

}  // namespace fargpu::server::handlers
