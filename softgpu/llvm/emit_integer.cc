// Instruction families: integer arithmetic.
#include <algorithm>
#include <bit>
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using llvm::Intrinsic::ID;

namespace {

// LaneValue::value_bits is followed up to here, so that no type of 32 bits or more overflows.
constexpr unsigned kKnownBits = 31;

}  // namespace

// Sum or difference of two values of which at least one is a pattern.
LaneValue InstructionEmitter::PatternAdd(const LaneValue& a, const LaneValue& b, bool subtract) {
  const auto combine = [&](llvm::Value* x, llvm::Value* y) {
    return subtract ? builder_.CreateSub(x, y) : builder_.CreateAdd(x, y);
  };
  const auto is_zero = [](const LaneValue& v) {
    auto* constant = v.uniform() ? llvm::dyn_cast<llvm::ConstantInt>(v.scalar) : nullptr;
    return constant != nullptr && constant->isZero();
  };
  if (is_zero(b)) return a;
  if (is_zero(a) && !subtract) return b;
  LaneValue result;
  if (a.scalar != nullptr && b.scalar != nullptr) {
    result.scalar = combine(a.scalar, b.scalar);
    const unsigned bits = std::max(a.value_bits, b.value_bits) + 1;
    if (!subtract && bits < kKnownBits) result.value_bits = bits;
    LaneOffsets offsets;
    bool flat = true;
    for (int k = 0; k < kWarpSize; ++k) {
      const int64_t x = a.offsets != nullptr ? (*a.offsets)[k] : 0;
      const int64_t y = b.offsets != nullptr ? (*b.offsets)[k] : 0;
      offsets[k] =
          static_cast<int64_t>(subtract ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                                        : static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
      flat = flat && offsets[k] == 0;
    }
    result.zero_bits = std::min(a.zero_bits, b.zero_bits);
    if (!flat) result.offsets = Keep(offsets);
    if (a.valid != nullptr || b.valid != nullptr) {
      result.valid = a.valid == nullptr   ? b.valid
                     : b.valid == nullptr ? a.valid
                                          : builder_.CreateAnd(a.valid, b.valid);
      result.vector = combine(AsVector(builder_, a), AsVector(builder_, b));
      // A flat result is not uniform where the pattern does not hold.
      if (flat) result.offsets = Keep(offsets);
    }
    return result;
  }
  return LaneValue::Varying(combine(AsVector(builder_, a), AsVector(builder_, b)));
}

// Product of a pattern and a constant; anything else becomes varying.
LaneValue InstructionEmitter::PatternMul(const LaneValue& a, const LaneValue& b) {
  const LaneValue& pattern = a.offsets != nullptr ? a : b;
  const LaneValue& factor = a.offsets != nullptr ? b : a;
  auto* constant = factor.uniform() ? llvm::dyn_cast<llvm::ConstantInt>(factor.scalar) : nullptr;
  if (constant == nullptr || pattern.scalar == nullptr) {
    return LaneValue::Varying(builder_.CreateMul(AsVector(builder_, a), AsVector(builder_, b)));
  }
  const int64_t by = constant->getSExtValue();
  LaneValue result;
  result.scalar = builder_.CreateMul(pattern.scalar, factor.scalar);
  LaneOffsets offsets;
  for (int k = 0; k < kWarpSize; ++k) {
    offsets[k] = static_cast<int64_t>(static_cast<uint64_t>((*pattern.offsets)[k]) *
                                      static_cast<uint64_t>(by));
  }
  result.offsets = Keep(offsets);
  result.zero_bits = pattern.zero_bits;
  if (by > 0) {
    const unsigned bits =
        pattern.value_bits + static_cast<unsigned>(std::bit_width(static_cast<uint64_t>(by)));
    if (bits < kKnownBits) result.value_bits = bits;
  }
  if (by != 0)
    result.zero_bits += static_cast<unsigned>(__builtin_ctzll(static_cast<uint64_t>(by)));
  result.valid = pattern.valid;
  if (pattern.valid != nullptr) {
    result.vector = builder_.CreateMul(AsVector(builder_, pattern), Splat(builder_, factor.scalar));
  }
  return result;
}

// Widening keeps a pattern only where no lane wraps around; `valid` tells, at run time.
LaneValue InstructionEmitter::PatternWiden(const LaneValue& value, unsigned bits, bool sign) {
  const unsigned from = value.scalar->getType()->getScalarSizeInBits();
  llvm::Type* wide = IntType(bits);
  const auto extend = [&](llvm::Value* v) {
    llvm::Type* to = SameShape(v, wide);
    return sign ? builder_.CreateSExt(v, to) : builder_.CreateZExt(v, to);
  };
  LaneOffsets offsets;
  int64_t low = 0;
  int64_t high = 0;
  for (int k = 0; k < kWarpSize; ++k) {
    // Offsets are modulo 2^from; the small signed reading is the one that can be right.
    offsets[k] = static_cast<int64_t>(static_cast<uint64_t>((*value.offsets)[k]) << (64 - from)) >>
                 (64 - from);
    low = std::min(low, offsets[k]);
    high = std::max(high, offsets[k]);
  }
  LaneValue result;
  result.scalar = extend(value.scalar);
  result.offsets = Keep(offsets);
  result.zero_bits = sign ? 0 : value.zero_bits;
  if (value.valid == nullptr && value.value_bits < from - 1 &&
      std::max(-low, high) < int64_t{1} << (from - 2)) {
    // No lane is negative or large, so none wraps. The scalar may be negative where no lane is.
    result.scalar = builder_.CreateSExt(value.scalar, wide);
    result.zero_bits = value.zero_bits;
    result.value_bits = value.value_bits;
    return result;
  }
  result.vector = extend(AsVector(builder_, value));
  // The sum in 64 bits (in twice the width) must fit the narrow type at both ends.
  llvm::Type* check = IntType(from * 2);
  llvm::Value* base =
      sign ? builder_.CreateSExt(value.scalar, check) : builder_.CreateZExt(value.scalar, check);
  const auto fits = [&](int64_t offset) -> llvm::Value* {
    if (offset == 0) return builder_.getTrue();
    llvm::Value* sum = builder_.CreateAdd(
        base, llvm::ConstantInt::get(check, static_cast<uint64_t>(offset), true));
    llvm::Value* narrow = builder_.CreateTrunc(sum, value.scalar->getType());
    llvm::Value* back =
        sign ? builder_.CreateSExt(narrow, check) : builder_.CreateZExt(narrow, check);
    return builder_.CreateICmpEQ(sum, back);
  };
  result.valid = builder_.CreateAnd(fits(low), fits(high));
  if (value.valid != nullptr) result.valid = builder_.CreateAnd(result.valid, value.valid);
  if (auto* known = llvm::dyn_cast<llvm::ConstantInt>(result.valid); known && known->isOne()) {
    result.valid = nullptr;
    result.vector = nullptr;
  }
  return result;
}

absl::Status InstructionEmitter::EmitCarryAdd(const Instruction& i, llvm::Value* a, llvm::Value* b,
                                              const Args& args, Type type, bool subtract) {
  // In twice the width the carry (or borrow) is a bit of the sum.
  const bool carry_in = i.opcode == "addc" || i.opcode == "subc" || i.opcode == "madc";
  llvm::Type* wide = SameShape(a, IntType(type.bits * 2u));
  llvm::Value* wa = builder_.CreateZExt(a, wide);
  llvm::Value* wb = builder_.CreateZExt(b, wide);
  bool uniform = args.uniform;
  llvm::Value* carry = nullptr;
  if (carry_in) {
    const LaneValue in = ReadRegister(i.carry_in >= 0 ? i.carry_in : kernel_.carry_register);
    if (uniform && !in.uniform()) {
      wa = Splat(builder_, wa);
      wb = Splat(builder_, wb);
      uniform = false;
    }
    carry = uniform ? in.scalar : AsVector(builder_, in);
    carry = builder_.CreateZExt(carry, wa->getType());
  }
  llvm::Value* total = subtract ? builder_.CreateSub(wa, wb) : builder_.CreateAdd(wa, wb);
  if (carry != nullptr) {
    total = subtract ? builder_.CreateSub(total, carry) : builder_.CreateAdd(total, carry);
  }
  const auto wrap = [&](llvm::Value* v) {
    return uniform ? LaneValue::Uniform(v) : LaneValue::Varying(v);
  };
  if (i.Has("cc")) {
    llvm::Value* high = builder_.CreateLShr(total, Constant(total, type.bits));
    WriteRegister(i.carry_out >= 0 ? i.carry_out : kernel_.carry_register,
                  wrap(builder_.CreateTrunc(high, SameShape(high, builder_.getInt1Ty()))));
  }
  return Set(i, 0, wrap(builder_.CreateTrunc(total, SameShape(total, IntType(type.bits)))), type);
}

absl::Status InstructionEmitter::EmitAddSub(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float())
    return type.bits == 16 || type.lanes == 2 ? EmitHalfArithmetic(i) : EmitFloatArithmetic(i);
  if (type.lanes != 1) return EmitPackedInteger(i);
  const bool subtract = i.opcode == "sub" || i.opcode == "subc";
  if (i.Has("cc") || i.opcode == "addc" || i.opcode == "subc") {
    ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, type}}));
    return EmitCarryAdd(i, args.v[0], args.v[1], args, type, subtract);
  }
  ASSIGN_OR_RETURN(const LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(const LaneValue b, Get(i, 2, type));
  if (!i.Has("sat") && (a.pattern() || b.pattern())) {
    return Set(i, 0, PatternAdd(a, b, subtract), type);
  }
  const Args args = Unify({a, b});
  if (i.Has("sat")) {
    const ID id = subtract
                      ? (type.is_signed() ? llvm::Intrinsic::ssub_sat : llvm::Intrinsic::usub_sat)
                      : (type.is_signed() ? llvm::Intrinsic::sadd_sat : llvm::Intrinsic::uadd_sat);
    return Set(i, 0, args.Wrap(Intrinsic(id, {args.v[0], args.v[1]})), type);
  }
  return Set(i, 0,
             args.Wrap(subtract ? builder_.CreateSub(args.v[0], args.v[1])
                                : builder_.CreateAdd(args.v[0], args.v[1])),
             type);
}

