#include "softgpu/exec/device_heap.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "softgpu/compiler.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t kAlignment = 16;
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

}  // namespace

namespace {

struct Heaps {
  Mutex mutex;
  std::map<uint64_t, std::unique_ptr<DeviceHeap>> by_number ABSL_GUARDED_BY(mutex);
};
Heaps& AllHeaps() {
  static Heaps* const heaps = new Heaps;
  return *heaps;
}

}  // namespace

DeviceHeap& DeviceHeap::Of(uint64_t number) {
  Heaps& heaps = AllHeaps();
  MutexLock lock(&heaps.mutex);
  std::unique_ptr<DeviceHeap>& heap = heaps.by_number[number];
  if (heap == nullptr) heap = std::make_unique<DeviceHeap>();
  return *heap;
}

void ReleaseHeap(uint64_t number) {
  Heaps& heaps = AllHeaps();
  std::unique_ptr<DeviceHeap> ended;
  MutexLock lock(&heaps.mutex);
  const auto found = heaps.by_number.find(number);
  if (found == heaps.by_number.end()) return;
  ended = std::move(found->second);
  heaps.by_number.erase(found);
}

DeviceHeap::~DeviceHeap() {
  MutexLock lock(&mutex_);
  for (const auto& [address, bytes] : chunks_) ReleaseWindowRange(address, bytes);
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
    chunks_[start] = chunk;
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
