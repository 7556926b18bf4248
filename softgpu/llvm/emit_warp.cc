// Instruction families: barriers, shuffles, votes, matches, reductions over a warp, and calls of
// runtime functions.
#include <algorithm>
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/IntrinsicsX86.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"
#include "softgpu/passes/device_functions.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;

absl::StatusOr<InstructionEmitter::BarrierOperands> InstructionEmitter::ParseBarrier(
    const Instruction& i) {
  BarrierOperands result;
  const bool reduces = i.Has("red");
  result.op = !reduces       ? BarrierOp::kSync
              : i.Has("and") ? BarrierOp::kAnd
              : i.Has("or")  ? BarrierOp::kOr
                             : BarrierOp::kCount;
  // {d,} number {, threads} {, predicate}
  const size_t at = reduces ? 1 : 0;
  const size_t end = i.operands.size() - (reduces && !i.operands.empty() ? 1 : 0);
  const Type u32 = {Type::kUnsigned, 1, 32};
  result.id = result.threads = LaneValue::Uniform(Int32(0));
  if (at < end) {
    ASSIGN_OR_RETURN(result.id, Get(i, at, u32));
  }
  if (at + 1 < end) {
    ASSIGN_OR_RETURN(result.threads, Get(i, at + 1, u32));
  }
  if (reduces) {
    ASSIGN_OR_RETURN(result.predicate, Get(i, end, Type{Type::kPred, 1, 1}));
  }
  return result;
}

absl::Status InstructionEmitter::EmitBarrier(const Instruction& i) {
  if (i.Has("warp")) {
    // The lanes named are together already, or will be; memory is in order.
    builder_.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent,
                         llvm::SyncScope::SingleThread);
    return absl::OkStatus();
  }
  if (i.Has("cluster")) {
    if (i.Has("arrive")) {
      CallRuntime(kRuntimeBarrierArrive, builder_.getVoidTy(),
                  {Int32(kClusterBarrier), Int32(0), Int32(0)});
    } else {
      CallRuntime(kRuntimeClusterWait, builder_.getVoidTy(), {});
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const BarrierOperands barrier, ParseBarrier(i));
  const auto first_active = [&](const LaneValue& value) {
    return value.uniform() ? value.scalar : FirstActive(AsVector(builder_, value));
  };
  llvm::Value* id = first_active(barrier.id);
  llvm::Value* threads = first_active(barrier.threads);
  if (i.Has("arrive")) {
    CallRuntime(kRuntimeBarrierArrive, builder_.getVoidTy(), {id, threads, Int32(0)});
    return absl::OkStatus();
  }
  if (barrier.op == BarrierOp::kSync) {
    BlockBarrier(id, threads);
    return absl::OkStatus();
  }
  llvm::Value* mask = MaskBits(ExecMask());
  llvm::Value* predicates =
      builder_.CreateAnd(MaskBits(AsVector(builder_, barrier.predicate)), mask);
  llvm::Value* result =
      CallRuntime(kRuntimeBarrierReduce, builder_.getInt32Ty(),
                  {id, threads, Int32(static_cast<uint32_t>(barrier.op)), predicates, mask});
  return SetBarrierResult(i, barrier.op, LaneValue::Uniform(result));
}

absl::Status InstructionEmitter::SetBarrierResult(const Instruction& i, BarrierOp op,
                                                  const LaneValue& result) {
  if (op == BarrierOp::kCount) return Set(i, 0, result, Type{Type::kUnsigned, 1, 32});
  const Args args = Unify({result});
  return Set(i, 0, args.Wrap(builder_.CreateICmpNE(args.v[0], Constant(args.v[0], 0))),
             Type{Type::kPred, 1, 1});
}

// The lanes among `members` that take part, for each lane.
LaneValue InstructionEmitter::Participants(const LaneValue& members) {
  const Args args = Unify({LaneValue::Uniform(MaskBits(ExecMask())), members});
  return args.Wrap(builder_.CreateAnd(args.v[0], args.v[1]));
}

absl::Status InstructionEmitter::EmitElect(const Instruction& i) {
  ASSIGN_OR_RETURN(const LaneValue members, Get(i, 1, Type{Type::kUnsigned, 1, 32}));
  const Operand& to = i.operands[0];
  if (to.kind != Kind::kPair) return Malformed(i, "the destination is d|p");
  const Args mask = Unify({Participants(members)});
  llvm::Value* leader =
      builder_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, mask.v[0], builder_.getFalse());
  leader = builder_.CreateAnd(leader, Constant(leader, 31));
  RETURN_IF_ERROR(Set(i, to.parts[0], mask.Wrap(leader), Type{Type::kUnsigned, 1, 32}));
  llvm::Value* is_leader = builder_.CreateICmpEQ(OffsetVector(builder_.getInt32Ty(), lane_ids_),
                                                 AsVector(builder_, mask.Wrap(leader)));
  return Set(i, to.parts[1], LaneValue::Varying(is_leader), Type{Type::kPred, 1, 1});
}

