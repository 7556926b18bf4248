#include "softgpu/driver/managed.h"

#include <algorithm>
#include <iterator>

namespace fargpu::softgpu {

void ManagedRanges::Split(uint64_t address) {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return;
  --it;
  const uint64_t offset = address - it->first;
  if (offset == 0 || offset >= it->second.size) return;
  Range rest = it->second;
  rest.size -= offset;
  it->second.size = offset;
  ranges_.emplace(address, std::move(rest));
}

void ManagedRanges::Add(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  ranges_[address] = {.size = size, .facts = {}};
}

void ManagedRanges::Remove(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  ranges_.erase(ranges_.lower_bound(address), ranges_.lower_bound(address + size));
}

std::vector<ManagedRanges::Facts> ManagedRanges::Get(uint64_t address, uint64_t size) const {
  MutexLock lock(&mutex_);
  std::vector<Facts> facts;
  auto it = ranges_.upper_bound(address);
  if (it != ranges_.begin()) --it;
  for (; it != ranges_.end() && it->first < address + size; ++it) {
    if (it->first + it->second.size > address) facts.push_back(it->second.facts);
  }
  return facts;
}

}  // namespace fargpu::softgpu
