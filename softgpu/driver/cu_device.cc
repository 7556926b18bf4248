// Devices and their properties.

#include <cstdio>
#include <cstring>

#include "protocol/driver_abi/caller.h"
#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

// "0000:10:00.0", as cuDeviceGetPCIBusId prints it.
std::string PciBusId(const DeviceSpec& device) {
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.0", device.pci_domain, device.pci_bus,
                device.pci_device);
  return text;
}

absl::Status GetUuid(Driver& driver, CUuuid* uuid, CUdevice device) {
  RETURN_IF_NULL(uuid);
  RETURN_IF_ERROR(driver.CheckDevice(device));
  std::memcpy(uuid->bytes, driver.config().devices[device].uuid.data(), sizeof(uuid->bytes));
  return absl::OkStatus();
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return WithDriver("cuDeviceGet", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(device);
    RETURN_IF_ERROR(driver.CheckDevice(ordinal));
    *device = ordinal;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetCount(int* count) {
  return WithDriver("cuDeviceGetCount", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(count);
    *count = driver.device_count();
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return WithDriver("cuDeviceGetName", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(name);
    if (length <= 0) return InvalidValue(absl::StrCat("length ", length));
    RETURN_IF_ERROR(driver.CheckDevice(device));
    std::snprintf(name, static_cast<size_t>(length), "%s",
                  driver.config().devices[device].name.c_str());
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return WithDriver("cuDeviceGetUuid",
                    [&](Driver& driver) { return GetUuid(driver, uuid, device); });
}

CU_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return WithDriver("cuDeviceGetUuid_v2",
                    [&](Driver& driver) { return GetUuid(driver, uuid, device); });
}

CU_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return WithDriver("cuDeviceTotalMem_v2", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(bytes);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    *bytes = driver.memory.Capacity(device);
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const void* const caller = __builtin_return_address(0);
  return WithDriver("cuDeviceGetAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(value);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    const DeviceSpec& spec = driver.config().devices[device];
    *value = DeviceAttribute(spec, attribute);
    const bool is_major = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    const bool is_minor = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    if ((is_major || is_minor) && driver_abi::CallerOf(caller) == driver_abi::Caller::kLibrary) {
      *value = is_major ? spec.library_capability_major : spec.library_capability_minor;
    }
    if (attribute == driver_abi::kProgramCapabilityMajor) *value = spec.capability_major;
    if (attribute == driver_abi::kProgramCapabilityMinor) *value = spec.capability_minor;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice device) {
  return WithDriver("cuDeviceGetProperties", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(properties);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    const DeviceSpec& spec = driver.config().devices[device];
    *properties = CUdevprop{};
    properties->maxThreadsPerBlock = kMaxThreadsPerBlock;
    for (int i = 0; i < 3; ++i) {
      properties->maxThreadsDim[i] = static_cast<int>(kMaxBlockDim[i]);
      properties->maxGridSize[i] = static_cast<int>(kMaxGridDim[i]);
    }
    properties->sharedMemPerBlock = kSharedBytesPerBlock;
    properties->totalConstantMemory = static_cast<int>(kMaxConstBytes);
    properties->SIMDWidth = kWarpSize;
    properties->memPitch = DeviceAttribute(spec, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    properties->regsPerBlock = kRegistersPerMultiprocessor;
    properties->clockRate = DeviceAttribute(spec, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    properties->textureAlign = DeviceAttribute(spec, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  return WithDriver("cuDeviceComputeCapability", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(major);
    RETURN_IF_NULL(minor);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    *major = driver.config().devices[device].capability_major;
    *minor = driver.config().devices[device].capability_minor;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return WithDriver("cuDeviceGetPCIBusId", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(id);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    const std::string text = PciBusId(driver.config().devices[device]);
    if (length <= static_cast<int>(text.size())) {
      return InvalidValue(absl::StrCat("length ", length, ": ", text.size() + 1, " needed"));
    }
    std::memcpy(id, text.c_str(), text.size() + 1);
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  return WithDriver("cuDeviceGetByPCIBusId", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(device);
    RETURN_IF_NULL(id);
    // [domain:]bus:device[.function], hexadecimal.
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    int used = 0;
    const bool full =
        std::sscanf(id, "%x:%x:%x%n.%x%n", &domain, &bus, &slot, &used, &function, &used) >= 3;
    if (!full) {
      domain = 0;
      if (std::sscanf(id, "%x:%x%n.%x%n", &bus, &slot, &used, &function, &used) < 2) {
        return InvalidValue(absl::StrCat("\"", id, "\" is no PCI bus id"));
      }
    }
    for (int i = 0; i < driver.device_count(); ++i) {
      const DeviceSpec& spec = driver.config().devices[i];
      if (domain == static_cast<unsigned>(spec.pci_domain) &&
          bus == static_cast<unsigned>(spec.pci_bus) &&
          slot == static_cast<unsigned>(spec.pci_device) && function == 0) {
        *device = i;
        return absl::OkStatus();
      }
    }
    return CudaError(CUDA_ERROR_INVALID_DEVICE, absl::StrCat("no device at PCI ", id));
  });
}

// All memory lies in one window that kernels of every device reach.
CU_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return WithDriver("cuDeviceCanAccessPeer", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(can);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    RETURN_IF_ERROR(driver.CheckDevice(peer));
    *can = device == peer ? 0 : 1;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                        CUdevice source, CUdevice destination) {
  return WithDriver("cuDeviceGetP2PAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(value);
    RETURN_IF_ERROR(driver.CheckDevice(source));
    RETURN_IF_ERROR(driver.CheckDevice(destination));
    if (source == destination) {
      return CudaError(CUDA_ERROR_INVALID_DEVICE, "source and destination are one device");
    }
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = 1;
        return absl::OkStatus();
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
        *value = 0;
        return absl::OkStatus();
    }
    return InvalidValue(absl::StrCat("attribute ", static_cast<int>(attribute)));
  });
}
