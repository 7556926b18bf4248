// Instruction families: floating point. Each operation rounds once, as written; nothing is
// contracted, and denormals are flushed only by instructions that say .ftz.
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/IntrinsicsX86.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

llvm::Value* InstructionEmitter::Flush(const Instruction& i, Type type, llvm::Value* value) {
  if (type.bits != 32 || type.kind != Type::kFloat || !i.Has("ftz")) return value;
  llvm::Value* bits = AsBits(value);
  llvm::Value* exponent = builder_.CreateAnd(bits, Constant(bits, 0x7f800000));
  llvm::Value* sign = builder_.CreateAnd(bits, Constant(bits, 0x80000000));
  llvm::Value* flushed =
      builder_.CreateSelect(builder_.CreateICmpEQ(exponent, Constant(bits, 0)), sign, bits);
  return builder_.CreateBitCast(flushed, value->getType());
}

llvm::Value* InstructionEmitter::Saturate(const Instruction& i, llvm::Value* value) {
  if (!i.Has("sat")) return value;
  llvm::Value* zero = FloatConstant(value, 0);
  llvm::Value* one = FloatConstant(value, 1);
  // NaN becomes +0: an ordered comparison with it is false.
  llvm::Value* low = builder_.CreateSelect(builder_.CreateFCmpOGT(value, zero), value, zero);
  return builder_.CreateSelect(builder_.CreateFCmpOLT(low, one), low, one);
}

namespace {

RoundingMode ModeOf(const ptx::Instruction& i) {
  if (i.Has("rz")) return RoundingMode::kZero;
  if (i.Has("rm")) return RoundingMode::kDown;
  if (i.Has("rp")) return RoundingMode::kUp;
  return RoundingMode::kNearest;
}

}  // namespace

llvm::Value* InstructionEmitter::RoundedByRuntime(RoundedOp op, RoundingMode mode, bool is_f64,
                                                  llvm::Value* a, llvm::Value* b, llvm::Value* c) {
  const bool narrow = op == RoundedOp::kNarrow;
  llvm::Type* element = is_f64 && !narrow ? builder_.getDoubleTy() : builder_.getFloatTy();
  llvm::Value* out = EntryAlloca(VectorOf(element), "rounded");
  llvm::Value* none = llvm::ConstantPointerNull::get(builder_.getPtrTy());
  const uint32_t code =
      static_cast<uint32_t>(op) | static_cast<uint32_t>(mode) << 8 | (is_f64 ? 1u << 16 : 0);
  CallRuntime(kRuntimeRound, builder_.getVoidTy(),
              {Int32(code), SpillLanes(a, "a"), b == nullptr ? none : SpillLanes(b, "b"),
               c == nullptr ? none : SpillLanes(c, "c"), out});
  return builder_.CreateLoad(VectorOf(element), out);
}

