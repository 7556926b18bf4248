// Instruction family: cvt. Conversions to integers clamp, and NaN gives zero (or the top bit where
// the source is f64 or the target has 64 bits); nothing of that is LLVM's default.
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

absl::Status InstructionEmitter::EmitCvt(const Instruction& i) {
  if (i.types.size() != 2) return Malformed(i, "cvt needs two types");
  const Type to = i.types[0];
  const Type from = i.types[1];
  if (to.lanes != 1 || from.lanes != 1) return ConvertPacked(i);
  if (to.kind == Type::kOtherFloat || from.kind == Type::kOtherFloat) {
    return Unsupported(i, "this conversion");
  }
  if (!to.is_float() && !from.is_float()) {
    ASSIGN_OR_RETURN(LaneValue value, Get(i, 1, from));
    if (i.Has("sat")) {
      // Clamp in a width that holds both.
      const Args args = Unify({value});
      llvm::Type* wide = SameShape(args.v[0], IntType(128));
      llvm::Value* v = from.is_signed() ? builder_.CreateSExt(args.v[0], wide)
                                        : builder_.CreateZExt(args.v[0], wide);
      const llvm::APInt low =
          to.is_signed() ? llvm::APInt::getSignedMinValue(to.bits).sext(128) : llvm::APInt(128, 0);
      const llvm::APInt high = to.is_signed() ? llvm::APInt::getSignedMaxValue(to.bits).sext(128)
                                              : llvm::APInt::getMaxValue(to.bits).zext(128);
      v = Intrinsic(llvm::Intrinsic::smax, {v, llvm::ConstantInt::get(wide, low)});
      v = Intrinsic(llvm::Intrinsic::smin, {v, llvm::ConstantInt::get(wide, high)});
      return Set(i, 0, args.Wrap(builder_.CreateTrunc(v, SameShape(v, IntType(to.bits)))), to);
    }
    return Set(i, 0, Resize(value, to.bits, from.is_signed()), to);
  }
  Type bits = from;
  if (from.is_float() && from.bits == 16) bits.kind = Type::kBits;
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, bits}}));
  llvm::Value* v = args.v[0];
  const bool zero = i.Has("rz") || i.Has("rzi");
  const bool down = i.Has("rm") || i.Has("rmi");
  const bool up = i.Has("rp") || i.Has("rpi");
  const bool whole = i.Has("rni") || i.Has("rzi") || i.Has("rmi") || i.Has("rpi");

  if (!from.is_float()) {  // integer to float
    const bool is_signed = from.is_signed();
    if (to.bits == 16) {
      // Through double: exact up to 53 bits; wider integers overflow a half anyway.
      if (zero || down || up) return Unsupported(i, "this rounding");
      llvm::Type* real = SameShape(v, builder_.getDoubleTy());
      llvm::Value* d = is_signed ? builder_.CreateSIToFP(v, real) : builder_.CreateUIToFP(v, real);
      if (to.kind == Type::kBFloat && from.bits > 32) return Unsupported(i, "this width");
      return Set(i, 0, args.Wrap(StoreHalf(to, NarrowToOdd(d))), {Type::kBits, 1, 16});
    }
    llvm::Type* real = SameShape(v, ValueType(to));
    llvm::Value* result;
    const bool exact = from.bits < (to.bits == 32 ? 24 : 53);
    if ((zero || down || up) && !exact) {
      const RoundingMode mode = zero   ? RoundingMode::kZero
                                : down ? RoundingMode::kDown
                                       : RoundingMode::kUp;
      llvm::Value* wide = is_signed ? builder_.CreateSExt(v, SameShape(v, IntType(64)))
                                    : builder_.CreateZExt(v, SameShape(v, IntType(64)));
      if (args.uniform) wide = Splat(builder_, wide);
      result = RoundedByRuntime(is_signed ? RoundedOp::kFromS64 : RoundedOp::kFromU64, mode,
                                to.bits == 64, wide, nullptr, nullptr);
      if (args.uniform) result = builder_.CreateExtractElement(result, uint64_t{0});
    } else {
      result = is_signed ? builder_.CreateSIToFP(v, real) : builder_.CreateUIToFP(v, real);
    }
    return Set(i, 0, args.Wrap(Saturate(i, result)), to);
  }

  if (from.bits == 16) v = LoadHalf(from, v);
  if (from.bits == 32) v = Flush(i, from, v);
  const auto round_whole = [&](llvm::Value* x) {
    return Intrinsic(zero   ? llvm::Intrinsic::trunc
                     : down ? llvm::Intrinsic::floor
                     : up   ? llvm::Intrinsic::ceil
                            : llvm::Intrinsic::roundeven,
                     {x});
  };
  if (!to.is_float()) {  // float to integer
    llvm::Value* x = round_whole(v);
    const llvm::Intrinsic::ID id =
        to.is_signed() ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat;
    llvm::Value* result =
        builder_.CreateIntrinsic(id, {SameShape(v, IntType(to.bits)), v->getType()}, {x});
    if (from.bits == 64 || to.bits == 64) {
      llvm::Value* nan = builder_.CreateFCmpUNO(v, v);
      result = builder_.CreateSelect(nan, Constant(result, uint64_t{1} << (to.bits - 1)), result);
    }
    return Set(i, 0, args.Wrap(result), to);
  }
  // float to float
  if (whole) v = round_whole(v);
  const unsigned have = from.bits == 16 ? 32 : from.bits;
  llvm::Value* result = v;
  if (to.bits > have) {
    result = builder_.CreateFPExt(v, SameShape(v, ValueType(to)));
  } else if (to.bits == 32 && have == 64) {
    if (zero || down || up) {
      const RoundingMode mode = zero   ? RoundingMode::kZero
                                : down ? RoundingMode::kDown
                                       : RoundingMode::kUp;
      llvm::Value* wide = args.uniform ? Splat(builder_, v) : v;
      result = RoundedByRuntime(RoundedOp::kNarrow, mode, true, wide, nullptr, nullptr);
      if (args.uniform) result = builder_.CreateExtractElement(result, uint64_t{0});
    } else {
      result = builder_.CreateFPTrunc(v, SameShape(v, builder_.getFloatTy()));
    }
  }
  if (to.bits == 32) result = Flush(i, to, result);
  result = Saturate(i, result);
  if (i.Has("relu")) {
    result = builder_.CreateSelect(builder_.CreateFCmpUGT(result, FloatConstant(result, 0)), result,
                                   FloatConstant(result, 0));
  }
  if (to.bits == 16) {
    if ((zero && !whole) || ((down || up) && !whole))
      return Unsupported(i, "this rounding to a half");
    if (have == 64) result = NarrowToOdd(result);
    result = StoreHalf(to, result);
    return Set(i, 0, args.Wrap(result), {Type::kBits, 1, 16});
  }
  return Set(i, 0, args.Wrap(result), to);
}

absl::Status InstructionEmitter::ConvertPacked(const Instruction& i) {
  const Type to = i.types[0];
  const Type from = i.types[1];
  if (to.lanes != 2 || !to.is_float() || to.bits != 32 || from.kind != Type::kFloat ||
      from.bits != 32 || from.lanes != 1 || i.Has("rz")) {
    return Unsupported(i, "this conversion");
  }
  // d = {a in the upper half, b in the lower}
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, from}, {2, from}}));
  const Type element = {to.kind, 1, 16};
  llvm::Value* halves[2];
  for (int k = 0; k < 2; ++k) {
    llvm::Value* v = args.v[k];
    if (i.Has("relu")) {
      v = builder_.CreateSelect(builder_.CreateFCmpUGT(v, FloatConstant(v, 0)), v,
                                FloatConstant(v, 0));
    }
    halves[k] = builder_.CreateZExt(StoreHalf(element, v), SameShape(v, IntType(32)));
  }
  llvm::Value* whole =
      builder_.CreateOr(builder_.CreateShl(halves[0], Constant(halves[0], 16)), halves[1]);
  return Set(i, 0, args.Wrap(whole), {Type::kBits, 1, 32});
}

}  // namespace fargpu::softgpu
