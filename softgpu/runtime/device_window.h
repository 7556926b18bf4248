#pragma once

#include "softgpu/compiler.h"

namespace fargpu::softgpu {

// The part of DeviceWindow() that allocations, mappings and mapped host memory lie in. The rest is
// for ReserveWindowRange().
AddressWindow DeviceMemoryRange();

}  // namespace fargpu::softgpu
