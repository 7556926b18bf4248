#pragma once

#include "llvm/IR/Module.h"

namespace fargpu::softgpu {

// Cuts blocks into pieces of at most a few hundred instructions. LLVM's instruction selection
// builds a graph for a block at a time and takes time that grows with its square.
void CutLongBlocks(llvm::Module* module);

}  // namespace fargpu::softgpu
