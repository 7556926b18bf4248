#pragma once

#include <cstdint>

#include "softgpu/compiler.h"
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

// PlainAddress for many lanes: what is in the device window or in the block's own shared memory is
// found to be so without a call.
class AddressCheck {
 public:
  explicit AddressCheck(const OperationCall& call) : call_(call), window_(DeviceWindow()) {}
  // `alignment` is a power of two.
  uint64_t Plain(int lane, bool shared, uint64_t offset, uint64_t bytes, uint64_t alignment) const {
    const uint64_t start = shared ? 0 : window_.base;
    const uint64_t size = shared ? call_.context->shared_bytes : window_.size;
    const uint64_t within = offset - start;
    if (within < size && size - within >= bytes && (offset & (alignment - 1)) == 0) {
      return shared ? call_.context->shared_base + offset : offset;
    }
    return PlainAddress(call_, lane, shared, offset, bytes, alignment);
  }

 private:
  const OperationCall& call_;
  const AddressWindow window_;
};

}  // namespace fargpu::softgpu
