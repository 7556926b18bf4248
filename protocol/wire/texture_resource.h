#pragma once

#include <cstdint>

#include "protocol/wire/codec.h"

namespace fargpu::wire {

// What a texture or surface reads: CUDA_RESOURCE_DESC with our ids in place of handles.
struct TextureResource {
  int32_t kind = 0;  // CUresourcetype; what follows counts as far as it concerns that kind
  uint32_t channels = 0;
  ArrayId array;
  MipmappedArrayId mipmapped_array;
  uint64_t address = 0;
  uint64_t format = 0;  // CUarray_format
  uint64_t width = 0;   // CU_RESOURCE_TYPE_LINEAR: bytes; else elements
  uint64_t height = 0;
  uint64_t pitch = 0;  // bytes
};

}  // namespace fargpu::wire
