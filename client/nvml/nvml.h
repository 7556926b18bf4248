#pragma once

#include <cstddef>
#include <cstdint>

// NVML's C interface as far as we answer it: our own declarations, because the toolkit that we
// build with brings no nvml.h. Names and layouts are NVIDIA's, which is the point of them.
#define FARGPU_NVML_EXPORT __attribute__((visibility("default")))

using nvmlReturn_t = int;
inline constexpr nvmlReturn_t NVML_SUCCESS = 0;
inline constexpr nvmlReturn_t NVML_ERROR_UNINITIALIZED = 1;
inline constexpr nvmlReturn_t NVML_ERROR_INVALID_ARGUMENT = 2;
inline constexpr nvmlReturn_t NVML_ERROR_NOT_SUPPORTED = 3;
inline constexpr nvmlReturn_t NVML_ERROR_NOT_FOUND = 6;
inline constexpr nvmlReturn_t NVML_ERROR_INSUFFICIENT_SIZE = 7;
inline constexpr nvmlReturn_t NVML_ERROR_DRIVER_NOT_LOADED = 9;
inline constexpr nvmlReturn_t NVML_ERROR_TIMEOUT = 10;
inline constexpr nvmlReturn_t NVML_ERROR_GPU_IS_LOST = 15;
inline constexpr nvmlReturn_t NVML_ERROR_MEMORY = 20;
inline constexpr nvmlReturn_t NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25;
inline constexpr nvmlReturn_t NVML_ERROR_UNKNOWN = 999;

using nvmlDevice_t = struct nvmlDevice_st*;

// Versioned structures begin with their size and version.
template <typename T>
constexpr uint32_t FargpuNvmlVersion(uint32_t version) {
  return static_cast<uint32_t>(sizeof(T)) | version << 24;
}

struct nvmlMemory_t {
  uint64_t total, free, used;
};
struct nvmlMemory_v2_t {
  uint32_t version;
  uint64_t total, reserved, free, used;
};

inline constexpr size_t NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE = 16;
inline constexpr size_t NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE = 32;
struct nvmlPciInfo_v2_t {
  char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE];
  uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
  uint32_t reserved[4];
};
struct nvmlPciInfo_t {
  char busIdLegacy[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE];
  uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
};
struct nvmlPciInfoExt_v1_t {
  uint32_t version;
  uint32_t domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
  char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
};

struct nvmlProcessInfo_v1_t {
  uint32_t pid;
  uint64_t usedGpuMemory;
};
struct nvmlProcessInfo_v2_t {  // of _v3 too
  uint32_t pid;
  uint64_t usedGpuMemory;
  uint32_t gpuInstanceId, computeInstanceId;
};
inline constexpr uint32_t NVML_NO_INSTANCE = 0xffffffff;  // without MIG

enum : uint32_t { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };
enum : uint32_t {
  NVML_DEVICE_ARCH_VOLTA = 5,
  NVML_DEVICE_ARCH_TURING = 6,
  NVML_DEVICE_ARCH_AMPERE = 7,
  NVML_DEVICE_ARCH_ADA = 8,
  NVML_DEVICE_ARCH_HOPPER = 9,
  NVML_DEVICE_ARCH_BLACKWELL = 10,
  NVML_DEVICE_ARCH_UNKNOWN = 0xffffffff,
};
