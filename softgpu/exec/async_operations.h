#pragma once

#include "softgpu/exec/slots.h"

// Copies, barrier objects and the widest atomics.
namespace fargpu::softgpu {

void Copy(const OperationCall& call);
void BulkCopy(const OperationCall& call);
void BarrierObject(const OperationCall& call);
void Atomic128(const OperationCall& call);

}  // namespace fargpu::softgpu
