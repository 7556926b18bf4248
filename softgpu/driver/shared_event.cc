#include "softgpu/driver/shared_event.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t kFileBytes = 4096;
// Whoever records is in another process: there is nothing to be woken by.
constexpr std::chrono::microseconds kPollInterval{50};

}  // namespace

absl::StatusOr<std::shared_ptr<SharedEvent>> SharedEvent::Map(UniqueFd fd, SharedFileName name) {
  void* const mapped = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mmap of an event").message());
  }
  // Not make_shared: the constructor is private.
  std::shared_ptr<SharedEvent> event(new SharedEvent);
  event->fd_ = std::move(fd);
  event->name_ = name;
  event->state_ = static_cast<State*>(mapped);
  return event;
}

absl::StatusOr<std::shared_ptr<SharedEvent>> SharedEvent::Create() {
  absl::StatusOr<SharedFile> file = CreateSharedFile(kFileBytes, /*device=*/0);
  if (!file.ok()) return CudaError(CUDA_ERROR_OPERATING_SYSTEM, file.status().message());
  SharedFileName name;
  name.pid = getpid();
  name.fd = file->fd.get();
  name.number = file->number;
  name.size = name.file_size = kFileBytes;
  return Map(std::move(file->fd), name);
}

absl::StatusOr<std::shared_ptr<SharedEvent>> SharedEvent::Open(const SharedFileName& name) {
  absl::StatusOr<UniqueFd> fd = OpenSharedFile(name);
  if (!fd.ok() || name.file_size != kFileBytes) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "the handle names no event");
  }
  return Map(*std::move(fd), name);
}

SharedEvent::~SharedEvent() { munmap(state_, kFileBytes); }

void SharedEvent::Reach(uint64_t record) {
  uint64_t reached = state_->reached.load(std::memory_order_relaxed);
  while (reached < record &&
         !state_->reached.compare_exchange_weak(reached, record, std::memory_order_acq_rel)) {
  }
}

void SharedEvent::Pause() { std::this_thread::sleep_for(kPollInterval); }

}  // namespace fargpu::softgpu
