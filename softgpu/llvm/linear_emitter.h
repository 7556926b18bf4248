#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

// Emits `name`(WarpContext*) as straight code: blocks follow each other in an order in which lanes
// that diverged meet again, each run under the mask of the lanes that came to it, and values that
// are the same in all lanes, or differ by amounts known now, stay scalar.
//
// kUnfit if the kernel needs the dispatcher instead (EmitDispatchKernel): calls, control flow that
// has no such order, block barriers that part of a warp may reach, or lanes of one warp that may
// wait for each other. The module is then as before.
enum class LinearKernel {
  kUnfit,
  kWarp,    // the function runs one warp
  kBlock,   // ... one block, and lets others run where its warps wait for them
  kBlocks,  // warps wait for nothing outside: WarpContext::block_count whole blocks
};
absl::StatusOr<LinearKernel> EmitLinearKernel(const FlatKernel& kernel,
                                              const CompileOptions& options,
                                              const std::string& name, llvm::Module* module);

}  // namespace fargpu::softgpu
