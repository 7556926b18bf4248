#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/compiler.h"
#include "softgpu/llvm/warp_context.h"
#include "softgpu/passes/flat_kernel.h"

namespace fargpu::softgpu {

using WarpFunction = void (*)(WarpContext*);

// Machine code for kernels, made by LLVM for this CPU. One per program; its code goes with it.
// Compile may be called from several threads.
class Jit {
 public:
  static absl::StatusOr<std::unique_ptr<Jit>> Create();
  virtual ~Jit() = default;

  // Code that runs one warp of `kernel`, specialised for blocks of the shape `block` (all zero: any
  // shape). Errors as by Program::Launch.
  virtual absl::StatusOr<WarpFunction> Compile(const FlatKernel& kernel, Dim3 block) = 0;
};

}  // namespace fargpu::softgpu
