#include "memory/device_allocator.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace fargpu::memory {
namespace {

constexpr uint64_t kSmallestWindow = uint64_t{1} << 30;

absl::Status OutOfAddresses(uint64_t size) {
  return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                   absl::StrCat("no ", size, " contiguous bytes left in the session's window"));
}

}  // namespace

DeviceAllocator::DeviceAllocator(MemoryDriver* driver, LeaseLedger* ledger, Options options)
    : driver_(driver), ledger_(ledger), options_(options), window_(0, 0) {
  uint64_t alignment = kSlabBytes;
  for (int device = 0; device < ledger->device_count(); ++device) {
    const absl::StatusOr<uint64_t> granularity = driver->Granularity(device);
    if (!granularity.ok() || *granularity == 0 || (*granularity & (*granularity - 1)) != 0) return;
    granularity_.push_back(*granularity);
    alignment = std::max(alignment, *granularity);
  }
  for (uint64_t bytes = options.window_bytes / alignment * alignment; bytes >= kSmallestWindow;
       bytes = bytes / 2 / alignment * alignment) {
    const absl::StatusOr<uint64_t> base = driver->ReserveAddresses(bytes, alignment);
    if (!base.ok()) continue;
    window_base_ = *base;
    window_bytes_ = bytes;
    window_ = AddressSpace(window_base_, window_bytes_);
    return;
  }
}

DeviceAllocator::~DeviceAllocator() {
  // Memory is not given back one by one: the session's process ends, and with it all it held.
  std::unique_ptr<std::thread> reclaimer;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
    reclaimer = std::move(reclaimer_);
  }
  if (reclaimer != nullptr) reclaimer->join();
}

absl::StatusOr<uint64_t> DeviceAllocator::Allocate(int device, uint64_t owner, uint64_t size) {
  if (size == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
  MutexLock lock(&mutex_);
  if (window_bytes_ > 0 && size < kLargeBytes) return AllocateInSlab(device, owner, size);
  const uint64_t unit =
      window_bytes_ > 0 ? granularity_[static_cast<size_t>(device)] : kAllocationAlignment;
  const std::optional<uint64_t> bytes = RoundUp(size, unit);
  if (!bytes.has_value()) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, absl::StrCat("an allocation of ", size, " bytes"));
  }
  ASSIGN_OR_RETURN(Block block, NewBlock(device, owner, *bytes));
  const uint64_t address = block.address;
  allocations_[address] = {.device = device,
                           .owner = owner,
                           .slab = kNoAddress,
                           .block = std::move(block),
                           .bytes = size};
  return address;
}

absl::StatusOr<uint64_t> DeviceAllocator::AllocateInSlab(int device, uint64_t owner,
                                                         uint64_t size) {
  Slab* slab = nullptr;
  uint64_t address = kNoAddress;
  for (auto& [base, candidate] : slabs_) {
    if (candidate.device != device || candidate.owner != owner) continue;
    address = candidate.space.Allocate(size, kAllocationAlignment);
    slab = &candidate;
    if (address != kNoAddress) break;
  }
  if (address == kNoAddress) {
    const uint64_t unit = granularity_[static_cast<size_t>(device)];
    ASSIGN_OR_RETURN(Block block, NewBlock(device, owner, std::max(kSlabBytes, unit)));
    const uint64_t base = block.address;
    slab = &slabs_.try_emplace(base, std::move(block), device, owner).first->second;
    address = slab->space.Allocate(size, kAllocationAlignment);
  }
  ++slab->live;
  allocations_[address] = {
      .device = device, .owner = owner, .slab = slab->block.address, .block = {}, .bytes = size};
  return address;
}

// When there is too little, what is on its way back counts: the program was told that it is free.
absl::StatusOr<DeviceAllocator::Block> DeviceAllocator::NewBlock(int device, uint64_t owner,
                                                                 uint64_t bytes,
                                                                 uint64_t reserved) {
  absl::StatusOr<Block> block = TryNewBlock(device, owner, bytes, reserved);
  const absl::Time deadline = absl::Now() + options_.reclaim_wait;
  while (!block.ok() && ToCuResult(block.status()) == CUDA_ERROR_OUT_OF_MEMORY) {
    bool may_help = DropEmptySlabs(device);
    if (!may_help && !(freed_.empty() && reclaiming_.empty()) && absl::Now() < deadline) {
      changed_.WaitFor(&mutex_, std::chrono::milliseconds(100));
      may_help = true;
    }
    if (!may_help) break;
    block = TryNewBlock(device, owner, bytes, reserved);
  }
  return block;
}

