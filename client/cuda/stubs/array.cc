// CUDA arrays and mipmapped arrays. What they are like is known here; the card makes them.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"
#include "protocol/array_format.h"

namespace fargpu::client::api {
namespace {

absl::Status CreateArray(Session& session, CUarray* handle,
                         const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  RETURN_IF_ERROR(NotNull(handle, "pHandle"));
  const wire::ArrayId id = session.NewArrayIds(1);
  wire::Array3DCreateV2Request request{.array = id, .descriptor = descriptor};
  wire::Array3DCreateV2Reply reply;
  RETURN_IF_ERROR(session.Call(request, &reply));
  ASSIGN_OR_RETURN(Array * array, session.NewArray(id));
  array->descriptor = descriptor;
  array->element_bytes = ArrayElementBytes(descriptor.Format, descriptor.NumChannels);
  *handle = array->handle;
  return absl::OkStatus();
}

// Answers a question about `array` with `answer(array)`.
template <typename Answer>
CUresult AskArray(const char* name, CUarray handle, const void* out, Answer answer) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(out, "the result"));
    ASSIGN_OR_RETURN(const Array* array, session.FindArray(handle));
    return answer(*array);
  });
}

CUresult RefuseMipmapped(const char* name, CUmipmappedArray handle, const void* out,
                         const char* why) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(out, "the result"));
    RETURN_IF_ERROR(session.FindMipmappedArray(handle).status());
    return CudaError(CUDA_ERROR_INVALID_VALUE, why);
  });
}

constexpr char kNotSparse[] = "the array was not created as a sparse one";
constexpr char kNotDeferred[] = "the array was not created with deferred mapping";

}  // namespace

CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  return AtCudaEdge("cuArrayCreate_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pAllocateArray, "pAllocateArray"));
    return CreateArray(session, pHandle,
                       {.Width = pAllocateArray->Width,
                        .Height = pAllocateArray->Height,
                        .Depth = 0,
                        .Format = pAllocateArray->Format,
                        .NumChannels = pAllocateArray->NumChannels,
                        .Flags = 0});
  });
}

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  return AtCudaEdge("cuArray3DCreate_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pAllocateArray, "pAllocateArray"));
    return CreateArray(session, pHandle, *pAllocateArray);
  });
}

CUresult cuArrayDestroy(CUarray hArray) {
  return AtCudaEdge("cuArrayDestroy", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Array * array, session.FindArray(hArray));
    if (array->of_mipmap) {
      return CudaError(CUDA_ERROR_INVALID_HANDLE, "a level goes with its mipmapped array");
    }
    RETURN_IF_ERROR(session.Send(wire::ArrayDestroyRequest{.array = array->id}));
    session.Delete(array);
    return absl::OkStatus();
  });
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return AskArray("cuArrayGetDescriptor_v2", hArray, pArrayDescriptor, [&](const Array& array) {
    *pArrayDescriptor = {.Width = array.descriptor.Width,
                         .Height = array.descriptor.Height,
                         .Format = array.descriptor.Format,
                         .NumChannels = array.descriptor.NumChannels};
    return absl::OkStatus();
  });
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return AskArray("cuArray3DGetDescriptor_v2", hArray, pArrayDescriptor, [&](const Array& array) {
    *pArrayDescriptor = array.descriptor;
    return absl::OkStatus();
  });
}

CUresult cuArrayGetPlane(CUarray* pPlaneArray, CUarray hArray, unsigned int planeIdx) {
  return AskArray("cuArrayGetPlane", hArray, pPlaneArray, [&](const Array&) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("plane ", planeIdx, ": the array's format has one plane only"));
  });
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties, CUarray array) {
  return AskArray("cuArrayGetSparseProperties", array, sparseProperties,
                  [](const Array&) { return CudaError(CUDA_ERROR_INVALID_VALUE, kNotSparse); });
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                      CUarray array, CUdevice device) {
  return AtCudaEdge("cuArrayGetMemoryRequirements", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(memoryRequirements, "memoryRequirements"));
    RETURN_IF_ERROR(session.FindArray(array).status());
    RETURN_IF_ERROR(session.devices().Check(device));
    return CudaError(CUDA_ERROR_INVALID_VALUE, kNotDeferred);
  });
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties,
                                             CUmipmappedArray mipmap) {
  return RefuseMipmapped("cuMipmappedArrayGetSparseProperties", mipmap, sparseProperties,
                         kNotSparse);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device) {
  return AtCudaEdge("cuMipmappedArrayGetMemoryRequirements", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(memoryRequirements, "memoryRequirements"));
    RETURN_IF_ERROR(session.FindMipmappedArray(mipmap).status());
    RETURN_IF_ERROR(session.devices().Check(device));
    return CudaError(CUDA_ERROR_INVALID_VALUE, kNotDeferred);
  });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  return AtCudaEdge("cuMipmappedArrayCreate", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pHandle, "pHandle"));
    RETURN_IF_ERROR(NotNull(pMipmappedArrayDesc, "pMipmappedArrayDesc"));
    RETURN_IF_ERROR(session.CurrentActive().status());
    const unsigned most = std::min(numMipmapLevels, kMaxMipmapLevels);
    const wire::ArrayId first = session.NewArrayIds(std::max(most, 1u));
    ASSIGN_OR_RETURN(MipmappedArray * array, session.NewMipmappedArray());
    wire::MipmappedArrayCreateRequest request{.array = array->id,
                                              .descriptor = *pMipmappedArrayDesc,
                                              .levels = most,
                                              .first_level = first};
    wire::MipmappedArrayCreateReply reply;
    if (absl::Status made = session.Call(request, &reply); !made.ok()) {
      session.Delete(array);
      return made;
    }
    array->descriptor = *pMipmappedArrayDesc;
    for (unsigned level = 0; level < std::min(reply.levels, most); ++level) {
      ASSIGN_OR_RETURN(Array * part, session.NewArray({first.value + level}));
      part->of_mipmap = true;
      part->descriptor = MipmapLevelDescriptor(*pMipmappedArrayDesc, level);
      part->element_bytes =
          ArrayElementBytes(part->descriptor.Format, part->descriptor.NumChannels);
      array->levels.push_back(part);
    }
    *pHandle = array->handle;
    return absl::OkStatus();
  });
}

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level) {
  return AtCudaEdge("cuMipmappedArrayGetLevel", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(pLevelArray, "pLevelArray"));
    ASSIGN_OR_RETURN(const MipmappedArray* array, session.FindMipmappedArray(hMipmappedArray));
    if (level >= array->levels.size()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("level ", level, " of ", array->levels.size()));
    }
    *pLevelArray = array->levels[level]->handle;
    return absl::OkStatus();
  });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  return AtCudaEdge("cuMipmappedArrayDestroy", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(MipmappedArray * array, session.FindMipmappedArray(hMipmappedArray));
    RETURN_IF_ERROR(session.Send(wire::MipmappedArrayDestroyRequest{.array = array->id}));
    session.Delete(array);
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
