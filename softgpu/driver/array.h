#pragma once

#include <cstdint>
#include <cuda.h>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/texture.h"

namespace fargpu::softgpu {

class Context;
class Driver;

// An element format of arrays and textures, taken apart.
struct ElementFormat {
  ChannelType channel = ChannelType::kF32;
  uint32_t channel_bytes = 4;
  uint32_t channels = 1;
  bool normalized = false;  // UNORM and SNORM formats: textures give numbers in any case
  uint32_t bytes() const { return channel_bytes * channels; }
};
// CUDA_ERROR_INVALID_VALUE for what cuda.h does not know, CUDA_ERROR_NOT_SUPPORTED for formats of
// several planes and block-compressed ones.
absl::StatusOr<ElementFormat> ParseElementFormat(CUarray_format format, unsigned channels);

// A CUDA array, or one level of a mipmapped one: rows of elements in plain device memory.
struct Array {
  CUarray handle = nullptr;
  std::weak_ptr<Context> context;
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  ElementFormat format;
  ImageShape shape = ImageShape::k2D;
  ImageLevel memory;       // one level as a texture sees it
  bool of_mipmap = false;  // goes with its mipmapped array

  // The row's bytes; heights and depths count as 1 where the array has none.
  uint64_t row_bytes() const { return uint64_t{memory.width} * format.bytes(); }
};

struct MipmappedArray {
  CUmipmappedArray handle = nullptr;
  std::weak_ptr<Context> context;
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  uint64_t address = 0;  // of the one allocation that holds all levels
  std::vector<std::shared_ptr<Array>> levels;
};

// Checks `descriptor` as cuArray3DCreate does and allocates the array.
absl::StatusOr<std::shared_ptr<Array>> CreateArray(Driver& driver, Context& context,
                                                   const CUDA_ARRAY3D_DESCRIPTOR& descriptor);
// More levels than the size has are cut off.
absl::StatusOr<std::shared_ptr<MipmappedArray>> CreateMipmappedArray(
    Driver& driver, Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned levels);

// CUDA_ERROR_INVALID_HANDLE.
absl::StatusOr<std::shared_ptr<Array>> FindArray(Driver& driver, CUarray handle);
absl::StatusOr<std::shared_ptr<MipmappedArray>> FindMipmappedArray(Driver& driver,
                                                                   CUmipmappedArray handle);

// The image that a texture or surface of the array has.
Image ImageOf(const Array& array);
Image ImageOf(const MipmappedArray& array);

}  // namespace fargpu::softgpu
