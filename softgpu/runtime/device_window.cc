#include "softgpu/runtime/device_window.h"

#include <sys/mman.h>

#include <cstdio>

#include "common/mutex.h"
#include "softgpu/compiler.h"
#include "softgpu/runtime/address_space.h"

namespace fargpu::softgpu {
namespace {

// Tried in this order. The first is far from everything that Linux, the dynamic linker or
// AddressSanitizer place; the others are for processes where it is taken, for ThreadSanitizer
// (which lets programs map only above 0x7e8000000000) and for machines with a limited address
// space.
constexpr AddressWindow kCandidates[] = {
    {0x200000000000, uint64_t{1} << 42}, {0x300000000000, uint64_t{1} << 42},
    {0x280000000000, uint64_t{1} << 42}, {0x400000000000, uint64_t{1} << 42},
    {0x480000000000, uint64_t{1} << 42}, {0x7e8000000000, uint64_t{1} << 39},
    {0x100000000000, uint64_t{1} << 40}, {0x200000000000, uint64_t{1} << 38},
    {0x7ea000000000, uint64_t{1} << 37}, {0x100000000000, uint64_t{1} << 36},
};

bool Reserve(const AddressWindow& window) {
  void* const wanted = reinterpret_cast<void*>(window.base);
  void* const got = mmap(wanted, window.size, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return false;
  // A sanitizer, or a kernel that does not know MAP_FIXED_NOREPLACE, may choose another address.
  if (got != wanted) {
    munmap(got, window.size);
    return false;
  }
  // Terabytes of nothing have no place in a core file.
  madvise(got, window.size, MADV_DONTDUMP);
  return true;
}

AddressWindow ReserveAny() {
  for (const AddressWindow& candidate : kCandidates) {
    if (Reserve(candidate)) return candidate;
  }
  // Without a window there is no device memory and nothing this library can do.
  std::fputs(
      "fargpu: softgpu: no free address range of 2^36 bytes for device memory; is the "
      "address space limited (ulimit -v)?\n",
      stderr);
  return AddressWindow{};
}

constexpr uint64_t kPageBytes = 4096;

// The executor's part of the window: its upper eighth.
struct ExecutorRanges {
  Mutex mutex;
  AddressSpace space ABSL_GUARDED_BY(mutex);

  explicit ExecutorRanges(const AddressWindow& window)
      : space(window.base + window.size / 8 * 7, window.size / 8) {}
};

ExecutorRanges& GetExecutorRanges() {
  // Never destroyed: kernels may run while the process ends.
  static ExecutorRanges* const ranges = new ExecutorRanges(DeviceWindow());
  return *ranges;
}

uint64_t WholePages(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

AddressWindow DeviceWindow() {
  static const AddressWindow window = ReserveAny();
  return window;
}

AddressWindow DeviceMemoryRange() {
  const AddressWindow window = DeviceWindow();
  return {window.base, window.size / 8 * 7};
}

uint64_t ReserveWindowRange(uint64_t bytes) {
  if (bytes == 0 || bytes > DeviceWindow().size) return 0;
  const uint64_t size = WholePages(bytes);
  ExecutorRanges& ranges = GetExecutorRanges();
  MutexLock lock(&ranges.mutex);
  const auto start = ranges.space.Take(size + 2 * kPageBytes, kPageBytes);
  if (!start) return 0;
  const uint64_t address = *start + kPageBytes;
  if (mprotect(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE) != 0) {
    ranges.space.Give(*start, size + 2 * kPageBytes);
    return 0;
  }
  return address;
}

void ReleaseWindowRange(uint64_t address, uint64_t bytes) {
  if (address == 0) return;
  const uint64_t size = WholePages(bytes);
  ExecutorRanges& ranges = GetExecutorRanges();
  MutexLock lock(&ranges.mutex);
  mmap(reinterpret_cast<void*>(address), size, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  ranges.space.Give(address - kPageBytes, size + 2 * kPageBytes);
}

}  // namespace fargpu::softgpu
