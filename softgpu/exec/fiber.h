#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Stacks on which warps run, and the switch between them. x86-64, System V.
namespace fargpu::softgpu {

// A stack with inaccessible pages below it.
class FiberStack {
 public:
  // Compiled kernels keep vectors of 128 and 256 bytes in their frames: large kernels need much.
  // Only what is touched is ever committed.
  static constexpr size_t kUsualBytes = size_t{8} << 20;

  // Of `bytes`, a multiple of the page size.
  explicit FiberStack(size_t bytes);
  // None.
  FiberStack() = default;
  ~FiberStack();
  FiberStack(FiberStack&& other) noexcept;
  FiberStack& operator=(FiberStack&& other) noexcept;
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  bool valid() const { return base_ != nullptr; }
  size_t bytes() const { return bytes_; }  // that can be used
  bool InGuard(const void* address) const;
  // A saved stack pointer which, when switched to, calls function(argument). It must not return.
  void* Prepare(void (*function)(void*), void* argument);
  // The fiber that runs here, as ThreadSanitizer knows it; null without it.
  void* tracked() const { return tracked_; }

 private:
  char* base_ = nullptr;  // the guard pages
  size_t bytes_ = 0;
  void* tracked_ = nullptr;
};

// Tells ThreadSanitizer that what runs from now on is the fiber `tracked`; to be called right
// before a switch. Nothing without it.
void TrackFiber(void* tracked);
// The one that runs now; null without ThreadSanitizer.
void* TrackedFiber();

// Saves the present context at *save and continues where `load` was saved.
extern "C" void fargpu_fiber_switch(void** save, void* load);
// Continues where `load` was saved and forgets the present context. Safe to be jumped to from a
// signal handler with `load` in rdi.
extern "C" [[noreturn]] void fargpu_fiber_abandon(void* load);

}  // namespace fargpu::softgpu