absl::Status InstructionEmitter::EmitShuffle(const Instruction& i) {
  const Type u32 = {Type::kUnsigned, 1, 32};
  const bool sync = i.Has("sync");
  if (i.operands.size() < 4) return Malformed(i, "shfl takes a value, a lane and a clamp");
  const bool up = i.Has("up");
  const bool down = i.Has("down");
  const bool idx = i.Has("idx");
  ASSIGN_OR_RETURN(const LaneValue a, Get(i, 1, u32));
  ASSIGN_OR_RETURN(const LaneValue b, Get(i, 2, u32));
  ASSIGN_OR_RETURN(const LaneValue c, Get(i, 3, u32));
  llvm::Type* v32 = VectorOf(builder_.getInt32Ty());
  llvm::Value* lane = OffsetVector(builder_.getInt32Ty(), lane_ids_);
  llvm::Value* source = sync ? Contributed(AsVector(builder_, a)) : AsVector(builder_, a);
  const auto constant_of = [](const LaneValue& v) -> llvm::ConstantInt* {
    return v.uniform() ? llvm::dyn_cast<llvm::ConstantInt>(v.scalar) : nullptr;
  };
  llvm::Value* in_range;
  llvm::Value* result;
  // One lane's value for all: the result is uniform, and so are branches and barriers behind it.
  llvm::Value* one_lane = nullptr;
  if (constant_of(b) != nullptr && constant_of(c) != nullptr) {
    // Known lanes: one permutation.
    const uint32_t bv = static_cast<uint32_t>(constant_of(b)->getZExtValue()) & 31;
    const uint32_t cv = static_cast<uint32_t>(constant_of(c)->getZExtValue());
    const uint32_t clamp = cv & 31;
    const uint32_t segment = cv >> 8 & 31;
    llvm::SmallVector<int, kWarpSize> lanes;
    llvm::SmallVector<llvm::Constant*, kWarpSize> valid;
    for (uint32_t k = 0; k < kWarpSize; ++k) {
      const uint32_t max_lane = (k & segment) | (clamp & ~segment);
      const uint32_t min_lane = k & segment;
      int64_t j;
      bool ok;
      if (up) {
        j = static_cast<int64_t>(k) - bv;
        ok = j >= static_cast<int64_t>(max_lane);
      } else if (down) {
        j = k + bv;
        ok = j <= max_lane;
      } else if (idx) {
        j = min_lane | (bv & ~segment);
        ok = j <= max_lane;
      } else {
        j = k ^ bv;
        ok = j <= max_lane;
      }
      lanes.push_back(ok ? static_cast<int>(j) : static_cast<int>(k));
      valid.push_back(builder_.getInt1(ok));
    }
    result = builder_.CreateShuffleVector(source, lanes);
    in_range = llvm::ConstantVector::get(valid);
    // Of a block that is smaller than a warp, only the lanes that exist.
    const uint64_t threads = uint64_t{options_.block.x} * options_.block.y * options_.block.z;
    const auto end = lanes.begin() + (threads == 0 || threads > kWarpSize ? kWarpSize : threads);
    if (idx && valid[0]->isOneValue() &&
        std::all_of(lanes.begin(), end, [&](int k) { return k == lanes[0]; })) {
      one_lane = Int32(static_cast<uint32_t>(lanes[0]));
    }
  } else {
    llvm::Value* vb = builder_.CreateAnd(AsVector(builder_, b), Splat(builder_, Int32(31)));
    llvm::Value* vc = AsVector(builder_, c);
    llvm::Value* clamp = builder_.CreateAnd(vc, Splat(builder_, Int32(31)));
    llvm::Value* segment = builder_.CreateAnd(builder_.CreateLShr(vc, Splat(builder_, Int32(8))),
                                              Splat(builder_, Int32(31)));
    llvm::Value* outside = builder_.CreateNot(segment);
    llvm::Value* min_lane = builder_.CreateAnd(lane, segment);
    llvm::Value* max_lane = builder_.CreateOr(min_lane, builder_.CreateAnd(clamp, outside));
    llvm::Value* j;
    if (up) {
      j = builder_.CreateSub(lane, vb);
      in_range = builder_.CreateICmpSGE(j, max_lane);
    } else if (down) {
      j = builder_.CreateAdd(lane, vb);
      in_range = builder_.CreateICmpSLE(j, max_lane);
    } else if (idx) {
      j = builder_.CreateOr(min_lane, builder_.CreateAnd(vb, outside));
      in_range = builder_.CreateICmpSLE(j, max_lane);
    } else {
      j = builder_.CreateXor(lane, vb);
      in_range = builder_.CreateICmpSLE(j, max_lane);
    }
    j = builder_.CreateSelect(in_range, j, lane);
    j = builder_.CreateAnd(j, Splat(builder_, Int32(31)));
    if (idx && b.uniform() && constant_of(c) != nullptr &&
        (constant_of(c)->getZExtValue() & 0x1f1f) == 31) {
      one_lane = builder_.CreateAnd(b.scalar, Int32(31));
      result = nullptr;
    } else if (options_.avx512) {
      result = Permute(source, j);
    } else {
      result = llvm::PoisonValue::get(v32);
      for (int k = 0; k < kWarpSize; ++k) {
        llvm::Value* picked =
            builder_.CreateExtractElement(source, builder_.CreateExtractElement(j, k));
        result = builder_.CreateInsertElement(result, picked, k);
      }
    }
  }
  LaneValue taken;
  LaneValue valid;
  if (one_lane != nullptr) {
    taken = LaneValue::Uniform(builder_.CreateExtractElement(source, one_lane));
    valid = LaneValue::Uniform(builder_.getTrue());
  } else {
    taken = LaneValue::Varying(result);
    valid = LaneValue::Varying(in_range);
  }
  const Operand& to = i.operands[0];
  if (to.kind != Kind::kPair) return Set(i, 0, taken, u32);
  RETURN_IF_ERROR(Set(i, to.parts[0], taken, u32));
  return Set(i, to.parts[1], valid, {Type::kPred, 1, 1});
}

