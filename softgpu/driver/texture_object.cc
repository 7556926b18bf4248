#include "softgpu/driver/texture_object.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/driver.h"

namespace fargpu::softgpu {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

bool IsInteger(ChannelType channel) {
  return channel != ChannelType::kF16 && channel != ChannelType::kF32;
}

bool IsNarrowInteger(ChannelType channel) {
  return IsInteger(channel) && channel != ChannelType::kU32 && channel != ChannelType::kS32;
}

// A texture on memory that the program allocated itself.
absl::Status CheckLinearMemory(Driver& driver, const DeviceSpec& device, CUdeviceptr address,
                               size_t bytes) {
  const auto alignment =
      static_cast<uint64_t>(DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
  if (address % alignment != 0) {
    return Invalid(
        absl::StrCat("0x", absl::Hex(address), " is not aligned to ", alignment, " bytes"));
  }
  if (bytes == 0 || !driver.memory.Accessible(address, bytes, Access::kRead)) {
    return Invalid(absl::StrCat("0x", absl::Hex(address), " + ", bytes, " is not device memory"));
  }
  return absl::OkStatus();
}

struct ViewFormat {
  ChannelType channel;
  uint32_t channel_bytes;
  uint32_t channels;
};

absl::StatusOr<ViewFormat> ParseViewFormat(CUresourceViewFormat format) {
  // UINT, SINT for 8, 16 and 32 bits, then half and float: three channel counts each.
  static constexpr ViewFormat kKinds[] = {{ChannelType::kU8, 1, 0},  {ChannelType::kS8, 1, 0},
                                          {ChannelType::kU16, 2, 0}, {ChannelType::kS16, 2, 0},
                                          {ChannelType::kU32, 4, 0}, {ChannelType::kS32, 4, 0},
                                          {ChannelType::kF16, 2, 0}, {ChannelType::kF32, 4, 0}};
  constexpr uint32_t kChannels[] = {1, 2, 4};
  const int index = static_cast<int>(format) - CU_RES_VIEW_FORMAT_UINT_1X8;
  if (index >= 0 && index < 3 * static_cast<int>(std::size(kKinds))) {
    ViewFormat parsed = kKinds[index / 3];
    parsed.channels = kChannels[index % 3];
    return parsed;
  }
  if (format >= CU_RES_VIEW_FORMAT_UNSIGNED_BC1 && format <= CU_RES_VIEW_FORMAT_UNSIGNED_BC7) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, "block-compressed views");
  }
  return Invalid(absl::StrCat("view format ", static_cast<int>(format)));
}

}  // namespace

absl::StatusOr<ResourceImage> ImageOfResource(Driver& driver, Context& context,
                                              const CUDA_RESOURCE_DESC& resource) {
  if (resource.flags != 0) return Invalid(absl::StrCat("resource flags ", resource.flags));
  const DeviceSpec& device = driver.config().devices[context.device];
  ResourceImage result;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      ASSIGN_OR_RETURN(const auto array, FindArray(driver, resource.res.array.hArray));
      result.image = ImageOf(*array);
      result.normalized = array->format.normalized;
      return result;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      ASSIGN_OR_RETURN(const auto array,
                       FindMipmappedArray(driver, resource.res.mipmap.hMipmappedArray));
      result.image = ImageOf(*array);
      result.normalized = array->levels[0]->format.normalized;
      return result;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      ASSIGN_OR_RETURN(const ElementFormat format,
                       ParseElementFormat(linear.format, linear.numChannels));
      // Programs give sizes beyond the allocation; what is not there reads as zero.
      RETURN_IF_ERROR(CheckLinearMemory(driver, device, linear.devPtr, format.bytes()));
      const auto allocation = driver.memory.Find(linear.devPtr);
      const uint64_t there =
          allocation ? allocation->base + allocation->size - linear.devPtr : linear.sizeInBytes;
      const size_t width = std::min<uint64_t>(linear.sizeInBytes, there) / format.bytes();
      if (width == 0 || width > static_cast<size_t>(DeviceAttribute(
                                    device, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH))) {
        return Invalid(absl::StrCat("linear texture of ", width, " elements"));
      }
      result.image.shape = ImageShape::kLinear;
      result.image.channel = format.channel;
      result.image.channels = static_cast<uint8_t>(format.channels);
      result.image.levels[0] = {.address = linear.devPtr,
                                .row_pitch = width * format.bytes(),
                                .slice_pitch = width * format.bytes(),
                                .width = static_cast<uint32_t>(width)};
      result.normalized = format.normalized;
      return result;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& pitched = resource.res.pitch2D;
      ASSIGN_OR_RETURN(const ElementFormat format,
                       ParseElementFormat(pitched.format, pitched.numChannels));
      const auto limit = [&](CUdevice_attribute attribute) {
        return static_cast<size_t>(DeviceAttribute(device, attribute));
      };
      if (pitched.width == 0 || pitched.height == 0 ||
          pitched.width > limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
          pitched.height > limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
          pitched.pitchInBytes > limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) ||
          pitched.pitchInBytes < pitched.width * format.bytes() ||
          pitched.pitchInBytes % limit(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) != 0) {
        return Invalid(absl::StrCat("pitched texture of ", pitched.width, "x", pitched.height,
                                    " elements, pitch ", pitched.pitchInBytes));
      }
      RETURN_IF_ERROR(CheckLinearMemory(
          driver, device, pitched.devPtr,
          pitched.pitchInBytes * (pitched.height - 1) + pitched.width * format.bytes()));
      result.image.shape = ImageShape::k2D;
      result.image.channel = format.channel;
      result.image.channels = static_cast<uint8_t>(format.channels);
      result.image.levels[0] = {.address = pitched.devPtr,
                                .row_pitch = pitched.pitchInBytes,
                                .slice_pitch = pitched.pitchInBytes * pitched.height,
                                .width = static_cast<uint32_t>(pitched.width),
                                .height = static_cast<uint32_t>(pitched.height)};
      result.normalized = format.normalized;
      return result;
    }
  }
  return Invalid(absl::StrCat("resource type ", static_cast<int>(resource.resType)));
}

