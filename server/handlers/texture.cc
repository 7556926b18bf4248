// Texture and surface objects.
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

absl::Status ToDriver(Call& call, const wire::TextureResource& resource,
                      CUDA_RESOURCE_DESC* result) {
  result->resType = static_cast<CUresourcetype>(resource.kind);
  switch (resource.kind) {
    case CU_RESOURCE_TYPE_ARRAY: {
      Array array;
      RETURN_IF_ERROR(call.objects().arrays.Find(resource.array, &array));
      result->res.array.hArray = array.handle;
      return absl::OkStatus();
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      MipmappedArray array;
      RETURN_IF_ERROR(call.objects().mipmapped_arrays.Find(resource.mipmapped_array, &array));
      result->res.mipmap.hMipmappedArray = array.handle;
      return absl::OkStatus();
    }
    case CU_RESOURCE_TYPE_LINEAR:
      result->res.linear.devPtr = resource.address;
      result->res.linear.format = static_cast<CUarray_format>(resource.format);
      result->res.linear.numChannels = resource.channels;
      result->res.linear.sizeInBytes = resource.width;
      return absl::OkStatus();
    case CU_RESOURCE_TYPE_PITCH2D:
      result->res.pitch2D.devPtr = resource.address;
      result->res.pitch2D.format = static_cast<CUarray_format>(resource.format);
      result->res.pitch2D.numChannels = resource.channels;
      result->res.pitch2D.width = resource.width;
      result->res.pitch2D.height = resource.height;
      result->res.pitch2D.pitchInBytes = resource.pitch;
      return absl::OkStatus();
    default:
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("resource type ", resource.kind));
  }
}

}  // namespace

absl::Status TexObjectCreate(const wire::TexObjectCreateRequest& request, Call& call,
                             wire::TexObjectCreateReply* reply) {
  CUDA_RESOURCE_DESC resource = {};
  RETURN_IF_ERROR(ToDriver(call, request.resource, &resource));
  CUtexObject object = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuTexObjectCreate(&object, &resource, &request.texture,
                                                       request.has_view ? &request.view : nullptr));
  reply->object = object;
  return call.objects().textures.Insert({object}, object, call.header().context);
}

absl::Status TexObjectDestroy(const wire::TexObjectDestroyRequest& request, Call& call,
                              wire::TexObjectDestroyReply* reply) {
  CUtexObject object = 0;
  RETURN_IF_ERROR(call.objects().textures.Find({request.object}, &object));
  RETURN_IF_CUDA_ERROR(call.driver().cuTexObjectDestroy(object));
  call.objects().textures.Erase({request.object});
  return absl::OkStatus();
}

absl::Status SurfObjectCreate(const wire::SurfObjectCreateRequest& request, Call& call,
                              wire::SurfObjectCreateReply* reply) {
  CUDA_RESOURCE_DESC resource = {};
  RETURN_IF_ERROR(ToDriver(call, request.resource, &resource));
  CUsurfObject object = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuSurfObjectCreate(&object, &resource));
  reply->object = object;
  return call.objects().surfaces.Insert({object}, object, call.header().context);
}

absl::Status SurfObjectDestroy(const wire::SurfObjectDestroyRequest& request, Call& call,
                               wire::SurfObjectDestroyReply* reply) {
  CUsurfObject object = 0;
  RETURN_IF_ERROR(call.objects().surfaces.Find({request.object}, &object));
  RETURN_IF_CUDA_ERROR(call.driver().cuSurfObjectDestroy(object));
  call.objects().surfaces.Erase({request.object});
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
