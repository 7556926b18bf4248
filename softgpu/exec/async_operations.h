#pragma once

#include "softgpu/exec/slots.h"

// Copies, barrier objects and the widest atomics.
namespace fargpu::softgpu {

void Copy(const OperationCall& call);
// `bytes` have come in for the barrier object at the plain address `address`.
void CompleteBytes(uint64_t address, uint64_t bytes);
// `address`, of shared memory, as the same offset in the block of that rank.
uint64_t AddressInBlock(uint64_t address, int rank);
void BulkCopy(const OperationCall& call);
void BarrierObject(const OperationCall& call);
void Atomic128(const OperationCall& call);

}  // namespace fargpu::softgpu
