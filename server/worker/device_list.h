#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "driver.h"
#include "protocol/handshake.h"

namespace fargpu::server {

// All that clients ask of the driver's devices, in the driver's order. Needs cuInit. Makes each
// device's primary context for a moment, which takes card memory and time: it is asked once per
// machine, not per session.
absl::StatusOr<std::vector<DeviceInfo>> DescribeDevices(Driver& driver);

// "GPU-5f1c2a3b-...", as nvidia-smi and the broker name devices.
std::string UuidText(const DeviceInfo& device);

// The driver's numbers of the devices with these uuids, in this order; kNotFound names one that the
// driver has not.
absl::StatusOr<std::vector<CUdevice>> FindDevices(Driver& driver,
                                                  const std::vector<DeviceInfo>& devices);

}  // namespace fargpu::server
