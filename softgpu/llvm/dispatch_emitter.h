#pragma once

#include <string>

#include "absl/status/status.h"

#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

// Emits `name`(WarpContext*), which runs a warp of `kernel` in the most general way: every lane has
// its own program counter (a block number), a dispatcher picks the lowest one and runs the lanes
// that share it. Right for any control flow, also where lanes wait for each other; the registers
// live in vectors that are blended on every write.
absl::Status EmitDispatchKernel(const FlatKernel& kernel, const CompileOptions& options,
                                const std::string& name, llvm::Module* module);

}  // namespace fargpu::softgpu
