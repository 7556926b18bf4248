#pragma once

#include "softgpu/exec/slots.h"

namespace fargpu::softgpu {

// MatrixMultiply where the CPU has AVX-512 and the shape is one of the common ones: on the
// fragments as they lie in the slots, lane beside lane, without building the matrices. The same
// results, bit by bit: elements are added up in the same order. False if it is another case;
// nothing is done then.
bool MultiplyByAvx512(const OperationCall& call, const MatrixCode& code);

}  // namespace fargpu::softgpu
