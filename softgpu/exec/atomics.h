#pragma once

#include <cstdint>

#include "softgpu/llvm/warp_context.h"

namespace fargpu::softgpu {

// Of the word that an operation on `type` replaces.
inline uint32_t AtomicBytes(AtomicType type) {
  switch (type) {
    case AtomicType::kU64:
    case AtomicType::kS64:
    case AtomicType::kF64:
      return 8;
    case AtomicType::kF16:
    case AtomicType::kBF16:
    case AtomicType::kU16:
      return 2;
    default:
      return 4;
  }
}

// atom/red for the lanes in `mask`, in lane order. `code` is as in AtomicOp (warp_context.h).
// Addresses are checked already.
void RunAtomic(uint32_t code, const uint64_t* addresses, uint32_t mask, const void* a,
               const void* b, void* out);

// One operation in the rounding mode that `code` names, on 32 lanes (see RoundedOp).
void RunRounded(uint32_t code, const void* a, const void* b, const void* c, void* out);

}  // namespace fargpu::softgpu
