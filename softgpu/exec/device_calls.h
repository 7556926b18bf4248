#pragma once

#include "softgpu/exec/slots.h"

namespace fargpu::softgpu {

// Operation::kDeviceCall: functions of the device runtime (passes/device_functions.h).
void RunDeviceCall(const OperationCall& call);

}  // namespace fargpu::softgpu
