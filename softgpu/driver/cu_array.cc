// CUDA arrays and mipmapped arrays.

#include "softgpu/driver/array.h"
#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

CUDA_ARRAY3D_DESCRIPTOR To3D(const CUDA_ARRAY_DESCRIPTOR& descriptor) {
  CUDA_ARRAY3D_DESCRIPTOR three = {};
  three.Width = descriptor.Width;
  three.Height = descriptor.Height;
  three.Format = descriptor.Format;
  three.NumChannels = descriptor.NumChannels;
  return three;
}

CUresult CreateArrayAs(const char* call, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return WithContext(call, [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(descriptor);
    RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
    ASSIGN_OR_RETURN(const std::shared_ptr<Array> array, CreateArray(driver, context, *descriptor));
    *out = array->handle;
    return absl::OkStatus();
  });
}

// Kernels that still run may use it.
void FreeArrayMemory(Driver& driver, Context& context, uint64_t address) {
  driver.WaitForDevice(context.device);
  (void)driver.memory.Free(address);
}

absl::Status NoSparse(CUDA_ARRAY_SPARSE_PROPERTIES* properties) {
  RETURN_IF_NULL(properties);
  return InvalidValue("the array was not created as a sparse one");
}

absl::Status WriteRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements) {
  RETURN_IF_NULL(requirements);
  return InvalidValue("the array was not created with deferred mapping");
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  if (descriptor == nullptr) return CreateArrayAs("cuArrayCreate_v2", out, nullptr);
  const CUDA_ARRAY3D_DESCRIPTOR three = To3D(*descriptor);
  return CreateArrayAs("cuArrayCreate_v2", out, &three);
}

CU_API CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return CreateArrayAs("cuArray3DCreate_v2", out, descriptor);
}

CU_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray handle) {
  return WithContext("cuArrayGetDescriptor_v2", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(descriptor);
    ASSIGN_OR_RETURN(const std::shared_ptr<Array> array, FindArray(driver, handle));
    descriptor->Width = array->descriptor.Width;
    descriptor->Height = array->descriptor.Height;
    descriptor->Format = array->descriptor.Format;
    descriptor->NumChannels = array->descriptor.NumChannels;
    return absl::OkStatus();
  });
}

CU_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray handle) {
  return WithContext("cuArray3DGetDescriptor_v2", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(descriptor);
    ASSIGN_OR_RETURN(const std::shared_ptr<Array> array, FindArray(driver, handle));
    *descriptor = array->descriptor;
    return absl::OkStatus();
  });
}

CU_API CUresult cuArrayDestroy(CUarray handle) {
  return WithContext("cuArrayDestroy", [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Array> array, FindArray(driver, handle));
    RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
    if (array->of_mipmap) return InvalidHandle("a level goes with its mipmapped array");
    const std::shared_ptr<Context> owner = array->context.lock();
    if (driver.arrays.Remove(handle) == nullptr || owner == nullptr) {
      return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the array's context is gone");
    }
    FreeArrayMemory(driver, *owner, array->memory.address);
    return absl::OkStatus();
  });
}

CU_API CUresult cuArrayGetPlane(CUarray* plane, CUarray handle, unsigned index) {
  return WithContext("cuArrayGetPlane", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(plane);
    RETURN_IF_ERROR(FindArray(driver, handle).status());
    return InvalidValue(absl::StrCat("plane ", index, ": the array's format has one plane only"));
  });
}

CU_API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties,
                                           CUarray handle) {
  return WithDriver("cuArrayGetSparseProperties", [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(FindArray(driver, handle).status());
    return NoSparse(properties);
  });
}

CU_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements,
                                             CUarray handle, CUdevice device) {
  return WithDriver("cuArrayGetMemoryRequirements", [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(driver.CheckDevice(device));
    RETURN_IF_ERROR(FindArray(driver, handle).status());
    return WriteRequirements(requirements);
  });
}

CU_API CUresult cuMipmappedArrayCreate(CUmipmappedArray* out,
                                       const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned levels) {
  return WithContext("cuMipmappedArrayCreate",
                     [&](Driver& driver, Context& context) -> absl::Status {
                       RETURN_IF_NULL(out);
                       RETURN_IF_NULL(descriptor);
                       RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
                       ASSIGN_OR_RETURN(const std::shared_ptr<MipmappedArray> array,
                                        CreateMipmappedArray(driver, context, *descriptor, levels));
                       *out = array->handle;
                       return absl::OkStatus();
                     });
}

CU_API CUresult cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
  return WithContext("cuMipmappedArrayGetLevel", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const std::shared_ptr<MipmappedArray> array,
                     FindMipmappedArray(driver, handle));
    if (level >= array->levels.size()) {
      return InvalidValue(absl::StrCat("level ", level, " of ", array->levels.size()));
    }
    *out = array->levels[level]->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return WithContext("cuMipmappedArrayDestroy", [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<MipmappedArray> array,
                     FindMipmappedArray(driver, handle));
    RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
    const std::shared_ptr<Context> owner = array->context.lock();
    if (driver.mipmapped_arrays.Remove(handle) == nullptr || owner == nullptr) {
      return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the array's context is gone");
    }
    for (const std::shared_ptr<Array>& level : array->levels) driver.arrays.Remove(level->handle);
    FreeArrayMemory(driver, *owner, array->address);
    return absl::OkStatus();
  });
}

CU_API CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* properties,
                                                    CUmipmappedArray handle) {
  return WithDriver("cuMipmappedArrayGetSparseProperties", [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(FindMipmappedArray(driver, handle).status());
    return NoSparse(properties);
  });
}

CU_API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements,
                                                      CUmipmappedArray handle, CUdevice device) {
  return WithDriver("cuMipmappedArrayGetMemoryRequirements", [&](Driver& driver) -> absl::Status {
    RETURN_IF_ERROR(driver.CheckDevice(device));
    RETURN_IF_ERROR(FindMipmappedArray(driver, handle).status());
    return WriteRequirements(requirements);
  });
}
