#include "softgpu/driver/array.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/driver.h"

namespace fargpu::softgpu {
namespace {

// Rows start at multiples of this, so that no element crosses a cache line.
constexpr uint64_t kRowAlignment = 64;

constexpr unsigned kKnownFlags =
    CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
    CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT |
    CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

std::string Describe(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  return absl::StrCat("array of ", d.Width, "x", d.Height, "x", d.Depth, ", format ",
                      static_cast<int>(d.Format), ", ", d.NumChannels, " channels, flags 0x",
                      absl::Hex(d.Flags));
}

// The shape that sizes and flags say; the limits are those of the device attributes.
absl::StatusOr<ImageShape> ShapeOf(const DeviceSpec& device, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  const auto limit = [&](CUdevice_attribute attribute) {
    return static_cast<size_t>(DeviceAttribute(device, attribute));
  };
  const auto fits = [&](size_t size, CUdevice_attribute attribute) {
    return size <= limit(attribute);
  };
  const bool layered = (d.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  if (d.Width == 0) return Invalid(absl::StrCat(Describe(d), ": no width"));
  if ((d.Flags & CUDA_ARRAY3D_CUBEMAP) != 0) {
    const bool faces = layered ? d.Depth > 0 && d.Depth % 6 == 0 : d.Depth == 6;
    if (d.Width != d.Height || !faces ||
        !fits(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH) ||
        !fits(d.Depth, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS)) {
      return Invalid(absl::StrCat(Describe(d), ": not a cube map"));
    }
    return layered ? ImageShape::kCubeLayered : ImageShape::kCube;
  }
  if (layered) {
    if (d.Depth == 0 || !fits(d.Depth, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS) ||
        !fits(std::max(d.Width, d.Height), CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH)) {
      return Invalid(absl::StrCat(Describe(d), ": layers or sizes beyond the limits"));
    }
    return d.Height == 0 ? ImageShape::k1DLayered : ImageShape::k2DLayered;
  }
  if (d.Height == 0) {
    if (d.Depth != 0 || !fits(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH)) {
      return Invalid(absl::StrCat(Describe(d), ": a depth without height, or too wide"));
    }
    return ImageShape::k1D;
  }
  if (d.Depth == 0) {
    if (!fits(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH) ||
        !fits(d.Height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT)) {
      return Invalid(absl::StrCat(Describe(d), ": beyond the limits"));
    }
    return ImageShape::k2D;
  }
  // One long side is allowed if the others are short: the "alternate" limits.
  const bool plain = fits(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH) &&
                     fits(d.Height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT) &&
                     fits(d.Depth, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH);
  const bool deep = fits(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE) &&
                    fits(d.Height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE) &&
                    fits(d.Depth, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE);
  if (!plain && !deep) return Invalid(absl::StrCat(Describe(d), ": beyond the limits"));
  return ImageShape::k3D;
}

// An array without memory yet: `memory.address` is 0.
absl::StatusOr<std::shared_ptr<Array>> PlanArray(Driver& driver, Context& context,
                                                 const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  if ((descriptor.Flags & ~kKnownFlags) != 0) {
    return Invalid(absl::StrCat(Describe(descriptor), ": unknown flags"));
  }
  if ((descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                     absl::StrCat(Describe(descriptor), ": sparse and deferred arrays"));
  }
  auto array = std::make_shared<Array>();
  array->context = context.weak_from_this();
  array->descriptor = descriptor;
  ASSIGN_OR_RETURN(array->format, ParseElementFormat(descriptor.Format, descriptor.NumChannels));
  ASSIGN_OR_RETURN(array->shape,
                   ShapeOf(driver.config().devices[context.device], array->descriptor));
  array->memory.width = static_cast<uint32_t>(descriptor.Width);
  array->memory.height = static_cast<uint32_t>(std::max<size_t>(descriptor.Height, 1));
  array->memory.depth = static_cast<uint32_t>(std::max<size_t>(descriptor.Depth, 1));
  array->memory.row_pitch =
      (array->row_bytes() + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  array->memory.slice_pitch = array->memory.row_pitch * array->memory.height;
  return array;
}

uint64_t MemoryBytes(const Array& array) { return array.memory.slice_pitch * array.memory.depth; }

size_t LevelSize(size_t size, unsigned level) {
  return size == 0 ? 0 : std::max<size_t>(size >> level, 1);
}

}  // namespace

absl::StatusOr<ElementFormat> ParseElementFormat(CUarray_format format, unsigned channels) {
  struct Row {
    CUarray_format format;
    ChannelType channel;
    uint32_t bytes;
    uint32_t channels;  // 0: the caller says
  };
  static constexpr Row kRows[] = {
      {CU_AD_FORMAT_UNSIGNED_INT8, ChannelType::kU8, 1, 0},
      {CU_AD_FORMAT_UNSIGNED_INT16, ChannelType::kU16, 2, 0},
      {CU_AD_FORMAT_UNSIGNED_INT32, ChannelType::kU32, 4, 0},
      {CU_AD_FORMAT_SIGNED_INT8, ChannelType::kS8, 1, 0},
      {CU_AD_FORMAT_SIGNED_INT16, ChannelType::kS16, 2, 0},
      {CU_AD_FORMAT_SIGNED_INT32, ChannelType::kS32, 4, 0},
      {CU_AD_FORMAT_HALF, ChannelType::kF16, 2, 0},
      {CU_AD_FORMAT_FLOAT, ChannelType::kF32, 4, 0},
      {CU_AD_FORMAT_UNORM_INT8X1, ChannelType::kU8, 1, 1},
      {CU_AD_FORMAT_UNORM_INT8X2, ChannelType::kU8, 1, 2},
      {CU_AD_FORMAT_UNORM_INT8X4, ChannelType::kU8, 1, 4},
      {CU_AD_FORMAT_UNORM_INT16X1, ChannelType::kU16, 2, 1},
      {CU_AD_FORMAT_UNORM_INT16X2, ChannelType::kU16, 2, 2},
      {CU_AD_FORMAT_UNORM_INT16X4, ChannelType::kU16, 2, 4},
      {CU_AD_FORMAT_SNORM_INT8X1, ChannelType::kS8, 1, 1},
      {CU_AD_FORMAT_SNORM_INT8X2, ChannelType::kS8, 1, 2},
      {CU_AD_FORMAT_SNORM_INT8X4, ChannelType::kS8, 1, 4},
      {CU_AD_FORMAT_SNORM_INT16X1, ChannelType::kS16, 2, 1},
      {CU_AD_FORMAT_SNORM_INT16X2, ChannelType::kS16, 2, 2},
      {CU_AD_FORMAT_SNORM_INT16X4, ChannelType::kS16, 2, 4},
  };
  for (const Row& row : kRows) {
    if (row.format != format) continue;
    const uint32_t wanted = row.channels == 0 ? channels : row.channels;
    if (channels != wanted || (channels != 1 && channels != 2 && channels != 4)) {
      return Invalid(
          absl::StrCat("format ", static_cast<int>(format), " with ", channels, " channels"));
    }
    return ElementFormat{.channel = row.channel,
                         .channel_bytes = row.bytes,
                         .channels = channels,
                         .normalized = row.channels != 0};
  }
  const int value = static_cast<int>(format);
  // Block-compressed formats and those of several planes.
  if ((value >= 0x91 && value <= 0xb5 && value != 0xa0) || value == 0x50) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, absl::StrCat("array format ", value));
  }
  return Invalid(absl::StrCat("array format ", value));
}

absl::StatusOr<std::shared_ptr<Array>> CreateArray(Driver& driver, Context& context,
                                                   const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  ASSIGN_OR_RETURN(std::shared_ptr<Array> array, PlanArray(driver, context, descriptor));
  ASSIGN_OR_RETURN(array->memory.address,
                   driver.memory.Allocate(AllocationKind::kArray, context.device, context.id,
                                          MemoryBytes(*array)));
  array->handle = driver.arrays.NewHandle();
  driver.arrays.Insert(array->handle, array);
  return array;
}

absl::StatusOr<std::shared_ptr<MipmappedArray>> CreateMipmappedArray(
    Driver& driver, Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned levels) {
  if (levels == 0) return Invalid("a mipmapped array without levels");
  const bool layered = (descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  size_t longest = std::max(descriptor.Width, descriptor.Height);
  if (!layered) longest = std::max(longest, descriptor.Depth);
  unsigned possible = 1;
  while (longest >> possible != 0) ++possible;
  levels = std::min({levels, possible, static_cast<unsigned>(kMaxImageLevels)});

  auto mipmap = std::make_shared<MipmappedArray>();
  mipmap->context = context.weak_from_this();
  mipmap->descriptor = descriptor;
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level) {
    CUDA_ARRAY3D_DESCRIPTOR smaller = descriptor;
    smaller.Width = LevelSize(descriptor.Width, level);
    smaller.Height = LevelSize(descriptor.Height, level);
    if (!layered) smaller.Depth = LevelSize(descriptor.Depth, level);
    ASSIGN_OR_RETURN(std::shared_ptr<Array> array, PlanArray(driver, context, smaller));
    array->of_mipmap = true;
    array->memory.address = bytes;
    bytes += MemoryBytes(*array);
    mipmap->levels.push_back(std::move(array));
  }
  ASSIGN_OR_RETURN(mipmap->address, driver.memory.Allocate(AllocationKind::kArray, context.device,
                                                           context.id, bytes));
  for (const std::shared_ptr<Array>& array : mipmap->levels) {
    array->memory.address += mipmap->address;
    array->handle = driver.arrays.NewHandle();
    driver.arrays.Insert(array->handle, array);
  }
  mipmap->handle = driver.mipmapped_arrays.NewHandle();
  driver.mipmapped_arrays.Insert(mipmap->handle, mipmap);
  return mipmap;
}

absl::StatusOr<std::shared_ptr<Array>> FindArray(Driver& driver, CUarray handle) {
  if (std::shared_ptr<Array> array = driver.arrays.Find(handle)) return array;
  return CudaError(CUDA_ERROR_INVALID_HANDLE, "not an array");
}

absl::StatusOr<std::shared_ptr<MipmappedArray>> FindMipmappedArray(Driver& driver,
                                                                   CUmipmappedArray handle) {
  if (std::shared_ptr<MipmappedArray> array = driver.mipmapped_arrays.Find(handle)) return array;
  return CudaError(CUDA_ERROR_INVALID_HANDLE, "not a mipmapped array");
}

Image ImageOf(const Array& array) {
  Image image;
  image.shape = array.shape;
  image.channel = array.format.channel;
  image.channels = static_cast<uint8_t>(array.format.channels);
  image.level_count = 1;
  image.levels[0] = array.memory;
  return image;
}

Image ImageOf(const MipmappedArray& array) {
  Image image = ImageOf(*array.levels[0]);
  image.level_count = static_cast<uint8_t>(array.levels.size());
  for (size_t level = 0; level < array.levels.size(); ++level) {
    image.levels[level] = array.levels[level]->memory;
  }
  return image;
}

}  // namespace fargpu::softgpu
