#include "server/worker/session_resources.h"

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::server {

absl::StatusOr<CUstream> ThreadStreams::Get(wire::ContextId context, uint32_t thread) {
  MutexLock lock(&mutex_);
  const auto key = std::make_pair(context.value, thread);
  if (const auto found = streams_.find(key); found != streams_.end()) return found->second;
  if (streams_.size() >= kMaxStreams) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat(kMaxStreams, " per-thread default streams, the limit"));
  }
  CUstream stream = nullptr;
  // Blocking: like CUDA's own, it synchronises with the legacy default stream.
  RETURN_IF_CUDA_ERROR(driver_->cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  streams_[key] = stream;
  return stream;
}

void ThreadStreams::ForgetContext(wire::ContextId context) {
  MutexLock lock(&mutex_);
  const auto first = streams_.lower_bound({context.value, 0});
  auto last = first;
  while (last != streams_.end() && last->first.first == context.value) ++last;
  streams_.erase(first, last);
}

void ProgramMappings::Add(uint64_t address, uint64_t bytes,
                          std::shared_ptr<memory::Reservation> charge) {
  MutexLock lock(&mutex_);
  mappings_[address] = {.bytes = bytes, .charge = std::move(charge)};
}

void ProgramMappings::Remove(uint64_t address, uint64_t bytes) {
  MutexLock lock(&mutex_);
  for (auto mapping = mappings_.lower_bound(address);
       mapping != mappings_.end() && mapping->first - address < bytes;) {
    mapping = mappings_.erase(mapping);
  }
}

bool ProgramMappings::Overlaps(uint64_t address, uint64_t bytes) const {
  MutexLock lock(&mutex_);
  auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first - address < bytes) return true;
  if (mapping == mappings_.begin()) return false;
  --mapping;
  return address - mapping->first < mapping->second.bytes;
}

absl::Status SessionResources::CheckDevice(int32_t device) const {
  if (device < 0 || static_cast<size_t>(device) >= devices.size()) {
    return CudaError(CUDA_ERROR_INVALID_DEVICE,
                     absl::StrCat("device ", device, " of a lease of ", devices.size()));
  }
  return absl::OkStatus();
}

void SessionResources::DropContext(wire::ContextId id, const Context& context) {
  // Buffers of copies under way are in the driver's hands until its work is done.
  CUcontext popped = nullptr;
  CUresult outcome = driver->cuCtxPushCurrent_v2(context.handle);
  if (outcome == CUDA_SUCCESS) {
    outcome = driver->cuCtxSynchronize();
    driver->cuCtxPopCurrent_v2(&popped);
  }
  allocator->FreeOwner(reinterpret_cast<uint64_t>(context.handle));
  copies.SettleContext(id, outcome);
  host_functions.ForgetContext(id);
  thread_streams.ForgetContext(id);
  shared_memory.ForgetContext(id);
  objects.EraseContext(id);
  context_epoch.fetch_add(1);
}

}  // namespace fargpu::server
