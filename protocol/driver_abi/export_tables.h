#pragma once

#include <cstdint>
#include <cuda.h>
#include <vector>

#include "protocol/driver_abi/integrity.h"

// The private tables that NVIDIA's runtime and libraries ask of a driver (cuGetExportTable).
namespace fargpu::driver_abi {

// What the tables need to know of the library that offers them. Methods may be called from any
// thread, before cuInit and during process exit, and must not wait for a peer that may be gone.
class ExportTableHost {
 public:
  virtual ~ExportTableHost() = default;

  // What cuDriverGetVersion gives, e.g. 13000.
  virtual int DriverVersion() = 0;

  // Devices in ordinal order, exactly as many as cuDeviceGetCount reports. Empty before cuInit.
  virtual std::vector<DeviceIdentity> Devices() = 0;

  // The handle that cuDevicePrimaryCtxRetain(device) will give, without retaining or activating it.
  virtual CUresult PrimaryContext(CUdevice device, CUcontext* context) = 0;

  // The calling thread's current context; nullptr if it has none. Called for each runtime call
  // that passes no context, so it must be cheap.
  virtual CUcontext CurrentContext() = 0;

  // A number that names `context` in this process and is never used again for another.
  virtual CUresult ContextId(CUcontext context, uint64_t* id) = 0;

  // The object behind a stream handle (our choice of pointer; the default stream has one too), and
  // a number that names it like ContextId. An invalid stream gives CUDA_ERROR_INVALID_HANDLE.
  virtual CUresult StreamObject(CUcontext context, CUstream stream, void** object) = 0;
  virtual CUresult StreamId(CUcontext context, void* object, uint64_t* id) = 0;

  // All functions of a module in the module's order. May cost a round trip.
  virtual CUresult ModuleFunctions(CUmodule module, std::vector<CUfunction>* functions) = 0;

  // Loads a fatbin wrapper like cuModuleLoadData; runtimes before 12 load modules by this.
  virtual CUresult LoadFatBinary(CUmodule* module, const void* wrapper) = 0;
};

// Installs the host, once per process, before the first table is used. It is never destroyed:
// calls come in until the process has ended. Table functions called without a host give
// CUDA_ERROR_NOT_INITIALIZED.
void InstallExportTableHost(ExportTableHost* host);

// cuGetExportTable. Tables lie at addresses that do not change. A table that we do not offer, or a
// null argument, gives CUDA_ERROR_INVALID_VALUE and sets `*table` to nullptr.
CUresult GetExportTable(const void** table, const CUuuid* id);

}  // namespace fargpu::driver_abi