absl::StatusOr<DeviceAllocator::Block> DeviceAllocator::TryNewBlock(int device, uint64_t owner,
                                                                    uint64_t bytes,
                                                                    uint64_t reserved) {
  Block block;
  block.bytes = bytes;
  // Reserve first: a tenant over its limit must not reach the driver.
  ASSIGN_OR_RETURN(block.reservation, ledger_->Reserve(device, bytes));
  if (window_bytes_ == 0) {
    ASSIGN_OR_RETURN(block.address, driver_->Allocate(owner, bytes));
  } else {
    block.address = reserved != kNoAddress
                        ? reserved
                        : window_.Allocate(bytes, granularity_[static_cast<size_t>(device)]);
    if (block.address == kNoAddress) return OutOfAddresses(bytes);
    block.mapped = true;
    absl::Cleanup give_addresses_back = [this, &block, reserved]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (reserved == kNoAddress) window_.Free(block.address);
    };
    ASSIGN_OR_RETURN(block.handle, driver_->CreatePhysical(device, bytes));
    if (absl::Status mapped = driver_->Map(device, block.address, bytes, block.handle);
        !mapped.ok()) {
      driver_->ReleasePhysical(block.handle).IgnoreError();
      return mapped;
    }
    std::move(give_addresses_back).Cancel();
  }
  if (!options_.fresh_memory_is_zero) {
    if (absl::Status zeroed = driver_->Zero(owner, block.address, bytes); !zeroed.ok()) {
      DropBlock(owner, std::move(block));
      return zeroed;
    }
  }
  return block;
}

void DeviceAllocator::DropBlock(uint64_t owner, Block block) {
  absl::Status status;
  if (block.mapped) {
    status.Update(driver_->Unmap(block.address, block.bytes));
    status.Update(driver_->ReleasePhysical(block.handle));
    reserved_.erase(block.address);
    window_.Free(block.address);
  } else {
    status.Update(driver_->Free(owner, block.address));
  }
  if (!status.ok()) FARGPU_LOG(kDebug, "freeing device memory: ", std::string(status.message()));
  // A driver that refuses has lost its context and will not hand the memory out again either;
  // the charge goes with the allocation.
  block.reservation.Refund();
}

bool DeviceAllocator::DropEmptySlabs(int device) {
  bool dropped = false;
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    if (slab->second.device == device && slab->second.space.empty()) {
      DropBlock(slab->second.owner, std::move(slab->second.block));
      slab = slabs_.erase(slab);
      dropped = true;
    } else {
      ++slab;
    }
  }
  return dropped;
}

absl::Status DeviceAllocator::Free(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto allocation = allocations_.find(address);
  if (allocation == allocations_.end()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("no allocation starts at 0x", absl::Hex(address)));
  }
  StartFreeing(allocation);
  return absl::OkStatus();
}

void DeviceAllocator::StartFreeing(Allocations::iterator allocation) {
  if (allocation->second.slab != kNoAddress) --slabs_.at(allocation->second.slab).live;
  freed_.insert(allocations_.extract(allocation));
  if (reclaimer_ == nullptr && !stopping_) {
    reclaimer_ = std::make_unique<std::thread>([this] { ReclaimLoop(); });
  }
  changed_.SignalAll();
}

void DeviceAllocator::FinishFreeing(uint64_t address, Allocation allocation) {
  if (allocation.slab == kNoAddress) {
    DropBlock(allocation.owner, std::move(allocation.block));
    return;
  }
  const auto slab = slabs_.find(allocation.slab);
  slab->second.space.Free(address);
  if (!slab->second.space.empty()) return;
  // One empty slab is kept for the next small allocation, so that a program that allocates and
  // frees in a loop does not map and unmap all the time.
  const bool another = std::any_of(slabs_.begin(), slabs_.end(), [&](const auto& other) {
    return other.first != slab->first && other.second.device == allocation.device &&
           other.second.owner == allocation.owner && other.second.space.empty();
  });
  if (another) {
    DropBlock(allocation.owner, std::move(slab->second.block));
    slabs_.erase(slab);
  }
}

void DeviceAllocator::ReclaimLoop() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (freed_.empty()) {
      changed_.WaitFor(&mutex_, std::chrono::seconds(1));
      continue;
    }
    reclaiming_.swap(freed_);
    std::set<uint64_t> owners;
    for (const auto& [address, allocation] : reclaiming_) owners.insert(allocation.owner);
    mutex_.Unlock();
    for (uint64_t owner : owners) {
      // An error here is the program's own, of a kernel that failed, and reaches it elsewhere.
      driver_->WaitIdle(owner).IgnoreError();
    }
    mutex_.Lock();
    for (auto& [address, allocation] : reclaiming_) FinishFreeing(address, std::move(allocation));
    reclaiming_.clear();
    changed_.SignalAll();
  }
}

