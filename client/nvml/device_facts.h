#pragma once

#include <cuda.h>

#include "client/nvml/nvml.h"
#include "protocol/handshake.h"

namespace fargpu::nvml {

// The answer of cuDeviceGetAttribute, and 0 where the card does not know it.
int AttributeOf(const DeviceInfo& card, CUdevice_attribute attribute);

// Where cuDeviceGetPCIBusId says that the card is: on the machine that lends it.
struct PciPlace {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  bool operator==(const PciPlace&) const = default;
};
PciPlace PlaceOf(const DeviceInfo& card);

// NVML_DEVICE_ARCH_UNKNOWN for capabilities that no card of NVIDIA has.
uint32_t ArchitectureOf(const DeviceInfo& card);

}  // namespace fargpu::nvml