llvm::Value* InstructionEmitter::MulHigh(llvm::Value* a, llvm::Value* b, bool is_signed) {
  const unsigned bits = a->getType()->getScalarSizeInBits();
  llvm::Type* wide = SameShape(a, IntType(bits * 2));
  const auto extend = [&](llvm::Value* v) {
    return is_signed ? builder_.CreateSExt(v, wide) : builder_.CreateZExt(v, wide);
  };
  llvm::Value* product = builder_.CreateMul(extend(a), extend(b));
  return builder_.CreateTrunc(builder_.CreateLShr(product, Constant(product, bits)), a->getType());
}

absl::Status InstructionEmitter::EmitMul(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float())
    return type.bits == 16 || type.lanes == 2 ? EmitHalfArithmetic(i) : EmitFloatArithmetic(i);
  ASSIGN_OR_RETURN(LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(LaneValue b, Get(i, 2, type));
  if (i.opcode == "mul24") {
    // The low 24 bits of each, 48 of the product.
    const Args args = Unify({a, b});
    const auto cut = [&](llvm::Value* v) {
      llvm::Value* up = builder_.CreateShl(v, Constant(v, 8));
      return type.is_signed() ? builder_.CreateAShr(up, Constant(v, 8))
                              : builder_.CreateLShr(up, Constant(v, 8));
    };
    llvm::Value* x = cut(args.v[0]);
    llvm::Value* y = cut(args.v[1]);
    if (!i.Has("hi")) return Set(i, 0, args.Wrap(builder_.CreateMul(x, y)), type);
    llvm::Type* wide = SameShape(x, IntType(64));
    llvm::Value* product =
        type.is_signed()
            ? builder_.CreateMul(builder_.CreateSExt(x, wide), builder_.CreateSExt(y, wide))
            : builder_.CreateMul(builder_.CreateZExt(x, wide), builder_.CreateZExt(y, wide));
    product = builder_.CreateLShr(product, Constant(product, 16));
    return Set(i, 0, args.Wrap(builder_.CreateTrunc(product, x->getType())), type);
  }
  if (i.Has("wide")) {
    Type wide = type;
    wide.bits *= 2;
    a = Resize(a, wide.bits, type.is_signed());
    b = Resize(b, wide.bits, type.is_signed());
    if (a.pattern() || b.pattern()) return Set(i, 0, PatternMul(a, b), wide);
    const Args args = Unify({a, b});
    return Set(i, 0, args.Wrap(builder_.CreateMul(args.v[0], args.v[1])), wide);
  }
  if (i.Has("hi")) {
    const Args args = Unify({a, b});
    return Set(i, 0, args.Wrap(MulHigh(args.v[0], args.v[1], type.is_signed())), type);
  }
  if (a.pattern() || b.pattern()) return Set(i, 0, PatternMul(a, b), type);
  const Args args = Unify({a, b});
  return Set(i, 0, args.Wrap(builder_.CreateMul(args.v[0], args.v[1])), type);
}

