#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fargpu::memory {

inline constexpr uint64_t kNoAddress = 0;

// `value` rounded up to a multiple of `unit`; nullopt if that does not fit 64 bits. `unit` > 0.
std::optional<uint64_t> RoundUp(uint64_t value, uint64_t unit);

// Deals out parts of one range of numbers. Knows nothing of memory. Not thread-safe.
class AddressSpace {
 public:
  AddressSpace(uint64_t base, uint64_t size);

  // The lowest free address that fits, a multiple of `alignment` (a power of two); kNoAddress when
  // there is none. `size` must not be 0.
  uint64_t Allocate(uint64_t size, uint64_t alignment);
  // Takes exactly [address, address + size); false if any of it is taken or outside.
  bool AllocateAt(uint64_t address, uint64_t size);
  // Gives back what starts at `address` and returns its size; nullopt if nothing does.
  std::optional<uint64_t> Free(uint64_t address);

  // The size of what starts at `address`; 0 if nothing does.
  uint64_t SizeAt(uint64_t address) const;
  bool Contains(uint64_t address) const { return address - base_ < size_; }
  bool empty() const { return taken_.empty(); }
  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }

 private:
  void Take(std::map<uint64_t, uint64_t>::iterator gap, uint64_t address, uint64_t size);

  uint64_t base_;
  uint64_t size_;
  std::map<uint64_t, uint64_t> free_;   // address -> size; neighbours are always merged
  std::map<uint64_t, uint64_t> taken_;  // address -> size
};

}  // namespace fargpu::memory
