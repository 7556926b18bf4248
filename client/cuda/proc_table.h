#pragma once

#include "protocol/driver_abi/proc_address.h"

namespace fargpu::client {

// Every entry point that this library exports, by the name and version that programs ask for. Built
// at the first use, never destroyed.
const driver_abi::ProcAddressTable& ProcTable();

}  // namespace fargpu::client
