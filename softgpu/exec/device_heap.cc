#include "softgpu/exec/device_heap.h"

#include <algorithm>
#include <iterator>

#include "softgpu/compiler.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t kAlignment = 16;
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

}  // namespace

DeviceHeap& DeviceHeap::Get() {
  static DeviceHeap* const heap = new DeviceHeap;
  return *heap;
}

uint64_t DeviceHeap::Allocate(uint64_t bytes, uint64_t limit) {
  if (bytes == 0 || bytes > limit) return 0;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  MutexLock lock(&mutex_);
  if (bytes_used_ + bytes > limit) return 0;
  uint64_t address = Take(bytes);
  if (address == 0) {
    const uint64_t chunk = (bytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
    const uint64_t start = ReserveWindowRange(chunk);
    if (start == 0) return 0;
    Give(start, chunk);
    address = Take(bytes);
  }
  used_[address] = bytes;
  bytes_used_ += bytes;
  return address;
}

bool DeviceHeap::Free(uint64_t address) {
  if (address == 0) return true;
  MutexLock lock(&mutex_);
  const auto found = used_.find(address);
  if (found == used_.end()) return false;
  bytes_used_ -= found->second;
  Give(address, found->second);
  used_.erase(found);
  return true;
}

uint64_t DeviceHeap::Take(uint64_t bytes) {
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second < bytes) continue;
    const auto [address, size] = *at;
    free_.erase(at);
    if (size > bytes) free_[address + bytes] = size - bytes;
    return address;
  }
  return 0;
}

void DeviceHeap::Give(uint64_t address, uint64_t bytes) {
  const auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(address);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      before->second += bytes;
      return;
    }
  }
  free_[address] = bytes;
}

}  // namespace fargpu::softgpu
