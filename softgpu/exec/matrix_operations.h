#pragma once

#include "softgpu/exec/slots.h"

// The operations on matrices. Fragments are laid out as the PTX manual says; those of wmma, which
// it leaves open, as the mma of the same elements would be.
namespace fargpu::softgpu {

void MatrixMultiply(const OperationCall& call);
void MatrixLoad(const OperationCall& call);
void MatrixStore(const OperationCall& call);
void MoveTiles(const OperationCall& call, bool store);
void TransposeTile(const OperationCall& call);

}  // namespace fargpu::softgpu