llvm::Value* InstructionEmitter::RoundedByAvx512(RoundedOp op, RoundingMode mode, bool is_f64,
                                                 llvm::Value* a, llvm::Value* b, llvm::Value* c) {
  llvm::Intrinsic::ID id;
  switch (op) {
    case RoundedOp::kAdd:
      id = is_f64 ? llvm::Intrinsic::x86_avx512_add_pd_512 : llvm::Intrinsic::x86_avx512_add_ps_512;
      break;
    case RoundedOp::kSub:
      id = is_f64 ? llvm::Intrinsic::x86_avx512_sub_pd_512 : llvm::Intrinsic::x86_avx512_sub_ps_512;
      break;
    case RoundedOp::kMul:
      id = is_f64 ? llvm::Intrinsic::x86_avx512_mul_pd_512 : llvm::Intrinsic::x86_avx512_mul_ps_512;
      break;
    case RoundedOp::kDiv:
      id = is_f64 ? llvm::Intrinsic::x86_avx512_div_pd_512 : llvm::Intrinsic::x86_avx512_div_ps_512;
      break;
    case RoundedOp::kSqrt:
      id = is_f64 ? llvm::Intrinsic::x86_avx512_sqrt_pd_512
                  : llvm::Intrinsic::x86_avx512_sqrt_ps_512;
      break;
    default:
      id = is_f64 ? llvm::Intrinsic::x86_avx512_vfmadd_pd_512
                  : llvm::Intrinsic::x86_avx512_vfmadd_ps_512;
      break;
  }
  // Embedded rounding: the instruction's own mode, exceptions off.
  const uint32_t control = mode == RoundingMode::kZero   ? 11
                           : mode == RoundingMode::kDown ? 9
                           : mode == RoundingMode::kUp   ? 10
                                                         : 8;
  const int width = is_f64 ? 8 : 16;
  llvm::Value* whole = llvm::PoisonValue::get(a->getType());
  llvm::SmallVector<llvm::Value*, 4> pieces;
  for (int at = 0; at < kWarpSize; at += width) {
    llvm::SmallVector<int, 16> lanes;
    for (int k = 0; k < width; ++k) lanes.push_back(at + k);
    llvm::SmallVector<llvm::Value*, 4> args;
    for (llvm::Value* v : {a, b, c}) {
      if (v != nullptr) args.push_back(builder_.CreateShuffleVector(v, lanes));
    }
    args.push_back(Int32(control));
    pieces.push_back(builder_.CreateIntrinsic(id, {}, args));
  }
  while (pieces.size() > 1) {
    llvm::SmallVector<llvm::Value*, 4> joined;
    for (size_t k = 0; k + 1 < pieces.size(); k += 2) {
      const int n = llvm::cast<llvm::FixedVectorType>(pieces[k]->getType())->getNumElements() * 2;
      llvm::SmallVector<int, 32> lanes;
      for (int l = 0; l < n; ++l) lanes.push_back(l);
      joined.push_back(builder_.CreateShuffleVector(pieces[k], pieces[k + 1], lanes));
    }
    pieces = joined;
  }
  whole = pieces[0];
  return whole;
}

absl::StatusOr<llvm::Value*> InstructionEmitter::Rounded(const Instruction& i, RoundedOp op,
                                                         Type type, llvm::Value* a, llvm::Value* b,
                                                         llvm::Value* c) {
  const RoundingMode mode = ModeOf(i);
  if (mode == RoundingMode::kNearest) {
    switch (op) {
      case RoundedOp::kAdd:
        return builder_.CreateFAdd(a, b);
      case RoundedOp::kSub:
        return builder_.CreateFSub(a, b);
      case RoundedOp::kMul:
        return builder_.CreateFMul(a, b);
      case RoundedOp::kDiv:
        return builder_.CreateFDiv(a, b);
      case RoundedOp::kSqrt:
        return Intrinsic(llvm::Intrinsic::sqrt, {a});
      default:
        return Intrinsic(llvm::Intrinsic::fma, {a, b, c});
    }
  }
  const bool is_f64 = type.bits == 64;
  const bool scalar = !a->getType()->isVectorTy();
  if (scalar) {
    a = Splat(builder_, a);
    if (b != nullptr) b = Splat(builder_, b);
    if (c != nullptr) c = Splat(builder_, c);
  }
  llvm::Value* result = options_.avx512 ? RoundedByAvx512(op, mode, is_f64, a, b, c)
                                        : RoundedByRuntime(op, mode, is_f64, a, b, c);
  return scalar ? builder_.CreateExtractElement(result, uint64_t{0}) : result;
}

