#pragma once

#include <cstdint>

namespace fargpu::softgpu {

// atom/red for the lanes in `mask`, in lane order. `code` is as in AtomicOp (warp_context.h).
// Addresses are checked already.
void RunAtomic(uint32_t code, const uint64_t* addresses, uint32_t mask, const void* a,
               const void* b, void* out);

// One operation in the rounding mode that `code` names, on 32 lanes (see RoundedOp).
void RunRounded(uint32_t code, const void* a, const void* b, const void* c, void* out);

}  // namespace fargpu::softgpu
