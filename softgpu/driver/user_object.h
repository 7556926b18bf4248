#pragma once

#include <cstdint>
#include <cuda.h>

namespace fargpu::softgpu {

// An object of the program's that lives as long as the last reference to it; graphs hold some.
struct UserObject {
  CUuserObject handle = nullptr;
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  uint64_t references = 0;
};

}  // namespace fargpu::softgpu