absl::Status InstructionEmitter::EmitFloatArithmetic(const Instruction& i) {
  const Type type = i.type();
  if (type.bits == 16 || type.lanes == 2) return EmitHalfArithmetic(i);
  if (!type.is_float()) return Malformed(i, "a floating point type is needed");
  const absl::string_view op = i.opcode;
  const bool unary = op == "rcp" || op == "sqrt";
  const bool ternary = op == "fma" || op == "mad";
  Args args;
  if (unary) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, type}}));
  } else if (ternary) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, type}, {2, type}, {3, type}}));
  } else {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, type}, {2, type}}));
  }
  for (llvm::Value*& v : args.v) {
    if (v != nullptr) v = Flush(i, type, v);
  }
  if (op == "rcp" && type.bits == 64 && i.Has("approx")) {
    // The seed of Newton iterations: 20 bits of mantissa, denormals flushed, low word zero.
    llvm::Value* bits = AsBits(args.v[0]);
    llvm::Value* tiny = builder_.CreateICmpEQ(
        builder_.CreateAnd(bits, Constant(bits, 0x7ff0000000000000)), Constant(bits, 0));
    bits = builder_.CreateSelect(tiny, builder_.CreateAnd(bits, Constant(bits, uint64_t{1} << 63)),
                                 bits);
    llvm::Value* x = AsType(bits, type);
    llvm::Value* r = AsBits(builder_.CreateFDiv(FloatConstant(x, 1), x));
    llvm::Value* small = builder_.CreateICmpEQ(
        builder_.CreateAnd(r, Constant(r, 0x7ff0000000000000)), Constant(r, 0));
    r = builder_.CreateSelect(small, builder_.CreateAnd(r, Constant(r, uint64_t{1} << 63)), r);
    r = builder_.CreateAnd(r, Constant(r, 0xffffffff00000000));
    return Set(i, 0, args.Wrap(AsType(r, type)), type);
  }
  RoundedOp code = RoundedOp::kFma;
  llvm::Value* a = args.v[0];
  llvm::Value* b = args.v[1];
  if (op == "add") code = RoundedOp::kAdd;
  if (op == "sub") code = RoundedOp::kSub;
  if (op == "mul") code = RoundedOp::kMul;
  if (op == "div") code = RoundedOp::kDiv;
  if (op == "sqrt") code = RoundedOp::kSqrt;
  if (code == RoundedOp::kFma && !ternary && op != "rcp") {
    return Malformed(i, "there is no such instruction for floating point");
  }
  if (op == "rcp") {
    code = RoundedOp::kDiv;
    b = a;
    a = FloatConstant(b, 1);
  }
  ASSIGN_OR_RETURN(llvm::Value * result, Rounded(i, code, type, a, b, args.v[2]));
  return Set(i, 0, args.Wrap(Saturate(i, Flush(i, type, result))), type);
}

// The smaller or larger of two floats or doubles, with .NaN, .abs and .xorsign.
llvm::Value* InstructionEmitter::PickFloat(const Instruction& i, llvm::Value* a, llvm::Value* b) {
  const bool minimum = i.opcode == "min";
  llvm::Value* sign = nullptr;
  if (i.Has("xorsign")) {
    llvm::Value* differs = builder_.CreateXor(AsBits(a), AsBits(b));
    const unsigned width = differs->getType()->getScalarSizeInBits();
    sign = builder_.CreateAnd(differs, Constant(differs, uint64_t{1} << (width - 1)));
  }
  if (i.Has("abs")) {
    a = Intrinsic(llvm::Intrinsic::fabs, {a});
    b = Intrinsic(llvm::Intrinsic::fabs, {b});
  }
  llvm::Value* less = minimum ? builder_.CreateFCmpOLT(a, b) : builder_.CreateFCmpOGT(a, b);
  llvm::Value* picked = builder_.CreateSelect(less, a, b);
  // Of equal values the only different ones are the zeros: -0 is the smaller.
  llvm::Value* bits_a = AsBits(a);
  llvm::Value* bits_b = AsBits(b);
  llvm::Value* zeros =
      minimum ? builder_.CreateOr(bits_a, bits_b) : builder_.CreateAnd(bits_a, bits_b);
  picked = builder_.CreateSelect(builder_.CreateFCmpOEQ(a, b),
                                 builder_.CreateBitCast(zeros, a->getType()), picked);
  if (sign != nullptr) {
    picked = builder_.CreateBitCast(builder_.CreateOr(AsBits(picked), sign), a->getType());
  }
  llvm::Value* nan =
      Constant(bits_a, a->getType()->getScalarSizeInBits() == 32 ? 0x7fffffff : 0x7fffffffffffffff);
  nan = builder_.CreateBitCast(nan, a->getType());
  if (i.Has("NaN")) return builder_.CreateSelect(builder_.CreateFCmpUNO(a, b), nan, picked);
  // The number beside a NaN, with the sign that .xorsign gives it.
  llvm::Value* number = a;
  if (sign != nullptr) {
    number = builder_.CreateBitCast(builder_.CreateOr(bits_a, sign), a->getType());
  }
  picked = builder_.CreateSelect(builder_.CreateFCmpUNO(b, b), number, picked);
  return builder_.CreateSelect(
      builder_.CreateAnd(builder_.CreateFCmpUNO(a, a), builder_.CreateFCmpUNO(b, b)), nan, picked);
}

