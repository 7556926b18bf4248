// Instruction families: loads, stores, atomics, fences.
//
// Every address is checked before it is used: inside the device window and aligned, or inside the
// block's shared or the thread's local memory. What passes may still be unmapped; that faults, and
// the executor turns the fault into CUDA_ERROR_ILLEGAL_ADDRESS.
#include <algorithm>
#include <cstddef>
#include <cuda.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;
using ptx::Space;

namespace {

constexpr int kHalf = kWarpSize / 2;

}  // namespace

absl::StatusOr<InstructionEmitter::Access> InstructionEmitter::ParseAccess(const Instruction& i) {
  Access access;
  for (const absl::string_view m : i.modifiers) {
    if (m == "global")
      access.space = Space::kGlobal;
    else if (m == "shared" || m == "shared::cta")
      access.space = Space::kShared;
    else if (m == "local")
      access.space = Space::kLocal;
    else if (m == "const")
      access.space = Space::kConst;
    else if (m == "param" || m == "param::entry" || m == "param::func")
      access.space = Space::kParam;
    else if (m == "v2")
      access.count = 2;
    else if (m == "v4")
      access.count = 4;
    else if (m == "v8")
      access.count = 8;
    else if (m == "shared::cluster")
      access.space = Space::kSharedCluster;
  }
  if (i.types.empty()) return Malformed(i, "the type is missing");
  access.type = i.types.back();
  const unsigned widest = access.count == 1 ? 128 : 64;
  if (access.type.kind == Type::kPred || access.type.bits > widest)
    return Unsupported(i, "this type");
  return access;
}

void InstructionEmitter::GroupChecks(const std::vector<Instruction>& block) {
  check_groups_.clear();
  for (const Instruction& i : block) {
    const bool access =
        i.opcode == "ld" || i.opcode == "st" || i.opcode == "atom" || i.opcode == "red";
    if (i.opcode == "call" || i.opcode == "trap") {
      // What happens before it must not be preceded by a failure that comes after.
      check_groups_.clear();
      return;
    }
    if (!access || i.guard >= 0) continue;
    const absl::StatusOr<Access> parsed = ParseAccess(i);
    if (!parsed.ok()) continue;
    for (const Operand& operand : i.operands) {
      if (operand.kind != Kind::kAddress || operand.parts[0].kind != Kind::kRegister) continue;
      const int64_t low = operand.offset + operand.parts[0].offset;
      const int64_t high = low + parsed->bytes();
      CheckGroup& group = check_groups_[{operand.parts[0].index, parsed->space}];
      if (group.bytes == 0) {
        group.low = group.anchor = low;
        group.high = high;
        group.bytes = parsed->bytes();
        continue;
      }
      group.low = std::min(group.low, low);
      group.high = std::max(group.high, high);
      if (parsed->bytes() > group.bytes) {
        group.bytes = parsed->bytes();
        group.anchor = low;
      }
    }
  }
  // Accesses that the alignment of the widest does not cover are checked one by one, and so are
  // those too far apart to be surely in the same memory.
  for (const Instruction& i : block) {
    if (i.guard >= 0) continue;
    const absl::StatusOr<Access> parsed = ParseAccess(i);
    if (!parsed.ok()) continue;
    for (const Operand& operand : i.operands) {
      if (operand.kind != Kind::kAddress || operand.parts[0].kind != Kind::kRegister) continue;
      const auto group = check_groups_.find({operand.parts[0].index, parsed->space});
      if (group == check_groups_.end()) continue;
      const int64_t distance = operand.offset + operand.parts[0].offset - group->second.anchor;
      if (distance % static_cast<int64_t>(parsed->bytes()) != 0) check_groups_.erase(group);
    }
  }
}

