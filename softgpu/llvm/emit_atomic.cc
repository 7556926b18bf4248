// Instruction family: atom and red. Lanes take their turns in order, in the runtime, unless all of
// them count in one place.
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;
using ptx::Space;

// Every executing lane adds `step` to the integer at `address`, one after another: what each finds
// there. One access for all of them.
llvm::Value* InstructionEmitter::CountLanes(llvm::Value* address, llvm::Value* step,
                                            bool block_private) {
  llvm::Type* type = step->getType();
  llvm::Value* bits = MaskBits(ExecMask());
  auto* start = builder_.GetInsertBlock();
  auto* join = llvm::BasicBlock::Create(context_, "counted", function_);
  if (guard() != nullptr) {  // with no lane the address is anything
    auto* count = llvm::BasicBlock::Create(context_, "count", function_);
    builder_.CreateCondBr(builder_.CreateICmpNE(bits, Int32(0)), count, join);
    builder_.SetInsertPoint(count);
  }
  llvm::Value* lanes = builder_.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, bits);
  llvm::Value* sum = builder_.CreateMul(step, builder_.CreateZExt(lanes, type));
  llvm::Value* place = builder_.CreateIntToPtr(address, builder_.getPtrTy());
  const llvm::Align alignment(type->getIntegerBitWidth() / 8);
  llvm::Value* old;
  if (block_private) {  // the warps of a block run on one thread
    old = builder_.CreateAlignedLoad(type, place, alignment, /*isVolatile=*/true);
    builder_.CreateAlignedStore(builder_.CreateAdd(old, sum), place, alignment,
                                /*isVolatile=*/true);
  } else {
    old = builder_.CreateAtomicRMW(llvm::AtomicRMWInst::Add, place, sum, alignment,
                                   llvm::AtomicOrdering::AcquireRelease);
  }
  auto* end = builder_.GetInsertBlock();
  builder_.CreateBr(join);
  builder_.SetInsertPoint(join);
  if (guard() != nullptr) {
    llvm::PHINode* phi = builder_.CreatePHI(type, 2);
    phi->addIncoming(old, end);
    phi->addIncoming(llvm::PoisonValue::get(type), start);
    old = phi;
  }
  LaneOffsets below;
  for (int lane = 0; lane < kWarpSize; ++lane) below[lane] = (int64_t{1} << lane) - 1;
  llvm::Value* before = builder_.CreateUnaryIntrinsic(
      llvm::Intrinsic::ctpop,
      builder_.CreateAnd(Splat(builder_, bits), OffsetVector(builder_.getInt32Ty(), below)));
  return builder_.CreateAdd(
      Splat(builder_, old),
      builder_.CreateMul(Splat(builder_, step), builder_.CreateZExt(before, VectorOf(type))));
}

