#include "softgpu/llvm/dispatch_emitter.h"

#include <cstddef>
#include <vector>

#include "common/status_macros.h"
#include "llvm/IR/Intrinsics.h"

namespace fargpu::softgpu {
namespace {

constexpr uint32_t kExited = 0xffffffff;
// Back edges a group of lanes takes before the others (lanes and warps) get their turn.
constexpr uint32_t kSlice = 64;

class DispatchEmitter : public InstructionEmitter {
 public:
  using InstructionEmitter::InstructionEmitter;

  absl::Status Run(const std::string& name) {
    BeginFunction(name);
    llvm::Type* i32 = builder_.getInt32Ty();
    llvm::Type* v32 = VectorOf(i32);
    registers_.resize(kernel_.registers.size(), nullptr);
    pc_ = EntryAlloca(v32, "pc");
    waiting_ = EntryAlloca(i32, "waiting");
    barrier_ = EntryAlloca(i32, "barrier");
    spins_ = EntryAlloca(i32, "spins");
    floor_ = EntryAlloca(i32, "floor");
    last_ = EntryAlloca(i32, "last");
    mask_ = EntryAlloca(VectorOf(builder_.getInt1Ty()), "mask");

    llvm::Value* active = MaskFromBits(ContextField(i32, offsetof(WarpContext, active), "active"));
    builder_.CreateStore(builder_.CreateSelect(active, llvm::Constant::getNullValue(v32),
                                               llvm::Constant::getAllOnesValue(v32)), pc_);
    for (llvm::Value* counter : {waiting_, barrier_, spins_, floor_, last_}) builder_.CreateStore(Int32(0), counter);

    dispatch_ = llvm::BasicBlock::Create(context_, "dispatch", function_);
    builder_.CreateBr(dispatch_);
    std::vector<llvm::BasicBlock*> blocks;
    for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
      blocks.push_back(llvm::BasicBlock::Create(context_, "b", function_));
    }
    EmitDispatcher(blocks);
    for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
      builder_.SetInsertPoint(blocks[b]);
      RETURN_IF_ERROR(EmitBlock(static_cast<int>(b)));
    }
    return absl::OkStatus();
  }

 protected:
  LaneValue ReadRegister(int reg) override {
    return LaneValue::Varying(builder_.CreateLoad(VectorOf(RegisterType(reg)), Place(reg)));
  }
  void WriteRegister(int reg, LaneValue value) override {
    llvm::Value* place = Place(reg);
    llvm::Value* old = builder_.CreateLoad(VectorOf(RegisterType(reg)), place);
    builder_.CreateStore(builder_.CreateSelect(ExecMask(), AsVector(builder_, value), old), place);
  }
  llvm::Value* BlockMask() override {
    return builder_.CreateLoad(VectorOf(builder_.getInt1Ty()), mask_);
  }
  bool BlockMaskIsFull() override { return false; }

 private:
  llvm::Value* Place(int reg) {
    if (registers_[reg] == nullptr) {
      registers_[reg] = EntryAlloca(VectorOf(RegisterType(reg)), "r");
      // A register that is read before it is written holds zero.
      llvm::IRBuilder<> at(function_->getEntryBlock().getTerminator());
      at.CreateStore(llvm::Constant::getNullValue(VectorOf(RegisterType(reg))), registers_[reg]);
    }
    return registers_[reg];
  }

  void EmitDispatcher(const std::vector<llvm::BasicBlock*>& blocks) {
    llvm::Type* i32 = builder_.getInt32Ty();
    llvm::Type* v32 = VectorOf(i32);
    const auto block = [&](const char* name) { return llvm::BasicBlock::Create(context_, name, function_); };
    builder_.SetInsertPoint(dispatch_);
    // A group that spins hands over to those behind it, which `floor` keeps until they are
    // through or spin themselves.
    llvm::Value* spinning = builder_.CreateICmpUGE(builder_.CreateLoad(i32, spins_), Int32(kSlice));
    auto* rotate = block("rotate");
    auto* choose = block("choose");
    builder_.CreateCondBr(spinning, rotate, choose, ColdBranch());
    builder_.SetInsertPoint(rotate);
    builder_.CreateStore(builder_.CreateAdd(builder_.CreateLoad(i32, last_), Int32(1)), floor_);
    builder_.CreateStore(Int32(0), spins_);
    CallRuntime(kRuntimeYield, builder_.getVoidTy(), {});
    builder_.CreateBr(choose);

    builder_.SetInsertPoint(choose);
    llvm::Value* pc = builder_.CreateLoad(v32, pc_);
    llvm::Value* ready = builder_.CreateNot(MaskFromBits(builder_.CreateLoad(i32, waiting_)));
    llvm::Value* none = llvm::Constant::getAllOnesValue(v32);
    llvm::Value* floor = builder_.CreateLoad(i32, floor_);
    llvm::Value* above = builder_.CreateAnd(ready, builder_.CreateICmpUGE(pc, Splat(builder_, floor)));
    llvm::Value* candidates = builder_.CreateSelect(above, pc, none);
    llvm::Value* lowest = builder_.CreateIntrinsic(llvm::Intrinsic::vector_reduce_umin, {v32}, {candidates});
    auto* found = block("found");
    auto* not_found = block("not_found");
    builder_.CreateCondBr(builder_.CreateICmpEQ(lowest, Int32(kExited)), not_found, found, ColdBranch());

    builder_.SetInsertPoint(not_found);
    auto* lower = block("lower");
    auto* all_wait = block("all_wait");
    builder_.CreateCondBr(builder_.CreateICmpNE(floor, Int32(0)), lower, all_wait);
    builder_.SetInsertPoint(lower);
    builder_.CreateStore(Int32(0), floor_);
    builder_.CreateBr(choose);
    builder_.SetInsertPoint(all_wait);
    auto* barrier = block("barrier");
    auto* done = block("done");
    builder_.CreateCondBr(builder_.CreateICmpNE(builder_.CreateLoad(i32, waiting_), Int32(0)), barrier, done);
    builder_.SetInsertPoint(barrier);
    CallRuntime(kRuntimeBarrier, builder_.getVoidTy(), {builder_.CreateLoad(i32, barrier_), Int32(0)});
    builder_.CreateStore(Int32(0), waiting_);
    builder_.CreateStore(Int32(0), spins_);
    builder_.CreateBr(choose);
    builder_.SetInsertPoint(done);
    builder_.CreateRetVoid();

    builder_.SetInsertPoint(found);
    builder_.CreateStore(lowest, last_);
    builder_.CreateStore(builder_.CreateAnd(above, builder_.CreateICmpEQ(pc, Splat(builder_, lowest))), mask_);
    auto* nowhere = block("nowhere");
    llvm::SwitchInst* jump = builder_.CreateSwitch(lowest, nowhere, static_cast<unsigned>(blocks.size()));
    for (size_t b = 0; b < blocks.size(); ++b) jump->addCase(builder_.getInt32(static_cast<uint32_t>(b)), blocks[b]);
    builder_.SetInsertPoint(nowhere);
    builder_.CreateUnreachable();
  }