absl::StatusOr<LaneValue> InstructionEmitter::CheckedAddress(const Instruction& i,
                                                             const Operand& operand, Space space,
                                                             unsigned bytes) {
  if (operand.kind != Kind::kAddress) return Malformed(i, "an address is needed");
  const Operand& base = operand.parts[0];
  const int64_t offset = operand.offset + (base.kind == Kind::kRegister ? base.offset : 0);
  if (space == Space::kSharedCluster) {
    ASSIGN_OR_RETURN(LaneValue value, Get(i, base, Type{Type::kUnsigned, 1, 64}));
    if (base.kind != Kind::kRegister || base.offset == 0) {
      value = PatternAdd(
          value, LaneValue::Uniform(builder_.getInt64(static_cast<uint64_t>(operand.offset))),
          false);
    }
    CheckGroup whole;
    whole.high = bytes;
    whole.bytes = bytes;
    return CheckRange(i, PlainOfCluster(value, bytes), Space::kGeneric, whole);
  }
  CheckGroup own;
  own.low = own.anchor = offset;
  own.high = offset + bytes;
  own.bytes = bytes;
  CheckGroup* group = &own;
  if (base.kind == Kind::kRegister && guard() == nullptr) {
    const auto it = check_groups_.find({base.index, space});
    if (it != check_groups_.end()) group = &it->second;
  }
  if (!group->done) {
    // Addresses in shared memory are often 32 bits wide; checked in that width, they need no test
    // for wrapping around when they are widened.
    const bool narrow = space == Space::kShared && base.kind == Kind::kRegister &&
                        kernel_.registers[base.index].type.bits == 32;
    Operand plain = base;
    if (base.kind == Kind::kRegister) plain.offset = 0;
    ASSIGN_OR_RETURN(
        const LaneValue value,
        Get(i, plain, Type{Type::kUnsigned, 1, static_cast<uint16_t>(narrow ? 32 : 64)}));
    group->first = CheckRange(i, value, space, *group);
    group->done = true;
  }
  if (offset == group->low) return group->first;
  return PatternAdd(
      group->first,
      LaneValue::Uniform(builder_.getInt64(static_cast<uint64_t>(offset - group->low))), false);
}

