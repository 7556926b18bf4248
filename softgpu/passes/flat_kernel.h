#pragma once

#include <string>
#include <vector>

#include "softgpu/ptx/ast.h"

namespace fargpu::softgpu {

// Exit of a warp's lanes is block number `exit`; it holds nothing.
struct BasicBlock {
  enum class End { kJump, kBranch, kExit };

  std::vector<ptx::Instruction> instructions;
  End end = End::kJump;
  int predicate = -1;  // kBranch: register; taken where it is true (false if negated)
  bool negated = false;
  int target = -1;       // kJump, and kBranch when taken
  int fallthrough = -1;  // kBranch when not taken
  ptx::Location location;

  std::vector<int> Successors() const {
    if (end == End::kExit) return {};
    if (end == End::kJump || target == fallthrough) return {target};
    return {target, fallthrough};
  }
};

// One kernel with its device functions inlined and its names resolved:
//  - a shared or local variable has become an immediate, its offset in the block's shared or the
//    thread's local memory;
//  - a parameter of the kernel has become an address with Operand::kVariable, index = -1 and
//    offset = the offset in the parameter block;
//  - a module-level variable is Operand::kSymbol with index = program variable;
//  - parameters of device functions are registers or local memory;
//  - `call` is left only for functions of the runtime (vprintf, __assertfail), its operands are
//    {name, return register or sink, arguments...}.
struct FlatKernel {
  std::string name;
  std::vector<ptx::Register> registers;
  std::vector<BasicBlock> blocks;  // blocks[0] is the entry
  uint64_t local_bytes = 0;
  uint64_t shared_bytes = 0;
  bool has_block_barrier = false;
  int carry_register = -1;  // the condition code that add.cc and the like write
};

}  // namespace fargpu::softgpu
