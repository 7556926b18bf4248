#include "softgpu/llvm/instruction_emitter.h"

#include <cstddef>
#include <cstring>
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/MDBuilder.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/passes/flatten_kernel.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;

namespace {

// Runtime functions that return, or end the launch, without letting another warp run. A new one
// counts as one that waits until it is named here.
bool NeverWaits(RuntimeFunction function) {
  switch (function) {
    case kRuntimeFault:
    case kRuntimeTrap:
    case kRuntimeLoad:
    case kRuntimeStore:
    case kRuntimeAtomic:
    case kRuntimePrintf:
    case kRuntimeAssert:
    case kRuntimeRound:
    case kRuntimeClock:
    case kRuntimeTimer:
    case kRuntimeFence:
    case kRuntimeOperation:
    case kRuntimeFrame:
    case kRuntimeHeap:
    case kRuntimeCallFault:
      return true;
    default:
      return false;
  }
}

}  // namespace

InstructionEmitter::InstructionEmitter(const FlatKernel& kernel, const CompileOptions& options,
                                       llvm::Module* module)
    : context_(module->getContext()),
      kernel_(kernel),
      options_(options),
      module_(module),
      builder_(module->getContext()) {
  for (int i = 0; i < kWarpSize; ++i) lane_ids_[i] = i;
}

llvm::Function* InstructionEmitter::BeginFunction(const std::string& name) {
  auto* type = llvm::FunctionType::get(builder_.getVoidTy(), {builder_.getPtrTy()}, false);
  BeginFunction(llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module_));
  return function_;
}

void InstructionEmitter::BeginFunction(llvm::Function* function) {
  function_ = function;
  slots_ = nullptr;
  function_->addFnAttr(llvm::Attribute::NoUnwind);
  function_->addFnAttr("prefer-vector-width", "512");
  function_->addFnAttr("min-legal-vector-width", "512");
  // Frames of wide vectors are large: touch each page in order, so that an overflow meets the
  // fiber's guard page instead of jumping over it.
  function_->addFnAttr("probe-stack", "inline-asm");
  warp_ = function_->getArg(0);
  function_->addParamAttr(0, llvm::Attribute::NoAlias);
  builder_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));
}

absl::Status InstructionEmitter::Unsupported(const Instruction& at, absl::string_view what) {
  return KernelError(CUDA_ERROR_NOT_SUPPORTED, kernel_.name, at, what);
}
absl::Status InstructionEmitter::Malformed(const Instruction& at, absl::string_view what) {
  return KernelError(CUDA_ERROR_INVALID_PTX, kernel_.name, at, what);
}

absl::Status InstructionEmitter::Emit(const Instruction& instruction) {
  const Handler handler = FindHandler(instruction.opcode);
  if (handler == nullptr) return Unsupported(instruction, "this instruction is not supported");
  if (const char* const wrong = WrongType(instruction)) return Malformed(instruction, wrong);
  guard_set_ = instruction.guard >= 0;
  exec_mask_ = nullptr;
  if (guard_set_) guard_ = ReadPredicate(instruction.guard, instruction.guard_negated);
  absl::Status status = (this->*handler)(instruction);
  guard_set_ = false;
  exec_mask_ = nullptr;
  return status;
}

LaneValue InstructionEmitter::ReadPredicate(int reg, bool negated) {
  LaneValue value = ReadRegister(reg);
  if (!negated) return value;
  return value.uniform() ? LaneValue::Uniform(builder_.CreateNot(value.scalar))
                         : LaneValue::Varying(builder_.CreateNot(AsVector(builder_, value)));
}

LaneValue InstructionEmitter::GuardedValue(const LaneValue& value, const LaneValue& old) {
  if (guard_.uniform() && value.uniform() && old.uniform()) {
    return LaneValue::Uniform(builder_.CreateSelect(guard_.scalar, value.scalar, old.scalar));
  }
  return LaneValue::Varying(builder_.CreateSelect(
      AsVector(builder_, guard_), AsVector(builder_, value), AsVector(builder_, old)));
}

llvm::Value* InstructionEmitter::ExecMask() {
  if (!guard_set_) return BlockMask();
  if (exec_mask_ == nullptr) {
    exec_mask_ = builder_.CreateAnd(BlockMask(), AsVector(builder_, guard_));
  }
  return exec_mask_;
}

llvm::Value* InstructionEmitter::MaskBits(llvm::Value* mask) {
  return builder_.CreateBitCast(mask, builder_.getInt32Ty());
}
llvm::Value* InstructionEmitter::MaskFromBits(llvm::Value* bits) {
  return builder_.CreateBitCast(bits, VectorOf(builder_.getInt1Ty()));
}
llvm::Value* InstructionEmitter::Any(llvm::Value* mask) {
  return builder_.CreateICmpNE(MaskBits(mask), Int32(0));
}

