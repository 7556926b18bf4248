#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fargpu::softgpu {

// Hands out non-overlapping ranges of [base, base + size). Knows nothing of what lies there: it
// serves for virtual addresses, for offsets in a backing file and for parts of a block alike.
// Not thread-safe; the owner locks.
class AddressSpace {
 public:
  AddressSpace(uint64_t base, uint64_t size);

  // The lowest free range of `size` bytes that starts at a multiple of `alignment` (a power of
  // two) and not below `from`; nullopt if there is none.
  std::optional<uint64_t> Take(uint64_t size, uint64_t alignment, uint64_t from = 0);
  // Takes exactly [address, address + size); false if any of it is taken or outside.
  bool TakeAt(uint64_t address, uint64_t size);
  // Gives back a range that was taken; it need not be one whole Take().
  void Give(uint64_t address, uint64_t size);

  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }
  uint64_t free_bytes() const { return free_bytes_; }
  bool unused() const { return free_bytes_ == size_; }

 private:
  void Carve(std::map<uint64_t, uint64_t>::iterator extent, uint64_t address, uint64_t size);

  uint64_t base_;
  uint64_t size_;
  uint64_t free_bytes_;
  std::map<uint64_t, uint64_t> free_;  // start -> size; neighbours are always merged
};

}  // namespace fargpu::softgpu
