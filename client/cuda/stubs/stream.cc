// Streams: creation, and what is known of them here.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status CheckStream(Session& session, CUstream stream, DefaultStream default_stream) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  wire::StreamId id;
  return session.ToWire(stream, default_stream, &id);
}

absl::Status CheckFlags(unsigned flags) {
  if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags 0x", absl::Hex(flags)));
}

// Creates the stream that `request` asks for and remembers what the program may ask of it.
template <typename Request>
absl::Status CreateStream(Session& session, Request request, CUstream* stream, unsigned flags,
                          int priority) {
  RETURN_IF_ERROR(NotNull(stream, "phStream"));
  RETURN_IF_ERROR(CheckFlags(flags));
  CUstream created = nullptr;
  RETURN_IF_ERROR(session.Create(&created, &request.phStream));
  if (absl::Status sent = session.Send(request); !sent.ok()) {
    session.Destroy(created);
    return sent;
  }
  HandleSlot* slot = session.MutableStream(created);
  slot->flags = flags;
  slot->priority = priority;
  *stream = created;
  return absl::OkStatus();
}

}  // namespace

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return AtCudaEdge("cuStreamCreate", [&](Session& session) {
    return CreateStream(session, wire::StreamCreateRequest{.Flags = Flags}, phStream, Flags, 0);
  });
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  return AtCudaEdge("cuStreamCreateWithPriority", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    const DeviceInfo& device = session.devices()[context->device];
    // As CUDA documents: priorities outside the range become the nearest in it. Less is more.
    const int clamped =
        std::max(std::min(priority, device.least_stream_priority), device.greatest_stream_priority);
    return CreateStream(session,
                        wire::StreamCreateWithPriorityRequest{.flags = flags, .priority = clamped},
                        phStream, flags, clamped);
  });
}

CUresult cuStreamDestroy(CUstream hStream) { return api::cuStreamDestroy_v2(hStream); }

CUresult cuStreamGetPriority(DefaultStream default_stream, CUstream hStream, int* priority) {
  return AtCudaEdge("cuStreamGetPriority", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(priority, "priority"));
    RETURN_IF_ERROR(CheckStream(session, hStream, default_stream));
    const HandleSlot* slot = session.FindStream(hStream);
    *priority = slot != nullptr ? slot->priority : 0;
    return absl::OkStatus();
  });
}

CUresult cuStreamGetFlags(DefaultStream default_stream, CUstream hStream, unsigned int* flags) {
  return AtCudaEdge("cuStreamGetFlags", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(flags, "flags"));
    RETURN_IF_ERROR(CheckStream(session, hStream, default_stream));
    const HandleSlot* slot = session.FindStream(hStream);
    *flags = slot != nullptr ? slot->flags : static_cast<unsigned>(CU_STREAM_DEFAULT);
    return absl::OkStatus();
  });
}

CUresult cuStreamGetId(DefaultStream default_stream, CUstream hStream,
                       unsigned long long* streamId) {
  return AtCudaEdge("cuStreamGetId", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(streamId, "streamId"));
    wire::StreamId id;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &id));
    if (id.value >= Session::kFirstId) {
      *streamId = id.value;
      return absl::OkStatus();
    }
    // Each context has a legacy default stream, and each thread in it one of its own.
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    const bool per_thread = hStream == CU_STREAM_PER_THREAD || id.value == 2;
    *streamId =
        (uint64_t{1} << 63) | context->id.value << 32 | (per_thread ? CurrentThread().number : 0);
    return absl::OkStatus();
  });
}

CUresult cuStreamGetCtx(DefaultStream default_stream, CUstream hStream, CUcontext* pctx) {
  return AtCudaEdge("cuStreamGetCtx", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pctx, "pctx"));
    RETURN_IF_ERROR(CheckStream(session, hStream, default_stream));
    if (const HandleSlot* slot = session.FindStream(hStream)) {
      *pctx = slot->context;
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    *pctx = context->handle;
    return absl::OkStatus();
  });
}

CUresult cuStreamGetDevice(DefaultStream default_stream, CUstream hStream, CUdevice* device) {
  return AtCudaEdge("cuStreamGetDevice", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(device, "device"));
    CUcontext owner = nullptr;
    RETURN_IF_ERROR(FromCuResult(api::cuStreamGetCtx(default_stream, hStream, &owner),
                                 "context of the stream"));
    ASSIGN_OR_RETURN(const Context* context, session.FindContext(owner));
    *device = context->device;
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