llvm::AllocaInst* InstructionEmitter::EntryAlloca(llvm::Type* type, const char* name) {
  llvm::BasicBlock& entry = function_->getEntryBlock();
  llvm::IRBuilder<> at(&entry, entry.getFirstInsertionPt());
  return at.CreateAlloca(type, nullptr, name);
}

llvm::Value* InstructionEmitter::ContextField(llvm::Type* type, size_t offset, const char* name) {
  llvm::Value* at = builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), warp_, offset);
  llvm::LoadInst* load = builder_.CreateLoad(type, at, name);
  // Nothing changes the context while the warp runs, whatever else is stored or called.
  load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
  return load;
}

llvm::Value* InstructionEmitter::WarpIndex() {
  if (warp_index_ != nullptr) return warp_index_;
  return ContextField(builder_.getInt32Ty(), offsetof(WarpContext, warp_index), "warp");
}
llvm::Value* InstructionEmitter::BlockIndex(int axis) {
  if (block_index_[axis] != nullptr) return block_index_[axis];
  return ContextField(builder_.getInt32Ty(), offsetof(WarpContext, block_index) + 4 * axis,
                      "ctaid");
}

llvm::Value* InstructionEmitter::LocalBase() {
  llvm::Value* base =
      ContextField(builder_.getInt64Ty(), offsetof(WarpContext, local_base), "local");
  if (!local_by_warp_) return base;
  llvm::Value* warp = builder_.CreateZExt(WarpIndex(), builder_.getInt64Ty());
  return builder_.CreateAdd(
      base, builder_.CreateMul(warp, builder_.getInt64(kernel_.local_bytes * kWarpSize)));
}

void InstructionEmitter::BlockBarrier(llvm::Value* id, llvm::Value* threads) {
  CallRuntime(kRuntimeBarrier, builder_.getVoidTy(), {id, threads});
}

const LaneOffsets* InstructionEmitter::Keep(const LaneOffsets& offsets) {
  offsets_.push_back(offsets);
  return &offsets_.back();
}

const ScaledIndex* InstructionEmitter::Keep(const ScaledIndex& scaled) {
  scaled_.push_back(scaled);
  return &scaled_.back();
}

llvm::Type* InstructionEmitter::RegisterType(int reg) {
  return IntType(kernel_.registers[reg].type.bits);
}

llvm::Value* InstructionEmitter::CallRuntime(RuntimeFunction function, llvm::Type* result,
                                             std::initializer_list<llvm::Value*> arguments) {
  suspends_ = suspends_ || !NeverWaits(function);
  std::vector<llvm::Value*> all = {warp_};
  std::vector<llvm::Type*> types = {warp_->getType()};
  for (llvm::Value* argument : arguments) {
    all.push_back(argument);
    types.push_back(argument->getType());
  }
  llvm::Value* table = ContextField(builder_.getPtrTy(), offsetof(WarpContext, runtime), "runtime");
  llvm::LoadInst* callee = builder_.CreateLoad(
      builder_.getPtrTy(),
      builder_.CreateConstInBoundsGEP1_32(builder_.getPtrTy(), table, function));
  callee->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
  llvm::CallInst* call =
      builder_.CreateCall(llvm::FunctionType::get(result, types, false), callee, all);
  call->setDoesNotThrow();
  return call;
}

llvm::MDNode* InstructionEmitter::ColdBranch() {
  return llvm::MDBuilder(context_).createBranchWeights(1, 1 << 20);
}
llvm::MDNode* InstructionEmitter::LikelyBranch() {
  return llvm::MDBuilder(context_).createBranchWeights(1 << 20, 1);
}

void InstructionEmitter::FailIf(llvm::Value* bad, RuntimeFunction function,
                                std::initializer_list<llvm::Value*> arguments) {
  if (auto* constant = llvm::dyn_cast<llvm::ConstantInt>(bad); constant && constant->isZero())
    return;
  auto* fail = llvm::BasicBlock::Create(context_, "fail", function_);
  auto* ok = llvm::BasicBlock::Create(context_, "ok", function_);
  builder_.CreateCondBr(bad, fail, ok, ColdBranch());
  builder_.SetInsertPoint(fail);
  llvm::CallInst* call =
      llvm::cast<llvm::CallInst>(CallRuntime(function, builder_.getVoidTy(), arguments));
  call->setDoesNotReturn();
  call->addFnAttr(llvm::Attribute::Cold);
  builder_.CreateUnreachable();
  builder_.SetInsertPoint(ok);
}

llvm::Type* InstructionEmitter::ValueType(Type type) {
  if (type.lanes == 1 && type.kind == Type::kFloat) {
    if (type.bits == 32) return builder_.getFloatTy();
    if (type.bits == 64) return builder_.getDoubleTy();
  }
  return IntType(type.bits);
}

