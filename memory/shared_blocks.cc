// DeviceAllocator's part in CUDA IPC: memory that several processes of a lease map.
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "memory/device_allocator.h"

namespace fargpu::memory {

// Only what is shared is shareable: on the software card such memory is a file, and slower to touch
// first, and cards limit how much of it there may be.
absl::Status DeviceAllocator::MakeShareable(int device, uint64_t owner, Block* block) {
  if (block->shared_number != 0) return absl::OkStatus();
  const uint64_t unit = granularity_[static_cast<size_t>(device)];
  const uint64_t aside = window_.Allocate(block->bytes, unit);
  if (aside == kNoAddress) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("no ", block->bytes, " bytes of addresses to move memory"));
  }
  const absl::Cleanup free_aside = [this, aside]()
                                       ABSL_NO_THREAD_SAFETY_ANALYSIS { window_.Free(aside); };
  ASSIGN_OR_RETURN(const uint64_t fresh, driver_->CreateShareable(device, block->bytes));
  absl::Status status = driver_->Map(device, aside, block->bytes, fresh);
  if (status.ok()) {
    status = driver_->Copy(owner, aside, block->address, block->bytes);
    status.Update(driver_->Unmap(aside, block->bytes));
  }
  if (status.ok()) status = driver_->Unmap(block->address, block->bytes);
  if (!status.ok()) {
    driver_->ReleasePhysical(fresh).IgnoreError();
    return status;
  }
  if (status = driver_->Map(device, block->address, block->bytes, fresh); !status.ok()) {
    // What was there goes back; should that fail too, kernels find the addresses empty.
    driver_->Map(device, block->address, block->bytes, block->handle).IgnoreError();
    driver_->ReleasePhysical(fresh).IgnoreError();
    return status;
  }
  driver_->ReleasePhysical(block->handle).IgnoreError();
  block->handle = fresh;
  block->shared_number = ++last_shared_number_;
  return absl::OkStatus();
}

absl::StatusOr<DeviceAllocator::Shared> DeviceAllocator::Share(uint64_t address) {
  if (window_bytes_ == 0) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                     "sharing memory with a driver that has no virtual memory interface");
  }
  MutexLock lock(&mutex_);
  const auto waited_for = allocations_.find(address);
  if (waited_for != allocations_.end()) {
    const uint64_t owner = waited_for->second.owner;
    // Not under the lock: a kernel may run long, and others allocate meanwhile.
    mutex_.Unlock();
    const absl::Status idle = driver_->WaitIdle(owner);
    mutex_.Lock();
    RETURN_IF_ERROR(idle);
  }
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("no allocation starts at 0x", absl::Hex(address)));
  }
  Allocation& allocation = found->second;
  Block* const block =
      allocation.slab != kNoAddress ? &slabs_.at(allocation.slab).block : &allocation.block;
  if (block->address != address && allocation.slab == kNoAddress) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "memory of another process is not passed on");
  }
  RETURN_IF_ERROR(MakeShareable(allocation.device, allocation.owner, block));
  return Shared{.number = block->shared_number,
                .device = allocation.device,
                .block_bytes = block->bytes,
                .offset = address - block->address,
                .bytes = allocation.bytes};
}

absl::StatusOr<UniqueFd> DeviceAllocator::Export(uint64_t number) {
  MutexLock lock(&mutex_);
  for (const auto& [address, allocation] : allocations_) {
    if (number != 0 && allocation.block.shared_number == number) {
      return driver_->ExportPhysical(allocation.block.handle);
    }
  }
  for (const auto& [base, slab] : slabs_) {
    if (number != 0 && slab.block.shared_number == number) {
      return driver_->ExportPhysical(slab.block.handle);
    }
  }
  return CudaError(CUDA_ERROR_INVALID_VALUE, "the shared memory has been freed");
}

absl::StatusOr<uint64_t> DeviceAllocator::Import(uint64_t owner, const Shared& shared, int fd) {
  MutexLock lock(&mutex_);
  if (window_bytes_ == 0 || shared.device < 0 || shared.device >= ledger_->device_count()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "shared memory of a device that is not here");
  }
  const uint64_t unit = granularity_[static_cast<size_t>(shared.device)];
  if (shared.block_bytes == 0 || shared.block_bytes % unit != 0 || shared.bytes == 0 ||
      shared.offset >= shared.block_bytes || shared.bytes > shared.block_bytes - shared.offset) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("shared memory of ", shared.block_bytes, " bytes"));
  }
  Block block;
  block.bytes = shared.block_bytes;
  block.mapped = true;
  // Charged here too: whoever made it may give it back, or end, while it is mapped here.
  ASSIGN_OR_RETURN(block.reservation, ledger_->Reserve(shared.device, block.bytes));
  block.address = window_.Allocate(block.bytes, unit);
  if (block.address == kNoAddress) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("no ", block.bytes, " bytes of addresses for shared memory"));
  }
  absl::StatusOr<uint64_t> handle = driver_->ImportPhysical(fd);
  absl::Status status = handle.status();
  if (status.ok()) {
    block.handle = *handle;
    status = driver_->Map(shared.device, block.address, block.bytes, block.handle);
    if (!status.ok()) driver_->ReleasePhysical(block.handle).IgnoreError();
  }
  if (!status.ok()) {
    window_.Free(block.address);
    return status;
  }
  const uint64_t address = block.address + shared.offset;
  allocations_[address] = {.device = shared.device,
                           .owner = owner,
                           .slab = kNoAddress,
                           .block = std::move(block),
                           .bytes = shared.bytes};
  return address;
}

}  // namespace fargpu::memory
