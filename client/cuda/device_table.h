#pragma once

#include <cstdint>
#include <cuda.h>
#include <vector>

#include "absl/status/status.h"

#include "protocol/driver_abi/integrity.h"
#include "protocol/handshake.h"

namespace fargpu::client {

// The session's devices, as the handshake brought them: every question about a device is answered
// from here. Immutable.
class DeviceTable {
 public:
  explicit DeviceTable(std::vector<DeviceInfo> devices);

  int count() const { return static_cast<int>(devices_.size()); }
  bool Has(CUdevice device) const { return device >= 0 && device < count(); }
  // CUDA_ERROR_INVALID_DEVICE.
  absl::Status Check(CUdevice device) const;
  const DeviceInfo& operator[](CUdevice device) const { return devices_[device]; }

  // What the card says, except for what remoting cannot keep (see device_table.cc). Numbers that
  // nobody knows are 0: the runtime asks for attributes of the future.
  int Attribute(CUdevice device, int attribute) const;

  // The same for one who asks from `caller`, a return address: programs and NVIDIA's libraries may
  // be told different capabilities.
  int Attribute(CUdevice device, int attribute, const void* caller) const;

  std::vector<driver_abi::DeviceIdentity> Identities() const;

 private:
  const std::vector<DeviceInfo> devices_;
};

}  // namespace fargpu::client
