// Questions about devices, answered from what the handshake brought.
#include <cstdio>
#include <cstring>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

// As CUDA does it: cut to fit, always with a final NUL.
absl::Status CopyString(const std::string& text, char* to, int len) {
  RETURN_IF_ERROR(NotNull(to, "the buffer"));
  if (len <= 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "the buffer has no bytes");
  std::snprintf(to, static_cast<size_t>(len), "%s", text.c_str());
  return absl::OkStatus();
}

CUresult GetUuid(const char* name, CUuuid* uuid, CUdevice dev,
                 std::array<uint8_t, 16> DeviceInfo::*which) {
  return AtCudaEdge(name, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(uuid, "uuid"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    std::memcpy(uuid->bytes, (session.devices()[dev].*which).data(), sizeof(uuid->bytes));
    return absl::OkStatus();
  });
}

}  // namespace

CUresult cuInit(unsigned int Flags) { return InitProcess(Flags); }

CUresult cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return AtCudaEdge("cuDeviceGet", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(device, "device"));
    RETURN_IF_ERROR(session.devices().Check(ordinal));
    *device = ordinal;
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetCount(int* count) {
  return AtCudaEdge("cuDeviceGetCount", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(count, "count"));
    *count = session.devices().count();
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  return AtCudaEdge("cuDeviceGetName", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.devices().Check(dev));
    return CopyString(session.devices()[dev].name, name, len);
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  return GetUuid("cuDeviceGetUuid", uuid, dev, &DeviceInfo::uuid);
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  return GetUuid("cuDeviceGetUuid_v2", uuid, dev, &DeviceInfo::uuid_v2);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  return AtCudaEdge("cuDeviceTotalMem_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(bytes, "bytes"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    *bytes = session.devices()[dev].total_memory_bytes;
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetAttribute(const void* caller, int* pi, CUdevice_attribute attrib,
                              CUdevice dev) {
  return AtCudaEdge("cuDeviceGetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pi, "pi"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    *pi = session.devices().Attribute(dev, attrib, caller);
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  return AtCudaEdge("cuDeviceGetProperties", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(prop, "prop"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    const auto attribute = [&](int which) { return session.devices().Attribute(dev, which); };
    *prop = {
        .maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        .maxThreadsDim = {attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                          attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                          attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)},
        .maxGridSize = {attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                        attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                        attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)},
        .sharedMemPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        .totalConstantMemory = attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        .SIMDWidth = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        .memPitch = attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        .regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        .clockRate = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        .textureAlign = attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    };
    return absl::OkStatus();
  });
}

CUresult cuDeviceComputeCapability(const void* caller, int* major, int* minor, CUdevice dev) {
  return AtCudaEdge("cuDeviceComputeCapability", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(major, "major"));
    RETURN_IF_ERROR(NotNull(minor, "minor"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    const DeviceTable& devices = session.devices();
    *major = devices.Attribute(dev, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, caller);
    *minor = devices.Attribute(dev, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, caller);
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
  return AtCudaEdge("cuDeviceGetByPCIBusId", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(dev, "dev"));
    RETURN_IF_ERROR(NotNull(pciBusId, "pciBusId"));
    // "domain:bus:device.function"; domain and function may be left out.
    unsigned domain = 0, bus = 0, device = 0;
    if (std::sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) {
      domain = 0;
      if (std::sscanf(pciBusId, "%x:%x", &bus, &device) != 2) {
        return CudaError(CUDA_ERROR_INVALID_VALUE,
                         absl::StrCat("'", pciBusId, "' is no PCI bus id"));
      }
    }
    const DeviceTable& devices = session.devices();
    for (CUdevice each = 0; each < devices.count(); ++each) {
      const auto attribute = [&](int which) {
        return static_cast<unsigned>(devices.Attribute(each, which));
      };
      if (attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) == domain &&
          attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) == bus &&
          attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) == device) {
        *dev = each;
        return absl::OkStatus();
      }
    }
    return CudaError(CUDA_ERROR_INVALID_DEVICE, absl::StrCat("no device at ", pciBusId));
  });
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  return AtCudaEdge("cuDeviceGetPCIBusId", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.devices().Check(dev));
    return CopyString(session.devices()[dev].pci_bus_id, pciBusId, len);
  });
}

// Cards of one lease may be in different machines one day; copies between them go through the
// worker.
CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  return AtCudaEdge("cuDeviceCanAccessPeer", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(canAccessPeer, "canAccessPeer"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    RETURN_IF_ERROR(session.devices().Check(peerDev));
    // Memory is mapped for its own card only (server/driver/driver_memory.cc).
    *canAccessPeer = 0;
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice) {
  return AtCudaEdge("cuDeviceGetP2PAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(value, "value"));
    RETURN_IF_ERROR(session.devices().Check(srcDevice));
    RETURN_IF_ERROR(session.devices().Check(dstDevice));
    if (srcDevice == dstDevice) {
      return CudaError(CUDA_ERROR_INVALID_DEVICE, "source and destination are one device");
    }
    if (attrib < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attrib > CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("attribute ", static_cast<int>(attrib)));
    }
    *value = 0;
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
