// Green contexts: parts of a card's multiprocessors. They share memory, modules and errors with the
// primary context; work of theirs may use all cores of the host, as that of any context.

#include <cstring>

#include "softgpu/driver/edge.h"
#include "softgpu/driver/green_context.h"

namespace fargpu::softgpu {
namespace {

// On cards since capability 9.0, parts have so many multiprocessors, or a multiple.
constexpr unsigned kPartition = 8;

// What we keep in the part of a CUdevResource that is nobody's business.
struct Origin {
  static constexpr uint32_t kMagic = 0x5ac7e5;
  uint32_t magic = 0;
  int32_t device = -1;
  uint64_t split = 0;  // the call that made it; 0: it is a whole context's or device's
};

// By value: `padding` is not aligned for it.
Origin OriginOf(const CUdevResource& resource) {
  Origin origin;
  std::memcpy(&origin, resource._internal_padding, sizeof origin);
  return origin;
}

CUdevResource MakeResource(unsigned multiprocessors, int device, uint64_t split,
                           unsigned alignment = kPartition) {
  CUdevResource resource;
  std::memset(&resource, 0, sizeof resource);
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  const Origin origin = {Origin::kMagic, device, split};
  static_assert(sizeof origin <= sizeof resource._internal_padding);
  std::memcpy(resource._internal_padding, &origin, sizeof origin);
  resource.sm.smCount = multiprocessors;
  // A card with fewer is one part.
  resource.sm.minSmPartitionSize = std::min(alignment, multiprocessors);
  resource.sm.smCoscheduledAlignment = std::min(alignment, multiprocessors);
  return resource;
}

absl::Status CheckType(CUdevResourceType type) {
  if (type == CU_DEV_RESOURCE_TYPE_SM) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_RESOURCE_TYPE,
                   absl::StrCat("resource type ", static_cast<int>(type)));
}

absl::Status CheckResource(const CUdevResource& resource) {
  RETURN_IF_ERROR(CheckType(resource.type));
  if (OriginOf(resource).magic == Origin::kMagic) return absl::OkStatus();
  return InvalidValue("a resource that no call of the driver gave");
}

unsigned Multiprocessors(const Driver& driver, int device) {
  return static_cast<unsigned>(driver.config().devices[device].multiprocessors);
}

absl::StatusOr<std::shared_ptr<GreenContext>> FindGreen(Driver& driver, CUgreenCtx handle) {
  if (std::shared_ptr<GreenContext> green = driver.green_contexts.Find(handle)) return green;
  return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such green context");
}

absl::Status Split(CUdevResource* result, unsigned* groups, const CUdevResource& input,
                   CUdevResource* remaining, unsigned flags, unsigned least) {
  RETURN_IF_ERROR(CheckResource(input));
  constexpr unsigned kKnown = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                              CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
  if ((flags & ~kKnown) != 0) return InvalidValue(absl::StrCat("useFlags ", flags));
  const Origin origin = OriginOf(input);
  const auto impossible = [](absl::string_view what) {
    return CudaError(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, what);
  };
  if (origin.split != 0) return impossible("a part cannot be split before a green context has it");
  const unsigned all = input.sm.smCount;
  if (least > all) {
    return InvalidValue(absl::StrCat("minCount ", least, " of ", all, " multiprocessors"));
  }
  unsigned unit = (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0 ? 1 : kPartition;
  unit = std::min(unit, all);
  // A cluster that is not portable has up to 16 blocks.
  if ((flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) != 0) {
    unit = std::min(2 * kPartition, all);
  }
  const unsigned size = (std::max(least, 1u) + unit - 1) / unit * unit;
  const unsigned possible = all / size;
  const unsigned made = result == nullptr ? possible : std::min(*groups, possible);
  if (made == 0) {
    return impossible(absl::StrCat("parts of ", size, " of ", all, " multiprocessors"));
  }
  static std::atomic<uint64_t> next_split{1};
  const uint64_t split = next_split.fetch_add(1);
  *groups = made;
  for (unsigned k = 0; k < made && result != nullptr; ++k) {
    result[k] = MakeResource(size, origin.device, split, unit);
  }
  if (remaining != nullptr) {
    *remaining = MakeResource(all - made * size, origin.device, split, unit);
    if (remaining->sm.smCount == 0) remaining->type = CU_DEV_RESOURCE_TYPE_INVALID;
  }
  return absl::OkStatus();
}

absl::Status MakeDescription(Driver& driver, CUdevResourceDesc* out, const CUdevResource* resources,
                             unsigned count) {
  RETURN_IF_NULL(out);
  RETURN_IF_NULL(resources);
  if (count == 0) return InvalidValue("no resources");
  auto description = std::make_shared<ResourceDescription>();
  for (unsigned k = 0; k < count; ++k) {
    RETURN_IF_ERROR(CheckResource(resources[k]));
    const Origin origin = OriginOf(resources[k]);
    const Origin first = OriginOf(resources[0]);
    if (origin.device != first.device || origin.split != first.split ||
        (count > 1 && origin.split == 0)) {
      return CudaError(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                       "resources that are not of one split of one device");
    }
    description->device = origin.device;
    description->multiprocessors += resources[k].sm.smCount;
  }
  const CUdevResourceDesc handle = driver.resource_descriptions.NewHandle();
  driver.resource_descriptions.Insert(handle, description);
  *out = handle;
  return absl::OkStatus();
}

absl::Status CreateGreen(Driver& driver, CUgreenCtx* out, CUdevResourceDesc description_handle,
                         CUdevice device, unsigned flags) {
  RETURN_IF_NULL(out);
  RETURN_IF_ERROR(driver.CheckDevice(device));
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) {
    return InvalidValue(absl::StrCat("flags ", flags, ": CU_GREEN_CTX_DEFAULT_STREAM is required"));
  }
  const auto description = driver.resource_descriptions.Find(description_handle);
  if (description == nullptr || description->device != device) {
    return InvalidValue("no description of resources of this device");
  }
  CUcontext primary = nullptr;
  if (const CUresult retained = cuDevicePrimaryCtxRetain(&primary, device);
      retained != CUDA_SUCCESS) {
    return CudaError(retained, "the primary context");
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Context> context, driver.FindContext(primary));
  auto green = std::make_shared<GreenContext>();
  green->handle = driver.green_contexts.NewHandle();
  green->context_handle = driver.contexts.NewHandle();
  green->id = NewHandleValue();
  green->device = device;
  green->multiprocessors = description->multiprocessors;
  // A second name of the primary context.
  driver.contexts.Insert(green->context_handle, context);
  driver.green_contexts.Insert(green->handle, green);
  *out = green->handle;
  return absl::OkStatus();
}

// An event that is reached when all that is queued on `streams` has run.
absl::Status RecordAll(Driver& driver, Context& context,
                       const std::vector<std::shared_ptr<Stream>>& streams, CUevent event) {
  std::vector<WorkQueue::Dependency> after;
  for (const std::shared_ptr<Stream>& stream : streams) {
    if (stream->is_capturing()) {
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                       "a stream of the context is captured");
    }
    after.push_back({stream->queue, stream->queue->submitted()});
  }
  const std::shared_ptr<Stream> join = context.CreateStream(CU_STREAM_NON_BLOCKING, 0);
  absl::Status status = context
                            .Enqueue(*join, nullptr, RunOn::kAnyThread, Wake::kYes,
                                     Context::Eager::kNo, std::move(after))
                            .status();
  if (status.ok()) status = RecordEvent(driver, context, *join, event);
  context.ForgetStream(join);
  return status;
}

