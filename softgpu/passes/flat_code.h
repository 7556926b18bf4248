#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "softgpu/passes/flat_kernel.h"

namespace fargpu::softgpu {

// A parameter of a call of a device function.
struct CallParam {
  uint64_t size = 0;
  uint32_t alignment = 1;
  bool in_memory = false;
  uint64_t local_offset = 0;
  std::map<uint64_t, std::pair<uint32_t, int>> slots;  // offset -> (bits, register)
};

// A kernel between the steps of FlattenKernel: one list of instructions with all functions inlined.
// Operand::kVariable with an index >= 0 is a CallParam.
struct FlatCode {
  FlatKernel kernel;  // all but the blocks
  std::vector<ptx::Instruction> body;
  std::vector<int> labels;  // position in `body`, -1: not used
  std::vector<CallParam> params;
  uint64_t local_bytes = 0;  // of one thread, so far

  int NewRegister(ptx::Type type) {
    kernel.registers.push_back({"", type});
    return static_cast<int>(kernel.registers.size()) - 1;
  }
  // An address in local memory: of the thread in a kernel, of the frame in a function.
  ptx::Operand LocalOperand(uint64_t offset) const;
};

ptx::Operand RegisterOperand(int index);
// to = from, under the guard of `like`.
ptx::Instruction MakeMove(ptx::Operand to, ptx::Operand from, ptx::Type type,
                          const ptx::Instruction& like);

// Turns parameters of calls into registers where every access agrees on its pieces, else into local
// memory. Returns CUDA_ERROR_INVALID_PTX or CUDA_ERROR_NOT_SUPPORTED, naming the line, for an
// access that has no meaning.
absl::Status LowerCallParams(FlatCode* code);

// Moves the body into kernel.blocks: all reachable, instructions that wait at the start of theirs.
void CutIntoBlocks(FlatCode* code);

}  // namespace fargpu::softgpu