// Checks base + [group.low, group.high) for all executing lanes; the plain address of its start.
LaneValue InstructionEmitter::CheckRange(const Instruction& i, const LaneValue& base, Space space,
                                         const CheckGroup& group) {
  llvm::Type* i64 = builder_.getInt64Ty();
  const bool relative = space == Space::kShared || space == Space::kLocal;
  llvm::Value* any = base.scalar != nullptr ? base.scalar : base.vector;
  llvm::Type* type = any->getType()->getScalarType();
  const auto number = [&](int64_t n) {
    return llvm::ConstantInt::get(type, static_cast<uint64_t>(n), true);
  };
  const LaneValue first = PatternAdd(base, LaneValue::Uniform(number(group.low)), false);
  const auto all_lanes = [&] {
    return first.scaled != nullptr ? AllLanes(first) : AsVector(builder_, first);
  };
  llvm::Value* limit = nullptr;
  if (relative) {
    limit = space == Space::kShared
                ? ContextField(i64, offsetof(WarpContext, shared_bytes), "shared_bytes")
                : builder_.getInt64(kernel_.local_bytes);
  }
  const int64_t extent = group.high - group.low;
  // Does [at, at + size) leave the memory? `at` is a scalar or a vector.
  const auto outside = [&](llvm::Value* at, int64_t size) {
    const auto shaped = [&](llvm::Value* v) {
      return at->getType()->isVectorTy() ? Splat(builder_, v) : v;
    };
    if (!relative) {
      llvm::Value* distance = builder_.CreateSub(at, Constant(at, options_.window.base));
      return builder_.CreateICmpUGT(
          distance, Constant(at, options_.window.size - static_cast<uint64_t>(size)));
    }
    llvm::Value* top = builder_.CreateTrunc(limit, at->getType()->getScalarType());
    llvm::Value* room = llvm::ConstantInt::get(top->getType(), static_cast<uint64_t>(size));
    llvm::Value* too_small = builder_.CreateICmpULT(top, room);
    llvm::Value* beyond = builder_.CreateICmpUGT(at, shaped(builder_.CreateSub(top, room)));
    return builder_.CreateOr(beyond, shaped(too_small));
  };
  const auto misaligned = [&](llvm::Value* at) -> llvm::Value* {
    llvm::Value* anchor =
        builder_.CreateAdd(at, Constant(at, static_cast<uint64_t>(group.anchor - group.low)));
    return builder_.CreateICmpNE(builder_.CreateAnd(anchor, Constant(at, group.bytes - 1)),
                                 Constant(at, 0));
  };
  const auto bad_range = [&](llvm::Value* at, int64_t size) {
    llvm::Value* bad = outside(at, size);
    return group.bytes > 1 ? builder_.CreateOr(bad, misaligned(at)) : bad;
  };
  llvm::Value* mask = ExecMask();
  const auto fail_where = [&](llvm::Value* bad) {
    auto* fail = llvm::BasicBlock::Create(context_, "fail", function_);
    auto* ok = llvm::BasicBlock::Create(context_, "ok", function_);
    builder_.CreateCondBr(bad, fail, ok, ColdBranch());
    builder_.SetInsertPoint(fail);
    // What is reported is the address of the widest access.
    llvm::Value* at = all_lanes();
    at = builder_.CreateAdd(at, Constant(at, static_cast<uint64_t>(group.anchor - group.low)));
    llvm::Value* wide = builder_.CreateZExt(at, VectorOf(i64));
    llvm::CallInst* call = llvm::cast<llvm::CallInst>(
        CallRuntime(kRuntimeFault, builder_.getVoidTy(),
                    {SpillLanes(wide, "bad"), MaskBits(mask),
                     Int32(static_cast<uint32_t>(group.bytes) | (relative ? kFaultInBlock : 0)),
                     Int32(static_cast<uint32_t>(i.location.line))}));
    if (relative) {
      call->setDoesNotReturn();
      builder_.CreateUnreachable();
    } else {
      // It returns if the program registered that memory for the device. It touches nothing that
      // kernels see, so that what was loaded before stays known.
      call->setMemoryEffects(llvm::MemoryEffects::inaccessibleOrArgMemOnly());
      builder_.CreateBr(ok);
    }
    builder_.SetInsertPoint(ok);
  };

  LaneValue checked;
  if (first.uniform()) {
    llvm::Value* bad = bad_range(first.scalar, extent);
    if (guard() != nullptr) bad = builder_.CreateAnd(bad, Any(mask));
    fail_where(bad);
    checked = LaneValue::Uniform(builder_.CreateZExt(first.scalar, i64));
  } else if (first.pattern()) {
    int64_t low = (*first.offsets)[0];
    int64_t high = low;
    bool aligned = true;
    for (const int64_t offset : *first.offsets) {
      low = std::min(low, offset);
      high = std::max(high, offset);
    }
    LaneOffsets offsets;
    for (int k = 0; k < kWarpSize; ++k) {
      offsets[k] = (*first.offsets)[k] - low;
      aligned = aligned && offsets[k] % group.bytes == 0;
    }
    llvm::Value* lowest = builder_.CreateAdd(first.scalar, number(low));
    // All lanes, the idle ones too, are inside if the lowest and the highest are.
    llvm::Value* doubtful = aligned ? bad_range(lowest, extent + (high - low)) : builder_.getTrue();
    if (first.valid != nullptr)
      doubtful = builder_.CreateOr(doubtful, builder_.CreateNot(first.valid));
    if (aligned && first.valid == nullptr && BlockMaskIsFull() && guard() == nullptr) {
      fail_where(doubtful);
      checked.scalar = builder_.CreateZExt(lowest, i64);
      checked.offsets = Keep(offsets);
    } else {
      auto* look = llvm::BasicBlock::Create(context_, "look", function_);
      auto* join = llvm::BasicBlock::Create(context_, "checked", function_);
      builder_.CreateCondBr(doubtful, look, join, ColdBranch());
      builder_.SetInsertPoint(look);
      fail_where(Any(builder_.CreateAnd(bad_range(AsVector(builder_, first), extent), mask)));
      builder_.CreateBr(join);
      builder_.SetInsertPoint(join);
      checked = Resize(first, 64, false);
    }
  } else {
    // Lanes often access neighbours where the compiler cannot tell. To ask whether they do, and
    // then to look at the ends only, costs less than to look at all lanes.
    ScaledIndex at = {.index = first.vector};
    const int64_t stride = group.bytes;
    if (first.scaled != nullptr && stride % first.scaled->scale == 0) at = *first.scaled;
    checked = Resize(first, 64, false);
    // Shared and local memory are smaller than that.
    at.positive = relative && at.scale == 1 && at.base == nullptr;
    checked.scaled = Keep(at);
    llvm::Value* doubtful = builder_.CreateNot(FormRuns(at, group.bytes, mask));
    for (const int lane : {0, kHalf}) {
      doubtful = builder_.CreateOr(
          doubtful, bad_range(OneLane(checked, lane), extent + stride * (kHalf - 1)));
    }
    auto* look = llvm::BasicBlock::Create(context_, "look", function_);
    auto* join = llvm::BasicBlock::Create(context_, "checked", function_);
    builder_.CreateCondBr(doubtful, look, join);
    builder_.SetInsertPoint(look);
    fail_where(Any(builder_.CreateAnd(bad_range(all_lanes(), extent), mask)));
    builder_.CreateBr(join);
    builder_.SetInsertPoint(join);
    checked.in_runs = builder_.CreateNot(doubtful);
    checked.stride = stride;
  }
  if (!relative) return checked;
  LaneValue memory;
  if (space == Space::kShared) {
    memory = LaneValue::Uniform(ContextField(i64, offsetof(WarpContext, shared_base), "shared"));
  } else {
    LaneOffsets stride;
    for (int k = 0; k < kWarpSize; ++k) stride[k] = k * static_cast<int64_t>(kernel_.local_bytes);
    memory.scalar = LocalBase();
    memory.offsets = Keep(stride);
  }
  return PatternAdd(memory, checked, false);
}