llvm::Value* InstructionEmitter::Permute(llvm::Value* source, llvm::Value* lanes) {
  // vpermi2d picks from 32 dwords in two registers: one instruction per half of the warp.
  llvm::SmallVector<int, 16> low;
  llvm::SmallVector<int, 16> high;
  for (int k = 0; k < 16; ++k) {
    low.push_back(k);
    high.push_back(k + 16);
  }
  llvm::Value* a = builder_.CreateShuffleVector(source, low);
  llvm::Value* b = builder_.CreateShuffleVector(source, high);
  const auto pick = [&](llvm::ArrayRef<int> half) {
    return builder_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_vpermi2var_d_512, {},
                                    {a, builder_.CreateShuffleVector(lanes, half), b});
  };
  llvm::SmallVector<int, kWarpSize> join;
  for (int k = 0; k < kWarpSize; ++k) join.push_back(k);
  return builder_.CreateShuffleVector(pick(low), pick(high), join);
}

absl::Status InstructionEmitter::EmitVote(const Instruction& i) {
  const Type pred = {Type::kPred, 1, 1};
  ASSIGN_OR_RETURN(const LaneValue p, Get(i, 1, pred));
  llvm::Value* predicate = AsVector(builder_, p);
  LaneValue mask = LaneValue::Uniform(MaskBits(ExecMask()));
  if (i.Has("sync")) {
    ASSIGN_OR_RETURN(const LaneValue members, Get(i, 2, Type{Type::kUnsigned, 1, 32}));
    mask = Participants(members);
    predicate = Contributed(predicate);
  }
  // Groups of lanes with masks of their own may vote at the same time.
  const Args args = Unify({LaneValue::Uniform(MaskBits(predicate)), mask});
  llvm::Value* bits = builder_.CreateAnd(args.v[0], args.v[1]);
  if (i.Has("ballot")) return Set(i, 0, args.Wrap(bits), {Type::kUnsigned, 1, 32});
  llvm::Value* any = builder_.CreateICmpNE(bits, Constant(bits, 0));
  llvm::Value* all = builder_.CreateICmpEQ(bits, args.v[1]);
  llvm::Value* result = i.Has("any")   ? any
                        : i.Has("all") ? all
                                       : builder_.CreateOr(all, builder_.CreateNot(any));
  return Set(i, 0, args.Wrap(result), pred);
}

