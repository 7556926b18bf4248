#include "softgpu/llvm/warp_loops.h"

#include <algorithm>
#include <cstddef>

#include "llvm/IR/Constants.h"
#include "llvm/IR/Intrinsics.h"

namespace fargpu::softgpu {
namespace {

constexpr char kCoroutine[] = "warp";
constexpr unsigned kMaxWarps = 32;  // of a block

}  // namespace

llvm::BasicBlock* WarpLoops::NewBlock(const char* name) {
  return llvm::BasicBlock::Create(context_, name, function_);
}

void WarpLoops::StoreInContext(llvm::Value* value, size_t offset) {
  builder_.CreateStore(value,
                       builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), warp_, offset));
}

void WarpLoops::EraseWarps(const std::string& name, llvm::Module* module) {
  for (const std::string& function : {name, std::string(kCoroutine)}) {
    if (llvm::Function* emitted = module->getFunction(function)) emitted->eraseFromParent();
  }
}

void WarpLoops::BeginWarps(Turns turns, const std::string& name) {
  turns_ = turns;
  llvm::Type* i32 = builder_.getInt32Ty();
  BeginFunction(name);
  switch (turns) {
    case Turns::kFibers:
      end_ = NewBlock("end");
      llvm::ReturnInst::Create(context_, end_);
      active_ = ContextField(i32, offsetof(WarpContext, active), "active");
      return;
    case Turns::kIndependent: {
      const WarpLoop loop = BeginWarpLoop(BeginBlockLoop());
      warp_index_ = loop.warp;
      end_ = loop.next;
      active_ = LanesOf(loop.warp);
      StoreInContext(warp_index_, offsetof(WarpContext, warp_index));
      return;
    }
    case Turns::kRounds:
    case Turns::kYieldingRounds: {
      auto* type = llvm::FunctionType::get(builder_.getPtrTy(),
                                           {builder_.getPtrTy(), i32, i32, i32, i32, i32}, false);
      auto* warp =
          llvm::Function::Create(type, llvm::Function::InternalLinkage, kCoroutine, module_);
      EmitRounds(warp);
      BeginFunction(warp);
      BeginCoroutine();
      return;
    }
  }
}

llvm::BasicBlock* WarpLoops::BeginBlockLoop() {
  llvm::Type* i32 = builder_.getInt32Ty();
  llvm::Value* first[3];
  llvm::Value* grid[3];
  for (int axis = 0; axis < 3; ++axis) {
    // No invariant loads: these change below.
    first[axis] = builder_.CreateLoad(
        i32, builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), warp_,
                                                 offsetof(WarpContext, block_index) + 4 * axis));
    grid[axis] = ContextField(i32, offsetof(WarpContext, grid_size) + 4 * axis, "nctaid");
  }
  llvm::Value* count = ContextField(i32, offsetof(WarpContext, block_count), "blocks");
  if (options_.block.x != 0) {
    threads_ = Int32(options_.block.x * options_.block.y * options_.block.z);
  } else {
    threads_ = ContextField(i32, offsetof(WarpContext, block_size), "ntid");
    for (int axis = 1; axis < 3; ++axis) {
      threads_ = builder_.CreateMul(
          threads_, ContextField(i32, offsetof(WarpContext, block_size) + 4 * axis, "ntid"));
    }
  }
  llvm::BasicBlock* start = builder_.GetInsertBlock();
  auto* begin = NewBlock("block");
  auto* end = NewBlock("block_end");
  auto* next = NewBlock("next_block");
  auto* done = NewBlock("done");
  builder_.CreateBr(begin);

  builder_.SetInsertPoint(begin);
  llvm::PHINode* left = builder_.CreatePHI(i32, 2, "left");
  left->addIncoming(count, start);
  llvm::PHINode* at[3];
  for (int axis = 0; axis < 3; ++axis) {
    at[axis] = builder_.CreatePHI(i32, 2, "ctaid");
    at[axis]->addIncoming(first[axis], start);
    block_index_[axis] = at[axis];
  }
  for (int axis = 0; axis < 3; ++axis)
    StoreInContext(at[axis], offsetof(WarpContext, block_index) + 4 * axis);

  builder_.SetInsertPoint(end);
  llvm::Value* fewer = builder_.CreateSub(left, Int32(1));
  builder_.CreateCondBr(builder_.CreateICmpEQ(fewer, Int32(0)), done, next);
  builder_.SetInsertPoint(done);
  builder_.CreateRetVoid();

  builder_.SetInsertPoint(next);
  left->addIncoming(fewer, next);
  // The index of the next block, x first.
  llvm::Value* carry = builder_.getTrue();
  for (int axis = 0; axis < 3; ++axis) {
    llvm::Value* more = builder_.CreateAdd(at[axis], builder_.CreateZExt(carry, i32));
    carry = builder_.CreateAnd(carry, builder_.CreateICmpEQ(more, grid[axis]));
    at[axis]->addIncoming(builder_.CreateSelect(carry, Int32(0), more), next);
  }
  builder_.CreateBr(begin);
  builder_.SetInsertPoint(begin);
  return end;
}

