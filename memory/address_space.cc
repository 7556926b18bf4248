#include "memory/address_space.h"

#include <iterator>

namespace fargpu::memory {

std::optional<uint64_t> RoundUp(uint64_t value, uint64_t unit) {
  const uint64_t rest = value % unit;
  if (rest == 0) return value;
  const uint64_t missing = unit - rest;
  if (value > UINT64_MAX - missing) return std::nullopt;
  return value + missing;
}

AddressSpace::AddressSpace(uint64_t base, uint64_t size) : base_(base), size_(size) {
  if (size > 0) free_.emplace(base, size);
}

uint64_t AddressSpace::Allocate(uint64_t size, uint64_t alignment) {
  for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
    const auto [start, length] = *gap;
    const std::optional<uint64_t> address = RoundUp(start, alignment);
    if (!address.has_value()) continue;
    const uint64_t skipped = *address - start;
    if (skipped > length || length - skipped < size) continue;
    Take(gap, *address, size);
    return *address;
  }
  return kNoAddress;
}

bool AddressSpace::AllocateAt(uint64_t address, uint64_t size) {
  auto gap = free_.upper_bound(address);
  if (size == 0 || gap == free_.begin()) return false;
  --gap;
  const uint64_t skipped = address - gap->first;
  if (skipped > gap->second || gap->second - skipped < size) return false;
  Take(gap, address, size);
  return true;
}

void AddressSpace::Take(std::map<uint64_t, uint64_t>::iterator gap, uint64_t address,
                        uint64_t size) {
  const uint64_t start = gap->first;
  const uint64_t end = gap->first + gap->second;
  free_.erase(gap);
  if (address > start) free_.emplace(start, address - start);
  if (end > address + size) free_.emplace(address + size, end - (address + size));
  taken_.emplace(address, size);
}

std::optional<uint64_t> AddressSpace::Free(uint64_t address) {
  const auto taken = taken_.find(address);
  if (taken == taken_.end()) return std::nullopt;
  const uint64_t size = taken->second;
  taken_.erase(taken);
  auto [gap, inserted] = free_.emplace(address, size);
  if (const auto next = std::next(gap); next != free_.end() && next->first == address + size) {
    gap->second += next->second;
    free_.erase(next);
  }
  if (gap != free_.begin()) {
    const auto before = std::prev(gap);
    if (before->first + before->second == address) {
      before->second += gap->second;
      free_.erase(gap);
    }
  }
  return size;
}

uint64_t AddressSpace::SizeAt(uint64_t address) const {
  const auto taken = taken_.find(address);
  return taken == taken_.end() ? 0 : taken->second;
}

}  // namespace fargpu::memory