absl::Status InstructionEmitter::EmitFloatMinMax(const Instruction& i) {
  const Type type = i.type();
  if (type.bits == 16 || type.lanes == 2) return EmitHalfArithmetic(i);
  if (i.operands.size() > 4) return Malformed(i, "takes at most three operands to choose from");
  const bool three = i.operands.size() == 4;
  if (three && i.Has("xorsign")) return Malformed(i, ".xorsign takes two operands");
  Args args;
  if (three) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, type}, {2, type}, {3, type}}));
  } else {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, type}, {2, type}}));
  }
  llvm::Value* picked = PickFloat(i, Flush(i, type, args.v[0]), Flush(i, type, args.v[1]));
  if (three) picked = PickFloat(i, picked, Flush(i, type, args.v[2]));
  return Set(i, 0, args.Wrap(picked), type);
}

absl::Status InstructionEmitter::EmitFloatAbsNeg(const Instruction& i) {
  const Type type = i.type();
  if (type.bits == 16 || type.lanes == 2) return EmitHalfArithmetic(i);
  Type bits = type;
  bits.kind = Type::kBits;
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, bits}}));
  const uint64_t sign = uint64_t{1} << (type.bits - 1);
  llvm::Value* v = args.v[0];
  if (type.bits == 32) v = AsBits(Flush(i, type, AsType(v, type)));
  v = i.opcode == "abs" ? builder_.CreateAnd(v, Constant(v, ~sign))
                        : builder_.CreateXor(v, Constant(v, sign));
  return Set(i, 0, args.Wrap(v), bits);
}

absl::Status InstructionEmitter::EmitCopysign(const Instruction& i) {
  const Type type = i.type();
  Type bits = type;
  bits.kind = Type::kBits;
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, bits}, {2, bits}}));
  llvm::Value* sign = Constant(args.v[0], uint64_t{1} << (type.bits - 1));
  // The sign of a, the magnitude of b.
  llvm::Value* value = builder_.CreateOr(builder_.CreateAnd(args.v[0], sign),
                                         builder_.CreateAnd(args.v[1], builder_.CreateNot(sign)));
  return Set(i, 0, args.Wrap(value), bits);
}

