// Texture and surface references. A module's reference is a variable of 8 bytes in which its code
// finds the handle of an object: whenever a reference changes, an object with its settings is made
// and its handle written there. Compilers make no references since CUDA 12; older PTX has them.
// References that a program creates belong to no code: what is set in them can be read back.

#include "protocol/driver_abi/local/texture_reference.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "common/mutex.h"
#include "local_calls.h"
#include "protocol/array_format.h"
#include "protocol/driver_abi/local/edge.h"

namespace fargpu::driver_abi::local {
namespace {

constexpr int kDimensions = 3;
constexpr unsigned kKnownFlags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                                 CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                                 CU_TRSF_SEAMLESS_CUBEMAP;
constexpr unsigned kMostAnisotropy = 16;

struct Reference {
  CUdeviceptr variable = 0;  // of a module; 0: none
  CUtexObject object = 0;    // what the variable holds

  // At most one of the three is bound.
  CUarray array = nullptr;
  CUmipmappedArray mipmapped_array = nullptr;
  CUdeviceptr address = 0;
  // Of an address: the bytes of a line, or a pitched image.
  // Code finds a line `offset` bytes further on: textures begin at aligned addresses.
  size_t bytes = 0, offset = 0;
  size_t width = 0, height = 0, pitch = 0;

  CUarray_format format = CU_AD_FORMAT_FLOAT;
  int channels = 1;
  CUaddress_mode address_modes[kDimensions] = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP,
                                               CU_TR_ADDRESS_MODE_CLAMP};
  CUfilter_mode filter = CU_TR_FILTER_MODE_POINT;
  CUfilter_mode mipmap_filter = CU_TR_FILTER_MODE_POINT;
  float mipmap_bias = 0;
  float mipmap_lowest = 0, mipmap_highest = 0;
  unsigned anisotropy = 1;
  float border[4] = {};
  unsigned flags = 0;

  void Unbind() {
    array = nullptr;
    mipmapped_array = nullptr;
    address = 0;
    bytes = offset = width = height = pitch = 0;
  }
};

struct SurfaceReference {
  CUdeviceptr variable = 0;
  CUsurfObject object = 0;
  CUarray array = nullptr;
};

// Of a module: its handle and the reference's name.
using ModuleName = std::pair<CUmodule, std::string>;

struct References {
  Mutex mutex;
  // The address of the value is the handle.
  // Shared with calls under way in other threads.
  absl::flat_hash_map<CUtexref, std::shared_ptr<Reference>> all ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<CUsurfref, std::shared_ptr<SurfaceReference>> surfaces ABSL_GUARDED_BY(mutex);
  // Asked for twice, a module's reference is the same.
  absl::flat_hash_map<ModuleName, CUtexref> of_modules ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<ModuleName, CUsurfref> surfaces_of_modules ABSL_GUARDED_BY(mutex);
};

// Never destroyed: calls come in until the process has ended.
References& AllReferences() {
  static auto* const references = new References;
  return *references;
}

// Runs body(reference) with the reference behind `handle`.
template <typename Body>
CUresult WithReference(CUtexref handle, Body body) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckContext());
    std::shared_ptr<Reference> reference;
    {
      References& references = AllReferences();
      MutexLock lock(&references.mutex);
      const auto found = references.all.find(handle);
      if (found == references.all.end()) return CUDA_ERROR_INVALID_VALUE;
      reference = found->second;
    }
    // Without the lock: what fails inside is told to the program's log callbacks.
    return body(*reference);
  });
}

// As above for a question, whose answer goes to `out`.
template <typename Out, typename Answer>
CUresult Ask(CUtexref handle, Out* out, Answer answer) {
  return WithReference(handle, [&](const Reference& reference) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = answer(reference);
    return CUDA_SUCCESS;
  });
}

