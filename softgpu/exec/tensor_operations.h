#pragma once

#include "softgpu/exec/slots.h"

namespace fargpu::softgpu {

// cp.async.bulk.tensor and cp.reduce.async.bulk.tensor; happens at once.
void TensorCopy(const OperationCall& call);
// tensormap.replace.
void TensorReplace(const OperationCall& call);

}  // namespace fargpu::softgpu
