// Texture and surface objects. Kernels use the card's own numbers for them, so creating one waits
// for the card; what it is made of is remembered here.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/copying.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::StatusOr<wire::TextureResource> ResourceToWire(Session& session,
                                                     const CUDA_RESOURCE_DESC& resource) {
  wire::TextureResource result;
  result.kind = static_cast<int32_t>(resource.resType);
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      ASSIGN_OR_RETURN(const Array* array, session.FindArray(resource.res.array.hArray));
      result.array = array->id;
      return result;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      ASSIGN_OR_RETURN(const MipmappedArray* array,
                       session.FindMipmappedArray(resource.res.mipmap.hMipmappedArray));
      result.mipmapped_array = array->id;
      return result;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      // Sizes may go beyond the allocation; what is not there reads as zero.
      RETURN_IF_ERROR(CheckDeviceRange(session, linear.devPtr, 1));
      result.address = linear.devPtr;
      result.format = linear.format;
      result.channels = linear.numChannels;
      result.width = linear.sizeInBytes;
      return result;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& rows = resource.res.pitch2D;
      RETURN_IF_ERROR(CheckDeviceRange(session, rows.devPtr, 1));
      result.address = rows.devPtr;
      result.format = rows.format;
      result.channels = rows.numChannels;
      result.width = rows.width;
      result.height = rows.height;
      result.pitch = rows.pitchInBytes;
      return result;
    }
    default:
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("resource type ", static_cast<int>(resource.resType)));
  }
}

// Answers a question about a texture or surface object.
template <typename Answer>
CUresult Ask(const char* name, const void* out, uint64_t object, TextureTable& (Session::*table)(),
             Answer answer) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(out, "the result"));
    const std::optional<TextureObject> found = (session.*table)().Find(object);
    if (!found.has_value()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("no object ", object));
    }
    return answer(*found);
  });
}

template <typename Request>
CUresult Destroy(const char* name, uint64_t object, TextureTable& (Session::*table)()) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    // Removed first: once it is sent, another thread may be given the same number.
    const std::optional<TextureObject> found = (session.*table)().Find(object);
    if (!found.has_value() || !(session.*table)().Remove(object)) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("no object ", object));
    }
    const absl::Status sent = session.Send(Request{.object = object});
    if (!sent.ok()) (session.*table)().Insert(object, *found);
    return sent;
  });
}

}  // namespace

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  return AtCudaEdge("cuTexObjectCreate", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(pTexObject, "pTexObject"));
    RETURN_IF_ERROR(NotNull(pResDesc, "pResDesc"));
    RETURN_IF_ERROR(NotNull(pTexDesc, "pTexDesc"));
    wire::TexObjectCreateRequest request;
    ASSIGN_OR_RETURN(request.resource, ResourceToWire(session, *pResDesc));
    request.texture = *pTexDesc;
    request.has_view = pResViewDesc != nullptr;
    if (pResViewDesc != nullptr) request.view = *pResViewDesc;
    wire::TexObjectCreateReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    session.textures().Insert(reply.object, {.context = session.current_context(),
                                             .resource = *pResDesc,
                                             .texture = *pTexDesc,
                                             .has_view = request.has_view,
                                             .view = request.view});
    *pTexObject = reply.object;
    return absl::OkStatus();
  });
}

CUresult cuTexObjectDestroy(CUtexObject texObject) {
  return Destroy<wire::TexObjectDestroyRequest>("cuTexObjectDestroy", texObject,
                                                &Session::textures);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUtexObject texObject) {
  return Ask("cuTexObjectGetResourceDesc", pResDesc, texObject, &Session::textures,
             [&](const TextureObject& object) {
               *pResDesc = object.resource;
               return absl::OkStatus();
             });
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* pTexDesc, CUtexObject texObject) {
  return Ask("cuTexObjectGetTextureDesc", pTexDesc, texObject, &Session::textures,
             [&](const TextureObject& object) {
               *pTexDesc = object.texture;
               return absl::OkStatus();
             });
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* pResViewDesc,
                                        CUtexObject texObject) {
  return Ask("cuTexObjectGetResourceViewDesc", pResViewDesc, texObject, &Session::textures,
             [&](const TextureObject& object) {
               if (!object.has_view) {
                 return CudaError(CUDA_ERROR_INVALID_VALUE, "the texture has no view");
               }
               *pResViewDesc = object.view;
               return absl::OkStatus();
             });
}

CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  return AtCudaEdge("cuSurfObjectCreate", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(pSurfObject, "pSurfObject"));
    RETURN_IF_ERROR(NotNull(pResDesc, "pResDesc"));
    wire::SurfObjectCreateRequest request;
    ASSIGN_OR_RETURN(request.resource, ResourceToWire(session, *pResDesc));
    wire::SurfObjectCreateReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    TextureObject object;
    object.context = session.current_context();
    object.resource = *pResDesc;
    session.surfaces().Insert(reply.object, object);
    *pSurfObject = reply.object;
    return absl::OkStatus();
  });
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject) {
  return Destroy<wire::SurfObjectDestroyRequest>("cuSurfObjectDestroy", surfObject,
                                                 &Session::surfaces);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUsurfObject surfObject) {
  return Ask("cuSurfObjectGetResourceDesc", pResDesc, surfObject, &Session::surfaces,
             [&](const TextureObject& object) {
               *pResDesc = object.resource;
               return absl::OkStatus();
             });
}

}  // namespace fargpu::client::api
