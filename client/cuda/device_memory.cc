#include "client/cuda/device_memory.h"

#include "absl/strings/str_cat.h"

#include "client/cuda/copying.h"

namespace fargpu::client {

absl::Status RememberDeviceMemory(Session& session, CUdeviceptr dptr, size_t bytes,
                                  CUmemoryPool pool, Maker maker) {
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  const absl::Status inserted = session.device_memory().Insert({.begin = dptr,
                                                                .bytes = bytes,
                                                                .context = context->handle,
                                                                .device = context->device,
                                                                .imported = maker == Maker::kOther,
                                                                .pool = pool});
  const bool inside = !session.window().known() || session.window().Contains(dptr);
  if (inserted.ok() && inside && dptr != 0) {
    if (pool != nullptr) session.pools().CountUse(pool, bytes);
    return absl::OkStatus();
  }
  session.calls().Distrust(absl::InvalidArgumentError(
      absl::StrCat("the worker allocates 0x", absl::Hex(dptr),
                   inside ? ", which overlaps what it gave before" : " outside the window")));
  return session.calls().status();
}

absl::Status AllocateDeviceMemory(Session& session, size_t bytes, CUmemoryPool pool,
                                  CUdeviceptr* dptr) {
  if (bytes == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "bytesize is 0");
  wire::MemAllocV2Request request{.bytesize = bytes};
  wire::MemAllocV2Reply reply;
  RETURN_IF_ERROR(session.Call(request, &reply));
  RETURN_IF_ERROR(RememberDeviceMemory(session, reply.dptr, bytes, pool));
  *dptr = reply.dptr;
  return absl::OkStatus();
}

namespace {

// Its address stays the graph's.
absl::Status FreeGraphMemory(Session& session, CUdeviceptr dptr) {
  Graphs& graphs = session.graphs();
  MutexLock lock(&graphs.mutex);
  const std::shared_ptr<GraphMemory> memory = graphs.FindMemory(dptr);
  if (memory == nullptr || !memory->live) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("no launch of a graph has allocated 0x", absl::Hex(dptr)));
  }
  graphs.SetLive(*memory, false);
  return absl::OkStatus();
}

}  // namespace

absl::Status FreeDeviceMemory(Session& session, CUdeviceptr dptr) {
  const std::optional<MemoryRange> range = session.device_memory().Find(dptr);
  if (!range.has_value() || range->begin != dptr || range->reserved || range->variable ||
      range->imported) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("0x", absl::Hex(dptr), " begins no allocation"));
  }
  if (range->graph) return FreeGraphMemory(session, dptr);
  if (range->managed) {
    // Part of a range that the worker knows as one: nothing may use it any more. A broken context
    // says so elsewhere.
    SynchronizeContext(session).IgnoreError();
    session.device_memory().Remove(dptr);
    session.managed_ranges().Remove(dptr, range->bytes);
    session.shared().Free(dptr);
    return absl::OkStatus();
  }
  // Removed first: once it is sent, another thread may be given the same address.
  session.device_memory().Remove(dptr);
  if (absl::Status sent = session.Send(wire::MemFreeV2Request{.dptr = dptr}); !sent.ok()) {
    session.device_memory().Insert(*range).IgnoreError();
    return sent;
  }
  if (range->pool != nullptr) session.pools().CountFree(range->pool, range->bytes);
  return absl::OkStatus();
}

}  // namespace fargpu::client
