// Memory of graphs: addresses that stay while their bytes come and go.

#include <sys/mman.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/runtime/device_memory.h"

namespace fargpu::softgpu {
namespace {

uint64_t WholeBlocks(uint64_t size) { return (size + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

absl::Status NoGraphMemory(uint64_t address) {
  return CudaError(CUDA_ERROR_INVALID_VALUE,
                   absl::StrCat("0x", absl::Hex(address), " is not the start of a graph's memory"));
}

}  // namespace

absl::StatusOr<uint64_t> DeviceMemory::ReserveGraphRange(int device, uint64_t size) {
  if (size == 0 || size > window_.size / 2) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("graph memory of ", size, " bytes"));
  }
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const uint64_t address, TakeBlocks(WholeBlocks(size), Access::kNone));
  Record record;
  record.allocation = {.base = address,
                       .size = size,
                       .kind = AllocationKind::kGraph,
                       .device = device,
                       .context = 0,
                       .buffer_id = next_buffer_id_++,
                       .flags = 0};
  record.access = Access::kNone;
  records_.emplace(address, record);
  return address;
}

absl::Status DeviceMemory::CommitGraphRange(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(address);
  if (found == records_.end() || found->second.allocation.kind != AllocationKind::kGraph) {
    return NoGraphMemory(address);
  }
  Record& record = found->second;
  if (record.access != Access::kNone) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("the graph's memory at 0x", absl::Hex(address),
                                  " was not freed since the last launch"));
  }
  const int device = record.allocation.device;
  const uint64_t bytes = WholeBlocks(record.allocation.size);
  RETURN_IF_ERROR(Charge(device, bytes));
  if (mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) != 0) {
    used_[device] -= bytes;
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mprotect of graph memory").message());
  }
  record.access = Access::kReadWrite;
  GraphUse& use = graph_use_[device];
  use.current += bytes;
  use.high = std::max(use.high, use.current);
  return absl::OkStatus();
}

absl::Status DeviceMemory::DecommitGraphRange(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(address);
  if (found == records_.end() || found->second.allocation.kind != AllocationKind::kGraph ||
      found->second.access == Access::kNone) {
    return NoGraphMemory(address);
  }
  const Allocation allocation = found->second.allocation;
  const uint64_t bytes = WholeBlocks(allocation.size);
  used_[allocation.device] -= bytes;
  graph_use_[allocation.device].current -= bytes;
  if (found->second.dropped) {
    records_.erase(found);
    GiveBlocks(address, bytes);
    return absl::OkStatus();
  }
  found->second.access = Access::kNone;
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  madvise(reinterpret_cast<void*>(address), bytes, MADV_DONTDUMP);
  return absl::OkStatus();
}

void DeviceMemory::DropGraphRange(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(address);
  if (found == records_.end() || found->second.allocation.kind != AllocationKind::kGraph) return;
  if (found->second.access != Access::kNone) {
    found->second.dropped = true;
    return;
  }
  const uint64_t bytes = WholeBlocks(found->second.allocation.size);
  records_.erase(found);
  GiveBlocks(address, bytes);
}

DeviceMemory::GraphUse DeviceMemory::GetGraphUse(int device) const {
  MutexLock lock(&mutex_);
  return graph_use_[device];
}

void DeviceMemory::ResetGraphHigh(int device) {
  MutexLock lock(&mutex_);
  graph_use_[device].high = graph_use_[device].current;
}

}  // namespace fargpu::softgpu