absl::Status InstructionEmitter::EmitMad(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float()) {
    if (i.opcode != "mad") return Malformed(i, "there is no such instruction for floating point");
    return type.bits == 16 || type.lanes == 2 ? EmitHalfArithmetic(i) : EmitFloatArithmetic(i);
  }
  if (i.opcode == "mad24") return Unsupported(i, "mad24");
  ASSIGN_OR_RETURN(LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(LaneValue b, Get(i, 2, type));
  Type sum = type;
  if (i.Has("wide")) {
    sum.bits *= 2;
    a = Resize(a, sum.bits, type.is_signed());
    b = Resize(b, sum.bits, type.is_signed());
  }
  ASSIGN_OR_RETURN(const LaneValue c, Get(i, 3, sum));
  LaneValue product;
  if (i.Has("hi")) {
    const Args args = Unify({a, b});
    product = args.Wrap(MulHigh(args.v[0], args.v[1], type.is_signed()));
  } else if (a.pattern() || b.pattern()) {
    product = PatternMul(a, b);
  } else {
    const Args args = Unify({a, b});
    product = args.Wrap(builder_.CreateMul(args.v[0], args.v[1]));
  }
  if (i.Has("cc") || i.opcode == "madc") {
    const Args args = Unify({product, c});
    return EmitCarryAdd(i, args.v[0], args.v[1], args, sum, false);
  }
  if (i.Has("sat")) {
    const Args args = Unify({product, c});
    return Set(i, 0, args.Wrap(Intrinsic(llvm::Intrinsic::sadd_sat, {args.v[0], args.v[1]})), sum);
  }
  if (product.pattern() || c.pattern()) return Set(i, 0, PatternAdd(product, c, false), sum);
  const Args args = Unify({product, c});
  return Set(i, 0, args.Wrap(builder_.CreateAdd(args.v[0], args.v[1])), sum);
}

absl::Status InstructionEmitter::EmitDivRem(const Instruction& i) {
  if (i.type().is_float()) return EmitFloatArithmetic(i);
  return EmitIntegerDivRem(i);
}

