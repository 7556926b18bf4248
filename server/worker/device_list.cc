#include "server/worker/device_list.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/ids.h"
#include "common/software_card.h"
#include "common/status_macros.h"
#include "protocol/driver_abi/caller.h"

namespace fargpu::server {
namespace {

// What every card since Volta has; for drivers that give no context now, e.g. because all memory is
// taken.
constexpr int kLeastStreamPriority = 0;
constexpr int kGreatestStreamPriority = -5;

absl::StatusOr<DeviceInfo> DescribeDevice(Driver& driver, CUdevice device) {
  DeviceInfo info;
  CUuuid uuid;
  RETURN_IF_CUDA_ERROR(driver.cuDeviceGetUuid(&uuid, device));
  std::memcpy(info.uuid.data(), uuid.bytes, info.uuid.size());
  if (driver.cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS) {
    std::memcpy(info.uuid_v2.data(), uuid.bytes, info.uuid_v2.size());
  } else {
    info.uuid_v2 = info.uuid;
  }
  char text[256] = {};
  RETURN_IF_CUDA_ERROR(driver.cuDeviceGetName(text, sizeof(text) - 1, device));
  info.name = text;
  size_t bytes = 0;
  RETURN_IF_CUDA_ERROR(driver.cuDeviceTotalMem_v2(&bytes, device));
  info.total_memory_bytes = bytes;
  char bus_id[32] = {};
  if (driver.cuDeviceGetPCIBusId(bus_id, sizeof(bus_id) - 1, device) == CUDA_SUCCESS) {
    info.pci_bus_id = bus_id;
  }
  info.attributes.assign(CU_DEVICE_ATTRIBUTE_MAX, 0);
  for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; ++attribute) {
    int value = 0;
    // A driver older than our header does not know all of them; the program gets 0, as it does from
    // a driver that knows one it does not.
    if (driver.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device) ==
        CUDA_SUCCESS) {
      info.attributes[static_cast<size_t>(attribute)] = value;
    }
  }
  const auto ask = [&](int attribute) {
    int value = 0;
    const CUresult result =
        driver.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device);
    return result == CUDA_SUCCESS ? value : 0;
  };
  if (IsSoftwareCard(UuidText(info))) {
    info.program_capability =
        ask(driver_abi::kProgramCapabilityMajor) * 10 + ask(driver_abi::kProgramCapabilityMinor);
  }
  info.least_stream_priority = kLeastStreamPriority;
  info.greatest_stream_priority = kGreatestStreamPriority;
  CUcontext context = nullptr;
  if (driver.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS) {
    if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
      int least = 0;
      int greatest = 0;
      if (driver.cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS) {
        info.least_stream_priority = least;
        info.greatest_stream_priority = greatest;
      }
      driver.cuCtxPopCurrent_v2(&context);
    }
    driver.cuDevicePrimaryCtxRelease_v2(device);
  }
  return info;
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> DescribeDevices(Driver& driver) {
  int count = 0;
  RETURN_IF_CUDA_ERROR(driver.cuDeviceGetCount(&count));
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    RETURN_IF_CUDA_ERROR(driver.cuDeviceGet(&device, ordinal));
    ASSIGN_OR_RETURN(DeviceInfo info, DescribeDevice(driver, device));
    devices.push_back(std::move(info));
  }
  return devices;
}

std::string UuidText(const DeviceInfo& device) {
  const std::string hex = BytesToHex(device.uuid);
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

absl::StatusOr<std::vector<CUdevice>> FindDevices(Driver& driver,
                                                  const std::vector<DeviceInfo>& devices) {
  int count = 0;
  RETURN_IF_CUDA_ERROR(driver.cuDeviceGetCount(&count));
  std::vector<CUdevice> found;
  for (const DeviceInfo& wanted : devices) {
    const size_t before = found.size();
    for (int ordinal = 0; ordinal < count && found.size() == before; ++ordinal) {
      CUdevice device = 0;
      CUuuid uuid;
      RETURN_IF_CUDA_ERROR(driver.cuDeviceGet(&device, ordinal));
      RETURN_IF_CUDA_ERROR(driver.cuDeviceGetUuid(&uuid, device));
      if (std::memcmp(uuid.bytes, wanted.uuid.data(), sizeof(uuid.bytes)) == 0) {
        found.push_back(device);
      }
    }
    if (found.size() == before) {
      return absl::NotFoundError(absl::StrCat("the driver has no device ", UuidText(wanted)));
    }
  }
  return found;
}

}  // namespace fargpu::server
