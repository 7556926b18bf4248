#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Stacks on which warps run, and the switch between them. x86-64, System V.
namespace fargpu::softgpu {

// A stack with an inaccessible page below it.
class FiberStack {
 public:
  FiberStack();
  ~FiberStack();
  FiberStack(FiberStack&& other) noexcept;
  FiberStack& operator=(FiberStack&& other) noexcept;
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  bool valid() const { return base_ != nullptr; }
  char* bottom() const { return base_; }
  size_t size() const;
  bool InGuard(const void* address) const;
  // A saved stack pointer which, when switched to, calls function(argument). It must not return.
  void* Prepare(void (*function)(void*), void* argument) const;

 private:
  char* base_ = nullptr;  // the guard page
};

// Saves the present context at *save and continues where `load` was saved.
extern "C" void fargpu_fiber_switch(void** save, void* load);
// Continues where `load` was saved and forgets the present context. Safe to be jumped to from a
// signal handler with `load` in rdi.
extern "C" [[noreturn]] void fargpu_fiber_abandon(void* load);

}  // namespace fargpu::softgpu
