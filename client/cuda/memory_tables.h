#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <map>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/mutex.h"

namespace fargpu::client {

struct MemoryRange {
  uintptr_t begin = 0;
  size_t bytes = 0;
  CUcontext context = nullptr;  // current when it was made
  int device = 0;
  unsigned flags = 0;   // host memory: as given
  uint64_t number = 0;  // never used again for another
  bool ours = false;    // host memory: cuMemHostAlloc made it; else the program registered its own
  bool shared = false;  // host memory: made by SharedMemory
  bool reserved =
      false;  // device memory: an address range of cuMemAddressReserve, not an allocation
  bool managed = false;         // device memory: of the host too, see shared_memory.h
  bool graph = false;           // device memory: of a graph's node that allocates
  bool imported = false;        // device memory: of another process (cuIpcOpenMemHandle)
  bool variable = false;        // device memory: of a module, which the program cannot free
  CUmemoryPool pool = nullptr;  // device memory: that it counts for
  uintptr_t end() const { return begin + bytes; }
};

// Ranges of addresses that do not overlap: one table for device memory, one for pinned host memory.
// Any thread.
class MemoryTable {
 public:
  // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED if it overlaps one that is there.
  absl::Status Insert(MemoryRange range);
  // The range that holds `address`.
  std::optional<MemoryRange> Find(uintptr_t address) const;
  // Removes the range that begins at `address`, and returns it.
  std::optional<MemoryRange> Remove(uintptr_t address);
  // Drops all ranges of a context that is no more.
  void RemoveContext(CUcontext context);
  // Of them only those that have gone with it: not memory of the program's own.
  void RemoveShared(CUcontext context);

 private:
  mutable Mutex mutex_;
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uintptr_t, MemoryRange> ranges_ ABSL_GUARDED_BY(mutex_);
};

// Numbers that stand for physical memory of cuMemCreate. Any thread.
class PhysicalMemoryTable {
 public:
  void Insert(uint64_t handle) {
    MutexLock lock(&mutex_);
    handles_.insert(handle);
  }
  bool Contains(uint64_t handle) const {
    MutexLock lock(&mutex_);
    return handles_.count(handle) != 0;
  }
  bool Remove(uint64_t handle) {
    MutexLock lock(&mutex_);
    return handles_.erase(handle) != 0;
  }

 private:
  mutable Mutex mutex_;
  std::set<uint64_t> handles_ ABSL_GUARDED_BY(mutex_);
};

// Keeps the addresses of device memory free of anything else in this process (DESIGN D4), so that
// an address tells by itself on which side it lies, and a wrong access from the CPU faults.
class AddressWindow {
 public:
  // kFailedPrecondition, naming the range, if something lies there already. Size 0 reserves
  // nothing.
  static absl::StatusOr<AddressWindow> Reserve(uint64_t base, uint64_t bytes);
  AddressWindow() = default;
  AddressWindow(AddressWindow&& other) noexcept;
  AddressWindow& operator=(AddressWindow&& other) noexcept;
  ~AddressWindow();

  bool known() const { return bytes_ > 0; }
  bool Contains(uintptr_t address) const { return address - base_ < bytes_; }
  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

 private:
  AddressWindow(uint64_t base, uint64_t bytes) : base_(base), bytes_(bytes) {}
  uint64_t base_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace fargpu::client