absl::Status InstructionEmitter::EmitTestp(const Instruction& i) {
  const Type type = i.type();
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}}));
  llvm::Value* bits = AsBits(args.v[0]);
  const uint64_t exponent = type.bits == 32 ? 0x7f800000 : 0x7ff0000000000000;
  const uint64_t smallest = type.bits == 32 ? 0x00800000 : 0x0010000000000000;
  llvm::Value* magnitude =
      builder_.CreateAnd(bits, Constant(bits, (uint64_t{1} << (type.bits - 1)) - 1));
  llvm::Value* result;
  if (i.Has("finite")) {
    result = builder_.CreateICmpULT(magnitude, Constant(bits, exponent));
  } else if (i.Has("infinite")) {
    result = builder_.CreateICmpEQ(magnitude, Constant(bits, exponent));
  } else if (i.Has("number")) {
    result = builder_.CreateICmpULE(magnitude, Constant(bits, exponent));
  } else if (i.Has("notanumber")) {
    result = builder_.CreateICmpUGT(magnitude, Constant(bits, exponent));
  } else if (i.Has("normal")) {
    result = builder_.CreateAnd(builder_.CreateICmpUGE(magnitude, Constant(bits, smallest)),
                                builder_.CreateICmpULT(magnitude, Constant(bits, exponent)));
  } else if (i.Has("subnormal")) {
    result = builder_.CreateAnd(builder_.CreateICmpULT(magnitude, Constant(bits, smallest)),
                                builder_.CreateICmpNE(magnitude, Constant(bits, 0)));
  } else {
    return Malformed(i, "unknown test");
  }
  return Set(i, 0, args.Wrap(result), {Type::kPred, 1, 1});
}

llvm::Value* InstructionEmitter::Exp2(llvm::Value* x) {
  // 2^x = 2^n * 2^f with |f| <= 1/2; the series of 2^f up to f^7 is good to 2^-27.
  llvm::Value* clamped = builder_.CreateSelect(builder_.CreateFCmpOGT(x, FloatConstant(x, -160)), x,
                                               FloatConstant(x, -160));
  clamped = builder_.CreateSelect(builder_.CreateFCmpOLT(clamped, FloatConstant(x, 130)), clamped,
                                  FloatConstant(x, 130));
  llvm::Value* n = Intrinsic(llvm::Intrinsic::roundeven, {clamped});
  llvm::Value* f = builder_.CreateFSub(clamped, n);
  static constexpr double kSeries[] = {
      1.525273380405984e-05, 1.540353039338161e-04, 1.333355814642844e-03, 9.618129107628477e-03,
      5.550410866482158e-02, 2.402265069591007e-01, 6.931471805599453e-01, 1.0};
  llvm::Value* p = FloatConstant(x, kSeries[0]);
  for (int k = 1; k < 8; ++k)
    p = Intrinsic(llvm::Intrinsic::fma, {p, f, FloatConstant(x, kSeries[k])});
  // In two steps, so that denormal results are rounded once and 2^128 overflows to infinity.
  llvm::Value* whole = builder_.CreateFPToSI(n, SameShape(x, IntType(32)));
  llvm::Value* half = builder_.CreateAShr(whole, Constant(whole, 1));
  const auto power = [&](llvm::Value* e) {
    llvm::Value* bits =
        builder_.CreateShl(builder_.CreateAdd(e, Constant(e, 127)), Constant(e, 23));
    return builder_.CreateBitCast(bits, x->getType());
  };
  llvm::Value* result = builder_.CreateFMul(builder_.CreateFMul(p, power(half)),
                                            power(builder_.CreateSub(whole, half)));
  return builder_.CreateSelect(builder_.CreateFCmpUNO(x, x), x, result);
}

