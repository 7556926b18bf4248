#pragma once

#include <cstdint>

#include "softgpu/llvm/warp_context.h"

namespace fargpu::softgpu {

// The operands of an operation: slot `k` as one T per lane.
class Slots {
 public:
  explicit Slots(char* base) : base_(base) {}
  template <typename T>
  T* Of(unsigned k) const {
    return reinterpret_cast<T*>(base_ + k * kSlotBytes);
  }

 private:
  char* base_;
};

// An operation that is under way.
struct OperationCall {
  WarpContext* context;
  uint64_t code;
  uint32_t mask;
  Slots slots;
  uint32_t line;  // of the instruction
};

// Blocks of the warp's cluster.
inline uint64_t ClusterBlocks(const WarpContext& c) {
  return uint64_t{c.cluster_size[0]} * c.cluster_size[1] * c.cluster_size[2];
}

// The plain address for `offset`, an address in .shared::cluster or a generic one. [offset, offset
// + bytes) is memory of the kernel and `offset` a multiple of `alignment`, or the launch ends.
uint64_t PlainAddress(const OperationCall& call, int lane, bool shared, uint64_t offset,
                      uint64_t bytes, uint64_t alignment);

}  // namespace fargpu::softgpu