WarpLoops::WarpLoop WarpLoops::BeginWarpLoop(llvm::BasicBlock* after) {
  llvm::BasicBlock* start = builder_.GetInsertBlock();
  llvm::Value* warps = builder_.CreateLShr(builder_.CreateAdd(threads_, Int32(31)), Int32(5));
  auto* begin = NewBlock("warp");
  auto* next = NewBlock("next_warp");
  builder_.CreateBr(begin);
  builder_.SetInsertPoint(begin);
  llvm::PHINode* warp = builder_.CreatePHI(builder_.getInt32Ty(), 2, "warp");
  warp->addIncoming(Int32(0), start);
  builder_.SetInsertPoint(next);
  llvm::Value* following =
      builder_.CreateAdd(warp, Int32(1), "next_warp", /*HasNUW=*/true, /*HasNSW=*/true);
  warp->addIncoming(following, next);
  builder_.CreateCondBr(builder_.CreateICmpULT(following, warps), begin, after);
  builder_.SetInsertPoint(begin);
  return {warp, next};
}

// The last warp may be short.
llvm::Value* WarpLoops::LanesOf(llvm::Value* warp) {
  llvm::Value* rest = builder_.CreateSub(threads_, builder_.CreateShl(warp, 5));
  llvm::Value* some = builder_.CreateSub(
      builder_.CreateShl(Int32(1), builder_.CreateAnd(rest, Int32(31))), Int32(1));
  return builder_.CreateSelect(builder_.CreateICmpUGE(rest, Int32(32)), Int32(0xffffffffu), some);
}

