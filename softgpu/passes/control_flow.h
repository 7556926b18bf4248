#pragma once

#include <vector>

#include "softgpu/passes/flat_kernel.h"

namespace fargpu::softgpu {

struct Loop {
  int header = -1;
  int latch = -1;              // the one block with an edge back to the header
  int parent = -1;             // the loop around it
  std::vector<bool> contains;  // by block
};

// The shape of a kernel's control flow.
struct ControlFlow {
  std::vector<std::vector<int>> predecessors;
  std::vector<int> dominator;  // immediate; -1 for the entry
  std::vector<Loop> loops;
  std::vector<int> loop_of;  // innermost; -1 outside of loops
  // postdominators[b][c]: every way from b to the end passes c.
  std::vector<std::vector<bool>> postdominators;

  bool Dominates(int a, int b) const {
    while (b > a) b = dominator[b];
    return a == b;
  }
};

// Gives every loop a single latch and numbers the blocks so that each comes behind all from which
// it can be reached without going back, and the blocks of a loop are neighbours. Running always
// the lowest numbered block that lanes wait for then brings lanes together again where their ways
// meet. False, and `kernel` in an unspecified but equivalent state, if that cannot be done: a loop
// with two entries, or one without a way out.
bool OrderBlocks(FlatKernel* kernel, ControlFlow* flow);

}  // namespace fargpu::softgpu
