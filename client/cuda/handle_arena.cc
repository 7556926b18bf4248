#include "client/cuda/handle_arena.h"

#include <sys/mman.h>

#include <new>

#include "common/fd.h"

namespace fargpu::client {
namespace {

constexpr size_t kRestingSlots = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<HandleArena>> HandleArena::Create(size_t slots) {
  const size_t bytes = slots * sizeof(HandleSlot);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus("reserve addresses for handles");
  return std::unique_ptr<HandleArena>(new HandleArena(reinterpret_cast<uintptr_t>(memory), bytes));
}

HandleArena::~HandleArena() { munmap(reinterpret_cast<void*>(begin_), bytes_); }

HandleSlot* HandleArena::Allocate() {
  MutexLock lock(&mutex_);
  const bool full = (fresh_ + 1) * sizeof(HandleSlot) > bytes_;
  if (freed_.size() > kRestingSlots || (full && !freed_.empty())) {
    HandleSlot* slot = freed_.front();
    freed_.pop_front();
    return slot;
  }
  if (full) return nullptr;
  return new (reinterpret_cast<void*>(begin_ + fresh_++ * sizeof(HandleSlot))) HandleSlot;
}

void HandleArena::Free(HandleSlot* slot) {
  slot->kind.store(HandleKind::kNone, std::memory_order_release);
  slot->object = nullptr;
  MutexLock lock(&mutex_);
  freed_.push_back(slot);
}

}  // namespace fargpu::client
