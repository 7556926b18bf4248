#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "softgpu/passes/control_flow.h"
#include "softgpu/passes/flat_kernel.h"

namespace fargpu::softgpu {

struct Phi {
  int result = -1;
  std::vector<std::pair<int, int>> sources;  // predecessor, register
};

// What BuildSsa adds to a kernel.
struct Ssa {
  std::vector<std::vector<Phi>> phis;  // by block
  // The register whose value a guarded instruction keeps where its guard is false, by result.
  std::vector<int> previous;
};

// Gives every definition a register of its own. A value that is defined in a loop and used behind
// it passes through a phi at the loop's exit, so that what a lane takes out of the loop is kept
// while others go on.
//
// Needs: OrderBlocks. Registers read before they are written are given the number `undefined` of
// their type, see IsUndefined.
Ssa BuildSsa(FlatKernel* kernel, const ControlFlow& flow);

// Does it write a register?
bool HasResult(const ptx::Instruction& instruction);
// Registers that an instruction writes and reads.
void ForEachResult(ptx::Instruction* instruction, const FlatKernel& kernel,
                   const std::function<void(int*)>& visit);
void ForEachUse(ptx::Instruction* instruction, const FlatKernel& kernel,
                const std::function<void(int*)>& visit);

}  // namespace fargpu::softgpu
