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

absl::Status InstructionEmitter::EmitHalfArithmetic(const Instruction& i) {
  const Type type = i.type();
  const absl::string_view op = i.opcode;
  const bool ternary = op == "fma" || op == "mad";
  const bool unary =
      op == "ex2" || op == "tanh" || op == "lg2" || op == "rsqrt" || op == "rcp" || op == "sqrt";
  if (i.Has("rz") || i.Has("rm") || i.Has("rp")) return Unsupported(i, "this rounding of halves");
  const Type bits = {Type::kBits, 1, type.bits};
  Args args;
  if (unary) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}}));
  } else if (ternary) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}, {2, bits}, {3, bits}}));
  } else {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, bits}, {2, bits}}));
  }
  const Type element = {type.kind, 1, 16};
  llvm::Value* whole = nullptr;
  for (unsigned lane = 0; lane < type.lanes; ++lane) {
    llvm::Value* v[3] = {};
    for (int k = 0; k < 3; ++k) {
      if (args.v[k] == nullptr) continue;
      llvm::Value* part = args.v[k];
      if (type.lanes == 2) {
        part = builder_.CreateTrunc(builder_.CreateLShr(part, Constant(part, lane * 16)),
                                    SameShape(part, IntType(16)));
      }
      v[k] = LoadHalf(element, part);
    }
    llvm::Value* r;
    if (op == "add") {
      r = builder_.CreateFAdd(v[0], v[1]);
    } else if (op == "sub") {
      r = builder_.CreateFSub(v[0], v[1]);
    } else if (op == "mul") {
      r = builder_.CreateFMul(v[0], v[1]);
    } else if (ternary) {
      // The product of halves is exact in double, and so (nearly always) is the sum; one rounding
      // to the half follows by way of double, not float.
      llvm::Type* real = SameShape(v[0], builder_.getDoubleTy());
      llvm::Value* product =
          builder_.CreateFMul(builder_.CreateFPExt(v[0], real), builder_.CreateFPExt(v[1], real));
      llvm::Value* sum = builder_.CreateFAdd(product, builder_.CreateFPExt(v[2], real));
      r = NarrowToOdd(sum);
    } else if (op == "min" || op == "max") {
      llvm::Value* less =
          op == "min" ? builder_.CreateFCmpOLT(v[0], v[1]) : builder_.CreateFCmpOGT(v[0], v[1]);
      r = builder_.CreateSelect(less, v[0], v[1]);
      llvm::Value* a = AsBits(v[0]);
      llvm::Value* b = AsBits(v[1]);
      llvm::Value* zeros = op == "min" ? builder_.CreateOr(a, b) : builder_.CreateAnd(a, b);
      r = builder_.CreateSelect(builder_.CreateFCmpOEQ(v[0], v[1]),
                                builder_.CreateBitCast(zeros, r->getType()), r);
      if (i.Has("NaN")) {
        r = builder_.CreateSelect(builder_.CreateFCmpUNO(v[0], v[1]),
                                  llvm::ConstantFP::getNaN(r->getType()), r);
      } else {
        r = builder_.CreateSelect(builder_.CreateFCmpUNO(v[1], v[1]), v[0], r);
      }
    } else if (op == "ex2") {
      r = Exp2(v[0]);
    } else if (op == "tanh") {
      r = Tanh(v[0]);
    } else {
      return Unsupported(i, "this operation on halves");
    }
    if (i.Has("sat")) r = Saturate(i, r);
    if (i.Has("relu")) {
      llvm::Value* positive = builder_.CreateFCmpUGT(r, FloatConstant(r, 0));
      r = builder_.CreateSelect(positive, r, FloatConstant(r, 0));
    }
    llvm::Value* part = StoreHalf(element, r);
    if (type.lanes == 2) {
      part = builder_.CreateZExt(part, SameShape(part, IntType(32)));
      if (lane == 1) part = builder_.CreateShl(part, Constant(part, 16));
    }
    whole = whole == nullptr ? part : builder_.CreateOr(whole, part);
  }
  return Set(i, 0, args.Wrap(whole), bits);
}

}  // namespace fargpu::softgpu
