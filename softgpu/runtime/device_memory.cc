#include "softgpu/runtime/device_memory.h"

#include <sys/mman.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::softgpu {
namespace {

// What cuda.h promises is 256; NVIDIA's driver gives 512, and programs have come to expect it.
constexpr uint64_t kAllocationAlignment = 512;
// Allocations of at least this size get blocks of their own.
constexpr uint64_t kSmallestOwnBlock = kBlockBytes / 2;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

uint64_t BytesTaken(uint64_t size) {
  return size < kSmallestOwnBlock ? RoundUp(size, kAllocationAlignment)
                                  : RoundUp(size, kBlockBytes);
}

bool IsCharged(AllocationKind kind) {
  return kind != AllocationKind::kHost && kind != AllocationKind::kShared;
}

void* ToPointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

DeviceMemory::DeviceMemory(AddressWindow window, std::vector<uint64_t> capacities)
    : window_(window),
      capacities_(std::move(capacities)),
      addresses_(window.base, window.size),
      used_(capacities_.size(), 0),
      files_(capacities_.size()),
      graph_use_(capacities_.size()) {}

DeviceMemory::~DeviceMemory() {
  // Tests make several of these over one window; the product's lives until the process ends.
  mmap(ToPointer(window_.base), window_.size, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

absl::Status DeviceMemory::Charge(int device, uint64_t bytes) {
  if (bytes > capacities_[device] - used_[device]) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("device ", device, " has ", capacities_[device] - used_[device],
                                  " of ", capacities_[device], " bytes free, ", bytes, " wanted"));
  }
  used_[device] += bytes;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DeviceMemory::TakeBlocks(uint64_t size, Access access) {
  // One block beyond the end stays inaccessible, so that running past an allocation is noticed
  // instead of reaching the next one.
  const auto address = addresses_.Take(size + kBlockBytes, kBlockBytes);
  if (!address) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("the device window has no free range of ", size, " bytes"));
  }
  if (access == Access::kNone) return *address;
  if (mprotect(ToPointer(*address), size, PROT_READ | PROT_WRITE) != 0) {
    addresses_.Give(*address, size + kBlockBytes);
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     ErrnoStatus(absl::StrCat("mprotect of ", size, " bytes")).message());
  }
  madvise(ToPointer(*address), size, MADV_HUGEPAGE);
  return *address;
}

void DeviceMemory::GiveBlocks(uint64_t address, uint64_t size) {
  // A fresh mapping drops the pages and the access rights in one step.
  mmap(ToPointer(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  madvise(ToPointer(address), size, MADV_DONTDUMP);
  shared_files_.erase(address);
  addresses_.Give(address, size + kBlockBytes);
}

absl::StatusOr<uint64_t> DeviceMemory::AllocateShared(int device, uint64_t context, uint64_t size) {
  std::vector<SharedBlock>& blocks = shared_blocks_[context];
  for (SharedBlock& block : blocks) {
    if (block.device != device) continue;
    if (const auto address = block.space.Take(size, kAllocationAlignment)) return *address;
  }
  RETURN_IF_ERROR(Charge(device, kBlockBytes));
  const auto base = TakeBlocks(kBlockBytes);
  if (!base.ok()) {
    used_[device] -= kBlockBytes;
    return base.status();
  }
  blocks.emplace_back(*base, device);
  return *blocks.back().space.Take(size, kAllocationAlignment);
}

absl::StatusOr<uint64_t> DeviceMemory::Allocate(AllocationKind kind, int device, uint64_t context,
                                                uint64_t size, uint32_t flags) {
  if (size == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "allocation of 0 bytes");
  if (size > window_.size / 2) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, absl::StrCat("allocation of ", size, " bytes"));
  }
  MutexLock lock(&mutex_);
  const uint64_t taken = BytesTaken(size);
  Record record;
  uint64_t address = 0;
  if (kind == AllocationKind::kDevice && size < kSmallestOwnBlock) {
    ASSIGN_OR_RETURN(address, AllocateShared(device, context, taken));
    record.in_shared_block = true;
  } else {
    const uint64_t bytes = RoundUp(size, kBlockBytes);
    if (IsCharged(kind)) RETURN_IF_ERROR(Charge(device, bytes));
    const auto blocks = TakeBlocks(bytes);
    if (!blocks.ok()) {
      if (IsCharged(kind)) used_[device] -= bytes;
      return blocks.status();
    }
    address = *blocks;
  }
  record.allocation = {.base = address,
                       .size = size,
                       .kind = kind,
                       .device = device,
                       .context = context,
                       .buffer_id = next_buffer_id_++,
                       .flags = flags};
  records_.emplace(address, record);
  return address;
}