llvm::Value* InstructionEmitter::FirstActive(llvm::Value* vector) {
  llvm::Value* lane = builder_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, MaskBits(ExecMask()),
                                                     builder_.getFalse());
  return builder_.CreateExtractElement(vector, builder_.CreateAnd(lane, Int32(31)));
}

absl::Status InstructionEmitter::EmitActiveMask(const Instruction& i) {
  return Set(i, 0, LaneValue::Uniform(MaskBits(ExecMask())), {Type::kUnsigned, 1, 32});
}

absl::Status InstructionEmitter::EmitMatch(const Instruction& i) {
  const Type type = i.type();
  const Type u32 = {Type::kUnsigned, 1, 32};
  ASSIGN_OR_RETURN(const LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(const LaneValue members, Get(i, 2, u32));
  llvm::Value* v = Contributed(AsVector(builder_, a));
  llvm::Value* mask = AsVector(builder_, Participants(members));
  llvm::Value* same = llvm::PoisonValue::get(VectorOf(builder_.getInt32Ty()));
  for (int k = 0; k < kWarpSize; ++k) {
    llvm::Value* equal =
        builder_.CreateICmpEQ(v, Splat(builder_, builder_.CreateExtractElement(v, k)));
    same = builder_.CreateInsertElement(same, MaskBits(equal), k);
  }
  same = builder_.CreateAnd(same, mask);
  if (!i.Has("all")) return Set(i, 0, LaneValue::Varying(same), u32);
  llvm::Value* all = builder_.CreateICmpEQ(same, mask);
  const LaneValue result = LaneValue::Varying(builder_.CreateSelect(all, mask, Constant(mask, 0)));
  const Operand& to = i.operands[0];
  if (to.kind != Kind::kPair) return Set(i, 0, result, u32);
  RETURN_IF_ERROR(Set(i, to.parts[0], result, u32));
  return Set(i, to.parts[1], LaneValue::Varying(all), {Type::kPred, 1, 1});
}

absl::Status InstructionEmitter::EmitRedux(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float()) return Unsupported(i, "floating point");
  ASSIGN_OR_RETURN(const LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(const LaneValue members, Get(i, 2, Type{Type::kUnsigned, 1, 32}));
  const LaneValue mask = Participants(members);
  llvm::Value* v = Contributed(AsVector(builder_, a));
  llvm::Intrinsic::ID id;
  uint64_t neutral = 0;
  if (i.Has("add")) {
    id = llvm::Intrinsic::vector_reduce_add;
  } else if (i.Has("and")) {
    id = llvm::Intrinsic::vector_reduce_and;
    neutral = 0xffffffff;
  } else if (i.Has("or")) {
    id = llvm::Intrinsic::vector_reduce_or;
  } else if (i.Has("xor")) {
    id = llvm::Intrinsic::vector_reduce_xor;
  } else if (i.Has("min")) {
    id = type.is_signed() ? llvm::Intrinsic::vector_reduce_smin
                          : llvm::Intrinsic::vector_reduce_umin;
    neutral = type.is_signed() ? 0x7fffffff : 0xffffffff;
  } else {
    id = type.is_signed() ? llvm::Intrinsic::vector_reduce_smax
                          : llvm::Intrinsic::vector_reduce_umax;
    neutral = type.is_signed() ? 0x80000000 : 0;
  }
  const auto reduce = [&](llvm::Value* lanes) {
    llvm::Value* some = builder_.CreateSelect(MaskFromBits(lanes), v, Constant(v, neutral));
    return builder_.CreateIntrinsic(id, {v->getType()}, {some});
  };
  if (mask.uniform()) return Set(i, 0, LaneValue::Uniform(reduce(mask.scalar)), type);
  // Groups of lanes with masks of their own, one group after the other.
  llvm::Type* i32 = builder_.getInt32Ty();
  llvm::Value* masks = AsVector(builder_, mask);
  llvm::Value* all = MaskBits(ExecMask());
  auto* before = builder_.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(context_, "group", function_);
  auto* after = llvm::BasicBlock::Create(context_, "reduced", function_);
  builder_.CreateBr(loop);
  builder_.SetInsertPoint(loop);
  llvm::PHINode* rest = builder_.CreatePHI(i32, 2);
  llvm::PHINode* so_far = builder_.CreatePHI(v->getType(), 2);
  llvm::Value* lane = builder_.CreateAnd(
      builder_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, rest, builder_.getFalse()), Int32(31));
  llvm::Value* group = builder_.CreateExtractElement(masks, lane);
  llvm::Value* same = builder_.CreateICmpEQ(masks, Splat(builder_, group));
  llvm::Value* result = builder_.CreateSelect(same, Splat(builder_, reduce(group)), so_far);
  llvm::Value* left = builder_.CreateAnd(rest, builder_.CreateNot(MaskBits(same)));
  rest->addIncoming(all, before);
  rest->addIncoming(left, loop);
  so_far->addIncoming(Constant(v, 0), before);
  so_far->addIncoming(result, loop);
  builder_.CreateCondBr(builder_.CreateICmpNE(left, Int32(0)), loop, after);
  builder_.SetInsertPoint(after);
  return Set(i, 0, LaneValue::Varying(result), type);
}