absl::Status InstructionEmitter::EmitIntegerDivRem(const Instruction& i) {
  // Nothing here may trap: division by zero gives all ones (remainder: the dividend) and
  // MIN / -1 gives MIN, as on the GPU. Idle lanes hold anything.
  const Type type = i.type();
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, type}}));
  llvm::Value* a = args.v[0];
  llvm::Value* b = args.v[1];
  const bool is_signed = type.is_signed();
  llvm::Value* zero = builder_.CreateICmpEQ(b, Constant(b, 0));
  llvm::Value* quotient;
  if (type.bits <= 32 && !llvm::isa<llvm::Constant>(b)) {
    // Exact: a double holds both operands, and a quotient that is not whole is farther from the
    // next whole number than rounding reaches. Vector units divide doubles, not integers.
    llvm::Type* real = SameShape(a, builder_.getDoubleTy());
    const auto convert = [&](llvm::Value* v) {
      return is_signed ? builder_.CreateSIToFP(v, real) : builder_.CreateUIToFP(v, real);
    };
    llvm::Value* safe = builder_.CreateSelect(zero, Constant(b, 1), b);
    llvm::Value* ratio = builder_.CreateFDiv(convert(a), convert(safe));
    llvm::Type* wide = SameShape(a, builder_.getInt64Ty());
    quotient = builder_.CreateTrunc(
        is_signed ? builder_.CreateFPToSI(ratio, wide) : builder_.CreateFPToUI(ratio, wide),
        a->getType());
  } else {
    llvm::Value* unsafe = zero;
    if (is_signed) {
      llvm::Value* minimum = Constant(a, uint64_t{1} << (type.bits - 1));
      unsafe = builder_.CreateOr(
          unsafe, builder_.CreateAnd(
                      builder_.CreateICmpEQ(a, minimum),
                      builder_.CreateICmpEQ(b, llvm::Constant::getAllOnesValue(b->getType()))));
    }
    llvm::Value* safe = builder_.CreateSelect(unsafe, Constant(b, 1), b);
    quotient = is_signed ? builder_.CreateSDiv(a, safe) : builder_.CreateUDiv(a, safe);
  }
  if (i.opcode == "div") {
    llvm::Value* ones = llvm::Constant::getAllOnesValue(a->getType());
    return Set(i, 0, args.Wrap(builder_.CreateSelect(zero, ones, quotient)), type);
  }
  llvm::Value* remainder = builder_.CreateSub(a, builder_.CreateMul(quotient, b));
  return Set(i, 0, args.Wrap(remainder), type);  // b == 0: a - q * 0 = a
}

absl::Status InstructionEmitter::EmitAbsNeg(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float()) return EmitFloatAbsNeg(i);
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}}));
  if (i.opcode == "neg") return Set(i, 0, args.Wrap(builder_.CreateNeg(args.v[0])), type);
  return Set(i, 0,
             args.Wrap(builder_.CreateIntrinsic(args.v[0]->getType(), llvm::Intrinsic::abs,
                                                {args.v[0], builder_.getFalse()})),
             type);
}

absl::Status InstructionEmitter::EmitMinMax(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float()) return EmitFloatMinMax(i);
  if (type.lanes != 1) return EmitPackedInteger(i);
  const bool minimum = i.opcode == "min";
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, type}}));
  const ID id = minimum ? (type.is_signed() ? llvm::Intrinsic::smin : llvm::Intrinsic::umin)
                        : (type.is_signed() ? llvm::Intrinsic::smax : llvm::Intrinsic::umax);
  llvm::Value* value = Intrinsic(id, {args.v[0], args.v[1]});
  if (i.Has("relu")) value = Intrinsic(llvm::Intrinsic::smax, {value, Constant(value, 0)});
  return Set(i, 0, args.Wrap(value), type);
}

absl::Status InstructionEmitter::EmitPackedInteger(const Instruction& i) {
  // Two 16-bit lanes in a 32-bit register: twice as many vector elements.
  const Type type = i.type();
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, type}}));
  const unsigned elements = args.uniform ? 2 : 2 * kWarpSize;
  llvm::Type* packed = llvm::FixedVectorType::get(IntType(16), elements);
  llvm::Value* a = builder_.CreateBitCast(args.v[0], packed);
  llvm::Value* b = builder_.CreateBitCast(args.v[1], packed);
  llvm::Value* value;
  if (i.opcode == "add") {
    value = builder_.CreateAdd(a, b);
  } else if (i.opcode == "min" || i.opcode == "max") {
    const bool minimum = i.opcode == "min";
    value = Intrinsic(minimum ? (type.is_signed() ? llvm::Intrinsic::smin : llvm::Intrinsic::umin)
                              : (type.is_signed() ? llvm::Intrinsic::smax : llvm::Intrinsic::umax),
                      {a, b});
    if (i.Has("relu")) value = Intrinsic(llvm::Intrinsic::smax, {value, Constant(value, 0)});
  } else {
    return Unsupported(i, "packed integers here");
  }
  return Set(i, 0, args.Wrap(builder_.CreateBitCast(value, args.v[0]->getType())), type);
}

