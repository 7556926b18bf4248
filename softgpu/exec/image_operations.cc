#include "softgpu/exec/image_operations.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"

#include "softgpu/exec/atomics.h"
#include "softgpu/exec/launch_failure.h"
#include "softgpu/exec/texture.h"
#include "softgpu/exec/texture_avx512.h"

namespace fargpu::softgpu {
namespace {

[[noreturn]] void NoSuchObject(const OperationCall& call, int lane, const char* what,
                               uint64_t handle) {
  EndLaunch(call.context, CUDA_ERROR_ILLEGAL_ADDRESS,
            absl::StrFormat("%s, %s, PTX line %u: there is no %s object 0x%x", Where(call.context),
                            ThreadOf(call.context, lane), call.line, what, handle));
}

// Handles are mostly the same in all lanes: looked up once.
class TextureOfLane {
 public:
  TextureOfLane(const OperationCall& call, unsigned slot)
      : call_(call), handles_(call.slots.Of<uint64_t>(slot)) {}
  const TextureDescriptor& At(int lane) {
    if (texture_ == nullptr || handles_[lane] != handle_) {
      handle_ = handles_[lane];
      texture_ = FindTexture(handle_);
      if (texture_ == nullptr) NoSuchObject(call_, lane, "texture", handle_);
    }
    return *texture_;
  }

 private:
  const OperationCall& call_;
  const uint64_t* handles_;
  uint64_t handle_ = 0;
  const TextureDescriptor* texture_ = nullptr;
};

const SurfaceDescriptor& SurfaceAt(const OperationCall& call, int lane) {
  const uint64_t handle = call.slots.Of<uint64_t>(4)[lane];
  const SurfaceDescriptor* surface = FindSurface(handle);
  if (surface == nullptr) NoSuchObject(call, lane, "surface", handle);
  return *surface;
}

// What a lane samples. With a sampler of its own, the texture with that sampler's settings, which
// `mixed` then holds.
const TextureDescriptor& Settings(const OperationCall& call, const TextureDescriptor& texture,
                                  TextureOfLane* samplers, int lane, TextureDescriptor* mixed) {
  if ((call.code & kTextureSampler) == 0) return texture;
  *mixed = samplers->At(lane);
  mixed->image = texture.image;
  return *mixed;
}

TexturePoint PointOf(const OperationCall& call, int lane) {
  TexturePoint p;
  p.integer = (call.code & kTextureInteger) != 0;
  p.layer = call.slots.Of<uint32_t>(6)[lane];
  for (unsigned k = 0; k < 3; ++k) {
    if (p.integer) {
      p.integer_at[k] = call.slots.Of<int32_t>(7 + k)[lane];
    } else {
      p.at[k] = call.slots.Of<float>(7 + k)[lane];
    }
    if ((call.code & kTextureOffset) != 0) p.offset[k] = call.slots.Of<int32_t>(17 + k)[lane];
  }
  return p;
}

void PutResult(const OperationCall& call, int lane, const uint32_t values[4]) {
  for (unsigned k = 0; k < 4; ++k) call.slots.Of<uint32_t>(k)[lane] = values[k];
}

// Have all lanes of the operation the same handle in `slot`?
bool IsSame(const OperationCall& call, unsigned slot) {
  const uint64_t* handles = call.slots.Of<uint64_t>(slot);
  const uint64_t first = handles[std::countr_zero(call.mask)];
  uint64_t differs = 0;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    differs |= (handles[lane] ^ first) & (uint64_t{0} - (call.mask >> lane & 1));
  }
  return differs == 0;
}

}  // namespace

void Texture(const OperationCall& call) {
  if (call.mask == 0) return;
  const bool sampler = (call.code & kTextureSampler) != 0;
  if (IsSame(call, 4) && (!sampler || IsSame(call, 5))) {
    TextureOfLane texture(call, 4);
    TextureOfLane samplers(call, 5);
    TextureDescriptor mixed;
    const int first = std::countr_zero(call.mask);
    if (SampleByAvx512(call, Settings(call, texture.At(first), &samplers, first, &mixed))) return;
  }
  TextureOfLane textures(call, 4);
  TextureOfLane samplers(call, 5);
  for (uint32_t rest = call.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    TextureDescriptor mixed;
    const TextureDescriptor& t = Settings(call, textures.At(lane), &samplers, lane, &mixed);
    TexturePoint p = PointOf(call, lane);
    if ((call.code & kTextureLevel) != 0) {
      p.has_level = true;
      p.level = call.slots.Of<float>(10)[lane];
    } else if ((call.code & kTextureGradient) != 0) {
      float d[6];
      for (unsigned k = 0; k < 6; ++k) d[k] = call.slots.Of<float>(11 + k)[lane];
      p.has_level = true;
      p.level = LevelFromGradient(t, d, d + 3);
    }
    uint32_t result[4];
    SampleTexture(t, p, result);
    PutResult(call, lane, result);
  }
}