llvm::Type* InstructionEmitter::SameShape(llvm::Value* like, llvm::Type* element) {
  return like->getType()->isVectorTy() ? static_cast<llvm::Type*>(VectorOf(element)) : element;
}
llvm::Value* InstructionEmitter::Constant(llvm::Value* like, uint64_t value) {
  return llvm::ConstantInt::get(like->getType(), value);
}
llvm::Value* InstructionEmitter::FloatConstant(llvm::Value* like, double value) {
  return llvm::ConstantFP::get(like->getType(), value);
}
llvm::Value* InstructionEmitter::Intrinsic(llvm::Intrinsic::ID id,
                                           std::initializer_list<llvm::Value*> arguments) {
  return builder_.CreateIntrinsic((*arguments.begin())->getType(), id, arguments);
}
llvm::Value* InstructionEmitter::AsBits(llvm::Value* value) {
  llvm::Type* type = value->getType()->getScalarType();
  if (!type->isFloatingPointTy()) return value;
  return builder_.CreateBitCast(value, SameShape(value, IntType(type->getPrimitiveSizeInBits())));
}
llvm::Value* InstructionEmitter::AsType(llvm::Value* value, Type type) {
  return builder_.CreateBitCast(value, SameShape(value, ValueType(type)));
}

LaneValue InstructionEmitter::CastTo(const LaneValue& value, llvm::Type* type) {
  if (value.uniform()) {
    if (value.scalar->getType() == type) return value;
    return LaneValue::Uniform(builder_.CreateBitCast(value.scalar, type));
  }
  if (value.pattern() && value.scalar->getType() == type) return value;
  if (value.vector != nullptr && value.vector->getType() == VectorOf(type)) return value;
  return LaneValue::Varying(builder_.CreateBitCast(AsVector(builder_, value), VectorOf(type)));
}

LaneValue InstructionEmitter::Resize(const LaneValue& value, unsigned bits, bool sign) {
  llvm::Value* any = value.scalar != nullptr ? value.scalar : value.vector;
  const unsigned from = any->getType()->getScalarSizeInBits();
  if (from == bits) return value;
  const auto convert = [&](llvm::Value* v) {
    llvm::Type* to = SameShape(v, IntType(bits));
    if (from > bits) return builder_.CreateTrunc(v, to);
    return sign ? builder_.CreateSExt(v, to) : builder_.CreateZExt(v, to);
  };
  if (value.uniform()) return LaneValue::Uniform(convert(value.scalar));
  if (value.pattern()) {
    if (from < bits) return PatternWiden(value, bits, sign);
    // Truncation is exact modulo 2^bits.
    LaneValue result = value;
    result.scalar = convert(value.scalar);
    if (value.vector != nullptr) result.vector = convert(value.vector);
    return result;
  }
  LaneValue result = LaneValue::Varying(convert(value.vector));
  if (from == 32 && bits == 64) {
    result.scaled = Keep(ScaledIndex{.index = value.vector, .sign = sign});
  }
  return result;
}

absl::StatusOr<LaneValue> InstructionEmitter::Get(const Instruction& at, size_t operand,
                                                  Type type) {
  if (operand >= at.operands.size()) {
    return Malformed(at, absl::StrCat("operand ", operand + 1, " is missing"));
  }
  return Get(at, at.operands[operand], type);
}