absl::Status InstructionEmitter::EmitLogic(const Instruction& i) {
  Type type = i.type();
  if (type.kind != Type::kPred) type.kind = Type::kBits;
  if (i.opcode == "not" || i.opcode == "cnot") {
    ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}}));
    if (i.opcode == "not") return Set(i, 0, args.Wrap(builder_.CreateNot(args.v[0])), type);
    llvm::Value* zero = builder_.CreateICmpEQ(args.v[0], Constant(args.v[0], 0));
    return Set(i, 0, args.Wrap(builder_.CreateZExt(zero, args.v[0]->getType())), type);
  }
  ASSIGN_OR_RETURN(const LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(const LaneValue b, Get(i, 2, type));
  // tid & 31: below the known zero bits of the base a pattern is a constant.
  for (const auto& [p, m] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    auto* constant = m->uniform() ? llvm::dyn_cast<llvm::ConstantInt>(m->scalar) : nullptr;
    if (i.opcode != "and" || !p->pattern() || p->valid != nullptr || constant == nullptr) continue;
    const uint64_t mask = constant->getZExtValue();
    const uint64_t limit = uint64_t{1} << std::min(p->zero_bits, 62u);
    bool inside = true;
    LaneOffsets offsets;
    for (int k = 0; k < kWarpSize; ++k) {
      inside = inside && (*p->offsets)[k] >= 0 && static_cast<uint64_t>((*p->offsets)[k]) < limit;
      offsets[k] = static_cast<int64_t>(static_cast<uint64_t>((*p->offsets)[k]) & mask);
    }
    if (!inside) continue;
    // Base and offsets have no bit in common, so each is masked by itself.
    LaneValue value;
    value.scalar = mask < limit ? Constant(p->scalar, 0)
                                : builder_.CreateAnd(p->scalar, Constant(p->scalar, mask));
    value.zero_bits = mask < limit ? 32 : p->zero_bits;
    value.value_bits = std::min(p->value_bits, static_cast<unsigned>(std::bit_width(mask)));
    bool flat = true;
    for (const int64_t offset : offsets) flat = flat && offset == 0;
    if (!flat) value.offsets = Keep(offsets);
    return Set(i, 0, value, type);
  }
  const Args args = Unify({a, b});
  llvm::Value* value = i.opcode == "and"  ? builder_.CreateAnd(args.v[0], args.v[1])
                       : i.opcode == "or" ? builder_.CreateOr(args.v[0], args.v[1])
                                          : builder_.CreateXor(args.v[0], args.v[1]);
  return Set(i, 0, args.Wrap(value), type);
}

absl::Status InstructionEmitter::EmitShift(const Instruction& i) {
  // Amounts of the width and more are defined in PTX, poison in LLVM.
  const Type type = i.type();
  const bool left = i.opcode == "shl";
  const bool arithmetic = !left && type.is_signed();
  ASSIGN_OR_RETURN(const LaneValue value, Get(i, 1, type));
  ASSIGN_OR_RETURN(const LaneValue amount, Get(i, 2, Type{Type::kUnsigned, 1, 32}));
  if (auto* constant =
          amount.uniform() ? llvm::dyn_cast<llvm::ConstantInt>(amount.scalar) : nullptr) {
    const uint64_t by = constant->getZExtValue();
    if (left && value.pattern() && by < type.bits) {
      const LaneValue factor =
          LaneValue::Uniform(llvm::ConstantInt::get(value.scalar->getType(), uint64_t{1} << by));
      return Set(i, 0, PatternMul(value, factor), type);
    }
    if (!left && value.pattern() && value.valid == nullptr && value.value_bits < type.bits &&
        by >= value.value_bits) {
      // tid >> 31, the sign in division by a power of two.
      return Set(i, 0, LaneValue::Uniform(Constant(value.scalar, 0)), type);
    }
    if (!left && value.pattern() && value.valid == nullptr && by <= value.zero_bits &&
        by < type.bits) {
      bool inside = true;
      LaneOffsets offsets;
      bool flat = true;
      for (int k = 0; k < kWarpSize; ++k) {
        const int64_t offset = (*value.offsets)[k];
        inside = inside && offset >= 0 && offset < (int64_t{1} << std::min(value.zero_bits, 62u));
        offsets[k] = offset >> by;
        flat = flat && offsets[k] == 0;
      }
      if (inside) {
        LaneValue result;
        result.scalar = arithmetic ? builder_.CreateAShr(value.scalar, Constant(value.scalar, by))
                                   : builder_.CreateLShr(value.scalar, Constant(value.scalar, by));
        result.zero_bits = value.zero_bits - static_cast<unsigned>(by);
        if (value.value_bits < kKnownBits)
          result.value_bits = value.value_bits - static_cast<unsigned>(by);
        if (!flat) result.offsets = Keep(offsets);
        return Set(i, 0, result, type);
      }
    }
    const Args args = Unify({value});
    llvm::Value* v = args.v[0];
    llvm::Value* result;
    if (by >= type.bits) {
      result = arithmetic ? builder_.CreateAShr(v, Constant(v, type.bits - 1u)) : Constant(v, 0);
    } else {
      result = left         ? builder_.CreateShl(v, Constant(v, by))
               : arithmetic ? builder_.CreateAShr(v, Constant(v, by))
                            : builder_.CreateLShr(v, Constant(v, by));
    }
    return Set(i, 0, args.Wrap(result), type);
  }
  const Args args = Unify({value, amount});
  llvm::Value* v = args.v[0];
  llvm::Value* by = args.v[1];
  llvm::Value* limit = Constant(by, type.bits - 1u);
  llvm::Value* clamped = Intrinsic(llvm::Intrinsic::umin, {by, limit});
  clamped = builder_.CreateZExtOrTrunc(clamped, v->getType());
  llvm::Value* result = left         ? builder_.CreateShl(v, clamped)
                        : arithmetic ? builder_.CreateAShr(v, clamped)
                                     : builder_.CreateLShr(v, clamped);
  if (!arithmetic) {
    result = builder_.CreateSelect(builder_.CreateICmpUGT(by, limit), Constant(v, 0), result);
  }
  return Set(i, 0, args.Wrap(result), type);
}

