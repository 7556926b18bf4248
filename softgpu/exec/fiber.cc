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
#ifdef FARGPU_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace fargpu::softgpu {
namespace {

// Compiled kernels keep vectors of 128 and 256 bytes in their frames: large kernels need much.
// Only what is touched is ever committed.
constexpr size_t kStackBytes = size_t{8} << 20;
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

FiberStack::FiberStack() {
  void* base = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base == MAP_FAILED) return;
  if (mprotect(base, kGuardBytes, PROT_NONE) != 0) {
    munmap(base, kGuardBytes + kStackBytes);
    return;
  }
  base_ = static_cast<char*>(base);
}

FiberStack::~FiberStack() {
  if (base_ != nullptr) munmap(base_, kGuardBytes + kStackBytes);
}

FiberStack::FiberStack(FiberStack&& other) noexcept : base_(std::exchange(other.base_, nullptr)) {}
FiberStack& FiberStack::operator=(FiberStack&& other) noexcept {
  std::swap(base_, other.base_);
  return *this;
}

size_t FiberStack::size() const { return kGuardBytes + kStackBytes; }

bool FiberStack::InGuard(const void* address) const {
  const char* at = static_cast<const char*>(address);
  return base_ != nullptr && at >= base_ && at < base_ + kGuardBytes;
}

void* FiberStack::Prepare(void (*function)(void*), void* argument) const {
#ifdef FARGPU_ADDRESS_SANITIZER
  // The fiber that was here before may have been abandoned with its frames' red zones in place.
  __asan_unpoison_memory_region(base_ + kGuardBytes, kStackBytes);
#endif
  auto* top = reinterpret_cast<void**>(base_ + kGuardBytes + kStackBytes);
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
