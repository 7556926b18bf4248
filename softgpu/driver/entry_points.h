#pragma once

#include "protocol/driver_abi/proc_address.h"

namespace fargpu::softgpu {

// The table behind cuGetProcAddress: every function that this library exports, in each of its ABIs.
const driver_abi::ProcAddressTable& EntryPoints();

}  // namespace fargpu::softgpu
