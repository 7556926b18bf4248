// Events.

#include "softgpu/driver/edge.h"
#include "softgpu/driver/node_params.h"
#include "softgpu/driver/shared_event.h"

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
  if (state.event->was_captured.load(std::memory_order_acquire)) {
    MutexLock lock(&driver.graph_mutex);
    if (state.event->captured != nullptr) {
      // Nothing of it has run; asking spoils the capture.
      state.event->captured->capture->invalidated = true;
      return CudaError(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture");
    }
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
  if (stream.is_capturing()) return CaptureRecord(driver, stream, *event);
  if (event->shared != nullptr) {
    return context.EnqueueAlways(
        stream,
        [shared = event->shared, number = event->shared->Record()] { shared->Reach(number); },
        RunOn::kAnyThread);
  }
  auto record = std::make_shared<EventRecord>();
  record->queue = stream.queue;
  const auto reach = [record] {
    record->time_ns.store(NowNs(), std::memory_order_release);
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(record->position, context.Enqueue(stream, reach, RunOn::kAnyThread, Wake::kYes,
                                                     Context::Eager::kYes));
  {
    MutexLock lock(&event->mutex);
    event->record = std::move(record);
  }
  if (event->was_captured.exchange(false, std::memory_order_acq_rel)) {
    MutexLock lock(&driver.graph_mutex);
    event->captured = nullptr;
  }
  return absl::OkStatus();
}

absl::Status WaitForEvent(Context& context, Stream& stream, Event& event) {
  if (event.shared != nullptr) {
    const uint64_t latest = event.shared->latest();
    if (event.shared->Reached(latest)) return absl::OkStatus();
    return context
        .Enqueue(
            stream,
            [&context, shared = event.shared, latest] {
              shared->Wait(latest, [&] { return context.skips_work() || WorkersStopped(); });
              return absl::OkStatus();
            },
            RunOn::kWorker)
        .status();
  }
  std::shared_ptr<EventRecord> record;
  {
    MutexLock lock(&event.mutex);
    record = event.record;
  }
  // An event that was never recorded counts as complete.
  if (record == nullptr || record->Done()) return absl::OkStatus();
  return context
      .Enqueue(stream, nullptr, RunOn::kAnyThread, Wake::kYes, Context::Eager::kYes,
               {{record->queue, record->position}})
      .status();
}

CUresult Do_cuEventRecord(const char* call, NullStream null, CUevent event, CUstream stream) {
  return WithStream(
      call, null, stream,
      [&](Driver& driver, Context& context, Stream& target) {
        return RecordEvent(driver, context, target, event);
      },
      OnCapture::kRecord);
}

CUresult Do_cuEventRecordWithFlags(const char* call, NullStream null, CUevent event,
                                   CUstream stream, unsigned flags) {
  return WithStream(
      call, null, stream,
      [&](Driver& driver, Context& context, Stream& target) -> absl::Status {
        if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) {
          return InvalidValue(absl::StrCat("flags ", flags));
        }
        if (flags == CU_EVENT_RECORD_EXTERNAL && target.is_capturing()) {
          ASSIGN_OR_RETURN(NodeWork work,
                           ReadEvent(driver, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD));
          return CaptureWork(driver, target, std::move(work));
        }
        return RecordEvent(driver, context, target, event);
      },
      OnCapture::kRecord);
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
    auto event = std::make_shared<Event>();
    if ((flags & CU_EVENT_INTERPROCESS) != 0) {
      ASSIGN_OR_RETURN(event->shared, SharedEvent::Create());
    }
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
    const bool done = state.event->shared != nullptr
                          ? state.event->shared->Reached(state.event->shared->latest())
                          : state.record == nullptr || state.record->Done();
    if (!done) {
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
    if (const auto& shared = state.event->shared; shared != nullptr) {
      shared->Wait(shared->latest(), [&] { return state.context->failed(); });
    } else if (state.record != nullptr) {
      state.record->queue->Wait(state.record->position);
    }
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