absl::Status InstructionEmitter::EmitFunnelShift(const Instruction& i) {
  const Type u32 = {Type::kUnsigned, 1, 32};
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, u32}, {2, u32}, {3, u32}}));
  llvm::Value* amount = args.v[2];
  // Both values side by side in 64 bits, so that an amount of 32 needs no special case.
  amount = i.Has("clamp") ? Intrinsic(llvm::Intrinsic::umin, {amount, Constant(amount, 32)})
                          : builder_.CreateAnd(amount, Constant(amount, 31));
  llvm::Type* wide = SameShape(args.v[0], IntType(64));
  llvm::Value* both = builder_.CreateOr(
      builder_.CreateZExt(args.v[0], wide),
      builder_.CreateShl(builder_.CreateZExt(args.v[1], wide), llvm::ConstantInt::get(wide, 32)));
  llvm::Value* by = builder_.CreateZExt(amount, wide);
  llvm::Value* result = i.Has("l") ? builder_.CreateLShr(builder_.CreateShl(both, by),
                                                         llvm::ConstantInt::get(wide, 32))
                                   : builder_.CreateLShr(both, by);
  return Set(i, 0, args.Wrap(builder_.CreateTrunc(result, args.v[0]->getType())), u32);
}

absl::Status InstructionEmitter::EmitBitCount(const Instruction& i) {
  const Type type = i.type();
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}}));
  llvm::Value* v = args.v[0];
  const Type u32 = {Type::kUnsigned, 1, 32};
  if (i.opcode == "brev") {
    return Set(i, 0, args.Wrap(Intrinsic(llvm::Intrinsic::bitreverse, {v})), type);
  }
  llvm::Value* count;
  if (i.opcode == "popc") {
    count = Intrinsic(llvm::Intrinsic::ctpop, {v});
  } else {
    if (i.opcode == "bfind" && type.is_signed()) {  // of a negative number, the top zero bit
      v = builder_.CreateXor(v, builder_.CreateAShr(v, Constant(v, type.bits - 1u)));
    }
    count = builder_.CreateIntrinsic(v->getType(), llvm::Intrinsic::ctlz, {v, builder_.getFalse()});
  }
  count = builder_.CreateZExtOrTrunc(count, SameShape(v, IntType(32)));
  if (i.opcode == "bfind") {
    llvm::Value* position =
        i.Has("shiftamt") ? count : builder_.CreateSub(Constant(count, type.bits - 1u), count);
    llvm::Value* none = builder_.CreateICmpEQ(v, Constant(v, 0));
    count = builder_.CreateSelect(none, Constant(count, 0xffffffff), position);
  }
  return Set(i, 0, args.Wrap(count), u32);
}

