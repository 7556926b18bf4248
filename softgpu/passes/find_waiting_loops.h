#pragma once

#include <vector>

#include "softgpu/passes/build_ssa.h"
#include "softgpu/passes/control_flow.h"
#include "softgpu/passes/flat_kernel.h"

namespace fargpu::softgpu {

// Finds loops that a thread may leave only after another thread has done something: those whose
// exits depend on what an atomic operation or an ordered load returned. A loop that tries an
// operation again with what it has just read (as compare-and-swap loops do) is not one: whatever
// made it fail was another thread's success.
//
// Needs: BuildSsa. By index in ControlFlow::loops.
std::vector<bool> FindWaitingLoops(FlatKernel* kernel, const ControlFlow& flow, const Ssa& ssa);

// Can lanes that are about to run one of `blocks` do something that other threads see before they
// come to a barrier at which the whole block meets? If not, nobody can wait for them in a loop: at
// the barrier it is they who wait.
bool MayActBeforeBarrier(const FlatKernel& kernel, std::vector<int> blocks);

}  // namespace fargpu::softgpu
