// Instruction families: f16, bf16 and their packed forms. Computed in single precision and
// rounded back, which is exact for one addition, subtraction or multiplication of halves.
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

llvm::Value* InstructionEmitter::BFloatToFloat(llvm::Value* bits) {
  llvm::Value* wide = builder_.CreateZExt(bits, SameShape(bits, IntType(32)));
  return builder_.CreateBitCast(builder_.CreateShl(wide, Constant(wide, 16)),
                                SameShape(bits, builder_.getFloatTy()));
}

llvm::Value* InstructionEmitter::FloatToBFloat(llvm::Value* value) {
  llvm::Value* bits = AsBits(value);
  // To nearest, ties to even; NaN stays NaN.
  llvm::Value* odd =
      builder_.CreateAnd(builder_.CreateLShr(bits, Constant(bits, 16)), Constant(bits, 1));
  llvm::Value* rounded =
      builder_.CreateLShr(builder_.CreateAdd(builder_.CreateAdd(bits, Constant(bits, 0x7fff)), odd),
                          Constant(bits, 16));
  rounded =
      builder_.CreateSelect(builder_.CreateFCmpUNO(value, value), Constant(bits, 0x7fff), rounded);
  return builder_.CreateTrunc(rounded, SameShape(bits, IntType(16)));
}

llvm::Value* InstructionEmitter::LoadHalf(Type type, llvm::Value* bits) {
  if (type.kind == Type::kBFloat) return BFloatToFloat(bits);
  llvm::Value* half = builder_.CreateBitCast(bits, SameShape(bits, builder_.getHalfTy()));
  return builder_.CreateFPExt(half, SameShape(bits, builder_.getFloatTy()));
}

llvm::Value* InstructionEmitter::StoreHalf(Type type, llvm::Value* value) {
  if (type.kind == Type::kBFloat) return FloatToBFloat(value);
  llvm::Value* half = builder_.CreateFPTrunc(value, SameShape(value, builder_.getHalfTy()));
  return builder_.CreateBitCast(half, SameShape(value, IntType(16)));
}

llvm::Value* InstructionEmitter::NarrowToOdd(llvm::Value* wide) {
  llvm::Value* narrow = builder_.CreateFPTrunc(wide, SameShape(wide, builder_.getFloatTy()));
  llvm::Value* back = builder_.CreateFPExt(narrow, wide->getType());
  llvm::Value* bits = AsBits(narrow);
  llvm::Value* inexact = builder_.CreateFCmpONE(back, wide);
  llvm::Value* toward_zero = builder_.CreateFCmpOLT(Intrinsic(llvm::Intrinsic::fabs, {back}),
                                                    Intrinsic(llvm::Intrinsic::fabs, {wide}));
  llvm::Value* even =
      builder_.CreateICmpEQ(builder_.CreateAnd(bits, Constant(bits, 1)), Constant(bits, 0));
  llvm::Value* step =
      builder_.CreateSelect(toward_zero, Constant(bits, 1), Constant(bits, 0xffffffff));
  bits = builder_.CreateSelect(builder_.CreateAnd(inexact, even), builder_.CreateAdd(bits, step),
                               bits);
  return builder_.CreateBitCast(bits, narrow->getType());
}

llvm::Value* InstructionEmitter::AddToOdd(llvm::Value* a, llvm::Value* b) {
  llvm::Value* sum = builder_.CreateFAdd(a, b);
  // What the rounding lost, exactly; NaN beside an infinity.
  llvm::Value* b_part = builder_.CreateFSub(sum, a);
  llvm::Value* rest = builder_.CreateFAdd(builder_.CreateFSub(a, builder_.CreateFSub(sum, b_part)),
                                          builder_.CreateFSub(b, b_part));
  llvm::Value* bits = AsBits(sum);
  llvm::Value* zero = FloatConstant(rest, 0);
  llvm::Value* even =
      builder_.CreateICmpEQ(builder_.CreateAnd(bits, Constant(bits, 1)), Constant(bits, 0));
  llvm::Value* same_sign =
      builder_.CreateICmpEQ(builder_.CreateFCmpOGT(rest, zero), builder_.CreateFCmpOGT(sum, zero));
  llvm::Value* step =
      builder_.CreateSelect(same_sign, Constant(bits, 1), Constant(bits, ~uint64_t{0}));
  bits = builder_.CreateSelect(builder_.CreateAnd(builder_.CreateFCmpONE(rest, zero), even),
                               builder_.CreateAdd(bits, step), bits);
  return builder_.CreateBitCast(bits, sum->getType());
}

