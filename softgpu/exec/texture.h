#pragma once

#include <cstdint>

#include "softgpu/llvm/warp_context.h"
#include "softgpu/texture.h"

// Sampling and surface access for one lane. Addresses may fault; nothing here holds anything.
namespace fargpu::softgpu {

// Where to sample. Coordinates not of the texture's shape are ignored.
struct TexturePoint {
  float at[3] = {0, 0, 0};  // if !integer
  int32_t integer_at[3] = {0, 0, 0};
  bool integer = false;
  uint32_t layer = 0;
  bool has_level = false;
  float level = 0;
  int32_t offset[3] = {0, 0, 0};  // elements
};

// The four components as bits: of floats, or of 32-bit integers where the texture delivers those.
void SampleTexture(const TextureDescriptor& texture, const TexturePoint& point, uint32_t out[4]);
// Component `component` of the four elements that a linear fetch would blend, in the order of tld4:
// (0, 1), (1, 1), (1, 0), (0, 0).
void GatherTexture(const TextureDescriptor& texture, const TexturePoint& point, int component,
                   uint32_t out[4]);
// The level of detail from the change of the coordinates along two directions.
float LevelFromGradient(const TextureDescriptor& texture, const float dx[3], const float dy[3]);

// Queries of txq and suq; `level` for width, height and depth.
uint32_t QueryImage(const Image& image, ImageQuery query, uint32_t level);
uint32_t QueryTexture(const TextureDescriptor& texture, ImageQuery query, uint32_t level);

// The place of `bytes` bytes of a surface. x counts bytes (`x_is_bytes`) or elements. False if they
// do not lie inside and `bounds` is not kClamp.
bool LocateInSurface(const SurfaceDescriptor& surface, int64_t x, int64_t y, int64_t z,
                     uint32_t bytes, SurfaceBounds bounds, uint64_t* address);
// Writes components (bits of floats or integers) as an element of the surface's own format.
void StoreFormatted(const Image& image, uint64_t address, const uint32_t* values, int count,
                    bool values_are_float);

}  // namespace fargpu::softgpu
