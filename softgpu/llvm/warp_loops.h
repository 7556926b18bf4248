#pragma once

#include <string>

#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

// How the warps of a block take turns, from the cheapest way to the most general.
enum class Turns {
  // No warp waits for another. The function has loops over blocks and warps around the warp's code.
  kIndependent,
  // Warps wait at barriers of the whole block only. The warp's code is a coroutine (LLVM's) that
  // suspends there, and the function resumes the warps of a block in rounds: when all have come to
  // the barrier, the next round begins.
  kRounds,
  // They also spin for what other warps or blocks do. A warp that spins suspends, too; while some
  // do,
  // a round is for them only, and lets other blocks run before. The function runs one block.
  kYieldingRounds,
  // Anything else. The function runs one warp, on a fiber of its own that the executor switches.
  kFibers,
};

// Emits what stands around the code of a warp. In all ways but the last a call of the function runs
// WarpContext::block_count whole blocks; what is the same for all warps leaves the loops.
class WarpLoops : public InstructionEmitter {
 public:
  using InstructionEmitter::InstructionEmitter;

 protected:
  // Starts the function `name`. The insertion point is then where the code of a warp begins, and
  // that goes to end() when its last lane has ended.
  void BeginWarps(Turns turns, const std::string& name);
  // What the code emitted since then needs; it is right only if that is not more than `turns`.
  Turns NeededTurns() const { return suspends_ ? Turns::kFibers : needed_; }
  // Removes what was emitted from the module.
  static void EraseWarps(const std::string& name, llvm::Module* module);

  llvm::BasicBlock* end() const { return end_; }
  llvm::Value* active() const { return active_; }  // i32: lanes of the warp that exist

  void BlockBarrier(llvm::Value* id, llvm::Value* threads) override;
  void LetOthersRun() override;

 private:
  bool InRounds() const { return turns_ == Turns::kRounds || turns_ == Turns::kYieldingRounds; }
  void Suspend();
  // Starts the loop over blocks; returns where the code of one, which begins at the insertion
  // point, goes when it is done.
  llvm::BasicBlock* BeginBlockLoop();
  // A loop over the warps of a block; behind the last it goes to `after`.
  struct WarpLoop {
    llvm::Value* warp = nullptr;
    llvm::BasicBlock* next = nullptr;  // where the code for one warp goes
  };
  WarpLoop BeginWarpLoop(llvm::BasicBlock* after);
  llvm::Value* LanesOf(llvm::Value* warp);  // i32
  // Starts `warp_function` for each warp, and resumes them until all are done.
  void EmitRounds(llvm::Function* warp_function);
  void BeginCoroutine();
  void StoreInContext(llvm::Value* value, size_t offset);
  llvm::BasicBlock* NewBlock(const char* name);

  Turns turns_ = Turns::kFibers;
  Turns needed_ = Turns::kIndependent;
  llvm::Value* threads_ = nullptr;  // of a block
  llvm::Value* active_ = nullptr;
  llvm::BasicBlock* end_ = nullptr;
  llvm::ConstantInt* barrier_ = nullptr;  // the number of the only barrier
  llvm::BasicBlock* suspended_ = nullptr;
  llvm::BasicBlock* destroyed_ = nullptr;
};

// Of a split coroutine: empties the functions that would destroy it half-way, which nobody calls
// and which are as long as those that are called.
void DropCoroutineEnds(llvm::Module* module);

}  // namespace fargpu::softgpu
