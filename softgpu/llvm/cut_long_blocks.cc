#include "softgpu/llvm/cut_long_blocks.h"

#include <iterator>
#include <vector>

#include "llvm/IR/BasicBlock.h"
#include "llvm/IR/Function.h"

namespace fargpu::softgpu {
namespace {

// Not fewer: what is live from one piece to the next costs a store and a load in code that is made
// quickly.
constexpr size_t kMaxBlockInstructions = 300;

}  // namespace

void CutLongBlocks(llvm::Module* module) {
  for (llvm::Function& function : *module) {
    std::vector<llvm::BasicBlock*> blocks;
    for (llvm::BasicBlock& block : function) blocks.push_back(&block);
    for (llvm::BasicBlock* block : blocks) {
      // The static allocas of the entry block stay together.
      auto at = block->getFirstNonPHIOrDbgOrAlloca();
      size_t count = 0;
      while (at != block->end() && !at->isTerminator()) {
        ++at;
        if (++count < kMaxBlockInstructions || at->isTerminator()) continue;
        block = block->splitBasicBlock(at, "more");
        at = block->begin();
        count = 0;
      }
    }
  }
}

}  // namespace fargpu::softgpu
