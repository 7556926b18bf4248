// Instruction family: cvt. Conversions to integers clamp, and NaN gives zero (or the top bit where
// the source is f64 or the target has 64 bits); nothing of that is LLVM's default.
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

namespace {

// Formats without infinities and NaN: what is none of their numbers becomes the largest.
constexpr NarrowFormat kE2M3Format = {3, 0, 6, 0x20, 0x1f};
constexpr NarrowFormat kE3M2Format = {2, -2, 6, 0x20, 0x1f};
constexpr NarrowFormat kE2M1Format = {1, 0, 4, 0x8, 0x7};

RoundingMode ModeOf(const ptx::Instruction& i) {
  if (i.Has("rna")) return RoundingMode::kNearestAway;
  if (i.Has("rz") || i.Has("rzi")) return RoundingMode::kZero;
  if (i.Has("rm") || i.Has("rmi")) return RoundingMode::kDown;
  if (i.Has("rp") || i.Has("rpi")) return RoundingMode::kUp;
  return RoundingMode::kNearest;
}

}  // namespace

llvm::Value* InstructionEmitter::Narrow(const NarrowFormat& format, RoundingMode mode, bool finite,
                                        llvm::Value* x) {
  llvm::Value* bits = AsBits(x);
  llvm::Value* sign = builder_.CreateLShr(bits, Constant(bits, 31));
  llvm::Value* negative = builder_.CreateICmpNE(sign, Constant(bits, 0));
  llvm::Value* magnitude = builder_.CreateAnd(bits, Constant(bits, 0x7fffffff));
  llvm::Value* one = Constant(bits, 1);
  llvm::Value* zero = Constant(bits, 0);
  // `value` without its lowest `by` bits, rounded; a carry into the exponent comes out right.
  const auto cut = [&](llvm::Value* value, llvm::Value* by) {
    llvm::Value* unit = builder_.CreateShl(one, by);
    llvm::Value* half = builder_.CreateLShr(unit, one);
    llvm::Value* almost = builder_.CreateSub(unit, one);
    llvm::Value* add = nullptr;
    switch (mode) {
      case RoundingMode::kNearest:
        add = builder_.CreateAdd(builder_.CreateSub(half, one),
                                 builder_.CreateAnd(builder_.CreateLShr(value, by), one));
        break;
      case RoundingMode::kNearestAway:
        add = half;
        break;
      case RoundingMode::kZero:
        add = zero;
        break;
      case RoundingMode::kDown:
        add = builder_.CreateSelect(negative, almost, zero);
        break;
      case RoundingMode::kUp:
        add = builder_.CreateSelect(negative, zero, almost);
        break;
    }
    return builder_.CreateLShr(builder_.CreateAdd(value, add), by);
  };
  llvm::Value* result = cut(magnitude, Constant(bits, 23 - format.fraction_bits));
  if (format.min_exponent != -126) {
    const uint32_t rebias = static_cast<uint32_t>(126 + format.min_exponent);
    result = builder_.CreateSub(result, Constant(bits, uint64_t{rebias} << format.fraction_bits));
    // Below the normal numbers the unit is fixed: cut more off the whole significand.
    llvm::Value* significand = builder_.CreateOr(
        builder_.CreateAnd(magnitude, Constant(bits, 0x7fffff)), Constant(bits, 0x800000));
    significand = builder_.CreateSelect(builder_.CreateICmpEQ(magnitude, zero), zero, significand);
    llvm::Value* exponent = builder_.CreateLShr(magnitude, Constant(bits, 23));
    llvm::Value* by = builder_.CreateSub(
        Constant(bits, 150 + static_cast<unsigned>(format.min_exponent) - format.fraction_bits),
        exponent);
    by = Intrinsic(llvm::Intrinsic::umin, {by, Constant(bits, 25)});
    llvm::Value* small =
        builder_.CreateICmpULT(magnitude, Constant(bits, uint64_t{rebias + 1} << 23));
    result = builder_.CreateSelect(small, cut(significand, by), result);
  }
  llvm::Value* infinity = Constant(bits, format.infinity);
  llvm::Value* largest = Constant(bits, format.infinity - 1);
  llvm::Value* beyond = infinity;
  if (finite || mode == RoundingMode::kZero) {
    beyond = largest;
  } else if (mode == RoundingMode::kDown) {
    beyond = builder_.CreateSelect(negative, infinity, largest);
  } else if (mode == RoundingMode::kUp) {
    beyond = builder_.CreateSelect(negative, largest, infinity);
  }
  result = builder_.CreateSelect(builder_.CreateICmpUGE(result, infinity), beyond, result);
  llvm::Value* infinite = Constant(bits, 0x7f800000);
  if (!finite) {
    result = builder_.CreateSelect(builder_.CreateICmpEQ(magnitude, infinite), infinity, result);
  }
  result = builder_.CreateOr(result, builder_.CreateShl(sign, Constant(bits, format.bits - 1)));
  return builder_.CreateSelect(builder_.CreateICmpUGT(magnitude, infinite),
                               Constant(bits, format.nan), result);
}