absl::Status InstructionEmitter::EmitBitField(const Instruction& i) {
  const Type type = i.type();
  const Type u32 = {Type::kUnsigned, 1, 32};
  if (i.opcode == "fns") return Unsupported(i, "fns");
  if (i.opcode == "bmsk") {
    ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, u32}, {2, u32}}));
    const bool clamp = i.Has("clamp");
    llvm::Value* a = args.v[0];
    llvm::Value* b = args.v[1];
    if (!clamp) {
      a = builder_.CreateAnd(a, Constant(a, 31));
      b = builder_.CreateAnd(b, Constant(b, 31));
    } else {
      a = Intrinsic(llvm::Intrinsic::umin, {a, Constant(a, 32)});
      b = Intrinsic(llvm::Intrinsic::umin, {b, Constant(b, 32)});
    }
    llvm::Type* wide = SameShape(a, IntType(64));
    llvm::Value* one = llvm::ConstantInt::get(wide, 1);
    llvm::Value* ones =
        builder_.CreateSub(builder_.CreateShl(one, builder_.CreateZExt(b, wide)), one);
    llvm::Value* mask = builder_.CreateShl(ones, builder_.CreateZExt(a, wide));
    return Set(i, 0, args.Wrap(builder_.CreateTrunc(mask, a->getType())), u32);
  }
  if (i.opcode == "szext") {
    ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, u32}}));
    llvm::Value* b = args.v[1];
    b = i.Has("wrap") ? builder_.CreateAnd(b, Constant(b, 31))
                      : Intrinsic(llvm::Intrinsic::umin, {b, Constant(b, 32)});
    llvm::Type* wide = SameShape(b, IntType(64));
    llvm::Value* by =
        builder_.CreateSub(llvm::ConstantInt::get(wide, 64), builder_.CreateZExt(b, wide));
    llvm::Value* none = builder_.CreateICmpEQ(b, Constant(b, 0));
    by = builder_.CreateSelect(none, llvm::ConstantInt::get(wide, 0), by);
    llvm::Value* up = builder_.CreateShl(builder_.CreateZExt(args.v[0], wide), by);
    llvm::Value* down =
        type.is_signed() ? builder_.CreateAShr(up, by) : builder_.CreateLShr(up, by);
    llvm::Value* result = builder_.CreateTrunc(down, args.v[0]->getType());
    return Set(i, 0, args.Wrap(builder_.CreateSelect(none, Constant(result, 0), result)), type);
  }
  if (i.opcode == "bfe") {
    ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, u32}, {3, u32}}));
    // Shift in 128 (or 64) bits: the sign extended source up, then down again.
    llvm::Value* pos = builder_.CreateAnd(args.v[1], Constant(args.v[1], 255));
    llvm::Value* len = builder_.CreateAnd(args.v[2], Constant(args.v[2], 255));
    llvm::Value* v = args.v[0];
    llvm::Type* vt = v->getType();
    const unsigned bits = type.bits;
    // Field beyond the source: filled with the sign bit of the field (signed) or zero.
    llvm::Value* top = Constant(pos, bits - 1u);
    llvm::Value* clamped = Intrinsic(llvm::Intrinsic::umin, {pos, top});
    llvm::Value* beyond = builder_.CreateICmpUGT(pos, top);
    llvm::Value* by = builder_.CreateZExtOrTrunc(clamped, vt);
    llvm::Value* fill =
        type.is_signed() ? builder_.CreateAShr(v, Constant(v, bits - 1u)) : Constant(v, 0);
    llvm::Value* shifted =
        type.is_signed() ? builder_.CreateAShr(v, by) : builder_.CreateLShr(v, by);
    shifted = builder_.CreateSelect(beyond, fill, shifted);
    // Cut to len bits.
    llvm::Value* whole = builder_.CreateICmpUGE(len, Constant(len, bits));
    llvm::Value* empty = builder_.CreateICmpEQ(len, Constant(len, 0));
    llvm::Value* special = builder_.CreateOr(whole, empty);
    llvm::Value* drop = builder_.CreateSelect(special, Constant(len, 0),
                                              builder_.CreateSub(Constant(len, bits), len));
    drop = builder_.CreateZExtOrTrunc(drop, vt);
    llvm::Value* up = builder_.CreateShl(shifted, drop);
    llvm::Value* cut =
        type.is_signed() ? builder_.CreateAShr(up, drop) : builder_.CreateLShr(up, drop);
    return Set(i, 0, args.Wrap(builder_.CreateSelect(empty, Constant(v, 0), cut)), type);
  }
  // bfi: insert the low len bits of a into b at pos.
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, type}, {3, u32}, {4, u32}}));
  llvm::Value* a = args.v[0];
  llvm::Value* b = args.v[1];
  llvm::Type* vt = a->getType();
  const unsigned bits = type.bits;
  llvm::Value* pos = builder_.CreateAnd(args.v[2], Constant(args.v[2], 255));
  llvm::Value* len = builder_.CreateAnd(args.v[3], Constant(args.v[3], 255));
  llvm::Value* beyond = builder_.CreateICmpUGE(pos, Constant(pos, bits));
  llvm::Value* by = builder_.CreateZExtOrTrunc(
      Intrinsic(llvm::Intrinsic::umin, {pos, Constant(pos, bits - 1u)}), vt);
  llvm::Value* whole = builder_.CreateICmpUGE(len, Constant(len, bits));
  llvm::Value* n = builder_.CreateZExtOrTrunc(
      Intrinsic(llvm::Intrinsic::umin, {len, Constant(len, bits - 1u)}), vt);
  llvm::Value* one = Constant(a, 1);
  llvm::Value* field = builder_.CreateSub(builder_.CreateShl(one, n), one);
  field = builder_.CreateSelect(whole, llvm::Constant::getAllOnesValue(vt), field);
  llvm::Value* mask = builder_.CreateShl(field, by);
  mask = builder_.CreateSelect(beyond, Constant(a, 0), mask);
  llvm::Value* inserted = builder_.CreateAnd(builder_.CreateShl(a, by), mask);
  llvm::Value* kept = builder_.CreateAnd(b, builder_.CreateNot(mask));
  return Set(i, 0, args.Wrap(builder_.CreateOr(inserted, kept)), type);
}

