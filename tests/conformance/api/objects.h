#pragma once

#include "world.h"

// How each kind of object is made and ended, and what structures are filled with.
namespace fargpu::conformance {

// Two kernels: one that does nothing, one that breaks the context.
inline constexpr char kPtx[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 variable;
.visible .entry nothing() { ret; }
.visible .entry wild() {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  mov.u64 %rd1, 64;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

inline CUfunction FunctionOf(CUmodule module, const char* name) {
  CUfunction function = nullptr;
  CALL(cuModuleGetFunction)(&function, module, name);
  return function;
}

inline bool Has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

template <typename T>
T World::Make() {
  T made = {};
  if (situation_ == Situation::kBeforeInit) return made;
  if constexpr (std::is_same_v<T, CUcontext>) {
    EnterOther(0);
    LeaveOther();
    made = other_contexts_.back();
  } else if constexpr (std::is_same_v<T, CUstream>) {
    CALL(cuStreamCreate)(&made, CU_STREAM_NON_BLOCKING);
    streams_.push_back(made);
  } else if constexpr (std::is_same_v<T, CUevent>) {
    CALL(cuEventCreate)
    (&made, Has(function_, "Ipc") ? CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING : 0);
  } else if constexpr (std::is_same_v<T, CUmodule>) {
    CALL(cuModuleLoadData)(&made, kPtx);
  } else if constexpr (std::is_same_v<T, CUfunction>) {
    made = FunctionOf(Make<CUmodule>(), "nothing");
  } else if constexpr (std::is_same_v<T, CUlibrary>) {
    CALL(cuLibraryLoadData)(&made, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  } else if constexpr (std::is_same_v<T, CUkernel>) {
    CALL(cuLibraryGetKernel)(&made, Make<CUlibrary>(), "nothing");
  } else if constexpr (std::is_same_v<T, CUarray>) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
    Fill(&descriptor);
    CALL(cuArray3DCreate_v2)(&made, &descriptor);
  } else if constexpr (std::is_same_v<T, CUmipmappedArray>) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
    Fill(&descriptor);
    CALL(cuMipmappedArrayCreate)(&made, &descriptor, 3);
  } else if constexpr (std::is_same_v<T, CUgraph>) {
    CALL(cuGraphCreate)(&made, 0);
  } else if constexpr (std::is_same_v<T, CUgraphNode>) {
    made = MakeNode();
  } else if constexpr (std::is_same_v<T, CUgraphExec>) {
    CALL(cuGraphInstantiateWithFlags)(&made, Make<CUgraph>(), 0);
  } else if constexpr (std::is_same_v<T, CUmemoryPool>) {
    CUmemPoolProps properties = {};
    Fill(&properties);
    CALL(cuMemPoolCreate)(&made, &properties);
  } else if constexpr (std::is_same_v<T, CUdevResourceDesc>) {
    CUdevResource resource = {};
    Fill(&resource);
    CALL(cuDevResourceGenerateDesc)(&made, &resource, 1);
  } else if constexpr (std::is_same_v<T, CUgreenCtx>) {
    CALL(cuGreenCtxCreate)(&made, Make<CUdevResourceDesc>(), 0, CU_GREEN_CTX_DEFAULT_STREAM);
  } else if constexpr (std::is_same_v<T, CUlinkState>) {
    CALL(cuLinkCreate_v2)(0, nullptr, nullptr, &made);
  } else if constexpr (std::is_same_v<T, CUtexref>) {
    CALL(cuTexRefCreate)(&made);
  } else if constexpr (std::is_same_v<T, CUuserObject>) {
    CALL(cuUserObjectCreate)
    (
        &made, nullptr, [](void*) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  } else if constexpr (std::is_same_v<T, CUlogsCallbackHandle>) {
    CALL(cuLogsRegisterCallback)([](void*, CUlogLevel, char*, size_t) {}, nullptr, &made);
  } else if constexpr (std::is_same_v<T, CUasyncCallbackHandle>) {
    CALL(cuDeviceRegisterAsyncNotification)
    (
        0, [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}, nullptr, &made);
  }
  return made;
}

template <typename T>
void World::Destroy(T object) {
  if (situation_ == Situation::kBeforeInit || object == nullptr) return;
  if constexpr (std::is_same_v<T, CUcontext>) {
    CALL(cuCtxDestroy_v2)(object);
  } else if constexpr (std::is_same_v<T, CUstream>) {
    CALL(cuStreamDestroy_v2)(object);
    streams_.pop_back();
  } else if constexpr (std::is_same_v<T, CUevent>) {
    CALL(cuEventDestroy_v2)(object);
  } else if constexpr (std::is_same_v<T, CUmodule>) {
    CALL(cuModuleUnload)(object);
  } else if constexpr (std::is_same_v<T, CUfunction>) {
    CUmodule module = nullptr;
    CALL(cuFuncGetModule)(&module, object);
    CALL(cuModuleUnload)(module);
  } else if constexpr (std::is_same_v<T, CUlibrary>) {
    CALL(cuLibraryUnload)(object);
  } else if constexpr (std::is_same_v<T, CUkernel>) {
    CUlibrary library = nullptr;
    CALL(cuKernelGetLibrary)(&library, object);
    CALL(cuLibraryUnload)(library);
  } else if constexpr (std::is_same_v<T, CUarray>) {
    CALL(cuArrayDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUmipmappedArray>) {
    CALL(cuMipmappedArrayDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUgraph>) {
    CALL(cuGraphDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUgraphNode>) {
    CALL(cuGraphDestroyNode)(object);
  } else if constexpr (std::is_same_v<T, CUgraphExec>) {
    CALL(cuGraphExecDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUmemoryPool>) {
    CALL(cuMemPoolDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUgreenCtx>) {
    CALL(cuGreenCtxDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUlinkState>) {
    CALL(cuLinkDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUtexref>) {
    CALL(cuTexRefDestroy)(object);
  } else if constexpr (std::is_same_v<T, CUuserObject>) {
    CALL(cuUserObjectRelease)(object, 1);
  } else if constexpr (std::is_same_v<T, CUlogsCallbackHandle>) {
    CALL(cuLogsUnregisterCallback)(object);
  } else if constexpr (std::is_same_v<T, CUasyncCallbackHandle>) {
    CALL(cuDeviceUnregisterAsyncNotification)(0, object);
  }
}

template <typename T>
void World::Fill(T* value) {
  if (situation_ == Situation::kBeforeInit) return;
  if constexpr (std::is_same_v<T, CUDA_MEMCPY3D>) {
    FillBox(value);
  } else if constexpr (std::is_same_v<T, CUDA_MEMCPY2D>) {
    CUDA_MEMCPY3D box = {};
    FillBox(&box);
    value->srcMemoryType = value->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    value->srcDevice = box.srcDevice;
    value->dstDevice = box.dstDevice;
    value->srcPitch = value->dstPitch = 64;
    value->WidthInBytes = 16;
    value->Height = 4;
  } else if constexpr (std::is_same_v<T, CUDA_MEMCPY3D_PEER>) {
    CUDA_MEMCPY3D box = {};
    FillBox(&box);
    value->srcMemoryType = value->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    value->srcDevice = box.srcDevice;
    value->dstDevice = box.dstDevice;
    value->srcContext = value->dstContext = context_;
    value->srcPitch = value->dstPitch = 64;
    value->srcHeight = value->dstHeight = 4;
    value->WidthInBytes = 16;
    value->Height = 4;
    value->Depth = 1;
  } else if constexpr (std::is_same_v<T, CUDA_ARRAY3D_DESCRIPTOR> ||
                       std::is_same_v<T, CUDA_ARRAY3D_DESCRIPTOR_v1>) {
    value->Width = 64;
    value->Height = 16;
    value->Format = CU_AD_FORMAT_FLOAT;
    value->NumChannels = 1;
    value->Flags = CUDA_ARRAY3D_SURFACE_LDST;
  } else if constexpr (std::is_same_v<T, CUDA_ARRAY_DESCRIPTOR> ||
                       std::is_same_v<T, CUDA_ARRAY_DESCRIPTOR_v1>) {
    value->Width = 64;
    value->Height = 16;
    value->Format = CU_AD_FORMAT_FLOAT;
    value->NumChannels = 1;
  } else if constexpr (std::is_same_v<T, CUDA_RESOURCE_DESC>) {
    value->resType = CU_RESOURCE_TYPE_ARRAY;
    value->res.array.hArray = Make<CUarray>();
  } else if constexpr (std::is_same_v<T, CUmemAllocationProp>) {
    value->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    value->location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  } else if constexpr (std::is_same_v<T, CUmemPoolProps>) {
    value->allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    value->location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  } else if constexpr (std::is_same_v<T, CUmemLocation>) {
    *value = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  } else if constexpr (std::is_same_v<T, CUmemAccessDesc>) {
    value->location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    value->flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  } else if constexpr (std::is_same_v<T, CUlaunchConfig>) {
    value->gridDimX = value->gridDimY = value->gridDimZ = 1;
    value->blockDimX = value->blockDimY = value->blockDimZ = 1;
  } else if constexpr (std::is_same_v<T, CUDA_KERNEL_NODE_PARAMS> ||
                       std::is_same_v<T, CUDA_KERNEL_NODE_PARAMS_v1>) {
    value->func = Make<CUfunction>();
    value->gridDimX = value->gridDimY = value->gridDimZ = 1;
    value->blockDimX = value->blockDimY = value->blockDimZ = 1;
  } else if constexpr (std::is_same_v<T, CUDA_LAUNCH_PARAMS>) {
    value->function = Make<CUfunction>();
    value->gridDimX = value->gridDimY = value->gridDimZ = 1;
    value->blockDimX = value->blockDimY = value->blockDimZ = 1;
    value->hStream = Make<CUstream>();
  } else if constexpr (std::is_same_v<T, CUDA_MEMSET_NODE_PARAMS>) {
    value->dst = MakeMemory();
    value->elementSize = 4;
    value->width = 16;
    value->height = 1;
  } else if constexpr (std::is_same_v<T, CUDA_HOST_NODE_PARAMS>) {
    value->fn = [](void*) {};
  } else if constexpr (std::is_same_v<T, CUDA_MEM_ALLOC_NODE_PARAMS>) {
    Fill(&value->poolProps);
    value->bytesize = 64;
  } else if constexpr (std::is_same_v<T, CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
    static CUstreamBatchMemOpParams operation;
    std::memset(&operation, 0, sizeof operation);
    Fill(&operation);
    value->ctx = context_;
    value->count = 1;
    value->paramArray = &operation;
  } else if constexpr (std::is_same_v<T, CUstreamBatchMemOpParams>) {
    value->operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    value->writeValue.address = MakeMemory();
    value->writeValue.value = 1;
  } else if constexpr (std::is_same_v<T, CUgraphNodeParams>) {
    value->type = CU_GRAPH_NODE_TYPE_EMPTY;
  } else if constexpr (std::is_same_v<T, CUdeviceptr>) {
    // Sizes and strides of tensors have the type of addresses.
    if (Has(function_, "TensorMap")) {
      for (int k = 0; k < 8; ++k) value[k] = 64;
    } else {
      *value = MakeMemory();
    }
  } else if constexpr (std::is_same_v<T, size_t>) {
    *value = 64;  // a size; whatever is asked for overwrites it
  } else if constexpr (std::is_same_v<T, cuuint32_t>) {
    for (int k = 0; k < 8; ++k) value[k] = Has(function_, "TensorMap") ? 4 : 1;
  } else if constexpr (std::is_same_v<T, CUpointer_attribute>) {
    *value = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  } else if constexpr (std::is_same_v<T, CUmem_range_attribute>) {
    *value = CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
  } else if constexpr (std::is_same_v<T, CUdevResource>) {
    CALL(cuDeviceGetDevResource)(0, value, CU_DEV_RESOURCE_TYPE_SM);
  } else if constexpr (std::is_same_v<T, CUmemcpyAttributes>) {
    value->srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  } else if constexpr (std::is_same_v<T, void*>) {
    static char answer[4096];
    *value = answer;
  }
}

}  // namespace fargpu::conformance