llvm::Value* InstructionEmitter::Relu(llvm::Value* x) {
  return builder_.CreateSelect(builder_.CreateFCmpUGT(x, FloatConstant(x, 0)), x,
                               FloatConstant(x, 0));
}

// A float as a half of `type`, as i16.
llvm::Value* InstructionEmitter::RoundToHalf(Type type, RoundingMode mode, bool finite,
                                             llvm::Value* x) {
  if (mode == RoundingMode::kNearest && !finite) return StoreHalf(type, x);
  const NarrowFormat& format = type.kind == Type::kBFloat ? kBFloatFormat : kHalfFormat;
  return builder_.CreateTrunc(Narrow(format, mode, finite, x), SameShape(x, IntType(16)));
}

// An integer as a float whose last bit is odd where something is lost, so that a second rounding to
// a half comes out right.
llvm::Value* InstructionEmitter::IntegerToOdd(llvm::Value* v, bool is_signed) {
  const unsigned bits = v->getType()->getScalarSizeInBits();
  if (bits == 64) {
    // A double holds 53 bits: of large numbers the low bits become one sticky bit.
    llvm::Value* low = builder_.CreateAnd(v, Constant(v, 0xfff));
    llvm::Value* sticky = builder_.CreateSelect(builder_.CreateICmpNE(low, Constant(v, 0)),
                                                Constant(v, 0x800), Constant(v, 0));
    llvm::Value* coarse = builder_.CreateOr(builder_.CreateXor(v, low), sticky);
    llvm::Value* magnitude = v;
    if (is_signed) {
      magnitude =
          builder_.CreateIntrinsic(v->getType(), llvm::Intrinsic::abs, {v, builder_.getFalse()});
    }
    llvm::Value* large = builder_.CreateICmpUGE(magnitude, Constant(v, uint64_t{1} << 52));
    v = builder_.CreateSelect(large, coarse, v);
  }
  llvm::Type* real = SameShape(v, builder_.getDoubleTy());
  return NarrowToOdd(is_signed ? builder_.CreateSIToFP(v, real) : builder_.CreateUIToFP(v, real));
}

absl::Status InstructionEmitter::EmitCvt(const Instruction& i) {
  if (i.Has("pack")) return EmitConvertPack(i);
  if (i.types.size() != 2) return Malformed(i, "cvt needs two types");
  if (i.Has("rs")) return Unsupported(i, "stochastic rounding");
  if (i.Has("rna") && !i.Has("tf32")) return Malformed(i, ".rna is for tf32 only");
  const Type to = i.types[0];
  const Type from = i.types[1];
  if (to.kind == Type::kPred || from.kind == Type::kPred || to.bits > 64 || from.bits > 64) {
    return Malformed(i, "cvt is for numbers of 8 to 64 bits");
  }
  if (to.lanes != 1 || from.lanes != 1) return ConvertPacked(i);
  if (from.kind == Type::kOtherFloat) return Unsupported(i, "this conversion");
  if (to.kind == Type::kOtherFloat) {
    if (from.kind != Type::kFloat || from.bits != 32) return Unsupported(i, "this conversion");
    ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, from}}));
    llvm::Value* x = i.Has("relu") ? Relu(args.v[0]) : args.v[0];
    llvm::Value* bits = Narrow(kTF32Format, ModeOf(i), i.Has("satfinite"), x);
    bits = builder_.CreateShl(bits, Constant(bits, 13));
    return Set(i, 0, args.Wrap(bits), {Type::kBits, 1, 32});
  }
  if (to.is_float()) {
    return from.is_float() ? ConvertFloatToFloat(i, to, from) : ConvertIntegerToFloat(i, to, from);
  }
  if (from.is_float()) return ConvertFloatToInteger(i, to, from);
  ASSIGN_OR_RETURN(LaneValue value, Get(i, 1, from));
  if (!i.Has("sat")) return Set(i, 0, Resize(value, to.bits, from.is_signed()), to);
  const Args args = Unify({value});
  return Set(i, 0, args.Wrap(ClampInteger(args.v[0], from, to.bits, to.is_signed())), to);
}