absl::Status ApplyView(const CUDA_RESOURCE_VIEW_DESC& view, ResourceImage* resource) {
  Image& image = resource->image;
  if (view.format != CU_RES_VIEW_FORMAT_NONE) {
    ASSIGN_OR_RETURN(const ViewFormat format, ParseViewFormat(view.format));
    if (format.channel_bytes * format.channels != ElementBytes(image)) {
      return Invalid(absl::StrCat("view format ", static_cast<int>(view.format),
                                  " has elements of ", format.channel_bytes * format.channels,
                                  " bytes, the array of ", ElementBytes(image)));
    }
    image.channel = format.channel;
    image.channels = static_cast<uint8_t>(format.channels);
  }
  if (view.firstMipmapLevel > view.lastMipmapLevel || view.lastMipmapLevel >= image.level_count) {
    return Invalid(absl::StrCat("view of levels ", view.firstMipmapLevel, " to ",
                                view.lastMipmapLevel, " of ", image.level_count));
  }
  const ImageLevel& whole = image.levels[0];
  if (view.width != whole.width || std::max<size_t>(view.height, 1) != whole.height) {
    return Invalid(absl::StrCat("view of ", view.width, "x", view.height, " of an array of ",
                                whole.width, "x", whole.height));
  }
  image.level_count = static_cast<uint8_t>(view.lastMipmapLevel - view.firstMipmapLevel + 1);
  for (int level = 0; level < image.level_count; ++level) {
    image.levels[level] = image.levels[level + static_cast<int>(view.firstMipmapLevel)];
  }
  const bool layered = image.shape == ImageShape::k1DLayered ||
                       image.shape == ImageShape::k2DLayered ||
                       image.shape == ImageShape::kCubeLayered;
  if (!layered) return absl::OkStatus();
  const uint32_t faces = image.shape == ImageShape::kCubeLayered ? 6 : 1;
  const uint32_t layers = image.levels[0].depth / faces;
  if (view.firstLayer > view.lastLayer || view.lastLayer >= layers) {
    return Invalid(
        absl::StrCat("view of layers ", view.firstLayer, " to ", view.lastLayer, " of ", layers));
  }
  for (int level = 0; level < image.level_count; ++level) {
    image.levels[level].address += image.levels[level].slice_pitch * faces * view.firstLayer;
    image.levels[level].depth = (view.lastLayer - view.firstLayer + 1) * faces;
  }
  return absl::OkStatus();
}

absl::StatusOr<TextureDescriptor> DescribeTexture(const ResourceImage& resource,
                                                  const CUDA_TEXTURE_DESC& texture) {
  constexpr unsigned kKnown = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                              CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                              CU_TRSF_SEAMLESS_CUBEMAP;
  if ((texture.flags & ~kKnown) != 0) {
    return Invalid(absl::StrCat("texture flags 0x", absl::Hex(texture.flags)));
  }
  TextureDescriptor descriptor;
  descriptor.image = resource.image;
  const bool linear_memory = resource.image.shape == ImageShape::kLinear;
  // CUDA ignores what does not apply to linear memory, and programs leave it undefined.
  for (int i = 0; i < 3 && !linear_memory; ++i) {
    if (texture.addressMode[i] < CU_TR_ADDRESS_MODE_WRAP ||
        texture.addressMode[i] > CU_TR_ADDRESS_MODE_BORDER) {
      return Invalid(absl::StrCat("address mode ", static_cast<int>(texture.addressMode[i])));
    }
    descriptor.address_mode[i] = static_cast<AddressMode>(texture.addressMode[i]);
  }
  for (const CUfilter_mode mode : {texture.filterMode, texture.mipmapFilterMode}) {
    if (linear_memory) break;
    if (mode != CU_TR_FILTER_MODE_POINT && mode != CU_TR_FILTER_MODE_LINEAR) {
      return Invalid(absl::StrCat("filter mode ", static_cast<int>(mode)));
    }
  }
  const ChannelType channel = resource.image.channel;
  descriptor.linear_filter = texture.filterMode == CU_TR_FILTER_MODE_LINEAR;
  descriptor.linear_mip_filter = texture.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
  descriptor.normalized_coordinates = (texture.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
  descriptor.normalized_values =
      IsNarrowInteger(channel) &&
      (resource.normalized || (texture.flags & CU_TRSF_READ_AS_INTEGER) == 0);
  descriptor.srgb = (texture.flags & CU_TRSF_SRGB) != 0 && descriptor.normalized_values &&
                    channel == ChannelType::kU8;
  if (descriptor.linear_filter && !linear_memory && IsInteger(channel) &&
      !descriptor.normalized_values) {
    return Invalid("integers that are read as integers cannot be filtered");
  }
  if (linear_memory) descriptor.linear_filter = descriptor.linear_mip_filter = false;
  descriptor.mip_bias = texture.mipmapLevelBias;
  descriptor.min_level = texture.minMipmapLevelClamp;
  descriptor.max_level = texture.maxMipmapLevelClamp;
  std::copy(std::begin(texture.borderColor), std::end(texture.borderColor), descriptor.border);
  return descriptor;
}

}  // namespace fargpu::softgpu