  static bool IsPlainBlockBarrier(const ptx::Instruction& i) {
    return ((i.opcode == "bar" && !i.Has("warp")) || i.opcode == "barrier") && !i.Has("red") && !i.Has("arrive");
  }

  absl::Status EmitBlock(int index) {
    const BasicBlock& block = kernel_.blocks[index];
    if (block.instructions.size() == 1 && IsPlainBlockBarrier(block.instructions[0]) &&
        block.instructions[0].operands.size() <= 1) {
      return EmitBarrierBlock(block);
    }
    for (const ptx::Instruction& instruction : block.instructions) RETURN_IF_ERROR(Emit(instruction));
    llvm::Value* next;
    bool back = false;
    if (block.end == BasicBlock::End::kExit) {
      next = Int32(kExited);
    } else {
      next = Int32(static_cast<uint32_t>(block.target));
      back = block.target <= index || (block.fallthrough >= 0 && block.fallthrough <= index);
    }
    llvm::Value* to = Splat(builder_, next);
    if (block.end == BasicBlock::End::kBranch) {
      const LaneValue p = ReadPredicate(block.predicate, block.negated);
      to = builder_.CreateSelect(AsVector(builder_, p), to,
                                 Splat(builder_, Int32(static_cast<uint32_t>(block.fallthrough))));
    }
    if (back) {
      llvm::Value* spins = builder_.CreateLoad(builder_.getInt32Ty(), spins_);
      builder_.CreateStore(builder_.CreateAdd(spins, Int32(1)), spins_);
    }
    Move(to);
    return absl::OkStatus();
  }

  // Lanes that arrive wait, behind the barrier, until no other lane of the warp can run.
  absl::Status EmitBarrierBlock(const BasicBlock& block) {
    const ptx::Instruction& barrier = block.instructions[0];
    uint32_t id = 0;
    if (!barrier.operands.empty() && barrier.operands[0].kind == ptx::Operand::Kind::kImmediate) {
      id = static_cast<uint32_t>(barrier.operands[0].bits);
    } else if (!barrier.operands.empty()) {
      // A number known at run time only: the lanes here are taken for the whole warp.
      RETURN_IF_ERROR(Emit(barrier));
      Move(Splat(builder_, Int32(static_cast<uint32_t>(block.target))));
      return absl::OkStatus();
    }
    builder_.CreateStore(Int32(id), barrier_);
    llvm::Value* waiting = builder_.CreateLoad(builder_.getInt32Ty(), waiting_);
    builder_.CreateStore(builder_.CreateOr(waiting, MaskBits(BlockMask())), waiting_);
    Move(Splat(builder_, Int32(static_cast<uint32_t>(block.target))));
    return absl::OkStatus();
  }

  void Move(llvm::Value* to) {
    llvm::Value* pc = builder_.CreateLoad(VectorOf(builder_.getInt32Ty()), pc_);
    builder_.CreateStore(builder_.CreateSelect(BlockMask(), to, pc), pc_);
    builder_.CreateBr(dispatch_);
  }

  std::vector<llvm::Value*> registers_;
  llvm::Value* pc_ = nullptr;
  llvm::Value* waiting_ = nullptr;
  llvm::Value* barrier_ = nullptr;
  llvm::Value* spins_ = nullptr;
  llvm::Value* floor_ = nullptr;
  llvm::Value* last_ = nullptr;
  llvm::Value* mask_ = nullptr;
  llvm::BasicBlock* dispatch_ = nullptr;
};

}  // namespace

absl::Status EmitDispatchKernel(const FlatKernel& kernel, const CompileOptions& options,
                                const std::string& name, llvm::Module* module) {
  return DispatchEmitter(kernel, options, module).Run(name);
}

}  // namespace fargpu::softgpu
