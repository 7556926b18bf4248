#include "softgpu/llvm/dispatch_emitter.h"

#include <algorithm>
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
// Back edges a group of lanes takes before the others get their turn: first those of the warp, then
// other warps.
constexpr uint32_t kSlice = 16;
// How often in a row a warp goes on because lanes that others wait for have got further: a lock
// that passes from lane to lane stays in the warp for as long.
constexpr uint32_t kTurns = 64;

using FunctionMap = std::map<int, llvm::Function*>;

class DispatchEmitter : public InstructionEmitter {
 public:
  DispatchEmitter(const FlatKernel& kernel, const CompileOptions& options, llvm::Module* module,
                  const FunctionMap& functions, uint64_t largest_frame)
      : InstructionEmitter(kernel, options, module),
        functions_(functions),
        largest_frame_(largest_frame) {}

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
    FindHomes();
    pc_ = EntryAlloca(v32, "pc");
    waiting_ = EntryAlloca(i32, "waiting");
    ids_ = EntryAlloca(v32, "ids");
    threads_ = EntryAlloca(v32, "threads");
    ops_ = EntryAlloca(v32, "ops");
    predicates_ = EntryAlloca(i32, "predicates");
    results_ = EntryAlloca(v32, "results");
    released_ = EntryAlloca(i32, "released");
    meeting_ = EntryAlloca(i32, "meeting");
    members_ = EntryAlloca(v32, "members");
    kinds_ = EntryAlloca(v32, "kinds");
    brought_ = EntryAlloca(VectorOf(builder_.getInt64Ty()), "brought");
    granted_ = EntryAlloca(i32, "granted");
    groups_ = EntryAlloca(v32, "groups");
    spins_ = EntryAlloca(i32, "spins");
    floor_ = EntryAlloca(i32, "floor");
    moved_ = EntryAlloca(i32, "moved");
    turns_ = EntryAlloca(i32, "turns");
    last_ = EntryAlloca(i32, "last");
    mask_ = EntryAlloca(VectorOf(builder_.getInt1Ty()), "mask");

