#include <utility>
#include <vector>

#include "softgpu/passes/flat_code.h"

namespace fargpu::softgpu {
namespace {

using ptx::Instruction;

bool IsRealCall(const Instruction& i) { return i.opcode == "call" && i.Has("real"); }
bool Waits(const Instruction& i) {
  return i.opcode == "bar" || i.opcode == "barrier" || IsRealCall(i) || i.opcode == "shfl" ||
         i.opcode == "vote" || i.opcode == "match" || i.opcode == "redux" || i.opcode == "elect" ||
         i.opcode == "nanosleep";
}
bool IsBlockBarrier(const Instruction& i) {
  return (i.opcode == "bar" && !i.Has("warp")) || i.opcode == "barrier";
}

void RemoveUnreachable(FlatKernel* kernel) {
  std::vector<int> number(kernel->blocks.size(), -1);
  std::vector<int> work = {0};
  number[0] = 0;
  while (!work.empty()) {
    const int b = work.back();
    work.pop_back();
    for (const int s : kernel->blocks[b].Successors()) {
      if (number[s] < 0) {
        number[s] = 0;
        work.push_back(s);
      }
    }
  }
  int next = 0;
  for (int& n : number) {
    if (n == 0) n = next++;
  }
  std::vector<BasicBlock> kept;
  for (size_t b = 0; b < number.size(); ++b) {
    if (number[b] < 0) continue;
    BasicBlock& block = kernel->blocks[b];
    if (block.target >= 0) block.target = number[block.target];
    if (block.fallthrough >= 0) block.fallthrough = number[block.fallthrough];
    kept.push_back(std::move(block));
  }
  kernel->blocks = std::move(kept);
}

}  // namespace

void CutIntoBlocks(FlatCode* code) {
  const int count = static_cast<int>(code->body.size());
  std::vector<bool> starts(count + 1, false);
  starts[0] = true;
  for (const int label : code->labels) {
    if (label >= 0) starts[label] = true;
  }
  for (int i = 0; i < count; ++i) {
    const Instruction& instruction = code->body[i];
    if (instruction.opcode == "bra" || instruction.opcode == "ret" ||
        instruction.opcode == "exit") {
      starts[i + 1] = true;
    } else if (Waits(instruction)) {
      starts[i] = true;
      if (instruction.guard >= 0 || IsBlockBarrier(instruction) || IsRealCall(instruction))
        starts[i + 1] = true;
    }
  }
  std::vector<int> block_of(count + 1, -1);
  int blocks = 0;
  for (int i = 0; i <= count; ++i) {
    if (starts[i]) ++blocks;
    block_of[i] = blocks - 1;
  }
  const int exit = block_of[count] + 1;  // a block that only ends
  // Blocks made for guarded instructions that wait come behind the exit block.
  const int back = code->kernel.is_function ? exit + 1 : exit;  // where ret goes
  code->kernel.blocks.resize(back + 1);
  code->kernel.blocks[back].end = BasicBlock::End::kReturn;
  code->kernel.blocks[exit].end = BasicBlock::End::kExit;
  const auto start_of = [&](int position) {
    return position >= count && !starts[count] ? back : block_of[position];
  };
  int i = 0;
  while (i < count) {
    const int at = block_of[i];
    std::vector<Instruction> instructions;
    BasicBlock end_state;
    end_state.end = BasicBlock::End::kJump;
    end_state.location = code->body[i].location;
    bool ended = false;
    do {
      Instruction& instruction = code->body[i++];
      const bool leaves = instruction.opcode == "ret" || instruction.opcode == "exit";
      if (instruction.opcode == "bra" || leaves) {
        end_state.target = instruction.opcode == "exit" ? exit
                           : leaves                     ? back
                                    : start_of(code->labels[instruction.operands[0].index]);
        if (instruction.guard >= 0) {
          end_state.end = BasicBlock::End::kBranch;
          end_state.predicate = instruction.guard;
          end_state.negated = instruction.guard_negated;
          end_state.fallthrough = i < count ? block_of[i] : back;
        }
        end_state.location = instruction.location;
        ended = true;
      } else if (Waits(instruction) && instruction.guard >= 0) {
        code->kernel.has_block_barrier |= IsBlockBarrier(instruction);
        // @p bar...: a branch around a block of its own.
        const int own = static_cast<int>(code->kernel.blocks.size());
        code->kernel.blocks.emplace_back();
        BasicBlock& block = code->kernel.blocks.back();
        block.target = i < count ? block_of[i] : back;
        block.location = instruction.location;
        end_state.end = BasicBlock::End::kBranch;
        end_state.predicate = instruction.guard;
        end_state.negated = instruction.guard_negated;
        end_state.target = own;
        end_state.fallthrough = block.target;
        instruction.guard = -1;
        block.instructions.push_back(std::move(instruction));
        ended = true;
      } else {
        code->kernel.has_block_barrier |= IsBlockBarrier(instruction);
        instructions.push_back(std::move(instruction));
      }
    } while (i < count && !starts[i]);
    if (!ended) end_state.target = i < count ? block_of[i] : back;
    end_state.instructions = std::move(instructions);
    code->kernel.blocks[at] = std::move(end_state);
  }
  if (starts[count]) {  // a label at the very end
    code->kernel.blocks[block_of[count]].end =
        code->kernel.is_function ? BasicBlock::End::kReturn : BasicBlock::End::kExit;
  }
  RemoveUnreachable(&code->kernel);
}

}  // namespace fargpu::softgpu