// Truncated, with the last bit set if that lost anything: then rounding up and down differ.
llvm::Value* InstructionEmitter::FmaToOdd(llvm::Value* a, llvm::Value* b, llvm::Value* c) {
  const auto rounded = [&](RoundingMode mode) {
    return RoundedByAvx512(RoundedOp::kFma, mode, false, a, b, c);
  };
  llvm::Value* bits = AsBits(rounded(RoundingMode::kZero));
  llvm::Value* inexact =
      builder_.CreateFCmpONE(rounded(RoundingMode::kDown), rounded(RoundingMode::kUp));
  bits = builder_.CreateSelect(inexact, builder_.CreateOr(bits, Constant(bits, 1)), bits);
  return builder_.CreateBitCast(bits, a->getType());
}

llvm::Value* InstructionEmitter::FlushHalf(Type type, llvm::Value* bits) {
  const uint64_t exponent = type.kind == Type::kBFloat ? 0x7f80 : 0x7c00;
  llvm::Value* tiny =
      builder_.CreateICmpEQ(builder_.CreateAnd(bits, Constant(bits, exponent)), Constant(bits, 0));
  return builder_.CreateSelect(tiny, builder_.CreateAnd(bits, Constant(bits, 0x8000)), bits);
}

// One result from one element of each operand, all as i16.
absl::StatusOr<llvm::Value*> InstructionEmitter::HalfOperation(
    const Instruction& i, Type type, const std::array<llvm::Value*, 3>& bits) {
  const absl::string_view op = i.opcode;
  const bool flush = i.Has("ftz");
  if (op == "abs" || op == "neg") {
    llvm::Value* v = flush ? FlushHalf(type, bits[0]) : bits[0];
    return op == "abs" ? builder_.CreateAnd(v, Constant(v, 0x7fff))
                       : builder_.CreateXor(v, Constant(v, 0x8000));
  }
  llvm::Value* v[3] = {};
  for (size_t k = 0; k < 3; ++k) {
    if (bits[k] != nullptr) v[k] = LoadHalf(type, flush ? FlushHalf(type, bits[k]) : bits[k]);
  }
  llvm::Value* r;
  if (op == "add") {
    r = builder_.CreateFAdd(v[0], v[1]);
  } else if (op == "sub") {
    r = builder_.CreateFSub(v[0], v[1]);
  } else if (op == "mul") {
    r = builder_.CreateFMul(v[0], v[1]);
  } else if ((op == "fma" || op == "mad") && options_.avx512 && v[0]->getType()->isVectorTy()) {
    r = FmaToOdd(v[0], v[1], v[2]);
  } else if (op == "fma" || op == "mad") {
    // The product of halves is exact in double; their sum, made odd, is rounded once more.
    llvm::Type* real = SameShape(v[0], builder_.getDoubleTy());
    llvm::Value* product =
        builder_.CreateFMul(builder_.CreateFPExt(v[0], real), builder_.CreateFPExt(v[1], real));
    llvm::Value* addend = builder_.CreateFPExt(v[2], real);
    // f16 has so small a range that no sum loses a bit which matters.
    r = NarrowToOdd(type.kind == Type::kBFloat ? AddToOdd(product, addend)
                                               : builder_.CreateFAdd(product, addend));
  } else if (op == "min" || op == "max") {
    r = PickFloat(i, v[0], v[1]);
  } else if (op == "ex2") {
    r = Exp2(v[0]);
  } else if (op == "tanh") {
    r = Tanh(v[0]);
  } else {
    return Unsupported(i, "this operation on halves");
  }
  if (i.Has("sat")) r = Saturate(i, r);
  if (i.Has("relu")) r = Relu(r);
  llvm::Value* result = StoreHalf(type, r);
  return flush ? FlushHalf(type, result) : result;
}

