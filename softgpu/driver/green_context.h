#pragma once

#include <cstdint>
#include <cuda.h>

namespace fargpu::softgpu {

// Multiprocessors that a green context is to have (CUdevResourceDesc).
struct ResourceDescription {
  int device = 0;
  unsigned multiprocessors = 0;
};

// A part of a device's multiprocessors, and a second name of its primary context (CUgreenCtx).
struct GreenContext {
  CUgreenCtx handle = nullptr;
  CUcontext context_handle = nullptr;  // what cuCtxFromGreenCtx gives
  uint64_t id = 0;
  int device = 0;
  unsigned multiprocessors = 0;
};

}  // namespace fargpu::softgpu
