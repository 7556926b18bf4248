#pragma once

#include <cuda.h>

namespace fargpu::driver_abi::local {

// CUDA_ERROR_INVALID_VALUE for what is no texture reference.
CUresult CheckTextureReference(CUtexref reference);

}  // namespace fargpu::driver_abi::local