void WarpLoops::EmitRounds(llvm::Function* warp_function) {
  llvm::Type* i32 = builder_.getInt32Ty();
  llvm::PointerType* pointer = builder_.getPtrTy();
  const bool yields = turns_ == Turns::kYieldingRounds;
  auto* frames_type = llvm::ArrayType::get(pointer, kMaxWarps);
  llvm::AllocaInst* frames = EntryAlloca(frames_type, "frames");
  llvm::AllocaInst* live = EntryAlloca(i32, "live");
  llvm::AllocaInst* spinning = EntryAlloca(i32, "spinning");  // a bit per warp
  llvm::BasicBlock* after = BeginBlockLoop();
  auto* rounds = NewBlock("rounds");
  auto* round = NewBlock("round");
  const auto place = [&](llvm::Value* warp) {
    return builder_.CreateInBoundsGEP(frames_type, frames, {Int32(0), warp});
  };
  const auto count = [&](llvm::Value* by) {
    builder_.CreateStore(builder_.CreateAdd(builder_.CreateLoad(i32, live), by), live);
  };
  const auto done = [&](llvm::Value* frame) {
    return builder_.CreateIntrinsic(llvm::Intrinsic::coro_done, {}, {frame});
  };
  llvm::Value* yielded = builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), warp_,
                                                             offsetof(WarpContext, yielded));
  const auto note_whether_it_spins = [&](llvm::Value* warp) {
    if (!yields) return;
    llvm::Value* bit = builder_.CreateShl(builder_.CreateLoad(i32, yielded), warp);
    builder_.CreateStore(builder_.CreateOr(builder_.CreateLoad(i32, spinning), bit), spinning);
    builder_.CreateStore(Int32(0), yielded);
  };
  builder_.CreateStore(Int32(0), live);
  if (yields) {
    builder_.CreateStore(Int32(0), spinning);
    builder_.CreateStore(Int32(0), yielded);
  }
  const WarpLoop first = BeginWarpLoop(rounds);
  llvm::Value* started = builder_.CreateCall(
      warp_function,
      {warp_, block_index_[0], block_index_[1], block_index_[2], first.warp, LanesOf(first.warp)});
  llvm::Value* ended = done(started);
  builder_.CreateStore(
      builder_.CreateSelect(ended, llvm::ConstantPointerNull::get(pointer), started),
      place(first.warp));
  count(builder_.CreateZExt(builder_.CreateNot(ended), i32));
  note_whether_it_spins(first.warp);
  builder_.CreateBr(first.next);

  builder_.SetInsertPoint(rounds);
  llvm::Value* whose = Int32(~0u);
  auto* begin = yields ? NewBlock("begin_round") : round;
  builder_.CreateCondBr(builder_.CreateICmpEQ(builder_.CreateLoad(i32, live), Int32(0)), after,
                        begin);
  if (yields) {
    builder_.SetInsertPoint(begin);
    llvm::Value* some = builder_.CreateLoad(i32, spinning);
    auto* relax = NewBlock("relax");
    builder_.CreateCondBr(builder_.CreateICmpEQ(some, Int32(0)), round, relax);
    builder_.SetInsertPoint(relax);
    builder_.CreateStore(Int32(0), spinning);
    InstructionEmitter::LetOthersRun();
    suspends_ = false;  // the block does; what counts here are its warps
    builder_.CreateBr(round);
    builder_.SetInsertPoint(round);
    llvm::PHINode* phi = builder_.CreatePHI(i32, 2, "whose");
    phi->addIncoming(whose, begin);
    phi->addIncoming(some, relax);
    whose = phi;
  } else {
    builder_.SetInsertPoint(round);
  }
  const WarpLoop again = BeginWarpLoop(rounds);
  auto* resume = NewBlock("resume");
  auto* gone = NewBlock("gone");
  auto* stays = NewBlock("stays");
  llvm::Value* frame = builder_.CreateLoad(pointer, place(again.warp));
  llvm::Value* skip = builder_.CreateIsNull(frame);
  if (yields) {
    llvm::Value* mine = builder_.CreateAnd(builder_.CreateLShr(whose, again.warp), Int32(1));
    skip = builder_.CreateOr(skip, builder_.CreateICmpEQ(mine, Int32(0)));
  }
  builder_.CreateCondBr(skip, again.next, resume);
  builder_.SetInsertPoint(resume);
  builder_.CreateIntrinsic(llvm::Intrinsic::coro_resume, {}, {frame});
  builder_.CreateCondBr(done(frame), gone, stays);
  builder_.SetInsertPoint(gone);
  builder_.CreateStore(llvm::ConstantPointerNull::get(pointer), place(again.warp));
  count(Int32(~0u));
  builder_.CreateBr(again.next);
  builder_.SetInsertPoint(stays);
  note_whether_it_spins(again.warp);
  builder_.CreateBr(again.next);
}

