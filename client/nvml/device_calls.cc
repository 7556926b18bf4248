// Entry points that ask something of a card.
#include <cstdio>
#include <cstring>
#include <string>

#include "client/nvml/device_facts.h"
#include "client/nvml/lease_state.h"

namespace fargpu::nvml {

int AttributeOf(const DeviceInfo& card, CUdevice_attribute attribute) {
  // As the driver tells programs.
  if (const int program = card.program_capability; program != 0) {
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) return program / 10;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) return program % 10;
  }
  const auto index = static_cast<size_t>(attribute);
  return index < card.attributes.size() ? card.attributes[index] : 0;
}

PciPlace PlaceOf(const DeviceInfo& card) {
  const auto attribute = [&](CUdevice_attribute name) {
    return static_cast<unsigned>(AttributeOf(card, name));
  };
  return {.domain = attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
          .bus = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
          .device = attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)};
}

uint32_t ArchitectureOf(const DeviceInfo& card) {
  const int minor = AttributeOf(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  switch (AttributeOf(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) {
    case 7:
      return minor >= 5 ? NVML_DEVICE_ARCH_TURING : NVML_DEVICE_ARCH_VOLTA;
    case 8:
      return minor == 9 ? NVML_DEVICE_ARCH_ADA : NVML_DEVICE_ARCH_AMPERE;
    case 9:
      return NVML_DEVICE_ARCH_HOPPER;
    case 10:
    case 11:
    case 12:
      return NVML_DEVICE_ARCH_BLACKWELL;
    default:
      return NVML_DEVICE_ARCH_UNKNOWN;
  }
}

namespace {

// Runs `function`, an nvmlReturn_t(const DeviceInfo&, size_t index), on what does not change.
template <typename Function>
nvmlReturn_t OfCard(nvmlDevice_t device, const Function& function) noexcept {
  return AtNvmlEdge([&] {
    const LeaseState& state = LeaseState::Get();
    size_t index = 0;
    const nvmlReturn_t result = state.IndexOf(device, &index);
    return result != NVML_SUCCESS ? result : function(state.cards().devices[index], index);
  });
}

// The same on the lease as it is now.
template <typename Function>
nvmlReturn_t OfCardNow(nvmlDevice_t device, const Function& function) noexcept {
  return AtNvmlEdge([&] {
    const LeaseState& state = LeaseState::Get();
    size_t index = 0;
    nvmlReturn_t result = state.IndexOf(device, &index);
    if (result != NVML_SUCCESS) return result;
    LeaseView view;
    result = state.Look(&view);
    return result != NVML_SUCCESS ? result : function(view, index);
  });
}

// An attribute whose value 0 means that the card does not tell.
nvmlReturn_t GiveAttribute(nvmlDevice_t device, CUdevice_attribute attribute, int divisor,
                           uint32_t* value) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    if (value == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const int answer = AttributeOf(card, attribute);
    if (answer <= 0) return NVML_ERROR_NOT_SUPPORTED;
    *value = static_cast<uint32_t>(answer / divisor);
    return NVML_SUCCESS;
  });
}

void FormatShort(const PciPlace& place, char (&text)[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE]) {
  std::snprintf(text, sizeof(text), "%04X:%02X:%02X.0", place.domain & 0xffff, place.bus & 0xff,
                place.device & 0xff);
}
void FormatLong(const PciPlace& place, char (&text)[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE]) {
  std::snprintf(text, sizeof(text), "%08X:%02X:%02X.0", place.domain, place.bus & 0xff,
                place.device & 0xff);
}

// Vendor and subsystem stay 0: nobody tells us, and a guess would be taken for a fact.
template <typename Info>
void FillPlace(const PciPlace& place, Info* info) {
  info->domain = place.domain;
  info->bus = place.bus;
  info->device = place.device;
}

nvmlReturn_t GivePciInfoV2(nvmlDevice_t device, nvmlPciInfo_v2_t* info) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *info = {};
    FillPlace(PlaceOf(card), info);
    FormatShort(PlaceOf(card), info->busId);
    return NVML_SUCCESS;
  });
}

// Info is the version's structure.
template <typename Info>
nvmlReturn_t GiveProcesses(nvmlDevice_t device, uint32_t* count, Info* infos) {
  return OfCardNow(device, [&](const LeaseView& view, size_t index) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const auto found = static_cast<uint32_t>(view.processes.size());
    const uint32_t room = *count;
    *count = found;
    if (found > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (found > 0 && infos == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < found; ++i) {
      infos[i] = {};
      infos[i].pid = view.processes[i].pid;
      infos[i].usedGpuMemory = view.processes[i].used_bytes[index];
      if constexpr (!std::is_same_v<Info, nvmlProcessInfo_v1_t>) {
        infos[i].gpuInstanceId = infos[i].computeInstanceId = NVML_NO_INSTANCE;
      }
    }
    return NVML_SUCCESS;
  });
}