absl::StatusOr<LaneValue> InstructionEmitter::Get(const Instruction& at, const Operand& operand,
                                                  Type type) {
  if (type.bits == 0 && type.kind != Type::kPred) return Malformed(at, "a type is missing");
  llvm::Type* wanted = ValueType(type);
  const auto constant = [&](uint64_t bits) {
    return LaneValue::Uniform(
        llvm::ConstantExpr::getBitCast(llvm::ConstantInt::get(IntType(type.bits), bits), wanted));
  };
  switch (operand.kind) {
    case Kind::kRegister: {
      LaneValue value = ReadRegister(operand.index);
      const unsigned bits = kernel_.registers[operand.index].type.bits;
      if (type.kind == Type::kPred) {
        if (bits != 1) return Malformed(at, absl::StrCat(operand.name, " is not a predicate"));
        return operand.negated ? ReadPredicate(operand.index, true) : value;
      }
      if (bits == 1) return Malformed(at, absl::StrCat(operand.name, " is a predicate"));
      if (operand.offset != 0) {  // a place in the frame of a function
        value = PatternAdd(
            value,
            LaneValue::Uniform(builder_.getIntN(bits, static_cast<uint64_t>(operand.offset))),
            false);
      }
      return CastTo(Resize(value, type.bits, type.is_signed()), wanted);
    }
    case Kind::kImmediate: {
      if (type.kind == Type::kPred) return LaneValue::Uniform(builder_.getInt1(operand.bits != 0));
      if (operand.is_float || (type.is_float() && type.lanes == 1)) {
        double value;
        if (operand.is_float) {
          std::memcpy(&value, &operand.bits, sizeof value);
        } else {
          value = static_cast<double>(static_cast<int64_t>(operand.bits));
        }
        if (type.bits == 64) {
          uint64_t bits;
          std::memcpy(&bits, &value, sizeof bits);
          return constant(bits);
        }
        if (type.bits == 32) {
          const float narrow = static_cast<float>(value);
          uint32_t bits;
          std::memcpy(&bits, &narrow, sizeof bits);
          return constant(bits);
        }
        if (operand.is_float) return Malformed(at, "a constant of this type");
      }
      return constant(operand.bits);
    }
    case Kind::kSingle: {
      if (type.bits == 64) {
        const uint32_t narrow_bits = static_cast<uint32_t>(operand.bits);
        float narrow;
        std::memcpy(&narrow, &narrow_bits, sizeof narrow);
        const double wide = narrow;
        uint64_t bits;
        std::memcpy(&bits, &wide, sizeof bits);
        return constant(bits);
      }
      return constant(operand.bits);
    }
    case Kind::kSpecial: {
      ASSIGN_OR_RETURN(const LaneValue value, ReadSpecial(at, operand));
      return CastTo(Resize(value, type.bits, false), wanted);
    }
    case Kind::kVariable: {
      llvm::Value* params =
          ContextField(builder_.getInt64Ty(), offsetof(WarpContext, params), "params");
      llvm::Value* address =
          builder_.CreateAdd(params, builder_.getInt64(static_cast<uint64_t>(operand.offset)));
      return Resize(LaneValue::Uniform(address), type.bits, false);
    }
    case Kind::kSymbol: {
      if (operand.index < 0) return Malformed(at, absl::StrCat("'", operand.name, "' is no value"));
      llvm::Value* table =
          ContextField(builder_.getPtrTy(), offsetof(WarpContext, variables), "variables");
      llvm::LoadInst* address = builder_.CreateLoad(
          builder_.getInt64Ty(),
          builder_.CreateConstInBoundsGEP1_32(builder_.getInt64Ty(), table, operand.index));
      address->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
      llvm::Value* sum =
          builder_.CreateAdd(address, builder_.getInt64(static_cast<uint64_t>(operand.offset)));
      return Resize(LaneValue::Uniform(sum), type.bits, false);
    }
    default:
      return Malformed(at, "an operand of the wrong form");
  }
}

InstructionEmitter::Args InstructionEmitter::Unify(std::initializer_list<LaneValue> values) {
  Args args;
  args.uniform = true;
  for (const LaneValue& value : values) args.uniform = args.uniform && value.uniform();
  int n = 0;
  for (const LaneValue& value : values) {
    args.v[n++] = args.uniform ? value.scalar : AsVector(builder_, value);
  }
  return args;
}

absl::StatusOr<InstructionEmitter::Args> InstructionEmitter::Fetch(
    const Instruction& at, std::initializer_list<std::pair<size_t, Type>> operands) {
  LaneValue values[4];
  size_t n = 0;
  for (const auto& [index, type] : operands) {
    ASSIGN_OR_RETURN(values[n], Get(at, index, type));
    ++n;
  }
  switch (n) {
    case 1:
      return Unify({values[0]});
    case 2:
      return Unify({values[0], values[1]});
    case 3:
      return Unify({values[0], values[1], values[2]});
    default:
      return Unify({values[0], values[1], values[2], values[3]});
  }
}

absl::Status InstructionEmitter::Set(const Instruction& at, size_t operand, LaneValue value,
                                     Type type) {
  if (operand >= at.operands.size()) return Malformed(at, "the destination is missing");
  return Set(at, at.operands[operand], value, type);
}

absl::Status InstructionEmitter::Set(const Instruction& at, const Operand& operand, LaneValue value,
                                     Type type) {
  if (operand.kind == Kind::kSink) return absl::OkStatus();
  if (operand.kind != Kind::kRegister) return Malformed(at, "the destination is not a register");
  const unsigned bits = kernel_.registers[operand.index].type.bits;
  llvm::Value* any = value.scalar != nullptr ? value.scalar : value.vector;
  llvm::Type* element = any->getType()->getScalarType();
  if (element->isFloatingPointTy()) {
    value = CastTo(value, IntType(element->getPrimitiveSizeInBits()));
  }
  if ((bits == 1) != (element->isIntegerTy(1))) {
    return Malformed(at, absl::StrCat("register ", operand.name, " has the wrong type"));
  }
  WriteRegister(operand.index, Resize(value, bits, type.is_signed()));
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
