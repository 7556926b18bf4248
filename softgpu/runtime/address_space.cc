#include "softgpu/runtime/address_space.h"

#include <algorithm>
#include <iterator>

namespace fargpu::softgpu {

AddressSpace::AddressSpace(uint64_t base, uint64_t size)
    : base_(base), size_(size), free_bytes_(size) {
  if (size > 0) free_.emplace(base, size);
}

void AddressSpace::Carve(std::map<uint64_t, uint64_t>::iterator extent, uint64_t address,
                         uint64_t size) {
  const uint64_t start = extent->first;
  const uint64_t end = start + extent->second;
  free_.erase(extent);
  if (address > start) free_.emplace(start, address - start);
  if (address + size < end) free_.emplace(address + size, end - (address + size));
  free_bytes_ -= size;
}

std::optional<uint64_t> AddressSpace::Take(uint64_t size, uint64_t alignment, uint64_t from) {
  if (size == 0 || size > free_bytes_) return std::nullopt;
  auto extent = free_.upper_bound(from);
  if (extent != free_.begin()) --extent;
  for (; extent != free_.end(); ++extent) {
    const uint64_t end = extent->first + extent->second;
    const uint64_t start = std::max(extent->first, from);
    const uint64_t address = (start + alignment - 1) & ~(alignment - 1);
    if (address < start || address >= end || end - address < size) continue;
    Carve(extent, address, size);
    return address;
  }
  return std::nullopt;
}

bool AddressSpace::TakeAt(uint64_t address, uint64_t size) {
  if (size == 0 || address < base_ || size > size_ || address - base_ > size_ - size) return false;
  auto extent = free_.upper_bound(address);
  if (extent == free_.begin()) return false;
  --extent;
  const uint64_t end = extent->first + extent->second;
  if (address >= end || end - address < size) return false;
  Carve(extent, address, size);
  return true;
}

void AddressSpace::Give(uint64_t address, uint64_t size) {
  if (size == 0) return;
  free_bytes_ += size;
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      previous->second += size;
      return;
    }
  }
  free_.emplace(address, size);
}

}  // namespace fargpu::softgpu