// Programs reach the card by CUDA alone.
nvmlReturn_t GiveNoProcesses(nvmlDevice_t device, uint32_t* count) {
  return OfCard(device, [&](const DeviceInfo&, size_t) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
  });
}

struct MemoryOfCard {
  uint64_t total, used, free;
};
MemoryOfCard MemoryOf(const LeaseView& view, size_t index) {
  const uint64_t total = view.devices[index].total_memory_bytes;
  const uint64_t used = view.used_bytes[index];
  // A lease that was made smaller may hold more than it should.
  return {.total = total, .used = used, .free = used < total ? total - used : 0};
}

}  // namespace
}  // namespace fargpu::nvml

using namespace fargpu::nvml;  // NOLINT: entry points only
using fargpu::DeviceInfo;
using fargpu::LeaseView;

extern "C" {

FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, uint32_t* index) {
  return OfCard(device, [&](const DeviceInfo&, size_t number) {
    if (index == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *index = static_cast<uint32_t>(number);
    return NVML_SUCCESS;
  });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name,
                                                  uint32_t length) {
  return OfCard(device,
                [&](const DeviceInfo& card, size_t) { return GiveText(card.name, name, length); });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid,
                                                  uint32_t length) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    return GiveText(UuidText(card), uuid, length);
  });
}

FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t* info) {
  return GivePciInfoV2(device, info);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device,
                                                        nvmlPciInfo_v2_t* info) {
  return GivePciInfoV2(device, info);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *info = {};
    FillPlace(PlaceOf(card), info);
    FormatShort(PlaceOf(card), info->busIdLegacy);
    FormatLong(PlaceOf(card), info->busId);
    return NVML_SUCCESS;
  });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device,
                                                        nvmlPciInfoExt_v1_t* info) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const uint32_t version = FargpuNvmlVersion<nvmlPciInfoExt_v1_t>(1);
    if (info->version != version) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *info = {};
    info->version = version;
    FillPlace(PlaceOf(card), info);
    FormatLong(PlaceOf(card), info->busId);
    info->baseClass = 3;  // what PCI calls a display controller,
    info->subClass = 2;   // the kind without a screen
    return NVML_SUCCESS;
  });
}

FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return OfCardNow(device, [&](const LeaseView& view, size_t index) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const MemoryOfCard now = MemoryOf(view, index);
    *memory = {.total = now.total, .free = now.free, .used = now.used};
    return NVML_SUCCESS;
  });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device,
                                                           nvmlMemory_v2_t* memory) {
  return OfCardNow(device, [&](const LeaseView& view, size_t index) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const uint32_t version = FargpuNvmlVersion<nvmlMemory_v2_t>(2);
    if (memory->version != version) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const MemoryOfCard now = MemoryOf(view, index);
    // What the node keeps for itself is no part of the lease.
    *memory = {
        .version = version, .total = now.total, .reserved = 0, .free = now.free, .used = now.used};
    return NVML_SUCCESS;
  });
}

FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device,
                                                                     uint32_t* count,
                                                                     nvmlProcessInfo_v1_t* infos) {
  return GiveProcesses(device, count, infos);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(
    nvmlDevice_t device, uint32_t* count, nvmlProcessInfo_v2_t* infos) {
  return GiveProcesses(device, count, infos);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(
    nvmlDevice_t device, uint32_t* count, nvmlProcessInfo_v2_t* infos) {
  return GiveProcesses(device, count, infos);
}
#define FARGPU_NO_PROCESSES(name)                                                               \
  FARGPU_NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, uint32_t* count, void* /*infos*/) { \
    return GiveNoProcesses(device, count);                                                      \
  }
FARGPU_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
FARGPU_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
FARGPU_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
FARGPU_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
FARGPU_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
FARGPU_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major,
                                                                   int* minor) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    if (major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *major = AttributeOf(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    *minor = AttributeOf(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    return NVML_SUCCESS;
  });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device,
                                                          uint32_t* architecture) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    if (architecture == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *architecture = ArchitectureOf(card);
    return NVML_SUCCESS;
  });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, uint32_t* mode) {
  return OfCard(device, [&](const DeviceInfo& card, size_t) {
    if (mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *mode = static_cast<uint32_t>(AttributeOf(card, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
    return NVML_SUCCESS;
  });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, uint32_t* bits) {
  return GiveAttribute(device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 1, bits);
}
// The highest clocks, which CUDA tells too, in kHz; what they are now is not known.
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, uint32_t type,
                                                          uint32_t* mhz) {
  switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM:
      return GiveAttribute(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000, mhz);
    case NVML_CLOCK_MEM:
      return GiveAttribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000, mhz);
    default:
      return OfCard(device, [](const DeviceInfo&, size_t) { return NVML_ERROR_NOT_SUPPORTED; });
  }
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, uint32_t* is) {
  return OfCard(device, [&](const DeviceInfo&, size_t) {
    if (is == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *is = 0;
    return NVML_SUCCESS;
  });
}

}  // extern "C"