absl::Status InstructionEmitter::EmitPermute(const Instruction& i) {
  const Type u32 = {Type::kUnsigned, 1, 32};
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, u32}, {2, u32}, {3, u32}}));
  llvm::Type* wide = SameShape(args.v[0], IntType(64));
  llvm::Value* source = builder_.CreateOr(
      builder_.CreateZExt(args.v[0], wide),
      builder_.CreateShl(builder_.CreateZExt(args.v[1], wide), llvm::ConstantInt::get(wide, 32)));
  llvm::Value* c = args.v[2];
  static constexpr absl::string_view kModes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  int mode = -1;
  for (int k = 0; k < 6; ++k) {
    if (i.Has(kModes[k])) mode = k;
  }
  llvm::Value* result = Constant(c, 0);
  for (unsigned byte = 0; byte < 4; ++byte) {
    llvm::Value* selector;
    llvm::Value* sign = nullptr;
    llvm::Value* low = builder_.CreateAnd(c, Constant(c, 3));
    switch (mode) {
      case 0:
        selector = builder_.CreateAdd(low, Constant(c, byte));
        break;
      case 1:  // backwards from c, modulo 8
        selector = builder_.CreateAnd(builder_.CreateSub(low, Constant(c, byte)), Constant(c, 7));
        break;
      case 2:
        selector = low;
        break;
      case 3:
        selector = Intrinsic(llvm::Intrinsic::umax, {low, Constant(c, byte)});
        break;
      case 4:
        selector = Intrinsic(llvm::Intrinsic::umin, {low, Constant(c, byte)});
        break;
      case 5:
        selector = builder_.CreateAdd(
            builder_.CreateShl(builder_.CreateAnd(c, Constant(c, 1)), Constant(c, 1)),
            Constant(c, byte & 1));
        break;
      default: {
        llvm::Value* nibble = builder_.CreateLShr(c, Constant(c, byte * 4));
        selector = builder_.CreateAnd(nibble, Constant(c, 7));
        sign = builder_.CreateICmpNE(builder_.CreateAnd(nibble, Constant(c, 8)), Constant(c, 0));
      }
    }
    llvm::Value* by = builder_.CreateZExt(builder_.CreateShl(selector, Constant(c, 3)), wide);
    llvm::Value* picked =
        builder_.CreateTrunc(builder_.CreateLShr(source, by), SameShape(c, IntType(8)));
    if (sign != nullptr) {
      picked =
          builder_.CreateSelect(sign, builder_.CreateAShr(picked, Constant(picked, 7)), picked);
    }
    llvm::Value* placed = builder_.CreateZExt(picked, c->getType());
    result = builder_.CreateOr(result, builder_.CreateShl(placed, Constant(c, byte * 8)));
  }
  return Set(i, 0, args.Wrap(result), u32);
}

absl::Status InstructionEmitter::EmitLop3(const Instruction& i) {
  const Type b32 = {Type::kBits, 1, 32};
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, b32}, {2, b32}, {3, b32}}));
  if (i.operands.size() < 5 || i.operands[4].kind != Operand::Kind::kImmediate) {
    return Malformed(i, "lop3 needs a constant table");
  }
  if (i.operands[0].kind == Operand::Kind::kPair) return Unsupported(i, "lop3 with a predicate");
  const uint64_t table = i.operands[4].bits;
  llvm::Value* result = Constant(args.v[0], 0);
  for (int row = 0; row < 8; ++row) {
    if ((table >> row & 1) == 0) continue;
    llvm::Value* term = nullptr;
    for (int k = 0; k < 3; ++k) {
      llvm::Value* input = row >> (2 - k) & 1 ? args.v[k] : builder_.CreateNot(args.v[k]);
      term = term == nullptr ? input : builder_.CreateAnd(term, input);
    }
    result = builder_.CreateOr(result, term);
  }
  return Set(i, 0, args.Wrap(result), b32);
}

absl::Status InstructionEmitter::EmitDotProduct(const Instruction& i) {
  if (i.types.size() != 2) return Malformed(i, "two types are needed");
  const Type b32 = {Type::kBits, 1, 32};
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, b32}, {2, b32}, {3, b32}}));
  const bool four = i.opcode == "dp4a";
  const auto field = [&](llvm::Value* v, unsigned from, unsigned bits, bool is_signed) {
    llvm::Value* up = builder_.CreateShl(v, Constant(v, 32 - bits - from));
    return is_signed ? builder_.CreateAShr(up, Constant(v, 32 - bits))
                     : builder_.CreateLShr(up, Constant(v, 32 - bits));
  };
  llvm::Value* sum = args.v[2];
  for (unsigned k = 0; k < (four ? 4u : 2u); ++k) {
    llvm::Value* a = four ? field(args.v[0], k * 8, 8, i.types[0].is_signed())
                          : field(args.v[0], k * 16, 16, i.types[0].is_signed());
    const unsigned at = four ? k * 8 : (i.Has("hi") ? 16 : 0) + k * 8;
    llvm::Value* b = field(args.v[1], at, 8, i.types[1].is_signed());
    sum = builder_.CreateAdd(sum, builder_.CreateMul(a, b));
  }
  return Set(i, 0, args.Wrap(sum), b32);
}

absl::Status InstructionEmitter::EmitSad(const Instruction& i) {
  const Type type = i.type();
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, type}, {3, type}}));
  llvm::Value* a = args.v[0];
  llvm::Value* b = args.v[1];
  llvm::Value* less =
      type.is_signed() ? builder_.CreateICmpSLT(a, b) : builder_.CreateICmpULT(a, b);
  llvm::Value* distance =
      builder_.CreateSelect(less, builder_.CreateSub(b, a), builder_.CreateSub(a, b));
  return Set(i, 0, args.Wrap(builder_.CreateAdd(args.v[2], distance)), type);
}

}  // namespace fargpu::softgpu
