#pragma once

#include <cuda.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "softgpu/passes/flat_kernel.h"
#include "softgpu/passes/link_modules.h"

namespace fargpu::softgpu {

// Inlines device functions, resolves names and cuts the body into basic blocks (see FlatKernel).
// Every block is reachable. An instruction that waits for other lanes or warps starts its block.
// Errors carry CUDA_ERROR_NOT_SUPPORTED (recursion, calls through a pointer) or
// CUDA_ERROR_INVALID_PTX and name kernel, line and instruction.
absl::StatusOr<FlatKernel> FlattenKernel(const LinkedProgram& program, size_t kernel);

// "kernel foo, line 12: what".
absl::Status KernelError(CUresult code, absl::string_view kernel, const ptx::Instruction& at,
                         absl::string_view what);

}  // namespace fargpu::softgpu