llvm::Value* InstructionEmitter::ClampInteger(llvm::Value* value, Type from, unsigned bits,
                                              bool is_signed) {
  // In a width that holds both.
  llvm::Type* wide = SameShape(value, IntType(from.bits > 32 || bits > 32 ? 128 : 64));
  const unsigned width = wide->getScalarSizeInBits();
  llvm::Value* v =
      from.is_signed() ? builder_.CreateSExt(value, wide) : builder_.CreateZExt(value, wide);
  const llvm::APInt low =
      is_signed ? llvm::APInt::getSignedMinValue(bits).sext(width) : llvm::APInt(width, 0);
  const llvm::APInt high = is_signed ? llvm::APInt::getSignedMaxValue(bits).sext(width)
                                     : llvm::APInt::getMaxValue(bits).zext(width);
  v = Intrinsic(llvm::Intrinsic::smax, {v, llvm::ConstantInt::get(wide, low)});
  v = Intrinsic(llvm::Intrinsic::smin, {v, llvm::ConstantInt::get(wide, high)});
  return builder_.CreateTrunc(v, SameShape(v, IntType(bits)));
}

absl::Status InstructionEmitter::ConvertIntegerToFloat(const Instruction& i, Type to, Type from) {
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, from}}));
  llvm::Value* v = args.v[0];
  const bool is_signed = from.is_signed();
  const RoundingMode mode = ModeOf(i);
  if (to.bits == 16) {
    llvm::Value* x = Saturate(i, IntegerToOdd(v, is_signed));
    return Set(i, 0, args.Wrap(RoundToHalf(to, mode, i.Has("satfinite"), x)), {Type::kBits, 1, 16});
  }
  llvm::Value* result;
  const bool exact = from.bits < (to.bits == 32 ? 24 : 53);
  if (mode != RoundingMode::kNearest && !exact) {
    llvm::Value* wide = is_signed ? builder_.CreateSExt(v, SameShape(v, IntType(64)))
                                  : builder_.CreateZExt(v, SameShape(v, IntType(64)));
    if (args.uniform) wide = Splat(builder_, wide);
    result = RoundedByRuntime(is_signed ? RoundedOp::kFromS64 : RoundedOp::kFromU64, mode,
                              to.bits == 64, wide, nullptr, nullptr);
    if (args.uniform) result = builder_.CreateExtractElement(result, uint64_t{0});
  } else {
    llvm::Type* real = SameShape(v, ValueType(to));
    result = is_signed ? builder_.CreateSIToFP(v, real) : builder_.CreateUIToFP(v, real);
  }
  return Set(i, 0, args.Wrap(Saturate(i, result)), to);
}

llvm::Value* InstructionEmitter::RoundWhole(const Instruction& i, llvm::Value* x) {
  switch (ModeOf(i)) {
    case RoundingMode::kZero:
      return Intrinsic(llvm::Intrinsic::trunc, {x});
    case RoundingMode::kDown:
      return Intrinsic(llvm::Intrinsic::floor, {x});
    case RoundingMode::kUp:
      return Intrinsic(llvm::Intrinsic::ceil, {x});
    default:
      return Intrinsic(llvm::Intrinsic::roundeven, {x});
  }
}

absl::Status InstructionEmitter::ConvertFloatToInteger(const Instruction& i, Type to, Type from) {
  Type bits = from;
  if (from.bits == 16) bits.kind = Type::kBits;
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, bits}}));
  llvm::Value* v = from.bits == 16 ? LoadHalf(from, args.v[0]) : Flush(i, from, args.v[0]);
  const llvm::Intrinsic::ID id =
      to.is_signed() ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat;
  llvm::Value* result = builder_.CreateIntrinsic(id, {SameShape(v, IntType(to.bits)), v->getType()},
                                                 {RoundWhole(i, v)});
  if (from.bits == 64 || to.bits == 64) {
    llvm::Value* nan = builder_.CreateFCmpUNO(v, v);
    result = builder_.CreateSelect(nan, Constant(result, uint64_t{1} << (to.bits - 1)), result);
  }
  return Set(i, 0, args.Wrap(result), to);
}