    exited_ = EntryAlloca(i32, "exited");
    llvm::Value* active = MaskFromBits(active_bits);
    builder_.CreateStore(builder_.CreateSelect(active, llvm::Constant::getNullValue(v32),
                                               llvm::Constant::getAllOnesValue(v32)),
                         pc_);
    for (llvm::Value* counter : {waiting_, predicates_, released_, meeting_, granted_, spins_,
                                 floor_, moved_, turns_, last_, exited_})
      builder_.CreateStore(Int32(0), counter);
    for (llvm::Value* vector : {ids_, threads_, ops_, members_, kinds_, groups_})
      builder_.CreateStore(llvm::Constant::getNullValue(v32), vector);

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
    Home& home = homes_[reg];
    if (home.block == current_) {
      if (home.written) return home.value;
      home.block = kSeveral;  // what an earlier turn has left there
    }
    return LaneValue::Varying(builder_.CreateLoad(VectorOf(RegisterType(reg)), Place(reg)));
  }
  void WriteRegister(int reg, LaneValue value) override {
    Home& home = homes_[reg];
    if (home.block == current_ && (home.written || guard() == nullptr)) {
      home.value = guard() == nullptr ? value : GuardedValue(value, home.value);
      home.written = true;
      return;
    }
    home.block = kSeveral;
    llvm::Value* place = Place(reg);
    llvm::Value* old = builder_.CreateLoad(VectorOf(RegisterType(reg)), place);
    builder_.CreateStore(builder_.CreateSelect(ExecMask(), AsVector(builder_, value), old), place);
  }
  llvm::Value* BlockMask() override {
    return builder_.CreateLoad(VectorOf(builder_.getInt1Ty()), mask_);
  }
  bool BlockMaskIsFull() override { return false; }
  LaneValue Participants(const LaneValue& members) override {
    if (group_ == nullptr) return InstructionEmitter::Participants(members);
    // A group has one mask.
    llvm::Value* named =
        members.uniform() ? members.scalar : FirstActive(AsVector(builder_, members));
    return LaneValue::Uniform(builder_.CreateAnd(group_, named));
  }
  llvm::Value* Contributed(llvm::Value* own) override {
    if (group_ == nullptr) return own;
    llvm::Value* all = builder_.CreateLoad(VectorOf(builder_.getInt64Ty()), brought_);
    return builder_.CreateTrunc(all, own->getType());
  }

 private:
  // Registers live in memory: any block may follow any other, as far as LLVM can see, and values
  // kept in its registers would have to pass through the dispatcher, each with an entry for each
  // block. But most are used in one block only and need no place at all.
  static constexpr int kNone = -1;
  static constexpr int kSeveral = -2;
  struct Home {
    int block = kNone;  // the only one that names the register
    bool written = false;
    LaneValue value;
  };

  void FindHomes() {
    homes_.assign(kernel_.registers.size(), {});
    const auto name = [&](int reg, int block) {
      if (reg < 0) return;
      int& home = homes_[reg].block;
      home = home == kNone || home == block ? block : kSeveral;
    };
    for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
      const BasicBlock& block = kernel_.blocks[b];
      const int here = static_cast<int>(b);
      for (const ptx::Instruction& i : block.instructions) {
        name(i.guard, here);
        for (const ptx::Operand& operand : i.operands) NameRegisters(operand, here, name);
      }
      if (block.end == BasicBlock::End::kBranch) name(block.predicate, here);
    }
    // These are also set or read without being named.
    for (const int reg : {kernel_.carry_register, kernel_.frame_register})
      if (reg >= 0) homes_[reg].block = kSeveral;
    for (const int reg : kernel_.param_registers) homes_[reg].block = kSeveral;
  }
  template <typename Name>
  static void NameRegisters(const ptx::Operand& operand, int block, const Name& name) {
    if (operand.kind == ptx::Operand::Kind::kRegister) name(operand.index, block);
    for (const ptx::Operand& part : operand.parts) NameRegisters(part, block, name);
  }

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
    builder_.CreateStore(Int32(0), moved_);
    builder_.CreateBr(choose);

    builder_.SetInsertPoint(choose);
    llvm::Value* pc = builder_.CreateLoad(v32, pc_);
    llvm::Value* blocked =
        builder_.CreateOr(builder_.CreateLoad(i32, waiting_), builder_.CreateLoad(i32, meeting_));
    // Lanes that have met, or are through a reduction, finish that before anything else happens.
    llvm::Value* due =
        builder_.CreateOr(builder_.CreateLoad(i32, granted_), builder_.CreateLoad(i32, released_));
    llvm::Value* any_due = builder_.CreateICmpNE(due, Int32(0));
    llvm::Value* ready =
        MaskFromBits(builder_.CreateSelect(any_due, due, builder_.CreateNot(blocked)));
    llvm::Value* none = llvm::Constant::getAllOnesValue(v32);
    llvm::Value* floor = builder_.CreateSelect(any_due, Int32(0), builder_.CreateLoad(i32, floor_));
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
    auto* others = block("others");
    auto* again = block("again");
    llvm::Value* turns = builder_.CreateLoad(i32, turns_);
    builder_.CreateCondBr(
        builder_.CreateAnd(builder_.CreateICmpNE(builder_.CreateLoad(i32, moved_), Int32(0)),
                           builder_.CreateICmpULT(turns, Int32(kTurns))),
        again, others);
    builder_.SetInsertPoint(again);
    builder_.CreateStore(builder_.CreateAdd(turns, Int32(1)), turns_);
    builder_.CreateBr(choose);
    builder_.SetInsertPoint(others);
    builder_.CreateStore(Int32(0), turns_);
    CallRuntime(kRuntimeYield, builder_.getVoidTy(), {});
    builder_.CreateBr(choose);
    builder_.SetInsertPoint(all_wait);
    // Nobody can go on. Lanes at a meeting have waited for others that wait elsewhere.
    auto* meet = block("meet");
    auto* no_meeting = block("no_meeting");
    auto* barrier = block("barrier");
    auto* done = block("done");
    llvm::Value* meeting = builder_.CreateLoad(i32, meeting_);
    builder_.CreateCondBr(builder_.CreateICmpNE(meeting, Int32(0)), meet, no_meeting);
    builder_.SetInsertPoint(meet);
    Grant(SameMeeting(FirstBit(meeting)));
    builder_.CreateBr(choose);
    builder_.SetInsertPoint(no_meeting);
    llvm::Value* at_barriers = builder_.CreateLoad(i32, waiting_);
    builder_.CreateCondBr(builder_.CreateICmpNE(at_barriers, Int32(0)), barrier, done);
    builder_.SetInsertPoint(barrier);
    llvm::Value* through = CallRuntime(
        kRuntimeBarrierLanes, i32,
        {at_barriers, ids_, threads_, ops_, builder_.CreateLoad(i32, predicates_), results_});
    builder_.CreateStore(builder_.CreateAnd(at_barriers, builder_.CreateNot(through)), waiting_);
    llvm::Value* reducing = MaskBits(
        builder_.CreateICmpNE(builder_.CreateLoad(v32, ops_), llvm::Constant::getNullValue(v32)));
    builder_.CreateStore(builder_.CreateAnd(through, reducing), released_);
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
    // Whoever runs behind the floor did not spin so far.
    builder_.CreateStore(builder_.CreateOr(builder_.CreateLoad(i32, moved_), floor), moved_);
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

  absl::Status EmitBlock(int index) {
    const BasicBlock& block = kernel_.blocks[index];
    current_ = index;
    Meeting meeting = Meeting::kNone;
    if (!block.instructions.empty()) meeting = MeetingAt(block.instructions[0]);
    if (meeting == Meeting::kBlock) return EmitBarrierBlock(block);
    if (block.instructions.size() == 1 && block.instructions[0].opcode == "call" &&
        block.instructions[0].Has("real")) {
      return EmitCallBlock(block);
    }
    for (const ptx::Instruction& i : block.instructions) {
      if (meeting == Meeting::kNone) meeting = MeetingAt(i);
    }
    if (meeting != Meeting::kNone) RETURN_IF_ERROR(EmitMeeting(index, meeting));
    for (const ptx::Instruction& instruction : block.instructions) {
      RETURN_IF_ERROR(Emit(instruction));
      group_ = nullptr;
    }
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

  llvm::Value* FirstBit(llvm::Value* bits) {
    return builder_.CreateAnd(
        builder_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, bits, builder_.getFalse()),
        Int32(31));
  }
  llvm::Value* Load32(llvm::Value* place) {
    return builder_.CreateLoad(builder_.getInt32Ty(), place);
  }
  // Lanes whose element of `place` is that of lane `lane`.
  llvm::Value* SameIn(llvm::Value* place, llvm::Value* lane) {
    llvm::Value* vector = builder_.CreateLoad(VectorOf(builder_.getInt32Ty()), place);
    return MaskBits(builder_.CreateICmpEQ(
        vector, Splat(builder_, builder_.CreateExtractElement(vector, lane))));
  }
  // Stores `value` for the lanes here.
  void Note(llvm::Value* place, llvm::Value* value) {
    builder_.CreateStore(
        builder_.CreateSelect(BlockMask(), value, builder_.CreateLoad(value->getType(), place)),
        place);
  }

  // Lanes that wait for the same meeting as `lane`, which does.
  llvm::Value* SameMeeting(llvm::Value* lane) {
    return builder_.CreateAnd(Load32(meeting_),
                              builder_.CreateAnd(SameIn(members_, lane), SameIn(kinds_, lane)));
  }
  void Grant(llvm::Value* lanes) {
    llvm::Type* v32 = VectorOf(builder_.getInt32Ty());
    builder_.CreateStore(builder_.CreateSelect(MaskFromBits(lanes), Splat(builder_, lanes),
                                               builder_.CreateLoad(v32, groups_)),
                         groups_);
    builder_.CreateStore(builder_.CreateOr(Load32(granted_), lanes), granted_);
    builder_.CreateStore(builder_.CreateAnd(Load32(meeting_), builder_.CreateNot(lanes)), meeting_);
  }

  // A number for the meetings at which lanes meet though they are at different instructions.
  static uint32_t KindOf(const ptx::Instruction& i) {
    uint32_t kind = 17;
    for (const char c : i.opcode) kind = kind * 31 + static_cast<unsigned char>(c);
    for (const absl::string_view modifier : i.modifiers) {
      uint32_t word = 7;
      for (const char c : modifier) word = word * 31 + static_cast<unsigned char>(c);
      kind += word;  // in whatever order they are written
    }
    return kind;
  }

  // At the start of a block: lanes wait here until those that they are to meet have come. Each
  // brings along what the others need of it, as some may execute another instruction. What is
  // emitted afterwards runs when the lanes here have met.
  absl::Status EmitMeeting(int index, Meeting meeting) {
    const ptx::Instruction& i = kernel_.blocks[index].instructions[0];
    llvm::Type* i32 = builder_.getInt32Ty();
    llvm::Type* v32 = VectorOf(i32);
    llvm::Value* here = MaskBits(BlockMask());
    llvm::Value* met = builder_.CreateAnd(here, Load32(granted_));
    auto* arrive = llvm::BasicBlock::Create(context_, "arrive", function_);
    auto* run = llvm::BasicBlock::Create(context_, "met", function_);
    builder_.CreateCondBr(builder_.CreateICmpNE(met, Int32(0)), run, arrive);

    builder_.SetInsertPoint(arrive);
    llvm::Value* members = llvm::Constant::getAllOnesValue(v32);
    uint32_t kind = static_cast<uint32_t>(index);
    if (meeting == Meeting::kMembers) {
      kind = KindOf(i);
      const size_t operand = i.opcode == "shfl"                           ? 4
                             : i.opcode == "bar" || i.opcode == "barrier" ? 0
                             : i.opcode == "elect"                        ? 1
                                                                          : 2;
      if (operand < i.operands.size()) {
        ASSIGN_OR_RETURN(const LaneValue given, Get(i, operand, Type{Type::kUnsigned, 1, 32}));
        members = AsVector(builder_, given);
      }
      if (i.opcode == "shfl" || i.opcode == "vote" || i.opcode == "match" || i.opcode == "redux") {
        const Type type = i.opcode == "vote"   ? Type{Type::kPred, 1, 1}
                          : i.opcode == "shfl" ? Type{Type::kBits, 1, 32}
                                               : Type{Type::kBits, 1, i.type().bits};
        ASSIGN_OR_RETURN(const LaneValue value, Get(i, 1, type));
        Note(brought_,
             builder_.CreateZExt(AsVector(builder_, value), VectorOf(builder_.getInt64Ty())));
      }
    }
    Note(members_, members);
    Note(kinds_, Splat(builder_, Int32(kind)));
    builder_.CreateStore(builder_.CreateOr(Load32(meeting_), here), meeting_);
    llvm::Value* alive = MaskBits(
        builder_.CreateICmpNE(builder_.CreateLoad(v32, pc_), llvm::Constant::getAllOnesValue(v32)));
    // Lanes that name different members are different meetings.
    auto* look = llvm::BasicBlock::Create(context_, "look", function_);
    auto* complete = llvm::BasicBlock::Create(context_, "complete", function_);
    auto* next = llvm::BasicBlock::Create(context_, "next", function_);
    llvm::BasicBlock* before = builder_.GetInsertBlock();
    builder_.CreateBr(look);
    builder_.SetInsertPoint(look);
    llvm::PHINode* rest = builder_.CreatePHI(i32, 2);
    rest->addIncoming(here, before);
    llvm::Value* lane = FirstBit(rest);
    llvm::Value* same = SameMeeting(lane);
    llvm::Value* named = builder_.CreateExtractElement(builder_.CreateLoad(v32, members_), lane);
    llvm::Value* missing =
        builder_.CreateAnd(builder_.CreateAnd(named, alive), builder_.CreateNot(same));
    builder_.CreateCondBr(builder_.CreateICmpEQ(missing, Int32(0)), complete, next);
    builder_.SetInsertPoint(complete);
    Grant(same);
    builder_.CreateBr(next);
    builder_.SetInsertPoint(next);
    llvm::Value* left = builder_.CreateAnd(rest, builder_.CreateNot(same));
    rest->addIncoming(left, next);
    builder_.CreateCondBr(builder_.CreateICmpNE(left, Int32(0)), look, dispatch_);

    builder_.SetInsertPoint(run);
    llvm::Value* first = FirstBit(met);
    group_ = builder_.CreateExtractElement(builder_.CreateLoad(v32, groups_), first);
    llvm::Value* lanes = builder_.CreateAnd(met, group_);
    builder_.CreateStore(builder_.CreateAnd(Load32(granted_), builder_.CreateNot(lanes)), granted_);
    builder_.CreateStore(MaskFromBits(lanes), mask_);
    return absl::OkStatus();
  }

  // Lanes that arrive wait, behind the barrier, until no other lane of the warp can run.
  absl::Status EmitBarrierBlock(const BasicBlock& block) {
    const ptx::Instruction& i = block.instructions[0];
    llvm::Type* v32 = VectorOf(builder_.getInt32Ty());
    llvm::Value* target = Splat(builder_, Int32(static_cast<uint32_t>(block.target)));
    llvm::Value* here = MaskBits(BlockMask());
    ASSIGN_OR_RETURN(const BarrierOperands barrier, ParseBarrier(i));
    if (i.Has("arrive")) {
      llvm::Value* alive = MaskBits(builder_.CreateICmpNE(builder_.CreateLoad(v32, pc_),
                                                          llvm::Constant::getAllOnesValue(v32)));
      llvm::Value* lanes =
          builder_.CreateSelect(builder_.CreateICmpEQ(alive, here), Int32(0), here);
      CallRuntime(kRuntimeBarrierArrive, builder_.getVoidTy(),
                  {FirstActive(AsVector(builder_, barrier.id)),
                   FirstActive(AsVector(builder_, barrier.threads)), lanes});
      Move(target);
      return absl::OkStatus();
    }
    if (barrier.op != BarrierOp::kSync) {
      llvm::Value* through = builder_.CreateAnd(here, Load32(released_));
      auto* finish = llvm::BasicBlock::Create(context_, "reduced", function_);
      auto* arrive = llvm::BasicBlock::Create(context_, "arrive", function_);
      builder_.CreateCondBr(builder_.CreateICmpNE(through, Int32(0)), finish, arrive);
      builder_.SetInsertPoint(finish);
      builder_.CreateStore(MaskFromBits(through), mask_);
      builder_.CreateStore(builder_.CreateAnd(Load32(released_), builder_.CreateNot(through)),
                           released_);
      RETURN_IF_ERROR(
          SetBarrierResult(i, barrier.op, LaneValue::Varying(builder_.CreateLoad(v32, results_))));
      Move(target);
      builder_.SetInsertPoint(arrive);
      llvm::Value* given =
          builder_.CreateAnd(MaskBits(AsVector(builder_, barrier.predicate)), here);
      llvm::Value* others = builder_.CreateAnd(Load32(predicates_), builder_.CreateNot(here));
      builder_.CreateStore(builder_.CreateOr(others, given), predicates_);
    }
    Note(ids_, AsVector(builder_, barrier.id));
    Note(threads_, AsVector(builder_, barrier.threads));
    Note(ops_, Splat(builder_, Int32(static_cast<uint32_t>(barrier.op))));
    builder_.CreateStore(builder_.CreateOr(Load32(waiting_), here), waiting_);
    if (barrier.op == BarrierOp::kSync) {
      Move(target);
    } else {
      builder_.CreateBr(dispatch_);
    }
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
    llvm::Value* line = Int32(static_cast<uint32_t>(call.location.line));
    FailIf(builder_.CreateICmpUGT(builder_.CreateAdd(frame, builder_.getInt64(largest_frame_)),
                                  builder_.getInt64(kernel_.local_bytes)),
           kRuntimeCallFault, {Int32(static_cast<uint32_t>(CallFault::kStackOverflow)), line});
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
    FailIf(builder_.getTrue(), kRuntimeCallFault,
           {Int32(static_cast<uint32_t>(CallFault::kNoFunction)), line});
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
  const uint64_t largest_frame_;  // of a function, in local memory
  llvm::Value* frame_ = nullptr;
  llvm::Value* exited_ = nullptr;
  std::vector<llvm::Value*> registers_;  // places, where needed
  std::vector<Home> homes_;
  int current_ = kNone;  // block
  llvm::Value* pc_ = nullptr;
  llvm::Value* waiting_ = nullptr;
  // Lanes at barriers of the block: where, for how many threads, to what end, with what.
  llvm::Value* ids_ = nullptr;
  llvm::Value* threads_ = nullptr;
  llvm::Value* ops_ = nullptr;
  llvm::Value* predicates_ = nullptr;
  llvm::Value* results_ = nullptr;
  llvm::Value* released_ = nullptr;  // lanes that are to fetch the result of a reduction
  // Lanes that wait to meet others: whom, for what, and what they bring.
  llvm::Value* meeting_ = nullptr;
  llvm::Value* members_ = nullptr;
  llvm::Value* kinds_ = nullptr;
  llvm::Value* brought_ = nullptr;
  llvm::Value* granted_ = nullptr;  // lanes that have met
  llvm::Value* groups_ = nullptr;   // ... whom
  llvm::Value* group_ = nullptr;    // i32: those of the present instruction
  llvm::Value* spins_ = nullptr;
  llvm::Value* floor_ = nullptr;
  llvm::Value* moved_ = nullptr;  // not zero: lanes ran behind the floor since it was set
  llvm::Value* turns_ = nullptr;  // rounds since other warps had theirs
  llvm::Value* last_ = nullptr;
  llvm::Value* mask_ = nullptr;
  llvm::BasicBlock* dispatch_ = nullptr;
};

}  // namespace

absl::Status EmitDispatchKernel(const FlatKernel& kernel, const CompileOptions& options,
                                const std::string& name, llvm::Module* module) {
  FunctionMap functions;
  uint64_t largest_frame = 0;
  for (const auto& [id, function] : kernel.functions) {
    functions[id] = DispatchEmitter::Declare(*function, id, module);
    largest_frame = std::max(largest_frame, function->frame_bytes);
  }
  for (const auto& [id, function] : kernel.functions) {
    RETURN_IF_ERROR(DispatchEmitter(*function, options, module, functions, largest_frame)
                        .RunFunction(functions[id]));
  }
  return DispatchEmitter(kernel, options, module, functions, largest_frame).Run(name);
}

}  // namespace fargpu::softgpu