llvm::Value* InstructionEmitter::SpillLanes(llvm::Value* vector, const char* name) {
  llvm::Value* place = EntryAlloca(vector->getType(), name);
  builder_.CreateStore(vector, place);
  return place;
}

bool InstructionEmitter::IsOrdered(const Instruction& i) {
  return i.Has("volatile") || i.Has("relaxed") || i.Has("acquire") || i.Has("release") ||
         i.Has("mmio");
}

// A move of elements at their natural alignment reads and writes each of them at once, also where
// it moves many, and x86 keeps the order of moves: only the compiler must be told.
void InstructionEmitter::KeepOrder(const Instruction& i) {
  if (!IsOrdered(i)) return;
  builder_.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent, llvm::SyncScope::SingleThread);
}

absl::Status InstructionEmitter::EmitLoad(const Instruction& i) {
  ASSIGN_OR_RETURN(const Access access, ParseAccess(i));
  if (i.operands.size() < 2) return Malformed(i, "ld takes two operands");
  if (access.type.bits == 128) {  // all of it at once
    ASSIGN_OR_RETURN(const LaneValue from, CheckedAddress(i, i.operands[1], access.space, 16));
    llvm::Type* vector = VectorOf(IntType(128));
    llvm::Value* out = EntryAlloca(vector, "wide");
    CallRuntime(kRuntimeLoad, builder_.getVoidTy(),
                {SpillLanes(AsVector(builder_, from), "addresses"), MaskBits(ExecMask()), Int32(16),
                 out, Int32(i.Has("acquire") ? 2 : 1)});
    return Set(i, 0, LaneValue::Varying(builder_.CreateLoad(vector, out)), {Type::kBits, 1, 128});
  }
  const Operand& to = i.operands[0];
  if ((to.kind == Kind::kVector ? to.parts.size() : 1) != access.count) {
    return Malformed(i, "the number of registers does not fit");
  }
  llvm::Type* element = IntType(access.type.bits);
  const unsigned size = access.type.bits / 8;
  const auto target = [&](unsigned k) -> const Operand& {
    return to.kind == Kind::kVector ? to.parts[k] : to;
  };
  const Operand& base =
      i.operands[1].kind == Kind::kAddress ? i.operands[1].parts[0] : i.operands[1];
  if (access.space == Space::kParam && base.kind == Kind::kVariable && base.index < 0 &&
      i.operands[1].kind == Kind::kAddress) {
    // The kernel's own parameter, at an offset known now: no checks.
    ASSIGN_OR_RETURN(const LaneValue address, Get(i, base, Type{Type::kUnsigned, 1, 64}));
    for (unsigned k = 0; k < access.count; ++k) {
      llvm::Value* at = builder_.CreateAdd(
          address.scalar,
          builder_.getInt64(static_cast<uint64_t>(i.operands[1].offset) + k * size));
      llvm::LoadInst* load = builder_.CreateAlignedLoad(
          element, builder_.CreateIntToPtr(at, builder_.getPtrTy()), llvm::Align(1));
      load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
      RETURN_IF_ERROR(Set(i, target(k), LaneValue::Uniform(load), access.type));
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(LaneValue address,
                   CheckedAddress(i, i.operands[1], access.space, access.bytes()));
  llvm::Value* mask = ExecMask();
  // Vectors of up to 16 bytes are read at once: programs pack a flag and a value that way. What
  // only the block sees changes while another of its warps runs, not within an instruction.
  const bool whole = IsOrdered(i) && access.count > 1 && access.space != Space::kShared;
  if (address.uniform() && guard() == nullptr && !whole) {
    for (unsigned k = 0; k < access.count; ++k) {
      llvm::Value* at = builder_.CreateAdd(address.scalar, builder_.getInt64(k * size));
      llvm::LoadInst* load = builder_.CreateAlignedLoad(
          element, builder_.CreateIntToPtr(at, builder_.getPtrTy()), llvm::Align(size));
      if (IsOrdered(i)) {
        load->setVolatile(true);
        load->setAtomic(i.Has("acquire") ? llvm::AtomicOrdering::Acquire
                                         : llvm::AtomicOrdering::Monotonic);
      }
      RETURN_IF_ERROR(Set(i, target(k), LaneValue::Uniform(load), access.type));
    }
    return absl::OkStatus();
  }
  if (whole) {
    auto* out_type = llvm::FixedVectorType::get(element, kWarpSize * access.count);
    llvm::Value* out = EntryAlloca(out_type, "ordered");
    CallRuntime(kRuntimeLoad, builder_.getVoidTy(),
                {SpillLanes(AsVector(builder_, address), "addresses"), MaskBits(mask),
                 Int32(access.bytes()), out, Int32(i.Has("acquire") ? 2 : 1)});
    llvm::Value* all = builder_.CreateLoad(out_type, out);
    for (unsigned k = 0; k < access.count; ++k) {
      llvm::SmallVector<int, kWarpSize> lanes;
      for (int lane = 0; lane < kWarpSize; ++lane)
        lanes.push_back(lane * static_cast<int>(access.count) + static_cast<int>(k));
      RETURN_IF_ERROR(Set(
          i, target(k), LaneValue::Varying(builder_.CreateShuffleVector(all, lanes)), access.type));
    }
    return absl::OkStatus();
  }
  KeepOrder(i);
  for (unsigned k = 0; k < access.count; ++k) {
    llvm::Value* value = nullptr;
    if (address.uniform()) {
      LaneValue varying = LaneValue::Varying(AsVector(builder_, address));
      value = GatherElement(varying, k * size, access.bytes(), element, mask);
    } else if (address.pattern()) {
      value = LoadWithPattern(address, k * size, access.bytes(), element, mask);
    } else {
      value = GatherElement(address, k * size, access.bytes(), element, mask);
    }
    RETURN_IF_ERROR(Set(i, target(k), LaneValue::Varying(value), access.type));
  }
  KeepOrder(i);
  if (access.space == Space::kGlobal && !address.uniform() && !IsOrdered(i) &&
      InLoopWithBarrier()) {
    PrefetchNextRound(address);
  }
  return absl::OkStatus();
}

llvm::Value* InstructionEmitter::LoadWithPattern(const LaneValue& address, unsigned offset,
                                                 unsigned extent, llvm::Type* type,
                                                 llvm::Value* mask) {
  const bool full = BlockMaskIsFull() && guard() == nullptr;
  if (address.valid == nullptr) {
    llvm::Value* value = PatternLoad(address, offset, extent, type, mask, full);
    return value != nullptr ? value : GatherElement(address, offset, extent, type, mask);
  }
  auto* start = builder_.GetInsertBlock();
  auto* fast = llvm::BasicBlock::Create(context_, "pattern", function_);
  builder_.SetInsertPoint(fast);
  llvm::Value* quick = PatternLoad(address, offset, extent, type, mask, full);
  builder_.SetInsertPoint(start);
  if (quick == nullptr) {
    fast->eraseFromParent();
    return GatherElement(address, offset, extent, type, mask);
  }
  auto* slow = llvm::BasicBlock::Create(context_, "gather", function_);
  auto* join = llvm::BasicBlock::Create(context_, "loaded", function_);
  builder_.CreateCondBr(address.valid, fast, slow, LikelyBranch());
  builder_.SetInsertPoint(fast);
  builder_.CreateBr(join);
  builder_.SetInsertPoint(slow);
  llvm::Value* gathered =
      GatherElement(LaneValue::Varying(address.vector), offset, extent, type, mask);
  auto* slow_end = builder_.GetInsertBlock();
  builder_.CreateBr(join);
  builder_.SetInsertPoint(join);
  llvm::PHINode* phi = builder_.CreatePHI(VectorOf(type), 2);
  phi->addIncoming(quick, fast);
  phi->addIncoming(gathered, slow_end);
  return phi;
}

absl::Status InstructionEmitter::EmitStore(const Instruction& i) {
  ASSIGN_OR_RETURN(const Access access, ParseAccess(i));
  KeepOrder(i);
  RETURN_IF_ERROR(EmitStoreOf(i, access));
  KeepOrder(i);
  return i.Has("async") ? CompleteAsync(i, access.bytes()) : absl::OkStatus();
}

absl::Status InstructionEmitter::EmitStoreOf(const Instruction& i, const Access& access) {
  if (i.operands.size() < 2) return Malformed(i, "st takes two operands");
  if (access.type.bits == 128) {
    const Type bits = {Type::kBits, 1, 128};
    ASSIGN_OR_RETURN(const LaneValue value, Get(i, 1, bits));
    ASSIGN_OR_RETURN(const LaneValue to, CheckedAddress(i, i.operands[0], access.space, 16));
    CallRuntime(kRuntimeStore, builder_.getVoidTy(),
                {SpillLanes(AsVector(builder_, to), "addresses"), MaskBits(ExecMask()), Int32(16),
                 SpillLanes(AsVector(builder_, value), "stored"), Int32(i.Has("release") ? 2 : 1)});
    return absl::OkStatus();
  }
  const Operand& from = i.operands[1];
  if ((from.kind == Kind::kVector ? from.parts.size() : 1) != access.count) {
    return Malformed(i, "the number of registers does not fit");
  }
  const Type bits = {access.type.is_float() && access.type.bits >= 32 ? Type::kFloat : Type::kBits,
                     1, access.type.bits};
  const unsigned size = access.type.bits / 8;
  LaneValue values[8];
  for (unsigned k = 0; k < access.count; ++k) {
    ASSIGN_OR_RETURN(LaneValue value,
                     Get(i, from.kind == Kind::kVector ? from.parts[k] : from, bits));
    values[k] = CastTo(value, IntType(access.type.bits));
  }
  ASSIGN_OR_RETURN(const LaneValue address,
                   CheckedAddress(i, i.operands[0], access.space, access.bytes()));
  llvm::Value* mask = ExecMask();
  if (IsOrdered(i) && access.count > 1 && access.space != Space::kShared) {  // as in EmitLoad
    auto* in_type = llvm::FixedVectorType::get(IntType(access.type.bits), kWarpSize * access.count);
    llvm::Value* in = EntryAlloca(in_type, "ordered");
    // Interleave the elements: lane by lane, as the memory holds them.
    llvm::Value* vectors[8];
    for (unsigned k = 0; k < access.count; ++k) vectors[k] = AsVector(builder_, values[k]);
    llvm::SmallVector<llvm::Value*, 8> level(vectors, vectors + access.count);
    llvm::SmallVector<int, 128> join;
    while (level.size() > 1) {
      llvm::SmallVector<llvm::Value*, 8> next;
      for (size_t k = 0; k + 1 < level.size(); k += 2) {
        const int n = static_cast<int>(
            llvm::cast<llvm::FixedVectorType>(level[k]->getType())->getNumElements());
        join.clear();
        for (int l = 0; l < 2 * n; ++l) join.push_back(l);
        next.push_back(builder_.CreateShuffleVector(level[k], level[k + 1], join));
      }
      level = next;
    }
    llvm::SmallVector<int, 128> order;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      for (unsigned k = 0; k < access.count; ++k)
        order.push_back(static_cast<int>(k) * kWarpSize + lane);
    }
    llvm::Value* all = builder_.CreateShuffleVector(level[0], order);
    builder_.CreateStore(all, in);
    CallRuntime(kRuntimeStore, builder_.getVoidTy(),
                {SpillLanes(AsVector(builder_, address), "addresses"), MaskBits(mask),
                 Int32(access.bytes()), in, Int32(i.Has("release") ? 2 : 1)});
    return absl::OkStatus();
  }
  const bool full = BlockMaskIsFull() && guard() == nullptr;
  for (unsigned k = 0; k < access.count; ++k) {
    if (address.uniform()) {
      // All lanes store to one place: one of them wins. Take the last.
      llvm::Value* value = values[k].scalar;
      if (!values[k].uniform()) {
        llvm::Value* last = builder_.CreateSub(
            Int32(31), builder_.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, MaskBits(mask),
                                                      builder_.getFalse()));
        last = builder_.CreateAnd(last, Int32(31));
        value = builder_.CreateExtractElement(AsVector(builder_, values[k]), last);
      }
      llvm::Value* at = builder_.CreateAdd(address.scalar, builder_.getInt64(k * size));
      llvm::Value* pointer = builder_.CreateIntToPtr(at, builder_.getPtrTy());
      if (guard() == nullptr) {
        builder_.CreateAlignedStore(value, pointer, llvm::Align(size));
      } else {
        auto* store = llvm::BasicBlock::Create(context_, "store", function_);
        auto* after = llvm::BasicBlock::Create(context_, "stored", function_);
        builder_.CreateCondBr(Any(mask), store, after);
        builder_.SetInsertPoint(store);
        builder_.CreateAlignedStore(value, pointer, llvm::Align(size));
        builder_.CreateBr(after);
        builder_.SetInsertPoint(after);
      }
      continue;
    }
    llvm::Value* value = AsVector(builder_, values[k]);
    if (!address.pattern()) {
      ScatterElement(address, k * size, value, mask);
      continue;
    }
    auto* start = builder_.GetInsertBlock();
    if (address.valid == nullptr) {
      if (!PatternStore(address, k * size, value, mask, full))
        ScatterElement(address, k * size, value, mask);
      continue;
    }
    auto* fast = llvm::BasicBlock::Create(context_, "pattern", function_);
    builder_.SetInsertPoint(fast);
    const bool stored = PatternStore(address, k * size, value, mask, full);
    builder_.SetInsertPoint(start);
    if (!stored) {
      fast->eraseFromParent();
      ScatterElement(LaneValue::Varying(address.vector), k * size, value, mask);
      continue;
    }
    auto* slow = llvm::BasicBlock::Create(context_, "scatter", function_);
    auto* join = llvm::BasicBlock::Create(context_, "stored", function_);
    builder_.CreateCondBr(address.valid, fast, slow, LikelyBranch());
    builder_.SetInsertPoint(fast);
    builder_.CreateBr(join);
    builder_.SetInsertPoint(slow);
    ScatterElement(LaneValue::Varying(address.vector), k * size, value, mask);
    builder_.CreateBr(join);
    builder_.SetInsertPoint(join);
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitPrefetch(const Instruction& i) { return absl::OkStatus(); }

absl::Status InstructionEmitter::EmitFence(const Instruction& i) {
  if (i.Has("cta") && i.opcode == "membar") {
    // The warps of a block run on one thread: only the compiler must keep the order.
    builder_.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent,
                         llvm::SyncScope::SingleThread);
    return absl::OkStatus();
  }
  if (i.Has("proxy") || i.Has("async") || i.Has("mbarrier_init")) return absl::OkStatus();
  builder_.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent);
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
