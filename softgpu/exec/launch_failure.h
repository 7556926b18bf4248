#pragma once

#include <cuda.h>
#include <string>

#include "softgpu/exec/worker.h"

// How code that runs on a fiber ends its launch.
namespace fargpu::softgpu {

inline RunningWarp* WarpOf(WarpContext* context) {
  return static_cast<RunningWarp*>(context->block);
}

// "kernel k, block (0, 0, 0)"
std::string Where(const WarpContext* c);
// "thread (3, 0, 0)"
std::string ThreadOf(const WarpContext* c, int lane);
// The launch fails with `code`; the fiber is abandoned.
[[noreturn]] void EndLaunch(WarpContext* context, CUresult code, const std::string& message);
// Is [address, address + bytes) inside the device window? Other memory is not the kernel's.
bool InWindow(uint64_t address, uint64_t bytes = 1);

}  // namespace fargpu::softgpu