void WarpLoops::BeginCoroutine() {
  function_->setPresplitCoroutine();
  for (int axis = 0; axis < 3; ++axis)
    block_index_[axis] = function_->getArg(static_cast<unsigned>(1 + axis));
  warp_index_ = function_->getArg(4);
  active_ = function_->getArg(5);
  local_by_warp_ = true;
  llvm::Constant* null = llvm::ConstantPointerNull::get(builder_.getPtrTy());
  llvm::Value* id = builder_.CreateIntrinsic(llvm::Intrinsic::coro_id, {},
                                             {Int32(kFrameAlignment), null, null, null});
  llvm::Value* size =
      builder_.CreateIntrinsic(llvm::Intrinsic::coro_size, {builder_.getInt64Ty()}, {});
  llvm::Value* memory = CallRuntime(kRuntimeFrame, builder_.getPtrTy(), {warp_index_, size});
  llvm::Value* handle = builder_.CreateIntrinsic(llvm::Intrinsic::coro_begin, {}, {id, memory});

  suspended_ = NewBlock("suspended");
  destroyed_ = NewBlock("destroyed");
  end_ = NewBlock("end");
  auto* never = NewBlock("never");
  llvm::IRBuilder<> at(suspended_);
  at.CreateIntrinsic(llvm::Intrinsic::coro_end, {},
                     {handle, at.getFalse(), llvm::ConstantTokenNone::get(context_)});
  at.CreateRet(handle);
  at.SetInsertPoint(destroyed_);
  // The frame's memory is the executor's.
  at.CreateIntrinsic(llvm::Intrinsic::coro_free, {}, {id, handle});
  at.CreateBr(suspended_);
  at.SetInsertPoint(never);
  at.CreateUnreachable();
  at.SetInsertPoint(end_);
  llvm::Value* last = at.CreateIntrinsic(llvm::Intrinsic::coro_suspend, {},
                                         {llvm::ConstantTokenNone::get(context_), at.getTrue()});
  llvm::SwitchInst* way = at.CreateSwitch(last, suspended_, 2);
  way->addCase(at.getInt8(0), never);
  way->addCase(at.getInt8(1), destroyed_);
  StoreInContext(warp_index_, offsetof(WarpContext, warp_index));
}

void DropCoroutineEnds(llvm::Module* module) {
  for (const char* end : {".destroy", ".cleanup"}) {
    llvm::Function* function = module->getFunction(std::string(kCoroutine) + end);
    if (function == nullptr) continue;
    function->deleteBody();
    function->setLinkage(llvm::Function::InternalLinkage);
    auto* entry = llvm::BasicBlock::Create(module->getContext(), "entry", function);
    new llvm::UnreachableInst(module->getContext(), entry);
  }
}

void WarpLoops::BlockBarrier(llvm::Value* id, llvm::Value* threads) {
  auto* number = llvm::dyn_cast<llvm::ConstantInt>(id);
  auto* count = llvm::dyn_cast<llvm::ConstantInt>(threads);
  const uint64_t block = uint64_t{options_.block.x} * options_.block.y * options_.block.z;
  const bool whole =
      count != nullptr &&
      (count->isZero() || (block != 0 && block % kWarpSize == 0 && count->getZExtValue() == block));
  if (turns_ == Turns::kFibers || number == nullptr || !whole ||
      (barrier_ != nullptr && barrier_ != number)) {
    InstructionEmitter::BlockBarrier(id, threads);
    return;
  }
  barrier_ = number;
  needed_ = std::max(needed_, Turns::kRounds);
  if (InRounds()) Suspend();  // or else this attempt is void
}

void WarpLoops::LetOthersRun() {
  if (turns_ == Turns::kFibers) return InstructionEmitter::LetOthersRun();
  needed_ = std::max(needed_, Turns::kYieldingRounds);
  if (turns_ != Turns::kYieldingRounds) return;  // this attempt is void
  StoreInContext(Int32(1), offsetof(WarpContext, yielded));
  Suspend();
}

void WarpLoops::Suspend() {
  llvm::Value* state =
      builder_.CreateIntrinsic(llvm::Intrinsic::coro_suspend, {},
                               {llvm::ConstantTokenNone::get(context_), builder_.getFalse()});
  auto* resumed = NewBlock("resumed");
  llvm::SwitchInst* way = builder_.CreateSwitch(state, suspended_, 2);
  way->addCase(builder_.getInt8(0), resumed);
  way->addCase(builder_.getInt8(1), destroyed_);
  builder_.SetInsertPoint(resumed);
  StoreInContext(warp_index_, offsetof(WarpContext, warp_index));
}

}  // namespace fargpu::softgpu