absl::Status InstructionEmitter::ConvertFloatToFloat(const Instruction& i, Type to, Type from) {
  Type bits = from;
  if (from.bits == 16) bits.kind = Type::kBits;
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, bits}}));
  llvm::Value* v = from.bits == 16 ? LoadHalf(from, args.v[0]) : Flush(i, from, args.v[0]);
  const RoundingMode mode = ModeOf(i);
  if (i.Has("rni") || i.Has("rzi") || i.Has("rmi") || i.Has("rpi")) v = RoundWhole(i, v);
  if (to.bits == 16) {
    if (from.bits == 64) v = NarrowToOdd(v);
    v = Saturate(i, v);
    if (i.Has("relu")) v = Relu(v);
    return Set(i, 0, args.Wrap(RoundToHalf(to, mode, i.Has("satfinite"), v)), {Type::kBits, 1, 16});
  }
  if (to.bits == 64 && from.bits < 64) {
    v = builder_.CreateFPExt(v, SameShape(v, builder_.getDoubleTy()));
  } else if (to.bits == 32 && from.bits == 64) {
    if (mode == RoundingMode::kNearest) {
      v = builder_.CreateFPTrunc(v, SameShape(v, builder_.getFloatTy()));
    } else {
      llvm::Value* wide = args.uniform ? Splat(builder_, v) : v;
      v = RoundedByRuntime(RoundedOp::kNarrow, mode, true, wide, nullptr, nullptr);
      if (args.uniform) v = builder_.CreateExtractElement(v, uint64_t{0});
    }
  }
  v = Saturate(i, Flush(i, to, v));
  if (i.Has("relu")) v = Relu(v);
  return Set(i, 0, args.Wrap(v), to);
}

