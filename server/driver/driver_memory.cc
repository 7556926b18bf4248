#include "server/driver/driver_memory.h"

#include "absl/cleanup/cleanup.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::server {
namespace {

CUmemAllocationProp DeviceMemoryProperties(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

// Makes a context current for a while.
class ScopedContext {
 public:
  ScopedContext(Driver* driver, uint64_t context) : driver_(driver) {
    result_ = driver_->cuCtxPushCurrent_v2(reinterpret_cast<CUcontext>(context));
  }
  ~ScopedContext() {
    CUcontext popped = nullptr;
    if (result_ == CUDA_SUCCESS) driver_->cuCtxPopCurrent_v2(&popped);
  }
  CUresult result() const { return result_; }

 private:
  Driver* const driver_;
  CUresult result_;
};

}  // namespace

absl::StatusOr<uint64_t> DriverMemory::ReserveAddresses(uint64_t size, uint64_t alignment) {
  CUdeviceptr base = 0;
  RETURN_IF_CUDA_ERROR(driver_->cuMemAddressReserve(&base, size, alignment, 0, 0));
  return base;
}

absl::StatusOr<uint64_t> DriverMemory::Granularity(int device) {
  const CUdevice driver_device = devices_.at(static_cast<size_t>(device));
  int supported = 0;
  RETURN_IF_CUDA_ERROR(driver_->cuDeviceGetAttribute(
      &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, driver_device));
  if (supported == 0)
    return absl::UnimplementedError("the device has no virtual memory management");
  const CUmemAllocationProp properties = DeviceMemoryProperties(driver_device);
  size_t granularity = 0;
  RETURN_IF_CUDA_ERROR(driver_->cuMemGetAllocationGranularity(&granularity, &properties,
                                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return granularity;
}

absl::StatusOr<uint64_t> DriverMemory::CreatePhysical(int device, uint64_t size) {
  const CUmemAllocationProp properties =
      DeviceMemoryProperties(devices_.at(static_cast<size_t>(device)));
  CUmemGenericAllocationHandle handle = 0;
  RETURN_IF_CUDA_ERROR(driver_->cuMemCreate(&handle, size, &properties, 0));
  return handle;
}

absl::StatusOr<uint64_t> DriverMemory::CreateShareable(int device, uint64_t size) {
  CUmemAllocationProp properties = DeviceMemoryProperties(devices_.at(static_cast<size_t>(device)));
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  RETURN_IF_CUDA_ERROR(driver_->cuMemCreate(&handle, size, &properties, 0));
  return handle;
}

absl::StatusOr<UniqueFd> DriverMemory::ExportPhysical(uint64_t handle) {
  int fd = -1;
  RETURN_IF_CUDA_ERROR(driver_->cuMemExportToShareableHandle(
      &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return UniqueFd(fd);
}

absl::StatusOr<uint64_t> DriverMemory::ImportPhysical(int fd) {
  CUmemGenericAllocationHandle handle = 0;
  // The descriptor is the pointer's value.
  RETURN_IF_CUDA_ERROR(driver_->cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
}

absl::Status DriverMemory::ReleasePhysical(uint64_t handle) {
  RETURN_IF_CUDA_ERROR(driver_->cuMemRelease(handle));
  return absl::OkStatus();
}

absl::Status DriverMemory::Map(int device, uint64_t address, uint64_t size, uint64_t handle) {
  RETURN_IF_CUDA_ERROR(driver_->cuMemMap(address, size, 0, handle, 0));
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = devices_.at(static_cast<size_t>(device));
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (const CUresult result = driver_->cuMemSetAccess(address, size, &access, 1);
      result != CUDA_SUCCESS) {
    driver_->cuMemUnmap(address, size);
    return CudaError(result, "cuMemSetAccess");
  }
  return absl::OkStatus();
}

absl::Status DriverMemory::Unmap(uint64_t address, uint64_t size) {
  RETURN_IF_CUDA_ERROR(driver_->cuMemUnmap(address, size));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DriverMemory::Allocate(uint64_t owner, uint64_t size) {
  const ScopedContext context(driver_, owner);
  RETURN_IF_CUDA_ERROR(context.result());
  CUdeviceptr address = 0;
  RETURN_IF_CUDA_ERROR(driver_->cuMemAlloc_v2(&address, size));
  return address;
}

absl::Status DriverMemory::Free(uint64_t owner, uint64_t address) {
  const ScopedContext context(driver_, owner);
  RETURN_IF_CUDA_ERROR(context.result());
  RETURN_IF_CUDA_ERROR(driver_->cuMemFree_v2(address));
  return absl::OkStatus();
}

absl::Status DriverMemory::Zero(uint64_t owner, uint64_t address, uint64_t size) {
  const ScopedContext context(driver_, owner);
  RETURN_IF_CUDA_ERROR(context.result());
  // A stream of its own, which waits for no work of the program.
  CUstream stream = nullptr;
  RETURN_IF_CUDA_ERROR(driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const absl::Cleanup destroy = [&] { driver_->cuStreamDestroy_v2(stream); };
  RETURN_IF_CUDA_ERROR(driver_->cuMemsetD8Async(address, 0, size, stream));
  RETURN_IF_CUDA_ERROR(driver_->cuStreamSynchronize(stream));
  return absl::OkStatus();
}

absl::Status DriverMemory::Copy(uint64_t owner, uint64_t to, uint64_t from, uint64_t size) {
  const ScopedContext context(driver_, owner);
  RETURN_IF_CUDA_ERROR(context.result());
  CUstream stream = nullptr;
  RETURN_IF_CUDA_ERROR(driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const absl::Cleanup destroy = [&] { driver_->cuStreamDestroy_v2(stream); };
  RETURN_IF_CUDA_ERROR(driver_->cuMemcpyDtoDAsync_v2(to, from, size, stream));
  RETURN_IF_CUDA_ERROR(driver_->cuStreamSynchronize(stream));
  return absl::OkStatus();
}

absl::Status DriverMemory::WaitIdle(uint64_t owner) {
  const ScopedContext context(driver_, owner);
  RETURN_IF_CUDA_ERROR(context.result());
  RETURN_IF_CUDA_ERROR(driver_->cuCtxSynchronize());
  return absl::OkStatus();
}

}  // namespace fargpu::server
