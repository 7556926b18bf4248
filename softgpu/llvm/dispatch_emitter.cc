#include "softgpu/llvm/dispatch_emitter.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/passes/link_modules.h"

namespace fargpu::softgpu {
namespace {

constexpr uint32_t kExited = 0xffffffff;
// Back edges a group of lanes takes before the others (lanes and warps) get their turn.
constexpr uint32_t kSlice = 64;

using FunctionMap = std::map<int, llvm::Function*>;

class DispatchEmitter : public InstructionEmitter {
 public:
  DispatchEmitter(const FlatKernel& kernel, const CompileOptions& options, llvm::Module* module,
                  const FunctionMap& functions)
      : InstructionEmitter(kernel, options, module), functions_(functions) {}

  absl::Status Run(const std::string& name) {
    BeginFunction(name);
    return EmitBody(ContextField(builder_.getInt32Ty(), offsetof(WarpContext, active), "active"));
  }

  // A device function: i32 f(WarpContext*, i32 lanes, i64 frame, i64 parameter places...), which
  // returns the lanes that have exited for good.
  absl::Status RunFunction(llvm::Function* function) {
    BeginFunction(function);
    frame_ = function->getArg(2);
    return EmitBody(function->getArg(1));
  }

  static llvm::Function* Declare(const FlatKernel& function, int id, llvm::Module* module) {
    llvm::LLVMContext& context = module->getContext();
    std::vector<llvm::Type*> types = {llvm::PointerType::getUnqual(context),
                                      llvm::Type::getInt32Ty(context)};
    types.resize(3 + function.param_registers.size(), llvm::Type::getInt64Ty(context));
    auto* type = llvm::FunctionType::get(llvm::Type::getInt32Ty(context), types, false);
    return llvm::Function::Create(type, llvm::Function::InternalLinkage,
                                  "function_" + std::to_string(id), module);
  }

 private:
  absl::Status EmitBody(llvm::Value* active_bits) {
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

    exited_ = EntryAlloca(i32, "exited");
    llvm::Value* active = MaskFromBits(active_bits);
    builder_.CreateStore(builder_.CreateSelect(active, llvm::Constant::getNullValue(v32),
                                               llvm::Constant::getAllOnesValue(v32)),
                         pc_);
    for (llvm::Value* counter : {waiting_, barrier_, spins_, floor_, last_, exited_})
      builder_.CreateStore(Int32(0), counter);

    dispatch_ = llvm::BasicBlock::Create(context_, "dispatch", function_);
    llvm::BranchInst* start = builder_.CreateBr(dispatch_);
    if (kernel_.is_function) {
      builder_.SetInsertPoint(start);
      // Behind the zeros that Place stores before the end of the entry block.
      const auto set = [&](int reg, llvm::Value* value) {
        llvm::Value* place = Place(reg);
        builder_.CreateStore(Splat(builder_, value), place);
      };
      set(kernel_.frame_register, frame_);
      for (size_t k = 0; k < kernel_.param_registers.size(); ++k) {
        set(kernel_.param_registers[k], function_->getArg(static_cast<unsigned>(3 + k)));
      }
    }
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
    const auto block = [&](const char* name) {
      return llvm::BasicBlock::Create(context_, name, function_);
    };
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
    llvm::Value* above =
        builder_.CreateAnd(ready, builder_.CreateICmpUGE(pc, Splat(builder_, floor)));
    llvm::Value* candidates = builder_.CreateSelect(above, pc, none);
    llvm::Value* lowest =
        builder_.CreateIntrinsic(llvm::Intrinsic::vector_reduce_umin, {v32}, {candidates});
    auto* found = block("found");
    auto* not_found = block("not_found");
    builder_.CreateCondBr(builder_.CreateICmpEQ(lowest, Int32(kExited)), not_found, found,
                          ColdBranch());

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
    builder_.CreateCondBr(builder_.CreateICmpNE(builder_.CreateLoad(i32, waiting_), Int32(0)),
                          barrier, done);
    builder_.SetInsertPoint(barrier);
    CallRuntime(kRuntimeBarrier, builder_.getVoidTy(),
                {builder_.CreateLoad(i32, barrier_), Int32(0)});
    builder_.CreateStore(Int32(0), waiting_);
    builder_.CreateStore(Int32(0), spins_);
    builder_.CreateBr(choose);
    builder_.SetInsertPoint(done);
    if (kernel_.is_function) {
      builder_.CreateRet(builder_.CreateLoad(i32, exited_));
    } else {
      builder_.CreateRetVoid();
    }

    builder_.SetInsertPoint(found);
    builder_.CreateStore(lowest, last_);
    builder_.CreateStore(
        builder_.CreateAnd(above, builder_.CreateICmpEQ(pc, Splat(builder_, lowest))), mask_);
    auto* nowhere = block("nowhere");
    llvm::SwitchInst* jump =
        builder_.CreateSwitch(lowest, nowhere, static_cast<unsigned>(blocks.size()));
    for (size_t b = 0; b < blocks.size(); ++b)
      jump->addCase(builder_.getInt32(static_cast<uint32_t>(b)), blocks[b]);
    builder_.SetInsertPoint(nowhere);
    builder_.CreateUnreachable();
  }

  static bool IsPlainBlockBarrier(const ptx::Instruction& i) {
    return ((i.opcode == "bar" && !i.Has("warp")) || i.opcode == "barrier") && !i.Has("red") &&
           !i.Has("arrive");
  }

