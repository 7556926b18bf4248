// Stream-ordered allocation. The worker's allocator gives memory that nothing uses any more, and
// takes freed memory back only when the work queued before has ended, so an allocation is in order
// on every stream, and so is its end.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/capture.h"
#include "client/cuda/device_memory.h"
#include "client/cuda/edge.h"
#include "client/cuda/node_params.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

// `pool` null: the current one of the current device.
absl::Status AllocateAsync(Session& session, DefaultStream default_stream, CUdeviceptr* dptr,
                           size_t bytesize, CUmemoryPool pool, CUstream stream) {
  RETURN_IF_ERROR(NotNull(dptr, "dptr"));
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  wire::StreamId id;
  RETURN_IF_ERROR(session.ToWire(stream, default_stream, &id));
  if (pool == nullptr) pool = session.pools().Current(context->device);
  ASSIGN_OR_RETURN(const int device, session.pools().DeviceOf(pool));
  if (device != context->device) {
    return CudaError(
        CUDA_ERROR_NOT_SUPPORTED,
        absl::StrCat("memory of device ", device, " from a context of device ", context->device));
  }
  if (IsCapturing(session, id)) {
    if (bytesize == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "bytesize is 0");
    return CaptureAlloc(session, id, device, bytesize, dptr);
  }
  const RelaxedScope relaxed;  // in the order of its stream, it disturbs no capture of another
  return AllocateDeviceMemory(session, bytesize, pool, dptr);
}

absl::Status CheckDevice(Session& session, CUdevice device) {
  if (device >= 0 && device < session.devices().count()) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_DEVICE,
                   absl::StrCat("device ", device, " of ", session.devices().count()));
}

}  // namespace

CUresult cuMemAllocAsync(DefaultStream default_stream, CUdeviceptr* dptr, size_t bytesize,
                         CUstream hStream) {
  return AtCudaEdge("cuMemAllocAsync", [&](Session& session) {
    return AllocateAsync(session, default_stream, dptr, bytesize, nullptr, hStream);
  });
}

CUresult cuMemAllocFromPoolAsync(DefaultStream default_stream, CUdeviceptr* dptr, size_t bytesize,
                                 CUmemoryPool pool, CUstream hStream) {
  return AtCudaEdge("cuMemAllocFromPoolAsync", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pool, "pool"));
    return AllocateAsync(session, default_stream, dptr, bytesize, pool, hStream);
  });
}

CUresult cuMemFreeAsync(DefaultStream default_stream, CUdeviceptr dptr, CUstream hStream) {
  return AtCudaEdge("cuMemFreeAsync", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    wire::StreamId id;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &id));
    if (dptr == 0) return absl::OkStatus();  // as free() has it
    if (IsCapturing(session, id)) return CaptureFree(session, id, dptr);
    const RelaxedScope relaxed;
    return FreeDeviceMemory(session, dptr);
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  return AtCudaEdge("cuDeviceGetDefaultMemPool", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pool_out, "pool_out"));
    RETURN_IF_ERROR(CheckDevice(session, dev));
    *pool_out = session.pools().Default(dev);
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  return AtCudaEdge("cuDeviceGetMemPool", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pool, "pool"));
    RETURN_IF_ERROR(CheckDevice(session, dev));
    *pool = session.pools().Current(dev);
    return absl::OkStatus();
  });
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  return AtCudaEdge("cuDeviceSetMemPool", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(CheckDevice(session, dev));
    return session.pools().SetCurrent(dev, pool);
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  return AtCudaEdge("cuMemPoolCreate", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pool, "pool"));
    RETURN_IF_ERROR(NotNull(poolProps, "poolProps"));
    if (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "only pools of pinned memory on a device");
    }
    if (poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "pools whose memory can be exported");
    }
    RETURN_IF_ERROR(CheckDevice(session, poolProps->location.id));
    *pool = session.pools().Create(poolProps->location.id);
    return absl::OkStatus();
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return AtCudaEdge("cuMemPoolDestroy",
                    [&](Session& session) { return session.pools().Destroy(pool); });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  // Nothing is kept that could be given back.
  return AtCudaEdge("cuMemPoolTrimTo",
                    [&](Session& session) { return session.pools().DeviceOf(pool).status(); });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  return AtCudaEdge("cuMemPoolGetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(value, "value"));
    return session.pools().GetAttribute(pool, attr, value);
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  return AtCudaEdge("cuMemPoolSetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(value, "value"));
    return session.pools().SetAttribute(pool, attr, value);
  });
}

// All devices of a lease reach all its memory; only what can be asked for is checked.
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  return AtCudaEdge("cuMemPoolSetAccess", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.pools().DeviceOf(pool).status());
    if (count > 0) RETURN_IF_ERROR(NotNull(map, "map"));
    for (size_t i = 0; i < count; ++i) {
      if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CudaError(CUDA_ERROR_INVALID_VALUE, "only access of devices can be set");
      }
      RETURN_IF_ERROR(CheckDevice(session, map[i].location.id));
    }
    return absl::OkStatus();
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool,
                            CUmemLocation* location) {
  return AtCudaEdge("cuMemPoolGetAccess", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(flags, "flags"));
    RETURN_IF_ERROR(NotNull(location, "location"));
    RETURN_IF_ERROR(session.pools().DeviceOf(memPool).status());
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "only access of devices can be asked for");
    }
    RETURN_IF_ERROR(CheckDevice(session, location->id));
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