absl::Status InstructionEmitter::EmitHalfArithmetic(const Instruction& i) {
  const Type type = i.type();
  if (!type.is_float()) return Malformed(i, "a floating point type is needed");
  if (type.bits == 64) return EmitFloatPair(i);
  if (i.Has("rz") || i.Has("rm") || i.Has("rp")) return Unsupported(i, "this rounding of halves");
  const Type bits = {Type::kBits, 1, type.bits};
  Args args;
  switch (i.operands.size()) {
    case 2: {
      ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}}));
      break;
    }
    case 3: {
      ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}, {2, bits}}));
      break;
    }
    case 4: {
      ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}, {2, bits}, {3, bits}}));
      break;
    }
    default:
      return Malformed(i, "takes two to four operands");
  }
  const bool ternary = i.opcode == "fma" || i.opcode == "mad";
  const bool binary = i.opcode == "add" || i.opcode == "sub" || i.opcode == "mul" ||
                      i.opcode == "min" || i.opcode == "max";
  if (i.operands.size() != (ternary ? 4u : binary ? 3u : 2u)) {
    return Malformed(i, absl::StrCat("has ", i.operands.size(), " operands"));
  }
  const Type element = {type.kind, 1, 16};
  llvm::Value* whole = nullptr;
  for (unsigned lane = 0; lane < type.lanes; ++lane) {
    std::array<llvm::Value*, 3> parts = {};
    for (size_t k = 0; k < 3; ++k) {
      llvm::Value* part = args.v[k];
      if (part != nullptr && type.lanes == 2) {
        part = builder_.CreateTrunc(builder_.CreateLShr(part, Constant(part, lane * 16)),
                                    SameShape(part, IntType(16)));
      }
      parts[k] = part;
    }
    ASSIGN_OR_RETURN(llvm::Value * part, HalfOperation(i, element, parts));
    if (type.lanes == 2) {
      part = builder_.CreateZExt(part, SameShape(part, IntType(32)));
      if (lane == 1) part = builder_.CreateShl(part, Constant(part, 16));
    }
    whole = whole == nullptr ? part : builder_.CreateOr(whole, part);
  }
  return Set(i, 0, args.Wrap(whole), bits);
}

absl::Status InstructionEmitter::EmitFloatPair(const Instruction& i) {
  const Type bits = {Type::kBits, 1, 64};
  const Type single = {Type::kFloat, 1, 32};
  const bool ternary = i.opcode == "fma";
  if (!ternary && i.opcode != "add" && i.opcode != "sub" && i.opcode != "mul") {
    return Unsupported(i, "this operation on pairs of f32");
  }
  Args args;
  if (ternary) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}, {2, bits}, {3, bits}}));
  } else {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}, {2, bits}}));
  }
  const RoundedOp op = ternary             ? RoundedOp::kFma
                       : i.opcode == "add" ? RoundedOp::kAdd
                       : i.opcode == "sub" ? RoundedOp::kSub
                                           : RoundedOp::kMul;
  llvm::Value* whole = nullptr;
  for (unsigned lane = 0; lane < 2; ++lane) {
    llvm::Value* v[3] = {};
    for (int k = 0; k < 3; ++k) {
      if (args.v[k] == nullptr) continue;
      llvm::Value* part = builder_.CreateLShr(args.v[k], Constant(args.v[k], 32 * lane));
      part = builder_.CreateTrunc(part, SameShape(part, IntType(32)));
      v[k] = Flush(i, single, AsType(part, single));
    }
    ASSIGN_OR_RETURN(llvm::Value * result, Rounded(i, op, single, v[0], v[1], v[2]));
    llvm::Value* part = AsBits(Flush(i, single, result));
    part = builder_.CreateZExt(part, SameShape(part, IntType(64)));
    if (lane == 1) part = builder_.CreateShl(part, Constant(part, 32));
    whole = whole == nullptr ? part : builder_.CreateOr(whole, part);
  }
  return Set(i, 0, args.Wrap(whole), bits);
}

}  // namespace fargpu::softgpu
