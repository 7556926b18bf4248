#pragma once

#include <vector>

#include "softgpu/passes/control_flow.h"

namespace fargpu::softgpu {

// What is known at compile time about the lanes that run a block, when always the lowest numbered
// block for which lanes wait runs next.
struct LaneMasks {
  // parked[b]: blocks, all behind b, for which lanes may wait while b runs. Sorted.
  std::vector<std::vector<int>> parked;
  // Blocks of one class run with the same lanes; the class is the block that determines them.
  // Class 0 are all lanes of the warp.
  std::vector<int> mask_class;

  bool MayBeParked(int running, int block) const;
};

// Blocks to look at, in order, when `from` has ended, until one that surely has lanes waiting.
// `added` are the successors that were just given lanes; `certain` is the highest of them that has
// some for sure (with a uniform branch the one that was taken).
std::vector<int> NextCandidates(const std::vector<int>& parked, const std::vector<int>& added,
                                int certain);

// `divergent`: blocks that end in a branch on a predicate that differs between lanes.
LaneMasks TrackLaneMasks(const FlatKernel& kernel, const ControlFlow& flow,
                         const std::vector<bool>& divergent);

}  // namespace fargpu::softgpu
