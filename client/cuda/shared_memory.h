#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "client/cuda/lazy_pages.h"
#include "client/cuda/page_faults.h"
#include "common/mutex.h"
#include "memory/address_space.h"
#include "protocol/wire/record.h"

namespace fargpu::client {

class Session;

// Whether a call with this op may run or move anything on the card, so that what the host has
// written must be there before it. What is left out: session, contexts, allocation, virtual memory,
// modules, libraries, events, textures, and the calls of shared memory itself.
constexpr bool MayTouchMemory(uint16_t op) {
  switch (op >> 8) {
    case 0x00:
    case 0x01:
    case 0x02:
    case 0x04:
    case 0x05:
    case 0x06:
    case 0x09:
    case 0x0b:
    case 0x0c:
      return false;
    default:
      return true;
  }
}

// Whether the program may have learned from the reply to this call that work on the card is done.
constexpr bool MaySynchronize(uint16_t op) {
  return MayTouchMemory(op) || op >> 8 == 0x01 || op >> 8 == 0x09;
}

// Memory of this process that kernels reach: managed memory, `__managed__` variables, pinned memory
// and memory that the program registered. Host and card each have bytes of their own; what one has
// changed is brought to the other before the next work, and after the program has waited for the
// card (docs/design/011). Managed and pinned memory has the same address on both sides. Any thread.
class SharedMemory {
 public:
  explicit SharedMemory(Session* session);
  ~SharedMemory();

  enum class Kind { kManaged, kPinned, kRegistered, kVariable };

  // CUDA_ERROR_OUT_OF_MEMORY, or CUDA_ERROR_NOT_SUPPORTED where addresses cannot be agreed on.
  absl::StatusOr<uintptr_t> AllocateManaged(size_t bytes) {
    return Allocate(Kind::kManaged, bytes);
  }
  // Of this process until a kernel needs it; kUnavailable etc. as the calls that are made.
  absl::StatusOr<uintptr_t> AllocatePinned(size_t bytes) { return Allocate(Kind::kPinned, bytes); }
  // What one of the two gave.
  void Free(uintptr_t address);

  // Makes pinned or registered memory reachable by kernels; the address of `host` there.
  // CUDA_ERROR_INVALID_VALUE if [begin, begin + bytes), which holds it, is not the program's.
  absl::StatusOr<CUdeviceptr> Map(uintptr_t host, uintptr_t begin, size_t bytes);
  // Ends it for registered memory.
  void Unmap(uintptr_t begin);
  // Maps pinned memory that one of these words points to: parameters of a kernel.
  absl::Status MapReferenced(absl::Span<const char> parameters);

  // A variable of a module, at the card's address. CUDA_ERROR_OUT_OF_MEMORY if something of this
  // process lies there.
  absl::Status AddVariable(uintptr_t address, size_t bytes, const void* owner);
  // The module or library has gone.
  void RemoveVariables(const void* owner);

  // The program will touch this managed memory: what is not here after the next wait is brought
  // then, all at once.
  void WantOnHost(CUdeviceptr address, size_t bytes);

  // What the context owned is gone.
  void RemoveContext(CUcontext context);

  // Is any of this, as the card sees it, shared memory?
  bool Holds(CUdeviceptr address, size_t bytes) const;
  // Where the card has this host memory, if kernels can reach all of it; else 0. Copies out of such
  // memory and into it are the card's: in the order of a stream it is the card that has the bytes.
  CUdeviceptr OnCard(uintptr_t host, size_t bytes) const;
  bool active() const { return active_.load(std::memory_order_acquire); }

  // Brings what the host has written to the card. Before every call that MayTouchMemory().
  absl::Status BeforeWork();
  // Brings what the card has written. `key` names what was waited for: the same again, without work
  // in between, brings nothing.
  absl::Status AfterWait(uint64_t key);

  // Around a host function of the program, on the thread that runs it: it sees what the work before
  // it has written, and the work after it what it wrote.
  void BeforeHostFunction();
  void AfterHostFunction();

  void PrepareFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void ParentAfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }
  void AbandonAfterFork();

 private:
  struct Region {
    Kind kind = Kind::kManaged;
    uintptr_t host = 0;
    CUdeviceptr device = 0;
    size_t bytes = 0;     // of this process
    size_t reserved = 0;  // addresses on the card; 0 if the driver chose them
    CUcontext context = nullptr;
    wire::ContextId context_id;
    bool backed = false;  // there is memory on the card
    // Small allocations share a region, which deals them out.
    std::unique_ptr<memory::AddressSpace> slab;
    // What kernels may reach, by offset. For these both sides' common knowledge is kept in `known`.
    std::map<size_t, size_t> extents;
    size_t watched = 0;
    char* known = nullptr;
    // Instead: pages that are fetched when they are touched.
    std::shared_ptr<LazyPages> lazy;                // shared with a fetch that is under way
    const void* owner = nullptr;                    // of a variable
    std::vector<std::pair<size_t, size_t>> wanted;  // offsets and sizes, see WantOnHost()
  };
  class Writer;

  absl::StatusOr<uintptr_t> Allocate(Kind kind, size_t bytes);
  absl::StatusOr<Region*> NewRegion(Kind kind, size_t bytes, size_t host_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Back(Region* region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Activate(Region* region, size_t offset, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(std::unique_ptr<Region> region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  enum class Tell { kNo, kYes };
  void Remove(Region* region, Tell tell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Region* FindHost(uintptr_t address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Region* FindDevice(CUdeviceptr address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FetchChanges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Apply(absl::Span<const uint64_t> addresses, absl::Span<const uint32_t> sizes,
                     absl::Span<const uint32_t> words) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BringWanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fetch(wire::ContextId context, CUdeviceptr address, absl::Span<char> to);
  bool Resolve(uintptr_t address, PageFaults::Access access);
  wire::CallHeader Header(wire::ContextId context) const;
  void UpdateActive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Session& session_;
  std::atomic<bool> active_{false};
  std::atomic<bool> has_pinned_{false};
  // Taken before the locks of the call stream.
  mutable Mutex mutex_;
  std::map<uintptr_t, std::unique_ptr<Region>> by_host_ ABSL_GUARDED_BY(mutex_);
  std::map<CUdeviceptr, Region*> by_device_ ABSL_GUARDED_BY(mutex_);  // all but not yet mapped ones
  std::map<uintptr_t, int> variable_pages_ ABSL_GUARDED_BY(mutex_);   // how many variables need it
  size_t compared_bytes_ ABSL_GUARDED_BY(mutex_) =
      0;  // regions of managed memory that are compared
  uint64_t work_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t writes_ ABSL_GUARDED_BY(mutex_) = 0;                           // messages
  absl::flat_hash_map<uint64_t, uint64_t> seen_ ABSL_GUARDED_BY(mutex_);  // key -> work_ then
  std::unique_ptr<PageFaults> faults_ ABSL_GUARDED_BY(mutex_);  // from the first lazy region on
};

}  // namespace fargpu::client
