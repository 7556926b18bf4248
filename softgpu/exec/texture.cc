// Texture sampling after the CUDA programming guide, "Texture Fetching": linear filtering with
// coordinates in fixed point with 8 bits of fraction.
#include "softgpu/exec/texture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "softgpu/exec/half.h"

namespace fargpu::softgpu {
namespace {

struct Texel {
  float v[4];
};

bool DeliversIntegers(const TextureDescriptor& t) {
  const ChannelType c = t.image.channel;
  if (c == ChannelType::kF16 || c == ChannelType::kF32) return false;
  return !t.normalized_values || c == ChannelType::kU32 || c == ChannelType::kS32;
}

float FromSrgb(float v) {
  return v <= 0.04045f ? v / 12.92f : std::pow((v + 0.055f) / 1.055f, 2.4f);
}

// One channel as bits, as an integer or as a float.
uint32_t ReadChannel(const TextureDescriptor& t, uint64_t address, int channel) {
  const Image& image = t.image;
  const auto load = [&]<typename T>(T) {
    T value;
    std::memcpy(&value, reinterpret_cast<const char*>(address) + channel * sizeof(T), sizeof(T));
    return value;
  };
  const bool normalized = t.normalized_values;
  const auto bits = [](float v) { return std::bit_cast<uint32_t>(v); };
  const auto number = [&](float value, float most) { return bits(std::max(value / most, -1.0f)); };
  switch (image.channel) {
    case ChannelType::kU8: {
      const uint8_t v = load(uint8_t{});
      if (!normalized) return v;
      if (t.srgb && channel < 3) return bits(FromSrgb(static_cast<float>(v) / 255.0f));
      return number(v, 255.0f);
    }
    case ChannelType::kU16: {
      const uint16_t v = load(uint16_t{});
      return normalized ? number(v, 65535.0f) : v;
    }
    case ChannelType::kS8: {
      const int8_t v = load(int8_t{});
      return normalized ? number(v, 127.0f) : static_cast<uint32_t>(int32_t{v});
    }
    case ChannelType::kS16: {
      const int16_t v = load(int16_t{});
      return normalized ? number(v, 32767.0f) : static_cast<uint32_t>(int32_t{v});
    }
    case ChannelType::kU32:
    case ChannelType::kS32:
    case ChannelType::kF32:
      return load(uint32_t{});
    case ChannelType::kF16:
      return bits(HalfToFloat(load(uint16_t{})));
  }
  return 0;
}

void Fill(const TextureDescriptor& t, uint32_t out[4]) {
  out[0] = out[1] = out[2] = 0;
  out[3] = DeliversIntegers(t) ? 1u : std::bit_cast<uint32_t>(1.0f);
}

void ReadTexel(const TextureDescriptor& t, const ImageLevel& level, int64_t x, int64_t y, int64_t z,
               uint32_t out[4]) {
  Fill(t, out);
  const uint64_t address = level.address + static_cast<uint64_t>(x) * ElementBytes(t.image) +
                           static_cast<uint64_t>(y) * level.row_pitch +
                           static_cast<uint64_t>(z) * level.slice_pitch;
  for (int c = 0; c < t.image.channels; ++c) out[c] = ReadChannel(t, address, c);
}

void ReadBorder(const TextureDescriptor& t, uint32_t out[4]) {
  Fill(t, out);
  for (int c = 0; c < t.image.channels; ++c) {
    out[c] = DeliversIntegers(t) ? static_cast<uint32_t>(static_cast<int64_t>(t.border[c]))
                                 : std::bit_cast<uint32_t>(t.border[c]);
  }
}

AddressMode ModeOf(const TextureDescriptor& t, int axis) {
  const AddressMode mode = t.address_mode[axis];
  if (!t.normalized_coordinates && (mode == AddressMode::kWrap || mode == AddressMode::kMirror)) {
    return AddressMode::kClamp;
  }
  return mode;
}

// The index that `i` stands for, or -1 for the border.
int64_t Place(int64_t i, int64_t size, AddressMode mode) {
  switch (mode) {
    case AddressMode::kWrap:
      i %= size;
      return i < 0 ? i + size : i;
    case AddressMode::kMirror:
      i %= 2 * size;
      if (i < 0) i += 2 * size;
      return i < size ? i : 2 * size - 1 - i;
    case AddressMode::kBorder:
      return i < 0 || i >= size ? -1 : i;
    case AddressMode::kClamp:
      break;
  }
  return std::clamp<int64_t>(i, 0, size - 1);
}

// Far enough outside of every image, so that the conversion to an integer is defined.
constexpr double kFar = 1 << 30;
double Finite(double v) { return std::isnan(v) ? 0.0 : std::clamp(v, -kFar, kFar); }

int Dimensions(ImageShape shape) {
  switch (shape) {
    case ImageShape::kLinear:
    case ImageShape::k1D:
    case ImageShape::k1DLayered:
      return 1;
    case ImageShape::k3D:
      return 3;
    default:
      return 2;
  }
}

bool IsCube(ImageShape shape) {
  return shape == ImageShape::kCube || shape == ImageShape::kCubeLayered;
}

// The point on a face of a cube that a direction meets.
void OnCube(const float at[3], float* s, float* t, int* face) {
  const float x = at[0], y = at[1], z = at[2];
  const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  float m, u, v;
  if (ax >= ay && ax >= az) {
    *face = x >= 0 ? 0 : 1;
    m = ax;
    u = x >= 0 ? -z : z;
    v = -y;
  } else if (ay >= az) {
    *face = y >= 0 ? 2 : 3;
    m = ay;
    u = x;
    v = y >= 0 ? z : -z;
  } else {
    *face = z >= 0 ? 4 : 5;
    m = az;
    u = z >= 0 ? x : -x;
    v = -y;
  }
  *s = m == 0 ? 0.5f : (u / m + 1) / 2;
  *t = m == 0 ? 0.5f : (v / m + 1) / 2;
}

// A point of one level: coordinates in elements and the slice.
struct Located {
  double at[3] = {0, 0, 0};
  int64_t size[3] = {1, 1, 1};
  int64_t slice = 0;
  int dimensions = 1;
  AddressMode mode[3];
};

Located Locate(const TextureDescriptor& t, const TexturePoint& p, const ImageLevel& level) {
  Located r;
  r.dimensions = Dimensions(t.image.shape);
  r.size[0] = level.width;
  r.size[1] = level.height;
  r.size[2] = t.image.shape == ImageShape::k3D ? level.depth : 1;
  float at[3] = {p.at[0], p.at[1], p.at[2]};
  int face = 0;
  const bool cube = IsCube(t.image.shape);
  if (cube) OnCube(p.at, &at[0], &at[1], &face);
  for (int k = 0; k < r.dimensions; ++k) {
    r.mode[k] = cube ? AddressMode::kClamp : ModeOf(t, k);
    double v = at[k];
    if (t.normalized_coordinates || cube)
      v = static_cast<float>(at[k] * static_cast<float>(r.size[k]));
    r.at[k] = Finite(v) + p.offset[k];
  }
  if (t.image.shape == ImageShape::kCube) {
    r.slice = face;
  } else if (t.image.shape == ImageShape::kCubeLayered) {
    const uint32_t layers = std::max(level.depth / 6, 1u);
    r.slice = int64_t{std::min(p.layer, layers - 1)} * 6 + face;
  } else if (t.image.shape == ImageShape::k1DLayered || t.image.shape == ImageShape::k2DLayered) {
    r.slice = std::min(p.layer, level.depth - 1);
  }
  return r;
}

void ReadAt(const TextureDescriptor& t, const ImageLevel& level, const Located& l,
            const int64_t index[3], uint32_t out[4]) {
  int64_t place[3] = {0, 0, 0};
  for (int k = 0; k < l.dimensions; ++k) {
    place[k] = Place(index[k], l.size[k], l.mode[k]);
    if (place[k] < 0) return ReadBorder(t, out);
  }
  ReadTexel(t, level, place[0], place[1], l.dimensions == 3 ? place[2] : l.slice, out);
}

void SampleLevel(const TextureDescriptor& t, const TexturePoint& p, const ImageLevel& level,
                 uint32_t out[4]) {
  if (p.integer) {
    // Integer coordinates: elements, without filtering; the row of linear memory has zeros around.
    Located l;
    l.dimensions = Dimensions(t.image.shape);
    l.size[0] = level.width;
    l.size[1] = level.height;
    l.size[2] = level.depth;
    l.slice = std::min(p.layer, level.depth - 1);
    int64_t index[3];
    for (int k = 0; k < l.dimensions; ++k) {
      l.mode[k] = t.image.shape == ImageShape::kLinear ? AddressMode::kBorder : ModeOf(t, k);
      index[k] = int64_t{p.integer_at[k]} + p.offset[k];
      if (t.image.shape == ImageShape::kLinear && (index[k] < 0 || index[k] >= l.size[k])) {
        out[0] = out[1] = out[2] = out[3] = 0;
        return;
      }
    }
    return ReadAt(t, level, l, index, out);
  }
  const Located l = Locate(t, p, level);
  int64_t index[3] = {0, 0, 0};
  if (!t.linear_filter || DeliversIntegers(t)) {
    for (int k = 0; k < l.dimensions; ++k) index[k] = static_cast<int64_t>(std::floor(l.at[k]));
    return ReadAt(t, level, l, index, out);
  }
  float fraction[3] = {0, 0, 0};
  for (int k = 0; k < l.dimensions; ++k) {
    const int64_t fixed = static_cast<int64_t>(std::floor((l.at[k] - 0.5) * 256 + 0.5));
    index[k] = fixed >> 8;
    fraction[k] = static_cast<float>(fixed & 255) / 256;
  }
  float sum[4] = {0, 0, 0, 0};
  for (int corner = 0; corner < 1 << l.dimensions; ++corner) {
    float weight = 1;
    int64_t at[3];
    for (int k = 0; k < l.dimensions; ++k) {
      const int up = corner >> k & 1;
      at[k] = index[k] + up;
      weight *= up != 0 ? fraction[k] : 1 - fraction[k];
    }
    if (weight == 0) continue;
    uint32_t texel[4];
    ReadAt(t, level, l, at, texel);
    for (int c = 0; c < 4; ++c) sum[c] += weight * std::bit_cast<float>(texel[c]);
  }
  for (int c = 0; c < 4; ++c) out[c] = std::bit_cast<uint32_t>(sum[c]);
}

}  // namespace

void SampleTexture(const TextureDescriptor& t, const TexturePoint& p, uint32_t out[4]) {
  const float most = static_cast<float>(t.image.level_count - 1);
  float lod = (p.has_level ? p.level : 0) + t.mip_bias;
  if (t.max_level > t.min_level) lod = std::clamp(lod, t.min_level, t.max_level);
  if (!(lod > 0)) lod = 0;
  lod = std::min(lod, most);
  if (!t.linear_mip_filter || DeliversIntegers(t)) {
    return SampleLevel(t, p, t.image.levels[static_cast<int>(lod + 0.5f)], out);
  }
  const float fixed = std::floor(lod * 256 + 0.5f) / 256;
  const int below = static_cast<int>(fixed);
  const float fraction = fixed - static_cast<float>(below);
  SampleLevel(t, p, t.image.levels[below], out);
  if (fraction == 0) return;
  uint32_t above[4];
  SampleLevel(t, p, t.image.levels[below + 1], above);
  for (int c = 0; c < 4; ++c) {
    out[c] = std::bit_cast<uint32_t>((1 - fraction) * std::bit_cast<float>(out[c]) +
                                     fraction * std::bit_cast<float>(above[c]));
  }
}

void GatherTexture(const TextureDescriptor& t, const TexturePoint& p, int component,
                   uint32_t out[4]) {
  const ImageLevel& level = t.image.levels[0];
  const Located l = Locate(t, p, level);
  int64_t base[3] = {0, 0, 0};
  for (int k = 0; k < l.dimensions; ++k) {
    base[k] = static_cast<int64_t>(std::floor((l.at[k] - 0.5) * 256 + 0.5)) >> 8;
  }
  static constexpr int kOrder[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
  for (int n = 0; n < 4; ++n) {
    const int64_t at[3] = {base[0] + kOrder[n][0], base[1] + kOrder[n][1], 0};
    uint32_t texel[4];
    ReadAt(t, level, l, at, texel);
    out[n] = texel[component];
  }
}

float LevelFromGradient(const TextureDescriptor& t, const float dx[3], const float dy[3]) {
  const ImageLevel& level = t.image.levels[0];
  const float size[3] = {static_cast<float>(level.width), static_cast<float>(level.height),
                         static_cast<float>(level.depth)};
  float x = 0, y = 0;
  for (int k = 0; k < Dimensions(t.image.shape); ++k) {
    const float scale = t.normalized_coordinates ? size[k] : 1;
    x += dx[k] * scale * dx[k] * scale;
    y += dy[k] * scale * dy[k] * scale;
  }
  return std::log2(std::max(std::max(x, y), 1e-30f)) / 2;
}

uint32_t QueryImage(const Image& image, ImageQuery query, uint32_t level) {
  const ImageLevel& l = image.levels[std::min<uint32_t>(level, image.level_count - 1u)];
  // The numbers of .channel_data_type and .channel_order are those of OpenCL, which PTX took over.
  static constexpr uint32_t kTypes[] = {0x10DA, 0x10DB, 0x10DC, 0x10D7,
                                        0x10D8, 0x10D9, 0x10DD, 0x10DE};
  switch (query) {
    case ImageQuery::kWidth:
      return l.width;
    case ImageQuery::kHeight:
      return l.height;
    case ImageQuery::kDepth:
      return image.shape == ImageShape::k3D ? l.depth : 1;
    case ImageQuery::kArraySize:
      return image.shape == ImageShape::kCubeLayered || image.shape == ImageShape::kCube
                 ? l.depth / 6
                 : l.depth;
    case ImageQuery::kLevels:
      return image.level_count;
    case ImageQuery::kSamples:
      return 1;
    case ImageQuery::kChannelType:
      return kTypes[static_cast<int>(image.channel)];
    case ImageQuery::kChannelOrder:
      return image.channels == 1 ? 0x10B0 : image.channels == 2 ? 0x10B2 : 0x10B5;
    default:
      return 0;
  }
}

uint32_t QueryTexture(const TextureDescriptor& t, ImageQuery query, uint32_t level) {
  static constexpr uint32_t kModes[] = {0, 2, 1, 4};  // wrap, clamp to edge, mirror, border
  switch (query) {
    case ImageQuery::kNormalizedCoordinates:
      return t.normalized_coordinates ? 1 : 0;
    case ImageQuery::kForceUnnormalized:
      return 0;
    case ImageQuery::kFilterMode:
      return t.linear_filter ? 1 : 0;
    case ImageQuery::kAddressMode0:
    case ImageQuery::kAddressMode1:
    case ImageQuery::kAddressMode2:
      return kModes[static_cast<int>(
          t.address_mode[static_cast<int>(query) - static_cast<int>(ImageQuery::kAddressMode0)])];
    default:
      return QueryImage(t.image, query, level);
  }
}

bool LocateInSurface(const SurfaceDescriptor& surface, int64_t x, int64_t y, int64_t z,
                     uint32_t bytes, SurfaceBounds bounds, uint64_t* address) {
  const ImageLevel& level = surface.image.levels[0];
  const int64_t width = int64_t{level.width} * ElementBytes(surface.image);
  const bool inside = x >= 0 && x + int64_t{bytes} <= width && y >= 0 &&
                      y < int64_t{level.height} && z >= 0 && z < int64_t{level.depth};
  if (!inside) {
    if (bounds != SurfaceBounds::kClamp || width < int64_t{bytes}) return false;
    x = std::clamp<int64_t>(x, 0, width - bytes);
    y = std::clamp<int64_t>(y, 0, int64_t{level.height} - 1);
    z = std::clamp<int64_t>(z, 0, int64_t{level.depth} - 1);
  }
  *address = level.address + static_cast<uint64_t>(x) + static_cast<uint64_t>(y) * level.row_pitch +
             static_cast<uint64_t>(z) * level.slice_pitch;
  return true;
}

void StoreFormatted(const Image& image, uint64_t address, const uint32_t* values, int count,
                    bool values_are_float) {
  char* to = reinterpret_cast<char*>(address);
  const auto put = [&](int channel, auto value) {
    std::memcpy(to + channel * sizeof value, &value, sizeof value);
  };
  for (int c = 0; c < image.channels; ++c) {
    const uint32_t bits = c < count ? values[c] : 0;
    const float number = values_are_float ? std::bit_cast<float>(bits)
                                          : static_cast<float>(static_cast<int32_t>(bits));
    switch (image.channel) {
      case ChannelType::kU8:
        put(c, static_cast<uint8_t>(std::min(bits, 255u)));
        break;
      case ChannelType::kU16:
        put(c, static_cast<uint16_t>(std::min(bits, 65535u)));
        break;
      case ChannelType::kS8:
        put(c, static_cast<int8_t>(std::clamp(static_cast<int32_t>(bits), -128, 127)));
        break;
      case ChannelType::kS16:
        put(c, static_cast<int16_t>(std::clamp(static_cast<int32_t>(bits), -32768, 32767)));
        break;
      case ChannelType::kU32:
      case ChannelType::kS32:
        put(c, bits);
        break;
      case ChannelType::kF16:
        put(c, FloatToHalf(number));
        break;
      case ChannelType::kF32:
        put(c, number);
        break;
    }
  }
}

}  // namespace fargpu::softgpu
