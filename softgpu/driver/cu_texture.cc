// Texture and surface objects.

#include "softgpu/driver/edge.h"
#include "softgpu/driver/texture_object.h"

namespace fargpu::softgpu {
namespace {

absl::StatusOr<std::shared_ptr<TextureObject>> FindTextureObject(Driver& driver,
                                                                 CUtexObject handle) {
  if (std::shared_ptr<TextureObject> object = driver.textures.Find(handle)) return object;
  return InvalidValue("not a texture object");
}

absl::StatusOr<std::shared_ptr<SurfaceObject>> FindSurfaceObject(Driver& driver,
                                                                 CUsurfObject handle) {
  if (std::shared_ptr<SurfaceObject> object = driver.surfaces.Find(handle)) return object;
  return InvalidValue("not a surface object");
}

// Kernels that were launched before an object is destroyed still read it.
void WaitForUsers(Driver& driver, const std::weak_ptr<Context>& owner) {
  if (const auto context = owner.lock()) driver.WaitForDevice(context->device);
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                                  const CUDA_TEXTURE_DESC* texture,
                                  const CUDA_RESOURCE_VIEW_DESC* view) {
  return WithContext("cuTexObjectCreate", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(resource);
    RETURN_IF_NULL(texture);
    ASSIGN_OR_RETURN(ResourceImage image, ImageOfResource(driver, context, *resource));
    if (view != nullptr) {
      if (resource->resType != CU_RESOURCE_TYPE_ARRAY &&
          resource->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        return InvalidValue("a view of memory that is not an array");
      }
      RETURN_IF_ERROR(ApplyView(*view, &image));
    }
    ASSIGN_OR_RETURN(const TextureDescriptor descriptor, DescribeTexture(image, *texture));
    const absl::StatusOr<uint64_t> handle = RegisterTexture(descriptor);
    if (!handle.ok()) return CudaError(CUDA_ERROR_OUT_OF_MEMORY, handle.status().message());
    auto object = std::make_shared<TextureObject>();
    object->context = context.weak_from_this();
    object->resource = *resource;
    object->texture = *texture;
    object->has_view = view != nullptr;
    if (view != nullptr) object->view = *view;
    driver.textures.Insert(*handle, std::move(object));
    *out = *handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuTexObjectDestroy(CUtexObject handle) {
  return WithContext("cuTexObjectDestroy", [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const auto object, FindTextureObject(driver, handle));
    WaitForUsers(driver, object->context);
    driver.textures.Remove(handle);
    UnregisterTexture(handle);
    return absl::OkStatus();
  });
}

CU_API CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject handle) {
  return WithContext("cuTexObjectGetResourceDesc", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(resource);
    ASSIGN_OR_RETURN(const auto object, FindTextureObject(driver, handle));
    *resource = object->resource;
    return absl::OkStatus();
  });
}

CU_API CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* texture, CUtexObject handle) {
  return WithContext("cuTexObjectGetTextureDesc", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(texture);
    ASSIGN_OR_RETURN(const auto object, FindTextureObject(driver, handle));
    *texture = object->texture;
    return absl::OkStatus();
  });
}

CU_API CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject handle) {
  return WithContext("cuTexObjectGetResourceViewDesc",
                     [&](Driver& driver, Context&) -> absl::Status {
                       RETURN_IF_NULL(view);
                       ASSIGN_OR_RETURN(const auto object, FindTextureObject(driver, handle));
                       if (!object->has_view) return InvalidValue("the texture has no view");
                       *view = object->view;
                       return absl::OkStatus();
                     });
}

CU_API CUresult cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  return WithContext("cuSurfObjectCreate", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(resource);
    if (resource->resType != CU_RESOURCE_TYPE_ARRAY) {
      return InvalidValue("a surface needs an array");
    }
    ASSIGN_OR_RETURN(const auto array, FindArray(driver, resource->res.array.hArray));
    if ((array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0) {
      return InvalidValue("the array was created without CUDA_ARRAY3D_SURFACE_LDST");
    }
    SurfaceDescriptor descriptor;
    descriptor.image = ImageOf(*array);
    const absl::StatusOr<uint64_t> handle = RegisterSurface(descriptor);
    if (!handle.ok()) return CudaError(CUDA_ERROR_OUT_OF_MEMORY, handle.status().message());
    auto object = std::make_shared<SurfaceObject>();
    object->context = context.weak_from_this();
    object->resource = *resource;
    driver.surfaces.Insert(*handle, std::move(object));
    *out = *handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuSurfObjectDestroy(CUsurfObject handle) {
  return WithContext("cuSurfObjectDestroy", [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const auto object, FindSurfaceObject(driver, handle));
    WaitForUsers(driver, object->context);
    driver.surfaces.Remove(handle);
    UnregisterSurface(handle);
    return absl::OkStatus();
  });
}

CU_API CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject handle) {
  return WithContext("cuSurfObjectGetResourceDesc", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(resource);
    ASSIGN_OR_RETURN(const auto object, FindSurfaceObject(driver, handle));
    *resource = object->resource;
    return absl::OkStatus();
  });
}
