#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

// What a texture or surface object is to a kernel. The driver half fills these in and registers
// them; the executor reads them when a kernel names the handle. Both halves include it, as they do
// compiler.h and tensor_map.h.
namespace fargpu::softgpu {

enum class ImageShape : uint8_t {
  kLinear,  // a row of elements in linear memory: fetched by integer, zero outside
  k1D,
  k2D,  // arrays and pitched linear memory
  k3D,
  k1DLayered,
  k2DLayered,
  kCube,
  kCubeLayered,
};

enum class ChannelType : uint8_t { kU8, kU16, kU32, kS8, kS16, kS32, kF16, kF32 };

// One mipmap level. Element (x, y, z) lies at address + x * channels * bytes of a channel
// + y * row_pitch + z * slice_pitch; z counts slices, layers, faces, or faces of layers
// (layer * 6 + face).
struct ImageLevel {
  uint64_t address = 0;  // in the device window
  uint64_t row_pitch = 0;
  uint64_t slice_pitch = 0;
  uint32_t width = 0;   // elements
  uint32_t height = 1;  // 1 where the shape has none
  uint32_t depth = 1;   // slices: of a cube 6, of layered cubes 6 per layer
};

inline constexpr int kMaxImageLevels = 16;

struct Image {
  ImageShape shape = ImageShape::k2D;
  ChannelType channel = ChannelType::kF32;
  uint8_t channels = 1;  // 1, 2 or 4
  uint8_t level_count = 1;
  ImageLevel levels[kMaxImageLevels] = {};
};

enum class AddressMode : uint8_t { kWrap, kClamp, kMirror, kBorder };

struct TextureDescriptor {
  Image image;
  // Wrap and mirror act as clamp where coordinates are not normalised, as on a card.
  AddressMode address_mode[3] = {AddressMode::kClamp, AddressMode::kClamp, AddressMode::kClamp};
  bool linear_filter = false;      // between elements
  bool linear_mip_filter = false;  // between levels
  bool normalized_coordinates = false;
  // Elements of 8 and 16 bit integers come as numbers from 0 to 1 or -1 to 1.
  bool normalized_values = false;
  bool srgb = false;  // 8 bit channels are converted to linear numbers (needs normalized_values)
  float mip_bias = 0;
  float min_level = 0;
  float max_level = 0;
  float border[4] = {0, 0, 0, 0};
};

struct SurfaceDescriptor {
  Image image;  // one level
};

// Handles are never given twice. kResourceExhausted after 2^20 objects at the same time. Any
// thread.
absl::StatusOr<uint64_t> RegisterTexture(const TextureDescriptor& texture);
absl::StatusOr<uint64_t> RegisterSurface(const SurfaceDescriptor& surface);
// False if there is no such object. Kernels that use it afterwards fail with
// CUDA_ERROR_ILLEGAL_ADDRESS.
bool UnregisterTexture(uint64_t handle);
bool UnregisterSurface(uint64_t handle);
// Null if there is none. What is returned stays readable for ever, and is right until the object
// is unregistered. Safe on fibers: takes no lock.
const TextureDescriptor* FindTexture(uint64_t handle);
const SurfaceDescriptor* FindSurface(uint64_t handle);

// Bytes of one element.
inline uint32_t ElementBytes(const Image& image) {
  constexpr uint32_t kBytes[] = {1, 2, 4, 1, 2, 4, 2, 4};
  return kBytes[static_cast<int>(image.channel)] * image.channels;
}

}  // namespace fargpu::softgpu
