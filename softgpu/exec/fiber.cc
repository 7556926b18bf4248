#include "softgpu/exec/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define FARGPU_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FARGPU_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FARGPU_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FARGPU_THREAD_SANITIZER 1
#endif
#endif
#ifdef FARGPU_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif
#ifdef FARGPU_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace fargpu::softgpu {
namespace {

constexpr size_t kGuardBytes = size_t{64} << 10;

}  // namespace

#ifndef __x86_64__
#error "The software device's fibers are written for x86-64."
#endif

asm(R"(
  .text
  .p2align 4
  .globl fargpu_fiber_switch
  .hidden fargpu_fiber_switch
  .type fargpu_fiber_switch, @function
fargpu_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rdi
  .globl fargpu_fiber_abandon
  .hidden fargpu_fiber_abandon
  .type fargpu_fiber_abandon, @function
fargpu_fiber_abandon:
  movq %rdi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size fargpu_fiber_switch, .-fargpu_fiber_switch

  .p2align 4
  .type fargpu_fiber_start, @function
fargpu_fiber_start:
  movq %r12, %rdi
  xorl %ebp, %ebp
  callq *%r13
  ud2
  .size fargpu_fiber_start, .-fargpu_fiber_start
  .globl fargpu_fiber_start
  .hidden fargpu_fiber_start
)");

extern "C" void fargpu_fiber_start();

FiberStack::FiberStack(size_t bytes) {
  void* base = mmap(nullptr, kGuardBytes + bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base == MAP_FAILED) return;
  if (mprotect(base, kGuardBytes, PROT_NONE) != 0) {
    munmap(base, kGuardBytes + bytes);
    return;
  }
  base_ = static_cast<char*>(base);
  bytes_ = bytes;
}

FiberStack::~FiberStack() {
#ifdef FARGPU_THREAD_SANITIZER
  if (tracked_ != nullptr) __tsan_destroy_fiber(tracked_);
#endif
  if (base_ != nullptr) munmap(base_, kGuardBytes + bytes_);
}

FiberStack::FiberStack(FiberStack&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      tracked_(std::exchange(other.tracked_, nullptr)) {}
FiberStack& FiberStack::operator=(FiberStack&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(tracked_, other.tracked_);
  return *this;
}

bool FiberStack::InGuard(const void* address) const {
  const char* at = static_cast<const char*>(address);
  return base_ != nullptr && at >= base_ && at < base_ + kGuardBytes;
}

// Not instrumented: it would be entered on one fiber's record of calls and left on another's.
__attribute__((no_sanitize("thread"))) void TrackFiber(void* tracked) {
#ifdef FARGPU_THREAD_SANITIZER
  // Fibers of a worker run on its thread, one after another.
  __tsan_switch_to_fiber(tracked, 0);
#endif
}

void* TrackedFiber() {
#ifdef FARGPU_THREAD_SANITIZER
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}

void* FiberStack::Prepare(void (*function)(void*), void* argument) {
#ifdef FARGPU_THREAD_SANITIZER
  // Anew: the fiber that was here before may have been abandoned in the middle of calls.
  if (tracked_ != nullptr) __tsan_destroy_fiber(tracked_);
  tracked_ = __tsan_create_fiber(0);
#endif
#ifdef FARGPU_ADDRESS_SANITIZER
  // The fiber that was here before may have been abandoned with its frames' red zones in place.
  __asan_unpoison_memory_region(base_ + kGuardBytes, bytes_);
#endif
  auto* top = reinterpret_cast<void**>(base_ + kGuardBytes + bytes_);
  // What fargpu_fiber_switch pops: r15 r14 r13 r12 rbx rbp and the return address. At the start
  // routine rsp must be a multiple of 16, so that its call pushes the usual 8 bytes.
  void** frame = top - 9;
  frame[0] = nullptr;                            // r15
  frame[1] = nullptr;                            // r14
  frame[2] = reinterpret_cast<void*>(function);  // r13
  frame[3] = argument;                           // r12
  frame[4] = nullptr;                            // rbx
  frame[5] = nullptr;                            // rbp
  frame[6] = reinterpret_cast<void*>(&fargpu_fiber_start);
  frame[7] = nullptr;
  frame[8] = nullptr;
  return frame;
}

}  // namespace fargpu::softgpu
