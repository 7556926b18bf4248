#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/mutex.h"
#include "memory/address_space.h"
#include "memory/lease_ledger.h"
#include "memory/memory_driver.h"

namespace fargpu::memory {

// Sizes from here on get physical memory of their own; smaller ones share slabs.
inline constexpr uint64_t kLargeBytes = 1 << 20;
inline constexpr uint64_t kSlabBytes = 2 << 20;
// What cuMemAlloc aligns to; also the unit in which slabs are dealt out.
inline constexpr uint64_t kAllocationAlignment = 512;

// cuMemAlloc and cuMemFree of one session: addresses inside one window that stays the session's
// (DESIGN D4), memory charged to the lease before the driver is asked (DESIGN D9).
//
// Freeing takes effect once the work that was queued before it is done, as CUDA has it; nobody
// waits for that but a thread of the allocator. Any thread may call anything.
class DeviceAllocator {
 public:
  struct Options {
    // How many addresses to reserve. Halved until the driver agrees; 0: use plain allocation.
    uint64_t window_bytes = 0;
    // The driver promises that memory it hands out holds no bytes of others.
    bool fresh_memory_is_zero = false;
    // How long Allocate() waits for memory that is on its way back before it says that there is
    // none: a kernel that never ends must not hang the caller for ever.
    absl::Duration reclaim_wait = absl::Seconds(10);
  };

  // Both must outlive the allocator. Never fails: a driver without virtual memory gives a window of
  // size 0.
  DeviceAllocator(MemoryDriver* driver, LeaseLedger* ledger, Options options);
  ~DeviceAllocator();

  uint64_t window_base() const { return window_base_; }
  uint64_t window_bytes() const { return window_bytes_; }

  // `owner` names the context that the memory belongs to. CUDA_ERROR_OUT_OF_MEMORY over the limit.
  absl::StatusOr<uint64_t> Allocate(int device, uint64_t owner, uint64_t size);
  // CUDA_ERROR_INVALID_VALUE if no allocation starts there.
  absl::Status Free(uint64_t address);
  // Frees all of a context that is about to go, and waits for it.
  void FreeOwner(uint64_t owner);

  // What another process needs to map memory of this one (CUDA IPC).
  struct Shared {
    uint64_t number = 0;  // names the physical memory in this process, for Export()
    int device = 0;
    uint64_t block_bytes = 0;  // of the physical memory
    uint64_t offset = 0;       // where in it the allocation begins
    uint64_t bytes = 0;        // from there to the allocation's end, or more
  };
  // Moves what holds the allocation that starts at `address` to physical memory that other
  // processes can map, unless it is there already; the address stays. Waits for its owner's work;
  // nobody may queue more meanwhile. Needs twice the bytes on the card while it moves.
  // CUDA_ERROR_INVALID_VALUE if no allocation starts there, CUDA_ERROR_NOT_SUPPORTED without a
  // window.
  absl::StatusOr<Shared> Share(uint64_t address);
  // A descriptor of what Share() numbered; CUDA_ERROR_INVALID_VALUE if it has been freed.
  absl::StatusOr<UniqueFd> Export(uint64_t number);
  // Maps what another process exported and charges it to the lease. Free() ends it.
  absl::StatusOr<uint64_t> Import(uint64_t owner, const Shared& shared, int fd);

  // Bytes that Allocate() could still give: the limit less what is charged, not counting what is on
  // its way back.
  uint64_t FreeBytes(int device);

  // Addresses of the window for the program's own mappings (cuMemAddressReserve). kUnimplemented
  // without a window.
  absl::StatusOr<uint64_t> ReserveAddresses(uint64_t size, uint64_t alignment, uint64_t wanted);
  absl::Status ReleaseAddresses(uint64_t address, uint64_t size);
  // Memory for all of a range that ReserveAddresses() gave. Free(address) ends both the memory and
  // the reservation. CUDA_ERROR_INVALID_VALUE if it is no such range or has memory already.
  absl::Status Back(int device, uint64_t owner, uint64_t address, uint64_t size);
  // Whether one range that ReserveAddresses() gave holds all of [address, address + size).
  bool IsReserved(uint64_t address, uint64_t size);

 private:
  // Physical memory, mapped into the window, or plain memory of the driver.
  struct Block {
    uint64_t address = kNoAddress;
    uint64_t bytes = 0;
    uint64_t handle = 0;
    bool mapped = false;
    uint64_t shared_number = 0;  // not 0: other processes can map it
    Reservation reservation;
  };
  struct Slab {
    Slab(Block slab_block, int slab_device, uint64_t slab_owner)
        : block(std::move(slab_block)),
          device(slab_device),
          owner(slab_owner),
          space(block.address, block.bytes) {}
    Block block;
    int device;
    uint64_t owner;
    AddressSpace space;
    int live = 0;  // allocations that are not being freed
  };
  struct Allocation {
    int device = 0;
    uint64_t owner = 0;
    uint64_t slab = kNoAddress;  // base of the slab it lies in, or
    Block block;                 // memory of its own
    uint64_t bytes = 0;          // as asked for
  };
  using Allocations = std::map<uint64_t, Allocation>;

  absl::StatusOr<Block> NewBlock(int device, uint64_t owner, uint64_t bytes,
                                 uint64_t reserved = kNoAddress)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `reserved`: where to map it, in a range of ReserveAddresses(); kNoAddress: anywhere.
  absl::StatusOr<Block> TryNewBlock(int device, uint64_t owner, uint64_t bytes, uint64_t reserved)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropBlock(uint64_t owner, Block block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<uint64_t> AllocateInSlab(int device, uint64_t owner, uint64_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives empty slabs back: all of `device`, or all of `owner`.
  bool DropEmptySlabs(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartFreeing(Allocations::iterator allocation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishFreeing(uint64_t address, Allocation allocation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeShareable(int device, uint64_t owner, Block* block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsBeingFreed(uint64_t owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReclaimLoop();

  MemoryDriver* const driver_;
  LeaseLedger* const ledger_;
  const Options options_;
  uint64_t window_base_ = 0;
  uint64_t window_bytes_ = 0;
  std::vector<uint64_t> granularity_;  // per device

  Mutex mutex_;
  CondVar changed_;
  AddressSpace window_ ABSL_GUARDED_BY(mutex_);
  Allocations allocations_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Slab> slabs_ ABSL_GUARDED_BY(mutex_);         // by base
  std::map<uint64_t, uint64_t> reserved_ ABSL_GUARDED_BY(mutex_);  // address -> size
  // Freed by the program, still in use by queued work; by address. `reclaiming_` are those of them
  // that the reclaiming thread has taken up.
  Allocations freed_ ABSL_GUARDED_BY(mutex_);
  Allocations reclaiming_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_shared_number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::thread> reclaimer_ ABSL_GUARDED_BY(mutex_);  // started by the first Free
};

}  // namespace fargpu::memory
