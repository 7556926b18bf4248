#pragma once

#include <algorithm>
#include <cstddef>
#include <cuda.h>

// What client and worker must both know of CUDA arrays.
namespace fargpu {

// The most levels that a mipmapped array of the largest sizes has.
inline constexpr unsigned kMaxMipmapLevels = 17;

// Bytes of an element; 0 for formats without elements of their own (block-compressed, several
// planes), which cannot be copied in parts.
inline size_t ArrayElementBytes(CUarray_format format, unsigned channels) {
  switch (static_cast<int>(format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X4:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X4:
      return size_t{channels} * 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return size_t{channels} * 4;
    default:
      return 0;
  }
}

// Level `level` of a mipmapped array: every size halves, but layers and faces stay.
inline CUDA_ARRAY3D_DESCRIPTOR MipmapLevelDescriptor(CUDA_ARRAY3D_DESCRIPTOR descriptor,
                                                     unsigned level) {
  const auto halve = [level](size_t size) {
    return size == 0 ? 0 : std::max<size_t>(size >> level, 1);
  };
  descriptor.Width = halve(descriptor.Width);
  descriptor.Height = halve(descriptor.Height);
  if ((descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0) {
    descriptor.Depth = halve(descriptor.Depth);
  }
  return descriptor;
}

}  // namespace fargpu
