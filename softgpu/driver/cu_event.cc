// Events.

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

constexpr unsigned kKnownEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

// The event, its latest record (nullptr if none) and its context, which must not have failed.
struct EventState {
  std::shared_ptr<Event> event;
  std::shared_ptr<EventRecord> record;
  std::shared_ptr<Context> context;
};

absl::StatusOr<EventState> FindEvent(Driver& driver, CUevent handle) {
  EventState state;
  state.event = driver.events.Find(handle);
  if (state.event == nullptr) return InvalidHandle("not an event");
  state.context = state.event->context.lock();
  if (state.context == nullptr) {
    return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the event's context is gone");
  }
  MutexLock lock(&state.event->mutex);
  state.record = state.event->record;
  return state;
}

CUresult DestroyEvent(const char* call, CUevent handle) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    if (driver.events.Remove(handle) == nullptr) return InvalidHandle("not an event");
    return absl::OkStatus();
  });
}

CUresult ElapsedTime(const char* call, float* milliseconds, CUevent start, CUevent end) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(milliseconds);
    ASSIGN_OR_RETURN(const EventState from, FindEvent(driver, start));
    ASSIGN_OR_RETURN(const EventState to, FindEvent(driver, end));
    for (const EventState* state : {&from, &to}) {
      if (state->context->failed()) return state->context->error();
      if ((state->event->flags & CU_EVENT_DISABLE_TIMING) != 0) {
        return InvalidHandle("the event was created without timing");
      }
      if (state->record == nullptr) return InvalidHandle("the event was never recorded");
    }
    if (from.context->device != to.context->device) {
      return InvalidHandle("the events belong to different devices");
    }
    if (!from.record->Done() || !to.record->Done()) {
      return CudaError(CUDA_ERROR_NOT_READY, "an event is not complete");
    }
    *milliseconds = static_cast<float>(
        static_cast<double>(to.record->time_ns.load() - from.record->time_ns.load()) * 1e-6);
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status RecordEvent(Driver& driver, Context& context, Stream& stream, CUevent handle) {
  const std::shared_ptr<Event> event = driver.events.Find(handle);
  if (event == nullptr) return InvalidHandle("not an event");
  if (event->context.lock().get() != &context) {
    return InvalidHandle("event and stream belong to different contexts");
  }
  auto record = std::make_shared<EventRecord>();
  record->queue = stream.queue;
  ASSIGN_OR_RETURN(record->position, context.Enqueue(
                                         stream,
                                         [record] {
                                           record->time_ns.store(NowNs(),
                                                                 std::memory_order_release);
                                           return absl::OkStatus();
                                         },
                                         RunOn::kAnyThread, Wake::kYes, Context::Eager::kYes));
  MutexLock lock(&event->mutex);
  event->record = std::move(record);
  return absl::OkStatus();
}

CUresult Do_cuEventRecord(const char* call, NullStream null, CUevent event, CUstream stream) {
  return WithStream(call, null, stream, [&](Driver& driver, Context& context, Stream& target) {
    return RecordEvent(driver, context, target, event);
  });
}

CUresult Do_cuEventRecordWithFlags(const char* call, NullStream null, CUevent event,
                                   CUstream stream, unsigned flags) {
  return WithStream(call, null, stream,
                    [&](Driver& driver, Context& context, Stream& target) -> absl::Status {
                      if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) {
                        return InvalidValue(absl::StrCat("flags ", flags));
                      }
                      return RecordEvent(driver, context, target, event);
                    });
}

}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
  return WithContext("cuEventCreate", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    if ((flags & ~kKnownEventFlags) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
      return InvalidValue(absl::StrCat("event flags 0x", absl::Hex(flags)));
    }
    if ((flags & CU_EVENT_INTERPROCESS) != 0) return NotSupported("events between processes");
    auto event = std::make_shared<Event>();
    event->handle = driver.events.NewHandle();
    event->context = context.weak_from_this();
    event->flags = flags;
    driver.events.Insert(event->handle, event);
    *out = event->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuEventDestroy(CUevent event) { return DestroyEvent("cuEventDestroy", event); }
CU_API CUresult cuEventDestroy_v2(CUevent event) {
  return DestroyEvent("cuEventDestroy_v2", event);
}

CU_API CUresult cuEventQuery(CUevent handle) {
  return WithDriver("cuEventQuery", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const EventState state, FindEvent(driver, handle));
    if (state.context->failed()) return state.context->error();
    if (state.record != nullptr && !state.record->Done()) {
      return CudaError(CUDA_ERROR_NOT_READY, "the event is not complete");
    }
    return absl::OkStatus();
  });
}

CU_API CUresult cuEventSynchronize(CUevent handle) {
  return WithDriver("cuEventSynchronize", [&](Driver& driver) -> absl::Status {
    if (InHostFunction()) {
      return CudaError(CUDA_ERROR_NOT_PERMITTED, "called from a host function of a stream");
    }
    ASSIGN_OR_RETURN(const EventState state, FindEvent(driver, handle));
    if (state.record != nullptr) state.record->queue->Wait(state.record->position);
    state.context->printf_buffer.Flush();
    return state.context->error();
  });
}

CU_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return ElapsedTime("cuEventElapsedTime", milliseconds, start, end);
}
CU_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return ElapsedTime("cuEventElapsedTime_v2", milliseconds, start, end);
}

CU_API_TWINS(cuEventRecord, _ptsz, (CUevent event, CUstream stream), event, stream);
CU_API_TWINS(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags), event,
             stream, flags);
