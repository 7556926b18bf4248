#pragma once

#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <deque>
#include <memory>

#include "absl/status/statusor.h"

#include "common/mutex.h"

namespace fargpu::client {

enum class HandleKind : uint32_t {
  kNone = 0,
  kContext,
  kStream,
  kEvent,
  kModule,
  kLibrary,
  kFunction,  // CUfunction and CUkernel alike
  kArray,
  kMipmappedArray,
  kLink,
};

// What stands behind a handle that the program has. The address of the slot is the handle.
struct alignas(64) HandleSlot {
  std::atomic<HandleKind> kind{HandleKind::kNone};
  uint32_t flags = 0;           // as given to the call that created it
  int32_t priority = 0;         // streams
  uint64_t id = 0;              // on the wire
  CUcontext context = nullptr;  // the current context at creation
  void* object = nullptr;       // contexts, modules, libraries, functions, arrays
};
static_assert(sizeof(HandleSlot) == 64);

// Handles are addresses in a range of our own, so that a wrong one is recognised by its range,
// alignment and kind, without a look at memory that may not be there. Find() takes no lock.
//
// A slot is not used again before many others were freed, so that a handle that is used after its
// object was destroyed is mostly recognised too.
class HandleArena {
 public:
  static constexpr size_t kDefaultSlots = 16 << 20;  // 1 GiB of addresses; memory as it is used

  static absl::StatusOr<std::unique_ptr<HandleArena>> Create(size_t slots = kDefaultSlots);
  ~HandleArena();
  HandleArena(const HandleArena&) = delete;
  HandleArena& operator=(const HandleArena&) = delete;

  // A slot without a kind; the caller fills it and sets `kind` last. nullptr: the arena is full.
  HandleSlot* Allocate();
  void Free(HandleSlot* slot);

  // nullptr if `handle` is no living handle of this kind.
  HandleSlot* Find(const void* handle, HandleKind kind) const {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - begin_;
    if (offset >= bytes_ || offset % sizeof(HandleSlot) != 0) return nullptr;
    // Pages that were never touched read as zero, which is no kind.
    auto* slot = reinterpret_cast<HandleSlot*>(begin_ + offset);
    return slot->kind.load(std::memory_order_acquire) == kind ? slot : nullptr;
  }

 private:
  HandleArena(uintptr_t begin, size_t bytes) : begin_(begin), bytes_(bytes) {}

  const uintptr_t begin_;
  const size_t bytes_;
  Mutex mutex_;
  size_t fresh_ ABSL_GUARDED_BY(mutex_) = 0;  // slots from here on were never used
  std::deque<HandleSlot*> freed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::client
