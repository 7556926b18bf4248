#include "server/worker/async_copies.h"

#include <algorithm>
#include <utility>

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::server {

absl::Status AsyncCopies::ToDevice(wire::ContextId context, CUdeviceptr destination,
                                   absl::Span<const char> bytes, CUstream stream,
                                   std::shared_ptr<const transport::IncomingFrame> frame) {
  MakeRoom(bytes.size());
  RETURN_IF_CUDA_ERROR(
      driver_->cuMemcpyHtoDAsync_v2(destination, bytes.data(), bytes.size(), stream));
  return Keep(context, stream, std::move(frame), bytes.size());
}

absl::Status AsyncCopies::BoxToDevice(wire::ContextId context, const CUDA_MEMCPY3D& box,
                                      uint64_t bytes, CUstream stream,
                                      std::shared_ptr<const transport::IncomingFrame> frame) {
  MakeRoom(bytes);
  RETURN_IF_CUDA_ERROR(driver_->cuMemcpy3DAsync_v2(&box, stream));
  return Keep(context, stream, std::move(frame), bytes);
}

absl::Status AsyncCopies::Keep(wire::ContextId context, CUstream stream,
                               std::shared_ptr<const void> thing, uint64_t bytes) {
  return Add({.context = context,
              .stream = stream,
              .event = nullptr,
              .bytes = bytes,
              .kept = std::move(thing),
              .delivers = false,
              .delivery = {}});
}

absl::Status AsyncCopies::FromDevice(wire::ContextId context, CUdeviceptr source, uint64_t bytes,
                                     CUstream stream, uint64_t token, uint64_t offset) {
  MakeRoom(bytes);
  transport::Message buffer = transport::NewMessage(bytes);
  RETURN_IF_CUDA_ERROR(driver_->cuMemcpyDtoHAsync_v2(buffer.storage.get(), source, bytes, stream));
  return Add({.context = context,
              .stream = stream,
              .event = nullptr,
              .bytes = bytes,
              .kept = nullptr,
              .delivers = true,
              .delivery = {.token = token, .offset = offset, .bytes = std::move(buffer)}});
}

absl::Status AsyncCopies::Add(Copy copy) {
  absl::StatusOr<CUevent> event = TakeEvent(copy.context);
  CUresult recorded = event.ok() ? driver_->cuEventRecord(*event, copy.stream) : CUDA_ERROR_UNKNOWN;
  if (recorded != CUDA_SUCCESS) {
    // The buffer is in the driver's hands and there is no event to tell when it comes back, so
    // wait.
    driver_->cuStreamSynchronize(copy.stream);
    copy.event = nullptr;
  } else {
    copy.event = *event;
  }
  MutexLock lock(&mutex_);
  bytes_ += copy.bytes;
  copies_.push_back(std::move(copy));
  return absl::OkStatus();
}

absl::StatusOr<CUevent> AsyncCopies::TakeEvent(wire::ContextId context) {
  {
    MutexLock lock(&mutex_);
    std::vector<CUevent>& idle = idle_events_[context];
    if (!idle.empty()) {
      const CUevent event = idle.back();
      idle.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  RETURN_IF_CUDA_ERROR(driver_->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

// Waits for the oldest copy to be done with its buffer; who dispatches then takes it out.
void AsyncCopies::MakeRoom(uint64_t bytes) {
  CUevent oldest = nullptr;
  {
    MutexLock lock(&mutex_);
    if (bytes_ + bytes <= kMaxBytes && copies_.size() < kMaxCopies) return;
    if (!copies_.empty()) oldest = copies_.front().event;
  }
  if (oldest != nullptr) driver_->cuEventSynchronize(oldest);
}

bool AsyncCopies::ShouldTake() {
  MutexLock lock(&mutex_);
  return bytes_ > kMaxBytes / 2 || copies_.size() > kMaxCopies / 2;
}

std::vector<AsyncCopies::Delivery> AsyncCopies::TakeDone() {
  std::vector<Delivery> done;
  MutexLock lock(&mutex_);
  // Streams whose oldest copy is not done: what follows on them is not either.
  std::vector<CUstream> busy;
  for (auto copy = copies_.begin(); copy != copies_.end();) {
    if (std::find(busy.begin(), busy.end(), copy->stream) != busy.end()) {
      ++copy;
      continue;
    }
    const CUresult state =
        copy->event != nullptr ? driver_->cuEventQuery(copy->event) : CUDA_SUCCESS;
    if (state == CUDA_ERROR_NOT_READY) {
      busy.push_back(copy->stream);
      ++copy;
      continue;
    }
    if (state == CUDA_SUCCESS && copy->delivers) done.push_back(std::move(copy->delivery));
    if (copy->event != nullptr) idle_events_[copy->context].push_back(copy->event);
    bytes_ -= copy->bytes;
    copy = copies_.erase(copy);
  }
  return done;
}

void AsyncCopies::SettleContext(wire::ContextId context, CUresult outcome) {
  MutexLock lock(&mutex_);
  idle_events_.erase(context);
  for (Copy& copy : copies_) {
    if (copy.context != context) continue;
    copy.event = nullptr;
    copy.delivers = copy.delivers && outcome == CUDA_SUCCESS;
  }
}

}  // namespace fargpu::server