  absl::Status EmitBlock(int index) {
    const BasicBlock& block = kernel_.blocks[index];
    if (block.instructions.size() == 1 && IsPlainBlockBarrier(block.instructions[0]) &&
        block.instructions[0].operands.size() <= 1) {
      return EmitBarrierBlock(block);
    }
    if (block.instructions.size() == 1 && block.instructions[0].opcode == "call" &&
        block.instructions[0].Has("real")) {
      return EmitCallBlock(block);
    }
    for (const ptx::Instruction& instruction : block.instructions)
      RETURN_IF_ERROR(Emit(instruction));
    llvm::Value* next;
    bool back = false;
    if (block.end == BasicBlock::End::kExit || block.end == BasicBlock::End::kReturn) {
      if (block.end == BasicBlock::End::kExit) NoteExit(MaskBits(BlockMask()));
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

  void NoteExit(llvm::Value* lanes) {
    builder_.CreateStore(
        builder_.CreateOr(builder_.CreateLoad(builder_.getInt32Ty(), exited_), lanes), exited_);
  }

  // Calls one function for the lanes here, or, through a pointer, each one that lanes name.
  absl::Status EmitCallBlock(const BasicBlock& block) {
    const ptx::Instruction& call = block.instructions[0];
    const Type u64 = {Type::kUnsigned, 1, 64};
    llvm::Type* i32 = builder_.getInt32Ty();
    std::vector<llvm::Value*> places;
    for (size_t k = 1; k < call.operands.size(); ++k) {
      ASSIGN_OR_RETURN(const LaneValue place, Get(call, k, u64));
      places.push_back(place.uniform() ? place.scalar : FirstActive(AsVector(builder_, place)));
    }
    llvm::Value* frame = frame_ != nullptr ? frame_ : builder_.getInt64(0);
    frame = builder_.CreateAdd(frame, builder_.getInt64(kernel_.frame_bytes));
    ASSIGN_OR_RETURN(const LaneValue address, Get(call, 0, u64));
    llvm::Value* addresses = AsVector(builder_, address);
    llvm::Value* mask = MaskBits(BlockMask());
    llvm::AllocaInst* rest = EntryAlloca(i32, "rest");
    llvm::AllocaInst* gone = EntryAlloca(i32, "gone");
    builder_.CreateStore(mask, rest);
    builder_.CreateStore(Int32(0), gone);
    auto* loop = llvm::BasicBlock::Create(context_, "call", function_);
    auto* wrong = llvm::BasicBlock::Create(context_, "no_function", function_);
    auto* next = llvm::BasicBlock::Create(context_, "called", function_);
    auto* after = llvm::BasicBlock::Create(context_, "after_calls", function_);
    builder_.CreateBr(loop);
    builder_.SetInsertPoint(loop);
    llvm::Value* left = builder_.CreateLoad(i32, rest);
    llvm::Value* lane =
        builder_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, left, builder_.getFalse());
    llvm::Value* target =
        builder_.CreateExtractElement(addresses, builder_.CreateAnd(lane, Int32(31)));
    llvm::Value* same = builder_.CreateAnd(
        MaskBits(builder_.CreateICmpEQ(addresses, Splat(builder_, target))), left);
    builder_.CreateStore(builder_.CreateAnd(left, builder_.CreateNot(same)), rest);
    llvm::SwitchInst* choose = builder_.CreateSwitch(target, wrong);
    for (const auto& [id, function] : functions_) {
      if (function->arg_size() != 3 + places.size()) continue;
      auto* one = llvm::BasicBlock::Create(context_, "f", function_);
      choose->addCase(
          llvm::cast<llvm::ConstantInt>(builder_.getInt64(LinkedProgram::FunctionAddress(id))),
          one);
      builder_.SetInsertPoint(one);
      std::vector<llvm::Value*> arguments = {warp_, same, frame};
      arguments.insert(arguments.end(), places.begin(), places.end());
      llvm::Value* exited = builder_.CreateCall(function, arguments);
      builder_.CreateStore(builder_.CreateOr(builder_.CreateLoad(i32, gone), exited), gone);
      builder_.CreateBr(next);
    }
    builder_.SetInsertPoint(wrong);
    FailIf(builder_.getTrue(), kRuntimeFault,
           {SpillLanes(addresses, "targets"), same, Int32(1),
            Int32(static_cast<uint32_t>(call.location.line))});
    builder_.CreateUnreachable();
    builder_.SetInsertPoint(next);
    builder_.CreateCondBr(builder_.CreateICmpNE(builder_.CreateLoad(i32, rest), Int32(0)), loop,
                          after);
    builder_.SetInsertPoint(after);
    llvm::Value* exited = builder_.CreateLoad(i32, gone);
    NoteExit(exited);
    Move(builder_.CreateSelect(MaskFromBits(exited), Splat(builder_, Int32(kExited)),
                               Splat(builder_, Int32(static_cast<uint32_t>(block.target)))));
    return absl::OkStatus();
  }

  void Move(llvm::Value* to) {
    llvm::Value* pc = builder_.CreateLoad(VectorOf(builder_.getInt32Ty()), pc_);
    builder_.CreateStore(builder_.CreateSelect(BlockMask(), to, pc), pc_);
    builder_.CreateBr(dispatch_);
  }

  const FunctionMap& functions_;
  llvm::Value* frame_ = nullptr;
  llvm::Value* exited_ = nullptr;
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
  FunctionMap functions;
  for (const auto& [id, function] : kernel.functions) {
    functions[id] = DispatchEmitter::Declare(*function, id, module);
  }
  for (const auto& [id, function] : kernel.functions) {
    RETURN_IF_ERROR(
        DispatchEmitter(*function, options, module, functions).RunFunction(functions[id]));
  }
  return DispatchEmitter(kernel, options, module, functions).Run(name);
}

}  // namespace fargpu::softgpu