std::optional<CUDA_RESOURCE_DESC> Resource(const Reference& reference) {
  CUDA_RESOURCE_DESC resource = {};
  const auto channels = static_cast<unsigned>(reference.channels);
  if (reference.array != nullptr) {
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = reference.array;
  } else if (reference.mipmapped_array != nullptr) {
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = reference.mipmapped_array;
  } else if (reference.address != 0 && reference.height != 0) {
    resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    resource.res.pitch2D = {reference.address, reference.format, channels,
                            reference.width,   reference.height, reference.pitch};
  } else if (reference.address != 0) {
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {reference.address - reference.offset, reference.format, channels,
                           reference.bytes + reference.offset};
  } else {
    return std::nullopt;
  }
  return resource;
}

CUDA_TEXTURE_DESC Settings(const Reference& reference) {
  CUDA_TEXTURE_DESC texture = {};
  std::copy_n(reference.address_modes, kDimensions, texture.addressMode);
  texture.filterMode = reference.filter;
  texture.flags = reference.flags;
  texture.maxAnisotropy = reference.anisotropy;
  texture.mipmapFilterMode = reference.mipmap_filter;
  texture.mipmapLevelBias = reference.mipmap_bias;
  texture.minMipmapLevelClamp = reference.mipmap_lowest;
  texture.maxMipmapLevelClamp = reference.mipmap_highest;
  std::copy_n(reference.border, 4, texture.borderColor);
  return texture;
}

// Gives the code of the reference's module an object with its settings. While these do not go
// together, as in the middle of a series of changes, it finds none.
CUresult Publish(Reference& reference) {
  if (reference.variable == 0) return CUDA_SUCCESS;
  CUtexObject object = 0;
  if (const auto resource = Resource(reference)) {
    const CUDA_TEXTURE_DESC settings = Settings(reference);
    if (::cuTexObjectCreate(&object, &*resource, &settings, nullptr) != CUDA_SUCCESS) object = 0;
  }
  FARGPU_RETURN_IF_FAILED(::cuMemcpyHtoD_v2(reference.variable, &object, sizeof object));
  if (reference.object != 0) ::cuTexObjectDestroy(reference.object);
  reference.object = object;
  return CUDA_SUCCESS;
}

// Runs body(reference), which changes it.
template <typename Body>
CUresult Change(CUtexref handle, Body body) {
  return WithReference(handle, [&](Reference& reference) -> CUresult {
    FARGPU_RETURN_IF_FAILED(body(reference));
    return Publish(reference);
  });
}

bool IsFilterMode(CUfilter_mode mode) {
  return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR;
}

