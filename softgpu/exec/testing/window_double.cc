// The device window for tests of the compiler half: a bump allocator without accounts.
#include <sys/mman.h>

#include <atomic>

#include "absl/base/thread_annotations.h"

#include "common/mutex.h"
#include "softgpu/compiler.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t kWindowBytes = uint64_t{1} << 36;
constexpr uint64_t kPage = 4096;

struct Window {
  uint64_t base = 0;
  Mutex mutex;
  uint64_t next ABSL_GUARDED_BY(mutex) = 0;
};

Window& TheWindow() {
  static Window* const window = [] {
    auto* w = new Window;
    void* raw = mmap(nullptr, 2 * kWindowBytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return w;
    MutexLock lock(&w->mutex);
    w->base = (reinterpret_cast<uint64_t>(raw) + kWindowBytes - 1) / kWindowBytes * kWindowBytes;
    w->next = w->base + kPage;
    return w;
  }();
  return *window;
}

}  // namespace

AddressWindow DeviceWindow() { return {TheWindow().base, kWindowBytes}; }

uint64_t ReserveWindowRange(uint64_t bytes) {
  Window& window = TheWindow();
  bytes = (bytes + kPage - 1) / kPage * kPage;
  MutexLock lock(&window.mutex);
  if (window.base == 0 || bytes > window.base + kWindowBytes - window.next - kPage) return 0;
  const uint64_t address = window.next;
  window.next += bytes + kPage;
  if (mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) != 0) return 0;
  return address;
}

void ReleaseWindowRange(uint64_t address, uint64_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

namespace {
std::atomic<uint64_t> registered_base{0};
std::atomic<uint64_t> registered_size{0};
}  // namespace

void RegisterHostRange(uint64_t address, uint64_t bytes) {
  registered_base = address;
  registered_size = bytes;
}

bool HostRangeReachable(uint64_t address, uint64_t bytes) {
  return address - registered_base < registered_size &&
         bytes <= registered_size - (address - registered_base);
}

}  // namespace fargpu::softgpu