void DeviceMemory::ReleaseBytes(const Record& record) {
  const Allocation& allocation = record.allocation;
  if (!record.in_shared_block) {
    const uint64_t bytes = RoundUp(allocation.size, kBlockBytes);
    GiveBlocks(allocation.base, bytes);
    if (IsCharged(allocation.kind)) used_[allocation.device] -= bytes;
    return;
  }
  std::vector<SharedBlock>& blocks = shared_blocks_[allocation.context];
  for (auto block = blocks.begin(); block != blocks.end(); ++block) {
    if (allocation.base - block->space.base() >= kBlockBytes) continue;
    block->space.Give(allocation.base, BytesTaken(allocation.size));
    if (block->space.unused()) {
      GiveBlocks(block->space.base(), kBlockBytes);
      used_[block->device] -= kBlockBytes;
      blocks.erase(block);
    }
    break;
  }
  if (blocks.empty()) shared_blocks_.erase(allocation.context);
}

absl::Status DeviceMemory::Free(uint64_t address) {
  ASSIGN_OR_RETURN(const Allocation allocation, Detach(address));
  FreeDetached(allocation);
  return absl::OkStatus();
}

absl::StatusOr<Allocation> DeviceMemory::Detach(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(address);
  if (found == records_.end() || found->second.allocation.kind == AllocationKind::kMapped ||
      found->second.allocation.kind == AllocationKind::kGraph) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("0x", absl::Hex(address), " is not the start of an allocation"));
  }
  const Allocation allocation = found->second.allocation;
  detached_.emplace(address, found->second);
  records_.erase(found);
  return allocation;
}

void DeviceMemory::FreeDetached(const Allocation& allocation) {
  MutexLock lock(&mutex_);
  const auto found = detached_.find(allocation.base);
  // A context that ends frees what is detached too; the address may since belong to another.
  if (found == detached_.end() || found->second.allocation.buffer_id != allocation.buffer_id) {
    return;
  }
  const Record record = found->second;
  detached_.erase(found);
  ReleaseBytes(record);
}

void DeviceMemory::FreeContext(uint64_t context) {
  MutexLock lock(&mutex_);
  for (Records* records : {&records_, &detached_}) {
    for (auto it = records->begin(); it != records->end();) {
      const Record record = it->second;
      if (record.allocation.kind == AllocationKind::kMapped ||
          record.allocation.kind == AllocationKind::kGraph ||
          record.allocation.context != context) {
        ++it;
        continue;
      }
      it = records->erase(it);
      ReleaseBytes(record);
    }
  }
}

DeviceMemory::Records::const_iterator DeviceMemory::FindRecord(uint64_t address) const {
  auto it = records_.upper_bound(address);
  if (it == records_.begin()) return records_.end();
  --it;
  const Allocation& allocation = it->second.allocation;
  return address - allocation.base < allocation.size ? it : records_.end();
}

std::optional<Allocation> DeviceMemory::Find(uint64_t address) const {
  MutexLock lock(&mutex_);
  const auto it = FindRecord(address);
  if (it == records_.end()) return std::nullopt;
  return it->second.allocation;
}

bool DeviceMemory::Accessible(uint64_t address, uint64_t size, Access wanted) const {
  if (size == 0) return true;
  MutexLock lock(&mutex_);
  auto it = FindRecord(address);
  while (it != records_.end()) {
    if (it->second.access < wanted) return false;
    const Allocation& allocation = it->second.allocation;
    const uint64_t available = allocation.base + allocation.size - address;
    if (size <= available) return true;
    // Only mappings may be neighbours of one range: two allocations that happen to touch are two.
    if (allocation.kind != AllocationKind::kMapped) return false;
    size -= available;
    address += available;
    ++it;
    if (it == records_.end() || it->first != address ||
        it->second.allocation.kind != AllocationKind::kMapped) {
      return false;
    }
  }
  return false;
}

uint64_t DeviceMemory::FreeBytes(int device) const {
  MutexLock lock(&mutex_);
  return capacities_[device] - used_[device];
}

}  // namespace fargpu::softgpu
