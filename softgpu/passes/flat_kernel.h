#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "softgpu/ptx/ast.h"

namespace fargpu::softgpu {

// Exit of a warp's lanes is block number `exit`; it holds nothing.
struct BasicBlock {
  enum class End { kJump, kBranch, kExit, kReturn };  // kReturn: from a FlatFunction

  std::vector<ptx::Instruction> instructions;
  End end = End::kJump;
  int predicate = -1;  // kBranch: register; taken where it is true (false if negated)
  bool negated = false;
  int target = -1;       // kJump, and kBranch when taken
  int fallthrough = -1;  // kBranch when not taken
  ptx::Location location;

  // Lanes that come here have ended.
  bool IsExit() const { return end == End::kExit && instructions.empty(); }

  std::vector<int> Successors() const {
    if (end == End::kExit || end == End::kReturn) return {};
    if (end == End::kJump || target == fallthrough) return {target};
    return {target, fallthrough};
  }
};

// How lanes of a warp meet at an instruction.
enum class Meeting {
  kNone,
  kMembers,  // those that a mask names, at instructions of the same kind anywhere
  kWarp,     // all, at this instruction
  kBlock,    // a barrier of the block
};
inline Meeting MeetingAt(const ptx::Instruction& i) {
  const bool barrier = i.opcode == "bar" || i.opcode == "barrier";
  if (barrier && i.Has("cluster")) return Meeting::kWarp;
  if (barrier && !i.Has("warp")) return Meeting::kBlock;
  if (barrier || i.opcode == "elect" || i.opcode == "match" || i.opcode == "redux")
    return Meeting::kMembers;
  if (i.opcode == "shfl" || i.opcode == "vote")
    return i.Has("sync") ? Meeting::kMembers : Meeting::kNone;
  if (i.opcode == "mma" || i.opcode == "wmma" || i.opcode == "ldmatrix" || i.opcode == "stmatrix" ||
      i.opcode == "movmatrix")
    return Meeting::kWarp;
  return Meeting::kNone;
}

// One kernel with its device functions inlined and its names resolved:
//  - a shared or local variable has become an immediate, its offset in the block's shared or the
//    thread's local memory;
//  - a parameter of the kernel has become an address with Operand::kVariable, index = -1 and
//    offset = the offset in the parameter block;
//  - a module-level variable is Operand::kSymbol with index = program variable;
//  - parameters of device functions are registers or local memory;
//  - `call` is left for functions of the runtime (vprintf, __assertfail), with the operands
//    {name, return register or sink, arguments...}, and, with the modifier "real", for functions
//    that are recursive or called through a pointer: {address, the places of arguments and results
//    in local memory...}.
struct FlatKernel {
  std::string name;
  std::vector<ptx::Register> registers;
  std::vector<BasicBlock> blocks;  // blocks[0] is the entry
  uint64_t local_bytes = 0;
  uint64_t shared_bytes = 0;
  bool has_block_barrier = false;
  // Device functions that are called for real, by number (LinkedProgram::FunctionId).
  std::map<int, std::shared_ptr<FlatKernel>> functions;
  // Of such a function: registers that hold the start of its frame in local memory and the places
  // of its parameters and results. Its local_bytes are the size of the frame.
  bool is_function = false;
  int frame_register = -1;
  std::vector<int> param_registers;
  uint64_t frame_bytes = 0;  // where the frame of a callee starts
  int carry_register = -1;   // the condition code that add.cc and the like write
};

}  // namespace fargpu::softgpu