absl::Status InstructionEmitter::ConvertPacked(const Instruction& i) {
  const Type to = i.types[0];
  const Type from = i.types[1];
  const auto narrow_format = [&](Type type, size_t index) -> const NarrowFormat* {
    if (type.kind != Type::kOtherFloat || type.lanes != 2) return nullptr;
    size_t seen = 0;
    for (const absl::string_view m : i.modifiers) {
      Type t;
      if (!ptx::ParseType(m, &t) || seen++ != index) continue;
      if (m == "e4m3x2") return &kE4M3Format;
      if (m == "e5m2x2") return &kE5M2Format;
      if (m == "e2m3x2") return &kE2M3Format;
      if (m == "e3m2x2") return &kE3M2Format;
      if (m == "e2m1x2") return &kE2M1Format;
    }
    return nullptr;
  };
  const NarrowFormat* narrow_to = narrow_format(to, 0);
  const NarrowFormat* narrow_from = narrow_format(from, 1);
  const bool to_halves = to.is_float() && to.lanes == 2 && to.bits == 32;
  const bool from_halves = from.is_float() && from.lanes == 2 && from.bits == 32;
  const bool from_floats = from.kind == Type::kFloat && from.lanes == 1 && from.bits == 32;
  // The parts as floats: element 0 is the lower one.
  Args args;
  llvm::Value* parts[2];
  const Type part = {from.kind, 1, 16};
  if (from_floats && (to_halves || narrow_to != nullptr)) {
    // d = {a in the upper half, b in the lower}
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, from}, {2, from}}));
    parts[0] = Flush(i, from, args.v[1]);
    parts[1] = Flush(i, from, args.v[0]);
  } else if (from_halves && narrow_to != nullptr) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, Type{Type::kBits, 1, 32}}}));
    for (unsigned k = 0; k < 2; ++k) {
      llvm::Value* v = builder_.CreateLShr(args.v[0], Constant(args.v[0], 16 * k));
      parts[k] = LoadHalf(part, builder_.CreateTrunc(v, SameShape(v, IntType(16))));
    }
  } else if (narrow_from != nullptr && to_halves) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, Type{Type::kBits, 1, from.bits}}}));
    const Type half = {Type::kFloat, 1, 16};
    const NarrowFormat& format = *narrow_from;
    const uint64_t sign_bit = uint64_t{1} << (format.bits - 1);
    for (unsigned k = 0; k < 2; ++k) {
      llvm::Value* v = builder_.CreateZExt(args.v[0], SameShape(args.v[0], IntType(16)));
      v = builder_.CreateLShr(v, Constant(v, from.bits / 2 * k));
      v = builder_.CreateAnd(v, Constant(v, 2 * sign_bit - 1));
      if (narrow_from == &kE5M2Format) {  // the upper half of an f16
        parts[k] = LoadHalf(half, builder_.CreateShl(v, Constant(v, 8)));
        continue;
      }
      // The fraction in the place of an f16's; the exponent is off by what the biases differ,
      // denormals included.
      llvm::Value* magnitude = builder_.CreateAnd(v, Constant(v, sign_bit - 1));
      llvm::Value* sign = builder_.CreateAnd(v, Constant(v, sign_bit));
      llvm::Value* pattern =
          builder_.CreateOr(builder_.CreateShl(magnitude, Constant(v, 10 - format.fraction_bits)),
                            builder_.CreateShl(sign, Constant(v, 16 - format.bits)));
      llvm::Value* x = LoadHalf(half, pattern);
      parts[k] = builder_.CreateFMul(
          x, FloatConstant(x, static_cast<double>(1u << (format.min_exponent + 14))));
      if (&format != &kE4M3Format) continue;
      parts[k] = builder_.CreateSelect(builder_.CreateICmpEQ(magnitude, Constant(v, 0x7f)),
                                       llvm::ConstantFP::getNaN(x->getType()), parts[k]);
    }
  } else {
    return Unsupported(i, "this conversion");
  }
  const unsigned width = to.bits / 2;
  llvm::Value* whole = nullptr;
  for (unsigned k = 0; k < 2; ++k) {
    llvm::Value* v = i.Has("relu") ? Relu(parts[k]) : parts[k];
    const bool finite = narrow_to != nullptr || i.Has("satfinite");
    llvm::Value* bits = narrow_to != nullptr ? Narrow(*narrow_to, ModeOf(i), finite, v)
                                             : RoundToHalf({to.kind, 1, 16}, ModeOf(i), finite, v);
    bits = builder_.CreateZExt(bits, SameShape(v, IntType(32)));
    if (k > 0) bits = builder_.CreateShl(bits, Constant(bits, width));
    whole = whole == nullptr ? bits : builder_.CreateOr(whole, bits);
  }
  whole = builder_.CreateZExtOrTrunc(whole, SameShape(whole, IntType(to.bits)));
  return Set(i, 0, args.Wrap(whole), {Type::kBits, 1, to.bits});
}

absl::Status InstructionEmitter::EmitConvertPack(const Instruction& i) {
  const Type s32 = {Type::kSigned, 1, 32};
  unsigned bits = 0;
  bool is_signed = false;
  for (const absl::string_view m : i.modifiers) {
    if (m == "pack" || m == "sat") continue;
    is_signed = m[0] == 's';
    bits = m.substr(1) == "16"  ? 16
           : m.substr(1) == "8" ? 8
           : m.substr(1) == "4" ? 4
           : m.substr(1) == "2" ? 2
                                : 0;
    break;
  }
  if (bits == 0) return Malformed(i, "cvt.pack needs a type of 2, 4, 8 or 16 bits");
  Args args;
  if (bits == 16) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, s32}, {2, s32}}));
  } else {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, s32}, {2, s32}, {3, Type{Type::kBits, 1, 32}}}));
  }
  llvm::Value* whole = nullptr;
  for (unsigned k = 0; k < 2; ++k) {
    llvm::Value* v = ClampInteger(args.v[1 - k], s32, bits, is_signed);
    v = builder_.CreateZExt(v, SameShape(v, IntType(32)));
    whole = k == 0 ? v : builder_.CreateOr(whole, builder_.CreateShl(v, Constant(v, bits)));
  }
  if (bits != 16) {
    whole = builder_.CreateOr(whole, builder_.CreateShl(args.v[2], Constant(whole, 2 * bits)));
  }
  return Set(i, 0, args.Wrap(whole), {Type::kBits, 1, 32});
}

}  // namespace fargpu::softgpu