void TextureGather(const OperationCall& call) {
  TextureOfLane textures(call, 4);
  TextureOfLane samplers(call, 5);
  const int component = static_cast<int>(call.code >> kTextureComponentShift & 3);
  for (uint32_t rest = call.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    TextureDescriptor mixed;
    const TextureDescriptor& t = Settings(call, textures.At(lane), &samplers, lane, &mixed);
    uint32_t result[4];
    GatherTexture(t, PointOf(call, lane), component, result);
    PutResult(call, lane, result);
  }
}

void TextureQuery(const OperationCall& call) {
  TextureOfLane textures(call, 4);
  for (uint32_t rest = call.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    call.slots.Of<uint32_t>(0)[lane] = QueryTexture(
        textures.At(lane), static_cast<ImageQuery>(call.code), call.slots.Of<uint32_t>(10)[lane]);
  }
}

void SurfaceQuery(const OperationCall& call) {
  for (uint32_t rest = call.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    call.slots.Of<uint32_t>(0)[lane] =
        QueryImage(SurfaceAt(call, lane).image, static_cast<ImageQuery>(call.code), 0);
  }
}

void Surface(const OperationCall& call, Operation operation) {
  const uint32_t element = static_cast<uint32_t>(call.code & 0xff);
  const uint32_t count = static_cast<uint32_t>(call.code >> 8 & 0xff);
  const SurfaceBounds bounds = static_cast<SurfaceBounds>(call.code >> 16 & 3);
  const bool formatted = (call.code & kSurfaceFormatted) != 0;
  for (uint32_t rest = call.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const SurfaceDescriptor& surface = SurfaceAt(call, lane);
    int64_t at[3];
    for (unsigned k = 0; k < 3; ++k) at[k] = call.slots.Of<int32_t>(5 + k)[lane];
    uint32_t bytes = element * count;
    if (formatted) {
      bytes = ElementBytes(surface.image);
      at[0] *= bytes;
    }
    uint64_t address = 0;
    const bool inside = LocateInSurface(surface, at[0], at[1], at[2], bytes, bounds, &address);
    if (!inside && bounds == SurfaceBounds::kTrap) {
      EndLaunch(call.context, CUDA_ERROR_ILLEGAL_ADDRESS,
                absl::StrFormat("%s, %s, PTX line %u: (%d, %d, %d) is outside of the surface",
                                Where(call.context), ThreadOf(call.context, lane), call.line, at[0],
                                at[1], at[2]));
    }
    if (inside && !formatted && address % element != 0) {
      EndLaunch(call.context, CUDA_ERROR_MISALIGNED_ADDRESS,
                absl::StrFormat("%s, %s, PTX line %u: x = %d is not a multiple of %u bytes",
                                Where(call.context), ThreadOf(call.context, lane), call.line, at[0],
                                element));
    }
    if (operation == Operation::kSurfaceReduce) {
      if (!inside) continue;
      const uint32_t code = static_cast<uint32_t>(call.code >> 24 & 0xff) |
                            static_cast<uint32_t>(call.code >> 32) << 8;
      uint64_t addresses[kWarpSize];
      uint64_t old[kWarpSize];
      addresses[lane] = address;
      RunAtomic(code, addresses, 1u << lane, call.slots.Of<char>(8), call.slots.Of<char>(8), old);
      continue;
    }
    if (formatted) {
      uint32_t values[4] = {};
      for (uint32_t k = 0; k < count; ++k) values[k] = call.slots.Of<uint32_t>(8 + k)[lane];
      if (inside) {
        StoreFormatted(surface.image, address, values, static_cast<int>(count),
                       (call.code & kSurfaceFloat) != 0);
      }
      continue;
    }
    for (uint32_t k = 0; k < count; ++k) {
      if (operation == Operation::kSurfaceLoad) {
        char* to = call.slots.Of<char>(k) + static_cast<uint32_t>(lane) * element;
        if (inside) {
          std::memcpy(to, reinterpret_cast<const void*>(address + k * element), element);
        } else {
          std::memset(to, 0, element);
        }
      } else if (inside) {
        std::memcpy(reinterpret_cast<void*>(address + k * element),
                    call.slots.Of<char>(8 + k) + static_cast<uint32_t>(lane) * element, element);
      }
    }
  }
}

}  // namespace fargpu::softgpu