CUresult CheckFormat(CUarray_format format, int channels) {
  return channels > 0 && ArrayElementBytes(format, static_cast<unsigned>(channels)) > 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

// The variable behind a module's reference.
CUresult FindInModule(const void* out, CUmodule module, const char* name, CUdeviceptr* variable) {
  FARGPU_RETURN_IF_FAILED(CheckContext());
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = 0;
  FARGPU_RETURN_IF_FAILED(::cuModuleGetGlobal_v2(variable, &bytes, module, name));
  return bytes == sizeof(CUtexObject) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// Finds or makes the reference of `module` that `name` means.
template <typename Handle, typename Value>
Handle ReferenceOf(absl::flat_hash_map<ModuleName, Handle>& of_modules,
                   absl::flat_hash_map<Handle, std::shared_ptr<Value>>& all, ModuleName name,
                   CUdeviceptr variable) {
  const auto [known, is_new] = of_modules.try_emplace(std::move(name), nullptr);
  // Another module may have come in the place of one that is gone.
  if (!is_new && all.at(known->second)->variable == variable) return known->second;
  auto made = std::make_shared<Value>();
  made->variable = variable;
  known->second = reinterpret_cast<Handle>(made.get());
  all.emplace(known->second, std::move(made));
  return known->second;
}

}  // namespace

CUresult CheckTextureReference(CUtexref reference) {
  return WithReference(reference, [](const Reference&) { return CUDA_SUCCESS; });
}

CUresult cuModuleGetTexRef(CUtexref* pTexRef, CUmodule hmod, const char* name) {
  return AtLocalEdge([&] {
    CUdeviceptr variable = 0;
    FARGPU_RETURN_IF_FAILED(FindInModule(pTexRef, hmod, name, &variable));
    References& references = AllReferences();
    MutexLock lock(&references.mutex);
    *pTexRef = ReferenceOf(references.of_modules, references.all, {hmod, name}, variable);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetSurfRef(CUsurfref* pSurfRef, CUmodule hmod, const char* name) {
  return AtLocalEdge([&] {
    CUdeviceptr variable = 0;
    FARGPU_RETURN_IF_FAILED(FindInModule(pSurfRef, hmod, name, &variable));
    References& references = AllReferences();
    MutexLock lock(&references.mutex);
    *pSurfRef =
        ReferenceOf(references.surfaces_of_modules, references.surfaces, {hmod, name}, variable);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefCreate(CUtexref* pTexRef) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckContext());
    if (pTexRef == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_shared<Reference>();
    const auto handle = reinterpret_cast<CUtexref>(made.get());
    References& references = AllReferences();
    MutexLock lock(&references.mutex);
    references.all.emplace(handle, std::move(made));
    *pTexRef = handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefDestroy(CUtexref hTexRef) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckContext());
    References& references = AllReferences();
    MutexLock lock(&references.mutex);
    const auto found = references.all.find(hTexRef);
    // A module's goes with it.
    if (found == references.all.end() || found->second->variable != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    references.all.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned Flags) {
  return Change(hTexRef, [&](Reference& reference) {
    if (Flags != CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
    FARGPU_RETURN_IF_FAILED(::cuArray3DGetDescriptor_v2(&descriptor, hArray));
    reference.Unbind();
    reference.array = hArray;
    reference.format = descriptor.Format;
    reference.channels = static_cast<int>(descriptor.NumChannels);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray,
                                   unsigned Flags) {
  return Change(hTexRef, [&](Reference& reference) {
    if (Flags != CU_TRSA_OVERRIDE_FORMAT) return CUDA_ERROR_INVALID_VALUE;
    CUarray level = nullptr;
    FARGPU_RETURN_IF_FAILED(::cuMipmappedArrayGetLevel(&level, hMipmappedArray, 0));
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
    FARGPU_RETURN_IF_FAILED(::cuArray3DGetDescriptor_v2(&descriptor, level));
    reference.Unbind();
    reference.mipmapped_array = hMipmappedArray;
    reference.format = descriptor.Format;
    reference.channels = static_cast<int>(descriptor.NumChannels);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetAddress_v2(size_t* ByteOffset, CUtexref hTexRef, CUdeviceptr dptr,
                               size_t bytes) {
  return Change(hTexRef, [&](Reference& reference) {
    CUdevice device = 0;
    int alignment = 0, most = 0;
    FARGPU_RETURN_IF_FAILED(::cuCtxGetDevice(&device));
    FARGPU_RETURN_IF_FAILED(
        ::cuDeviceGetAttribute(&alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device));
    FARGPU_RETURN_IF_FAILED(
        ::cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, device));
    const size_t element =
        ArrayElementBytes(reference.format, static_cast<unsigned>(reference.channels));
    if (element == 0 || bytes / element > static_cast<size_t>(most)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUdeviceptr base = 0;
    size_t size = 0;
    if (::cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS ||
        bytes > base + size - dptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const size_t offset = dptr % static_cast<size_t>(alignment);
    // Whoever takes no offset promises that there is none.
    if (ByteOffset == nullptr && offset != 0) return CUDA_ERROR_INVALID_VALUE;
    if (ByteOffset != nullptr) *ByteOffset = offset;
    reference.Unbind();
    reference.address = dptr;
    reference.bytes = bytes;
    reference.offset = offset;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc,
                                 CUdeviceptr dptr, size_t Pitch) {
  return Change(hTexRef, [&](Reference& reference) {
    if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FARGPU_RETURN_IF_FAILED(CheckFormat(desc->Format, static_cast<int>(desc->NumChannels)));
    CUdevice device = 0;
    int alignment = 0, pitch_alignment = 0;
    FARGPU_RETURN_IF_FAILED(::cuCtxGetDevice(&device));
    FARGPU_RETURN_IF_FAILED(
        ::cuDeviceGetAttribute(&alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device));
    FARGPU_RETURN_IF_FAILED(::cuDeviceGetAttribute(
        &pitch_alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, device));
    const size_t row = desc->Width * ArrayElementBytes(desc->Format, desc->NumChannels);
    CUdeviceptr base = 0;
    size_t size = 0;
    if (dptr % static_cast<size_t>(alignment) != 0 ||
        Pitch % static_cast<size_t>(pitch_alignment) != 0 || Pitch < row || desc->Width == 0 ||
        desc->Height == 0 || ::cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS ||
        desc->Height > (base + size - dptr) / Pitch) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    reference.Unbind();
    reference.address = dptr;
    reference.width = desc->Width;
    reference.height = desc->Height;
    reference.pitch = Pitch;
    reference.format = desc->Format;
    reference.channels = static_cast<int>(desc->NumChannels);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetAddress2D_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc,
                                 CUdeviceptr dptr, size_t Pitch) {
  return local::cuTexRefSetAddress2D_v3(hTexRef, desc, dptr, Pitch);
}

CUresult cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents) {
  return Change(hTexRef, [&](Reference& reference) {
    FARGPU_RETURN_IF_FAILED(CheckFormat(fmt, NumPackedComponents));
    reference.format = fmt;
    reference.channels = NumPackedComponents;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am) {
  return Change(hTexRef, [&](Reference& reference) {
    if (dim < 0 || dim >= kDimensions || am < CU_TR_ADDRESS_MODE_WRAP ||
        am > CU_TR_ADDRESS_MODE_BORDER) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    reference.address_modes[dim] = am;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
  return Change(hTexRef, [&](Reference& reference) {
    if (!IsFilterMode(fm)) return CUDA_ERROR_INVALID_VALUE;
    reference.filter = fm;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetMipmapFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
  return Change(hTexRef, [&](Reference& reference) {
    if (!IsFilterMode(fm)) return CUDA_ERROR_INVALID_VALUE;
    reference.mipmap_filter = fm;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetMipmapLevelBias(CUtexref hTexRef, float bias) {
  return Change(hTexRef, [&](Reference& reference) {
    reference.mipmap_bias = bias;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp,
                                     float maxMipmapLevelClamp) {
  return Change(hTexRef, [&](Reference& reference) {
    reference.mipmap_lowest = minMipmapLevelClamp;
    reference.mipmap_highest = maxMipmapLevelClamp;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetMaxAnisotropy(CUtexref hTexRef, unsigned maxAniso) {
  return Change(hTexRef, [&](Reference& reference) {
    if (maxAniso > kMostAnisotropy) return CUDA_ERROR_INVALID_VALUE;
    reference.anisotropy = maxAniso;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetBorderColor(CUtexref hTexRef, float* pBorderColor) {
  return Change(hTexRef, [&](Reference& reference) {
    if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (int k = 0; k < 4; ++k) reference.border[k] = pBorderColor[k];
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetFlags(CUtexref hTexRef, unsigned Flags) {
  return Change(hTexRef, [&](Reference& reference) {
    if ((Flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    reference.flags = Flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetAddress_v2(CUdeviceptr* pdptr, CUtexref hTexRef) {
  return WithReference(hTexRef, [&](const Reference& reference) {
    if (pdptr == nullptr || reference.address == 0) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = reference.address;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetArray(CUarray* phArray, CUtexref hTexRef) {
  return WithReference(hTexRef, [&](const Reference& reference) {
    if (phArray == nullptr || reference.array == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *phArray = reference.array;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetMipmappedArray(CUmipmappedArray* phMipmappedArray, CUtexref hTexRef) {
  return WithReference(hTexRef, [&](const Reference& reference) {
    if (phMipmappedArray == nullptr || reference.mipmapped_array == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *phMipmappedArray = reference.mipmapped_array;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetAddressMode(CUaddress_mode* pam, CUtexref hTexRef, int dim) {
  return WithReference(hTexRef, [&](const Reference& reference) {
    if (pam == nullptr || dim < 0 || dim >= kDimensions) return CUDA_ERROR_INVALID_VALUE;
    *pam = reference.address_modes[dim];
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
  return Ask(hTexRef, pfm, [](const Reference& reference) { return reference.filter; });
}

CUresult cuTexRefGetFormat(CUarray_format* pFormat, int* pNumChannels, CUtexref hTexRef) {
  return WithReference(hTexRef, [&](const Reference& reference) {
    if (pFormat == nullptr || pNumChannels == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pFormat = reference.format;
    *pNumChannels = reference.channels;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
  return Ask(hTexRef, pfm, [](const Reference& reference) { return reference.mipmap_filter; });
}

CUresult cuTexRefGetMipmapLevelBias(float* pbias, CUtexref hTexRef) {
  return Ask(hTexRef, pbias, [](const Reference& reference) { return reference.mipmap_bias; });
}

CUresult cuTexRefGetMipmapLevelClamp(float* pminMipmapLevelClamp, float* pmaxMipmapLevelClamp,
                                     CUtexref hTexRef) {
  return WithReference(hTexRef, [&](const Reference& reference) {
    if (pminMipmapLevelClamp == nullptr || pmaxMipmapLevelClamp == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *pminMipmapLevelClamp = reference.mipmap_lowest;
    *pmaxMipmapLevelClamp = reference.mipmap_highest;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetMaxAnisotropy(int* pmaxAniso, CUtexref hTexRef) {
  return Ask(hTexRef, pmaxAniso,
             [](const Reference& reference) { return static_cast<int>(reference.anisotropy); });
}

CUresult cuTexRefGetBorderColor(float* pBorderColor, CUtexref hTexRef) {
  return WithReference(hTexRef, [&](const Reference& reference) {
    if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (int k = 0; k < 4; ++k) pBorderColor[k] = reference.border[k];
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefGetFlags(unsigned* pFlags, CUtexref hTexRef) {
  return Ask(hTexRef, pFlags, [](const Reference& reference) { return reference.flags; });
}

namespace {

template <typename Body>
CUresult WithSurface(CUsurfref handle, Body body) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckContext());
    std::shared_ptr<SurfaceReference> reference;
    {
      References& references = AllReferences();
      MutexLock lock(&references.mutex);
      const auto found = references.surfaces.find(handle);
      if (found == references.surfaces.end()) return CUDA_ERROR_INVALID_VALUE;
      reference = found->second;
    }
    return body(*reference);
  });
}

}  // namespace

CUresult cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned Flags) {
  return WithSurface(hSurfRef, [&](SurfaceReference& reference) -> CUresult {
    if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = hArray;
    CUsurfObject object = 0;
    FARGPU_RETURN_IF_FAILED(::cuSurfObjectCreate(&object, &resource));
    FARGPU_RETURN_IF_FAILED(::cuMemcpyHtoD_v2(reference.variable, &object, sizeof object));
    if (reference.object != 0) ::cuSurfObjectDestroy(reference.object);
    reference.object = object;
    reference.array = hArray;
    return CUDA_SUCCESS;
  });
}

CUresult cuSurfRefGetArray(CUarray* phArray, CUsurfref hSurfRef) {
  return WithSurface(hSurfRef, [&](const SurfaceReference& reference) {
    if (phArray == nullptr || reference.array == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *phArray = reference.array;
    return CUDA_SUCCESS;
  });
}

}  // namespace fargpu::driver_abi::local