llvm::Value* InstructionEmitter::Log2(llvm::Value* x) {
  llvm::Value* tiny = builder_.CreateFCmpOLT(x, FloatConstant(x, 0x1p-126));
  llvm::Value* scaled =
      builder_.CreateSelect(tiny, builder_.CreateFMul(x, FloatConstant(x, 0x1p24)), x);
  llvm::Value* bits = AsBits(scaled);
  // x = 2^e * m with m in [sqrt(1/2), sqrt(2)).
  llvm::Value* shifted = builder_.CreateSub(bits, Constant(bits, 0x3f3504f3));
  llvm::Value* e = builder_.CreateAShr(shifted, Constant(bits, 23));
  llvm::Value* m = builder_.CreateBitCast(
      builder_.CreateSub(bits, builder_.CreateShl(e, Constant(e, 23))), x->getType());
  llvm::Value* exponent = builder_.CreateSIToFP(e, x->getType());
  exponent =
      builder_.CreateSelect(tiny, builder_.CreateFSub(exponent, FloatConstant(x, 24)), exponent);
  llvm::Value* one = FloatConstant(x, 1);
  llvm::Value* s = builder_.CreateFDiv(builder_.CreateFSub(m, one), builder_.CreateFAdd(m, one));
  llvm::Value* s2 = builder_.CreateFMul(s, s);
  // log2(m) = 2/ln 2 * (s + s^3/3 + s^5/5 + ...)
  static constexpr double kSeries[] = {0.32059889797532520, 0.41219858311113240,
                                       0.57707801635558537, 0.96179669392597561};
  llvm::Value* p = FloatConstant(x, kSeries[0]);
  for (int k = 1; k < 4; ++k)
    p = Intrinsic(llvm::Intrinsic::fma, {p, s2, FloatConstant(x, kSeries[k])});
  llvm::Value* tail = builder_.CreateFMul(builder_.CreateFMul(s, s2), p);
  llvm::Value* result =
      Intrinsic(llvm::Intrinsic::fma, {s, FloatConstant(x, 2.885390081777927), tail});
  result = builder_.CreateFAdd(exponent, result);
  llvm::Value* infinity = llvm::ConstantFP::getInfinity(x->getType());
  result = builder_.CreateSelect(builder_.CreateFCmpOEQ(x, infinity), infinity, result);
  result = builder_.CreateSelect(builder_.CreateFCmpOEQ(x, FloatConstant(x, 0)),
                                 llvm::ConstantFP::getInfinity(x->getType(), true), result);
  llvm::Value* nan = llvm::ConstantFP::getNaN(x->getType());
  return builder_.CreateSelect(builder_.CreateFCmpULT(x, FloatConstant(x, 0)), nan, result);
}

llvm::Value* InstructionEmitter::SinCos(llvm::Value* x, bool cosine) {
  // Reduced in double precision to [-pi/4, pi/4]; then the series in single precision.
  llvm::Type* real = SameShape(x, builder_.getDoubleTy());
  llvm::Value* wide = builder_.CreateFPExt(x, real);
  llvm::Value* n =
      Intrinsic(llvm::Intrinsic::roundeven,
                {builder_.CreateFMul(wide, llvm::ConstantFP::get(real, 0.6366197723675814))});
  llvm::Value* r =
      Intrinsic(llvm::Intrinsic::fma, {n, llvm::ConstantFP::get(real, -1.5707963267948966), wide});
  r = Intrinsic(llvm::Intrinsic::fma, {n, llvm::ConstantFP::get(real, -6.123233995736766e-17), r});
  llvm::Value* quadrant =
      builder_.CreateIntrinsic(llvm::Intrinsic::fptosi_sat, {SameShape(x, IntType(32)), real}, {n});
  if (cosine) quadrant = builder_.CreateAdd(quadrant, Constant(quadrant, 1));
  llvm::Value* y = builder_.CreateFPTrunc(r, x->getType());
  llvm::Value* y2 = builder_.CreateFMul(y, y);
  const auto series = [&](std::initializer_list<double> terms) {
    llvm::Value* p = nullptr;
    for (const double term : terms) {
      p = p == nullptr ? FloatConstant(x, term)
                       : Intrinsic(llvm::Intrinsic::fma, {p, y2, FloatConstant(x, term)});
    }
    return p;
  };
  llvm::Value* sine = series({2.7557319223985893e-06, -1.984126984126984e-04, 8.333333333333333e-03,
                              -1.6666666666666666e-01});
  sine = Intrinsic(llvm::Intrinsic::fma, {builder_.CreateFMul(y, y2), sine, y});
  llvm::Value* cos =
      series({2.48015873015873e-05, -1.388888888888889e-03, 4.1666666666666664e-02, -0.5, 1.0});
  llvm::Value* odd = builder_.CreateICmpNE(builder_.CreateAnd(quadrant, Constant(quadrant, 1)),
                                           Constant(quadrant, 0));
  llvm::Value* result = builder_.CreateSelect(odd, cos, sine);
  llvm::Value* negative = builder_.CreateICmpNE(builder_.CreateAnd(quadrant, Constant(quadrant, 2)),
                                                Constant(quadrant, 0));
  return builder_.CreateSelect(negative, builder_.CreateFNeg(result), result);
}

