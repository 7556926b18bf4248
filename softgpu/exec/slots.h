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

}  // namespace fargpu::softgpu