bool DeviceAllocator::IsBeingFreed(uint64_t owner) const {
  const auto belongs = [owner](const auto& item) { return item.second.owner == owner; };
  return std::any_of(freed_.begin(), freed_.end(), belongs) ||
         std::any_of(reclaiming_.begin(), reclaiming_.end(), belongs);
}

void DeviceAllocator::FreeOwner(uint64_t owner) {
  MutexLock lock(&mutex_);
  for (auto allocation = allocations_.begin(); allocation != allocations_.end();) {
    const auto next = std::next(allocation);
    if (allocation->second.owner == owner) StartFreeing(allocation);
    allocation = next;
  }
  const absl::Time deadline = absl::Now() + options_.reclaim_wait;
  while (IsBeingFreed(owner) && absl::Now() < deadline) {
    changed_.WaitFor(&mutex_, std::chrono::milliseconds(100));
  }
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    if (slab->second.owner == owner && slab->second.space.empty()) {
      DropBlock(owner, std::move(slab->second.block));
      slab = slabs_.erase(slab);
    } else {
      ++slab;
    }
  }
}

uint64_t DeviceAllocator::FreeBytes(int device) {
  MutexLock lock(&mutex_);
  const uint64_t limit = ledger_->limit_bytes();
  const uint64_t used = ledger_->UsedBytes(device);
  uint64_t free = used < limit ? limit - used : 0;
  for (const Allocations* list : {&freed_, &reclaiming_}) {
    for (const auto& [address, allocation] : *list) {
      if (allocation.device == device) free += allocation.block.reservation.bytes();
    }
  }
  for (const auto& [base, slab] : slabs_) {
    if (slab.device == device && slab.live == 0) free += slab.block.reservation.bytes();
  }
  return std::min(free, limit);
}

absl::StatusOr<uint64_t> DeviceAllocator::ReserveAddresses(uint64_t size, uint64_t alignment,
                                                           uint64_t wanted) {
  if (window_bytes_ == 0) {
    return absl::UnimplementedError("the driver has no virtual memory interface");
  }
  const uint64_t unit = *std::max_element(granularity_.begin(), granularity_.end());
  if (size == 0 || size % unit != 0 || (alignment & (alignment - 1)) != 0) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("an address range of ", size, " bytes aligned to ", alignment,
                                  "; the size must be a multiple of ", unit));
  }
  MutexLock lock(&mutex_);
  // A wanted address is a hint, as cuda.h has it.
  uint64_t address = wanted;
  if (wanted == 0 || wanted % std::max(unit, alignment) != 0 || !window_.AllocateAt(wanted, size)) {
    address = window_.Allocate(size, std::max(unit, alignment));
  }
  if (address == kNoAddress) return OutOfAddresses(size);
  reserved_[address] = size;
  return address;
}

absl::Status DeviceAllocator::ReleaseAddresses(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  const auto range = reserved_.find(address);
  const bool backed =
      allocations_.count(address) + freed_.count(address) + reclaiming_.count(address) > 0;
  if (range == reserved_.end() || range->second != size || backed) {
    return CudaError(
        CUDA_ERROR_INVALID_VALUE,
        absl::StrCat("no reserved range of ", size, " bytes starts at 0x", absl::Hex(address)));
  }
  reserved_.erase(range);
  window_.Free(address);
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Back(int device, uint64_t owner, uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  const auto range = reserved_.find(address);
  const bool taken =
      allocations_.count(address) + freed_.count(address) + reclaiming_.count(address) > 0;
  if (range == reserved_.end() || range->second != size || taken) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("no reserved range of ", size,
                                  " bytes without memory starts at 0x", absl::Hex(address)));
  }
  ASSIGN_OR_RETURN(Block block, NewBlock(device, owner, size, address));
  allocations_[address] = {.device = device,
                           .owner = owner,
                           .slab = kNoAddress,
                           .block = std::move(block),
                           .bytes = size};
  return absl::OkStatus();
}

bool DeviceAllocator::IsReserved(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  auto range = reserved_.upper_bound(address);
  if (range == reserved_.begin()) return false;
  --range;
  const uint64_t skipped = address - range->first;
  return skipped < range->second && size <= range->second - skipped;
}

}  // namespace fargpu::memory
