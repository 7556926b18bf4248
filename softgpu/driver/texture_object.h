#pragma once

#include <cuda.h>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/driver/array.h"
#include "softgpu/texture.h"

namespace fargpu::softgpu {

// What cuTexObject* and cuSurfObject* tell of an object. The descriptor that kernels read is
// registered with the executor under the same handle.
struct TextureObject {
  std::weak_ptr<Context> context;
  CUDA_RESOURCE_DESC resource = {};
  CUDA_TEXTURE_DESC texture = {};
  bool has_view = false;
  CUDA_RESOURCE_VIEW_DESC view = {};
};
struct SurfaceObject {
  std::weak_ptr<Context> context;
  CUDA_RESOURCE_DESC resource = {};
};

// The image that a resource is, and whether its format gives numbers whatever the texture says.
struct ResourceImage {
  Image image;
  bool normalized = false;
};
// Checks the resource as cuTexObjectCreate does: CUDA_ERROR_INVALID_VALUE for memory that is not
// the device's, not aligned or too large, CUDA_ERROR_INVALID_HANDLE for arrays that do not exist.
absl::StatusOr<ResourceImage> ImageOfResource(Driver& driver, Context& context,
                                              const CUDA_RESOURCE_DESC& resource);
absl::Status ApplyView(const CUDA_RESOURCE_VIEW_DESC& view, ResourceImage* resource);
// Checks the texture's settings against its resource.
absl::StatusOr<TextureDescriptor> DescribeTexture(const ResourceImage& resource,
                                                  const CUDA_TEXTURE_DESC& texture);

}  // namespace fargpu::softgpu
