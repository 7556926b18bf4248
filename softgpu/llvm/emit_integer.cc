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

constexpr int64_t kMaxScale = 1 << 16;  // of a ScaledIndex

}  // namespace

// Sum or difference of two values of which at least one has a form.
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
  LaneValue sum = LaneValue::Varying(combine(AsVector(builder_, a), AsVector(builder_, b)));
  const LaneValue& varying = a.scaled != nullptr ? a : b;
  const LaneValue& uniform = a.scaled != nullptr ? b : a;
  if (varying.scaled != nullptr && uniform.uniform() && !(subtract && &uniform == &a)) {
    ScaledIndex scaled = *varying.scaled;
    scaled.base =
        combine(scaled.base != nullptr ? scaled.base : builder_.getInt64(0), uniform.scalar);
    sum.scaled = Keep(scaled);
    sum.in_runs = varying.in_runs;
    sum.stride = varying.stride;
  }
  return sum;
}

// Product of a value that has a form and a constant; of anything else not more is known.
LaneValue InstructionEmitter::PatternMul(const LaneValue& a, const LaneValue& b) {
  if (a.scaled != nullptr || b.scaled != nullptr) {
    LaneValue product =
        LaneValue::Varying(builder_.CreateMul(AsVector(builder_, a), AsVector(builder_, b)));
    const LaneValue& value = a.scaled != nullptr ? a : b;
    const LaneValue& by = a.scaled != nullptr ? b : a;
    auto* known = by.uniform() ? llvm::dyn_cast<llvm::ConstantInt>(by.scalar) : nullptr;
    // Scales of this size are those of elements and of rows of a known length.
    if (known != nullptr && known->getZExtValue() - 1 < kMaxScale &&
        value.scaled->scale <= kMaxScale) {
      ScaledIndex scaled = *value.scaled;
      scaled.scale *= known->getSExtValue();
      if (scaled.base != nullptr) scaled.base = builder_.CreateMul(scaled.base, by.scalar);
      product.scaled = Keep(scaled);
    }
    return product;
  }
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
  // In twice the width the carry is a bit of the sum. A card subtracts by adding a + ~b + 1, and
  // what it keeps is that sum's carry: after sub.cc the flag says that nothing was borrowed, which
  // addc sees (nvcc's division of 128 bits lives on it).
  const bool carry_in = i.opcode == "addc" || i.opcode == "subc" || i.opcode == "madc";
  llvm::Type* wide = SameShape(a, IntType(type.bits * 2u));
  llvm::Value* wa = builder_.CreateZExt(a, wide);
  llvm::Value* wb = builder_.CreateZExt(subtract ? builder_.CreateNot(b) : b, wide);
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
  if (subtract && carry == nullptr) carry = Constant(wa, 1);
  llvm::Value* total = builder_.CreateAdd(wa, wb);
  if (carry != nullptr) total = builder_.CreateAdd(total, carry);
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
  if (!i.Has("sat") && (HasForm(a) || HasForm(b))) {
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

// The low 24 bits of each factor; of the product bits 0 to 31, or 16 to 47.
llvm::Value* InstructionEmitter::Mul24(const Instruction& i, llvm::Value* a, llvm::Value* b) {
  const bool is_signed = i.type().is_signed();
  llvm::Type* wide = SameShape(a, IntType(64));
  const auto cut = [&](llvm::Value* v) {
    llvm::Value* up = builder_.CreateShl(v, Constant(v, 8));
    return is_signed ? builder_.CreateSExt(builder_.CreateAShr(up, Constant(v, 8)), wide)
                     : builder_.CreateZExt(builder_.CreateLShr(up, Constant(v, 8)), wide);
  };
  llvm::Value* product = builder_.CreateMul(cut(a), cut(b));
  if (i.Has("hi")) product = builder_.CreateLShr(product, Constant(product, 16));
  return builder_.CreateTrunc(product, a->getType());
}

absl::Status InstructionEmitter::EmitMul(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float())
    return type.bits == 16 || type.lanes == 2 ? EmitHalfArithmetic(i) : EmitFloatArithmetic(i);
  ASSIGN_OR_RETURN(LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(LaneValue b, Get(i, 2, type));
  if (i.opcode == "mul24") {
    if (type.bits != 32) return Malformed(i, "mul24 is for 32 bits");
    const Args args = Unify({a, b});
    return Set(i, 0, args.Wrap(Mul24(i, args.v[0], args.v[1])), type);
  }
  if (i.Has("wide")) {
    Type wide = type;
    wide.bits *= 2;
    a = Resize(a, wide.bits, type.is_signed());
    b = Resize(b, wide.bits, type.is_signed());
    if (HasForm(a) || HasForm(b)) return Set(i, 0, PatternMul(a, b), wide);
    const Args args = Unify({a, b});
    return Set(i, 0, args.Wrap(builder_.CreateMul(args.v[0], args.v[1])), wide);
  }
  if (i.Has("hi")) {
    const Args args = Unify({a, b});
    return Set(i, 0, args.Wrap(MulHigh(args.v[0], args.v[1], type.is_signed())), type);
  }
  if (HasForm(a) || HasForm(b)) return Set(i, 0, PatternMul(a, b), type);
  const Args args = Unify({a, b});
  return Set(i, 0, args.Wrap(builder_.CreateMul(args.v[0], args.v[1])), type);
}

absl::Status InstructionEmitter::EmitMad(const Instruction& i) {
  const Type type = i.type();
  if (type.is_float()) {
    if (i.opcode != "mad") return Malformed(i, "there is no such instruction for floating point");
    return type.bits == 16 || type.lanes == 2 ? EmitHalfArithmetic(i) : EmitFloatArithmetic(i);
  }
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
  if (i.opcode == "mad24") {
    if (type.bits != 32 || i.Has("wide")) return Malformed(i, "mad24 is for 32 bits");
    const Args args = Unify({a, b});
    product = args.Wrap(Mul24(i, args.v[0], args.v[1]));
  } else if (i.Has("hi")) {
    const Args args = Unify({a, b});
    product = args.Wrap(MulHigh(args.v[0], args.v[1], type.is_signed()));
  } else if (HasForm(a) || HasForm(b)) {
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
  if (HasForm(product) || HasForm(c)) return Set(i, 0, PatternAdd(product, c, false), sum);
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

}  // namespace fargpu::softgpu
