#pragma once

#include <cstdint>

#include "softgpu/llvm/warp_context.h"

namespace fargpu::softgpu {

// kRuntimeOperation.
void RunOperation(WarpContext* context, uint32_t operation, uint64_t code, uint32_t mask,
                  char* slots, uint32_t line);

}  // namespace fargpu::softgpu