absl::Status InstructionEmitter::EmitAtomic(const Instruction& i) {
  ASSIGN_OR_RETURN(const Access access, ParseAccess(i));
  const bool returns = i.opcode == "atom";
  const size_t at = returns ? 1 : 0;
  struct Row {
    absl::string_view name;
    AtomicOp op;
  };
  static constexpr Row kOps[] = {
      {"add", AtomicOp::kAdd},       {"min", AtomicOp::kMin},
      {"max", AtomicOp::kMax},       {"inc", AtomicOp::kInc},
      {"dec", AtomicOp::kDec},       {"and", AtomicOp::kAnd},
      {"or", AtomicOp::kOr},         {"xor", AtomicOp::kXor},
      {"exch", AtomicOp::kExchange}, {"cas", AtomicOp::kCompareExchange}};
  const Row* row = nullptr;
  for (const Row& candidate : kOps) {
    if (i.Has(candidate.name)) row = &candidate;
  }
  if (row == nullptr) return Malformed(i, "unknown operation");
  const Type type = access.type;
  if (type.bits == 128) return EmitAtomic128(i, access, row->op);
  AtomicType code;
  const bool bitwise = row->op == AtomicOp::kExchange || row->op == AtomicOp::kCompareExchange ||
                       row->op == AtomicOp::kAnd || row->op == AtomicOp::kOr ||
                       row->op == AtomicOp::kXor;
  if (type.lanes == 2 && type.kind == Type::kFloat) {
    code = AtomicType::kF16x2;
  } else if (type.lanes == 2 && type.kind == Type::kBFloat) {
    code = AtomicType::kBF16x2;
  } else if (type.bits == 16 && type.is_float()) {
    code = type.kind == Type::kFloat ? AtomicType::kF16 : AtomicType::kBF16;
  } else if (type.bits == 16 && row->op == AtomicOp::kCompareExchange) {
    code = AtomicType::kU16;
  } else if (type.kind == Type::kFloat && !bitwise) {
    code = type.bits == 32 ? AtomicType::kF32 : AtomicType::kF64;
  } else if (type.bits == 32) {
    code = type.is_signed() ? AtomicType::kS32 : AtomicType::kU32;
  } else if (type.bits == 64) {
    code = type.is_signed() ? AtomicType::kS64 : AtomicType::kU64;
  } else {
    return Unsupported(i, "this type");
  }
  const bool is_float = code >= AtomicType::kF32 && code <= AtomicType::kBF16;
  if (is_float && row->op != AtomicOp::kAdd && row->op != AtomicOp::kMin &&
      row->op != AtomicOp::kMax) {
    return Unsupported(i, "this operation on floating point numbers");
  }
  const Type bits = {
      type.is_float() && type.bits >= 32 && type.lanes == 1 ? Type::kFloat : Type::kBits, 1,
      type.bits};
  llvm::Type* element = IntType(type.bits);
  if (i.operands.size() < at + 2) return Malformed(i, "operands are missing");
  ASSIGN_OR_RETURN(const LaneValue address,
                   CheckedAddress(i, i.operands[at], access.space, access.bytes()));
  const uint32_t word = static_cast<uint32_t>(row->op) | static_cast<uint32_t>(code) << 8 |
                        (access.space == Space::kShared ? kAtomicBlockPrivate : 0);
  // The elements of a vector take their turns one after another.
  for (unsigned k = 0; k < access.count; ++k) {
    const auto part = [&](const Operand& operand) -> const Operand& {
      return operand.kind == Kind::kVector && k < operand.parts.size() ? operand.parts[k] : operand;
    };
    ASSIGN_OR_RETURN(LaneValue a, Get(i, part(i.operands[at + 1]), bits));
    if (row->op == AtomicOp::kAdd && !is_float && access.count == 1 && address.uniform() &&
        a.uniform() && !i.Has("async")) {
      llvm::Value* old =
          CountLanes(address.scalar, CastTo(a, element).scalar, access.space == Space::kShared);
      return returns ? Set(i, 0, LaneValue::Varying(old), bits) : absl::OkStatus();
    }
    llvm::Value* va = AsVector(builder_, CastTo(a, element));
    llvm::Value* vb = va;
    if (row->op == AtomicOp::kCompareExchange) {
      // cas takes what is compared before what is stored.
      ASSIGN_OR_RETURN(LaneValue b, Get(i, at + 2, bits));
      vb = AsVector(builder_, CastTo(b, element));
    }
    llvm::Value* addresses = AsVector(builder_, address);
    if (k > 0) addresses = builder_.CreateAdd(addresses, Constant(addresses, k * type.bits / 8));
    llvm::Value* out = EntryAlloca(VectorOf(element), "old");
    CallRuntime(kRuntimeAtomic, builder_.getVoidTy(),
                {Int32(word), SpillLanes(addresses, "addresses"), MaskBits(ExecMask()),
                 SpillLanes(va, "a"), SpillLanes(vb, "b"), out});
    if (i.Has("async")) RETURN_IF_ERROR(CompleteAsync(i, access.bytes()));
    if (!returns) continue;
    RETURN_IF_ERROR(Set(i, part(i.operands[0]),
                        LaneValue::Varying(builder_.CreateLoad(VectorOf(element), out)), bits));
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitAtomic128(const Instruction& i, const Access& access,
                                               AtomicOp op) {
  const Type bits = {Type::kBits, 1, 128};
  llvm::Type* i64 = builder_.getInt64Ty();
  if (op != AtomicOp::kExchange && op != AtomicOp::kCompareExchange) {
    return Unsupported(i, "this operation on 128 bits");
  }
  const auto put = [&](size_t operand, unsigned slot) -> absl::Status {
    ASSIGN_OR_RETURN(const LaneValue value, Get(i, operand, bits));
    llvm::Value* whole = AsVector(builder_, value);
    PutSlot(slot, builder_.CreateTrunc(whole, VectorOf(i64)));
    PutSlot(slot + 1,
            builder_.CreateTrunc(builder_.CreateLShr(whole, Constant(whole, 64)), VectorOf(i64)));
    return absl::OkStatus();
  };
  if (i.operands.size() < 3) return Malformed(i, "operands are missing");
  ASSIGN_OR_RETURN(const LaneValue address, CheckedAddress(i, i.operands[1], access.space, 16));
  PutSlot(2, AsVector(builder_, address));
  if (op == AtomicOp::kExchange) {
    RETURN_IF_ERROR(put(2, 3));
  } else {
    RETURN_IF_ERROR(put(2, 5));
    RETURN_IF_ERROR(put(3, 3));
  }
  RunOperation(Operation::kAtomic128, static_cast<uint64_t>(op), i);
  llvm::Type* wide = VectorOf(IntType(128));
  llvm::Value* high = builder_.CreateZExt(GetSlot(1, i64), wide);
  llvm::Value* whole = builder_.CreateOr(builder_.CreateZExt(GetSlot(0, i64), wide),
                                         builder_.CreateShl(high, Constant(high, 64)));
  return Set(i, 0, LaneValue::Varying(whole), bits);
}

}  // namespace fargpu::softgpu
