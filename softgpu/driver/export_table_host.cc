#include "softgpu/driver/export_table_host.h"

#include <cstdint>
#include <vector>

#include "common/cuda_error.h"
#include "protocol/driver_abi/export_tables.h"
#include "softgpu/driver/driver.h"

// The loader under its public name; cuda.h maps it elsewhere in some modes.
extern "C" CUresult cuModuleLoadData(CUmodule* module, const void* image);

namespace fargpu::softgpu {
namespace {

class SoftgpuTableHost : public driver_abi::ExportTableHost {
 public:
  int DriverVersion() override { return kDriverVersion; }

  std::vector<driver_abi::DeviceIdentity> Devices() override {
    std::vector<driver_abi::DeviceIdentity> identities;
    if (Driver* const driver = Driver::Get()) {
      for (const DeviceSpec& device : driver->config().devices) {
        identities.push_back({.uuid = device.uuid,
                              .pci_domain = device.pci_domain,
                              .pci_bus = device.pci_bus,
                              .pci_device = device.pci_device});
      }
    }
    return identities;
  }

  CUresult PrimaryContext(CUdevice device, CUcontext* context) override {
    Driver* const driver = Driver::Get();
    if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    if (!driver->CheckDevice(device).ok()) return CUDA_ERROR_INVALID_DEVICE;
    *context = driver->primaries[device]->handle;
    return CUDA_SUCCESS;
  }

  CUcontext CurrentContext() override { return CurrentContextHandle(); }

  CUresult ContextId(CUcontext handle, uint64_t* id) override {
    Driver* const driver = Driver::Get();
    if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    const auto context = driver->FindContext(handle == nullptr ? CurrentContextHandle() : handle);
    if (!context.ok()) return ToCuResult(context.status());
    *id = (*context)->id;
    return CUDA_SUCCESS;
  }

  // The "object" is the stream's id itself: nobody looks inside, and it cannot go stale.
  CUresult StreamObject(CUcontext handle, CUstream stream, void** object) override {
    Driver* const driver = Driver::Get();
    if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    const auto context = driver->FindContext(handle == nullptr ? CurrentContextHandle() : handle);
    if (!context.ok()) return ToCuResult(context.status());
    const auto found = driver->FindStream(**context, stream, /*per_thread=*/false);
    if (!found.ok()) return ToCuResult(found.status());
    *object = reinterpret_cast<void*>((*found)->id);
    return CUDA_SUCCESS;
  }

  CUresult StreamId(CUcontext, void* object, uint64_t* id) override {
    *id = reinterpret_cast<uint64_t>(object);
    return CUDA_SUCCESS;
  }

  CUresult ModuleFunctions(CUmodule handle, std::vector<CUfunction>* functions) override {
    Driver* const driver = Driver::Get();
    if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    const auto module = driver->modules.Find(handle);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& function : module->functions) functions->push_back(function->handle);
    return CUDA_SUCCESS;
  }

  CUresult LoadFatBinary(CUmodule* module, const void* wrapper) override {
    return cuModuleLoadData(module, wrapper);
  }
};

}  // namespace

void InstallExportTables() {
  // Never destroyed: tables are used until the process has ended.
  static const bool installed = [] {
    driver_abi::InstallExportTableHost(new SoftgpuTableHost);
    return true;
  }();
  (void)installed;
}

}  // namespace fargpu::softgpu