absl::Status WaitAll(Driver& driver, Context& context,
                     const std::vector<std::shared_ptr<Stream>>& streams, CUevent handle) {
  const std::shared_ptr<Event> event = driver.events.Find(handle);
  if (event == nullptr) return InvalidHandle("not an event");
  for (const std::shared_ptr<Stream>& stream : streams) {
    RETURN_IF_ERROR(WaitForEvent(context, *stream, *event));
  }
  return absl::OkStatus();
}

// The streams of `green` that are still there.
std::vector<std::shared_ptr<Stream>> StreamsOf(GreenContext& green, Context& context) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (const std::shared_ptr<Stream>& stream : context.Streams()) {
    if (stream->green == green.handle) streams.push_back(stream);
  }
  return streams;
}

}  // namespace

CUresult Do_cuStreamGetCtx_v2(const char* call, NullStream null, CUstream handle, CUcontext* out,
                              CUgreenCtx* green) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context& context, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(out);
        RETURN_IF_NULL(green);
        // One of the two is null.
        *green = stream.green;
        *out = stream.green == nullptr ? context.handle : nullptr;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API_TWINS(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext* out, CUgreenCtx* green), stream,
             out, green);

CU_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* out,
                                       CUdevResourceType type) {
  return WithDriver("cuDeviceGetDevResource", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    RETURN_IF_ERROR(CheckType(type));
    *out = MakeResource(Multiprocessors(driver, device), device, 0);
    return absl::OkStatus();
  });
}

CU_API CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource* out, CUdevResourceType type) {
  return WithDriver("cuCtxGetDevResource", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(CheckType(type));
    ASSIGN_OR_RETURN(const std::shared_ptr<Context> context, driver.FindContext(handle));
    unsigned count = Multiprocessors(driver, context->device);
    for (const std::shared_ptr<GreenContext>& green : driver.green_contexts.All()) {
      if (green->context_handle == handle) count = green->multiprocessors;
    }
    *out = MakeResource(count, context->device, 0);
    return absl::OkStatus();
  });
}