absl::Status InstructionEmitter::EmitNanosleep(const Instruction& i) {
  RETURN_IF_ERROR(Get(i, 0, Type{Type::kUnsigned, 1, 32}).status());
  LetOthersRun();
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitCall(const Instruction& i) {
  // operands: name, return register, arguments (see FlatKernel)
  const absl::string_view name = i.operands[0].name;
  const Type u64 = {Type::kUnsigned, 1, 64};
  const Type u32 = {Type::kUnsigned, 1, 32};
  const auto lanes = [&](size_t operand, Type type) -> absl::StatusOr<llvm::Value*> {
    ASSIGN_OR_RETURN(const LaneValue value, Get(i, operand, type));
    return SpillLanes(AsVector(builder_, value), "argument");
  };
  if (name == "vprintf" && i.operands.size() == 4) {
    ASSIGN_OR_RETURN(llvm::Value * format, lanes(2, u64));
    ASSIGN_OR_RETURN(llvm::Value * arguments, lanes(3, u64));
    llvm::Value* results = EntryAlloca(VectorOf(builder_.getInt32Ty()), "printed");
    CallRuntime(kRuntimePrintf, builder_.getVoidTy(),
                {format, arguments, MaskBits(ExecMask()), results});
    return Set(i, 1,
               LaneValue::Varying(builder_.CreateLoad(VectorOf(builder_.getInt32Ty()), results)),
               u32);
  }
  if ((name == "malloc" || name == "free") && i.operands.size() == 3) {
    ASSIGN_OR_RETURN(llvm::Value * values, lanes(2, u64));
    llvm::Type* wide = VectorOf(builder_.getInt64Ty());
    llvm::Value* results = EntryAlloca(wide, "allocated");
    CallRuntime(kRuntimeHeap, builder_.getVoidTy(),
                {Int32(name == "free" ? 1 : 0), values, MaskBits(ExecMask()), results});
    if (name == "free") return absl::OkStatus();
    return Set(i, 1, LaneValue::Varying(builder_.CreateLoad(wide, results)), u64);
  }
  if (name == "__assertfail" && i.operands.size() == 7) {
    ASSIGN_OR_RETURN(llvm::Value * message, lanes(2, u64));
    ASSIGN_OR_RETURN(llvm::Value * file, lanes(3, u64));
    ASSIGN_OR_RETURN(llvm::Value * line, lanes(4, u32));
    ASSIGN_OR_RETURN(llvm::Value * function, lanes(5, u64));
    FailIf(builder_.getTrue(), kRuntimeAssert,
           {message, file, line, function, MaskBits(ExecMask())});
    return absl::OkStatus();
  }
  const DeviceFunction* const function = FindDeviceFunction(name);
  if (function == nullptr) return Unsupported(i, absl::StrCat("a call of ", name));
  const absl::string_view arguments = function->arguments;
  if (i.operands.size() != 2 + arguments.size()) {
    return Malformed(i, absl::StrCat(name, " takes ", arguments.size(), " words, the call has ",
                                     i.operands.size() - 2));
  }
  for (size_t k = 0; k < arguments.size(); ++k) {
    const unsigned slot = 1 + static_cast<unsigned>(k);
    RETURN_IF_ERROR(PutOperand(i, i.operands[2 + k], arguments[k] == 'l' ? u64 : u32, slot));
  }
  RunOperation(Operation::kDeviceCall, static_cast<uint64_t>(function->call), i);
  if (function->result == '-') return absl::OkStatus();
  llvm::Value* result = GetSlot(0, builder_.getInt64Ty());
  if (function->result == 'l') return Set(i, 1, LaneValue::Varying(result), u64);
  result = builder_.CreateTrunc(result, VectorOf(builder_.getInt32Ty()));
  return Set(i, 1, LaneValue::Varying(result), u32);
}

}  // namespace fargpu::softgpu
