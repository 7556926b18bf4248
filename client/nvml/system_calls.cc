// Entry points that concern the library and the system, and those that find a card.
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

#include "client/nvml/device_facts.h"
#include "client/nvml/lease_state.h"

namespace fargpu::nvml {
namespace {

// As cuDriverGetVersion of our libcuda.so.1 (client/cuda/edge.h).
constexpr int kCudaVersion = 13000;
// The branch of NVIDIA's drivers that brings this CUDA version. NVIDIA released no 580.0.0, so
// nobody takes it for theirs, and what compares versions finds a number in the right place.
constexpr char kDriverVersion[] = "580.0.0";
constexpr char kNvmlVersion[] = "13.580.0.0";

const char* TextOf(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_MEMORY:
      return "Out of memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t GiveCount(uint32_t* count) {
  return AtNvmlEdge([&] {
    LeaseState& state = LeaseState::Get();
    if (!state.initialized()) return NVML_ERROR_UNINITIALIZED;
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = static_cast<uint32_t>(state.cards().devices.size());
    return NVML_SUCCESS;
  });
}

// Gives the handle of the first card of which `matches(const DeviceInfo&)` is true.
template <typename Matches>
nvmlReturn_t FindCard(nvmlDevice_t* device, const Matches& matches) {
  LeaseState& state = LeaseState::Get();
  if (!state.initialized()) return NVML_ERROR_UNINITIALIZED;
  if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (size_t i = 0; i < state.cards().devices.size(); ++i) {
    if (!matches(state.cards().devices[i])) continue;
    *device = state.HandleOf(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t HandleByIndex(uint32_t index, nvmlDevice_t* device) {
  return AtNvmlEdge([&] {
    LeaseState& state = LeaseState::Get();
    if (!state.initialized()) return NVML_ERROR_UNINITIALIZED;
    if (device == nullptr || index >= state.cards().devices.size()) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = state.HandleOf(index);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t HandleByPciBusId(const char* text, nvmlDevice_t* device) {
  return AtNvmlEdge([&] {
    if (!LeaseState::Get().initialized()) return NVML_ERROR_UNINITIALIZED;
    if (text == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    PciPlace wanted;
    unsigned function = 0;
    // With or without the domain, with or without the function.
    if (std::sscanf(text, "%x:%x:%x.%x", &wanted.domain, &wanted.bus, &wanted.device, &function) <
        3) {
      wanted.domain = 0;
      if (std::sscanf(text, "%x:%x.%x", &wanted.bus, &wanted.device, &function) < 2) {
        return NVML_ERROR_INVALID_ARGUMENT;
      }
    }
    return FindCard(device, [&](const DeviceInfo& card) { return PlaceOf(card) == wanted; });
  });
}

nvmlReturn_t GiveConstantText(const char* text, char* out, uint32_t size) {
  return AtNvmlEdge([&] {
    if (!LeaseState::Get().initialized()) return NVML_ERROR_UNINITIALIZED;
    return GiveText(text, out, size);
  });
}

nvmlReturn_t GiveCudaVersion(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaVersion;
  return NVML_SUCCESS;
}

}  // namespace
}  // namespace fargpu::nvml

using namespace fargpu::nvml;  // NOLINT: entry points only

extern "C" {

FARGPU_NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(uint32_t flags) {
  // 1: no error where there is no card. 2: do not attach cards. Neither makes a difference here.
  if (flags > 3) return NVML_ERROR_INVALID_ARGUMENT;
  return AtNvmlEdge([&] { return LeaseState::Get().Init(); });
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlInit_v2() { return nvmlInitWithFlags(0); }
FARGPU_NVML_EXPORT nvmlReturn_t nvmlInit() { return nvmlInitWithFlags(0); }
FARGPU_NVML_EXPORT nvmlReturn_t nvmlShutdown() {
  return AtNvmlEdge([&] { return LeaseState::Get().Shutdown(); });
}
FARGPU_NVML_EXPORT const char* nvmlErrorString(nvmlReturn_t result) { return TextOf(result); }

FARGPU_NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* version, uint32_t length) {
  return GiveConstantText(kDriverVersion, version, length);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, uint32_t length) {
  return GiveConstantText(kNvmlVersion, version, length);
}
// These two answer before nvmlInit too, as NVIDIA's do.
FARGPU_NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  return GiveCudaVersion(version);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return GiveCudaVersion(version);
}

// Of processes of the lease: others are not seen.
FARGPU_NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(uint32_t pid, char* name,
                                                         uint32_t length) {
  return AtNvmlEdge([&] {
    const LeaseState& state = LeaseState::Get();
    if (!state.initialized()) return NVML_ERROR_UNINITIALIZED;
    if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    fargpu::LeaseView view;
    if (const nvmlReturn_t result = state.Look(&view); result != NVML_SUCCESS) return result;
    for (const fargpu::LeaseProcess& process : view.processes) {
      if (process.pid != pid) continue;
      // NVIDIA's library cuts a name that is too long.
      return GiveText(process.program.substr(0, length - 1), name, length);
    }
    return NVML_ERROR_NOT_FOUND;
  });
}

FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(uint32_t* count) { return GiveCount(count); }
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(uint32_t* count) { return GiveCount(count); }
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(uint32_t index, nvmlDevice_t* device) {
  return HandleByIndex(index, device);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint32_t index,
                                                              nvmlDevice_t* device) {
  return HandleByIndex(index, device);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id,
                                                              nvmlDevice_t* device) {
  return HandleByPciBusId(id, device);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id,
                                                                 nvmlDevice_t* device) {
  return HandleByPciBusId(id, device);
}
FARGPU_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return AtNvmlEdge([&] {
    if (!LeaseState::Get().initialized()) return NVML_ERROR_UNINITIALIZED;
    if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    return FindCard(device, [&](const fargpu::DeviceInfo& card) {
      return absl::EqualsIgnoreCase(UuidText(card), uuid);
    });
  });
}

// S-class units: racks that nobody lends.
FARGPU_NVML_EXPORT nvmlReturn_t nvmlUnitGetCount(uint32_t* count) {
  if (!LeaseState::Get().initialized()) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

}  // extern "C"