CU_API CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* out,
                                         CUdevResourceType type) {
  return WithDriver("cuGreenCtxGetDevResource", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_ERROR(CheckType(type));
    ASSIGN_OR_RETURN(const auto green, FindGreen(driver, handle));
    *out = MakeResource(green->multiprocessors, green->device, 0);
    return absl::OkStatus();
  });
}

CU_API CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups,
                                            const CUdevResource* input, CUdevResource* remaining,
                                            unsigned flags, unsigned least) {
  return WithDriver("cuDevSmResourceSplitByCount", [&](Driver&) -> absl::Status {
    RETURN_IF_NULL(groups);
    RETURN_IF_NULL(input);
    return Split(result, groups, *input, remaining, flags, least);
  });
}

CU_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* out, CUdevResource* resources,
                                          unsigned count) {
  return WithDriver("cuDevResourceGenerateDesc",
                    [&](Driver& driver) { return MakeDescription(driver, out, resources, count); });
}

CU_API CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc description, CUdevice device,
                                 unsigned flags) {
  return WithDriver("cuGreenCtxCreate", [&](Driver& driver) {
    return CreateGreen(driver, out, description, device, flags);
  });
}

CU_API CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  return WithDriver("cuGreenCtxDestroy", [&](Driver& driver) -> absl::Status {
    const std::shared_ptr<GreenContext> green = driver.green_contexts.Remove(handle);
    if (green == nullptr) return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such green context");
    const std::shared_ptr<Context> context = driver.contexts.Remove(green->context_handle);
    // After a reset the primary context, and our reference to it, is gone.
    if (context == nullptr) return absl::OkStatus();
    (void)context->SynchronizeAll();
    for (const std::shared_ptr<Stream>& stream : StreamsOf(*green, *context)) {
      driver.streams.Remove(stream->handle);
      context->ForgetStream(stream);
    }
    const CUresult released = cuDevicePrimaryCtxRelease(green->device);
    return released == CUDA_SUCCESS ? absl::OkStatus() : CudaError(released, "primary context");
  });
}

CU_API CUresult cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  return WithDriver("cuCtxFromGreenCtx", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const auto green, FindGreen(driver, handle));
    *out = green->context_handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  return WithDriver("cuGreenCtxGetId", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(id);
    ASSIGN_OR_RETURN(const auto green, FindGreen(driver, handle));
    *id = green->id;
    return absl::OkStatus();
  });
}

CU_API CUresult cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx handle, unsigned flags,
                                       int priority) {
  return WithDriver("cuGreenCtxStreamCreate", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const auto green, FindGreen(driver, handle));
    if (flags != CU_STREAM_NON_BLOCKING) {
      return InvalidValue(absl::StrCat("stream flags 0x", absl::Hex(flags),
                                       ": CU_STREAM_NON_BLOCKING is required"));
    }
    ASSIGN_OR_RETURN(const auto context, driver.FindContext(green->context_handle));
    if (context->failed()) return context->error();
    priority = std::max(kGreatestStreamPriority, std::min(kLeastStreamPriority, priority));
    const std::shared_ptr<Stream> stream = context->CreateStream(flags, priority, green->handle);
    stream->handle = driver.streams.NewHandle();
    driver.streams.Insert(stream->handle, stream);
    *out = stream->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuStreamGetGreenCtx(CUstream stream_handle, CUgreenCtx* out) {
  return WithStream(
      "cuStreamGetGreenCtx", NullStream::kLegacy, stream_handle,
      [&](Driver&, Context&, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(out);
        *out = stream.green;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CU_API CUresult cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
  return WithDriver("cuGreenCtxRecordEvent", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const auto green, FindGreen(driver, handle));
    ASSIGN_OR_RETURN(const auto context, driver.FindContext(green->context_handle));
    return RecordAll(driver, *context, StreamsOf(*green, *context), event);
  });
}

CU_API CUresult cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
  return WithDriver("cuGreenCtxWaitEvent", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const auto green, FindGreen(driver, handle));
    ASSIGN_OR_RETURN(const auto context, driver.FindContext(green->context_handle));
    return WaitAll(driver, *context, StreamsOf(*green, *context), event);
  });
}

CU_API CUresult cuCtxRecordEvent(CUcontext handle, CUevent event) {
  return WithDriver("cuCtxRecordEvent", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const auto context, driver.FindContext(handle));
    std::vector<std::shared_ptr<Stream>> streams = context->Streams();
    streams.push_back(context->legacy_stream());
    return RecordAll(driver, *context, streams, event);
  });
}

CU_API CUresult cuCtxWaitEvent(CUcontext handle, CUevent event) {
  return WithDriver("cuCtxWaitEvent", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const auto context, driver.FindContext(handle));
    std::vector<std::shared_ptr<Stream>> streams = context->Streams();
    streams.push_back(context->legacy_stream());
    return WaitAll(driver, *context, streams, event);
  });
}