llvm::Value* InstructionEmitter::Tanh(llvm::Value* x) {
  // 1 - 2 / (e^2x + 1); near zero, where that cancels, the series.
  llvm::Value* e = Exp2(builder_.CreateFMul(x, FloatConstant(x, 2.8853900817779268)));
  llvm::Value* far = builder_.CreateFSub(
      FloatConstant(x, 1),
      builder_.CreateFDiv(FloatConstant(x, 2), builder_.CreateFAdd(e, FloatConstant(x, 1))));
  llvm::Value* x2 = builder_.CreateFMul(x, x);
  static constexpr double kSeries[] = {0.021869488536155203, -0.05396825396825397,
                                       0.13333333333333333, -0.3333333333333333};
  llvm::Value* p = FloatConstant(x, kSeries[0]);
  for (int k = 1; k < 4; ++k)
    p = Intrinsic(llvm::Intrinsic::fma, {p, x2, FloatConstant(x, kSeries[k])});
  llvm::Value* near = Intrinsic(llvm::Intrinsic::fma, {builder_.CreateFMul(x, x2), p, x});
  llvm::Value* small =
      builder_.CreateFCmpOLT(Intrinsic(llvm::Intrinsic::fabs, {x}), FloatConstant(x, 0.5));
  return builder_.CreateSelect(small, near, far);
}

absl::Status InstructionEmitter::EmitApproximate(const Instruction& i) {
  const Type type = i.type();
  const absl::string_view op = i.opcode;
  if (type.bits == 16 || type.lanes == 2) return EmitHalfArithmetic(i);
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}}));
  llvm::Value* x = Flush(i, type, args.v[0]);
  if (op == "rsqrt") {
    if (type.bits == 64 && i.Has("ftz")) {
      llvm::Value* bits = AsBits(x);
      llvm::Value* exponent = builder_.CreateAnd(bits, Constant(bits, 0x7ff0000000000000));
      llvm::Value* zero = builder_.CreateAnd(bits, Constant(bits, uint64_t{1} << 63));
      x = AsType(
          builder_.CreateSelect(builder_.CreateICmpEQ(exponent, Constant(bits, 0)), zero, bits),
          type);
    }
    llvm::Value* root = Intrinsic(llvm::Intrinsic::sqrt, {x});
    llvm::Value* result = builder_.CreateFDiv(FloatConstant(x, 1), root);
    if (type.bits == 64 && i.Has("ftz")) {
      // A seed for Newton iterations: only the high word counts. Without ftz it is CUDA's
      // rsqrt(double), which is off by one unit in the last place at most.
      llvm::Value* bits = AsBits(result);
      result = AsType(builder_.CreateAnd(bits, Constant(bits, 0xffffffff00000000)), type);
    }
    return Set(i, 0, args.Wrap(Flush(i, type, result)), type);
  }
  if (type.bits != 32 || type.kind != Type::kFloat) return Unsupported(i, "this type");
  llvm::Value* result = op == "ex2"    ? Exp2(x)
                        : op == "lg2"  ? Log2(x)
                        : op == "tanh" ? Tanh(x)
                                       : SinCos(x, op == "cos");
  return Set(i, 0, args.Wrap(Flush(i, type, result)), type);
}

}  // namespace fargpu::softgpu
