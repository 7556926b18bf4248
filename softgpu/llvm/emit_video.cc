// Instruction families: several small integers in one register. Video, dot products, pairs.
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

// What a selector (.b0, .h1; of pairs and quadruples .h32, .b7654) leaves of `value`, extended to
// 64 bits as `type` says.
llvm::Value* InstructionEmitter::VideoSelect(llvm::Value* value, absl::string_view selector,
                                             Type type) {
  unsigned bits = 32;
  unsigned from = 0;
  if (!selector.empty()) {
    bits = selector[0] == 'b' ? 8 : 16;
    from = static_cast<unsigned>(selector[1] - '0') * bits;
  }
  llvm::Value* wide = builder_.CreateZExt(value, SameShape(value, IntType(64)));
  wide = builder_.CreateShl(wide, Constant(wide, 64 - bits - from));
  return type.is_signed() ? builder_.CreateAShr(wide, Constant(wide, 64 - bits))
                          : builder_.CreateLShr(wide, Constant(wide, 64 - bits));
}

// Of 64-bit values that hold at most 33 bits.
absl::StatusOr<llvm::Value*> InstructionEmitter::VideoOperation(const Instruction& i,
                                                                absl::string_view op,
                                                                llvm::Value* a, llvm::Value* b) {
  if (op == "add") return builder_.CreateAdd(a, b);
  if (op == "sub") return builder_.CreateSub(a, b);
  if (op == "min") return Intrinsic(llvm::Intrinsic::smin, {a, b});
  if (op == "max") return Intrinsic(llvm::Intrinsic::smax, {a, b});
  if (op == "absdiff") {
    return builder_.CreateIntrinsic(a->getType(), llvm::Intrinsic::abs,
                                    {builder_.CreateSub(a, b), builder_.getFalse()});
  }
  if (op == "avrg") {  // half away from zero
    llvm::Value* sum = builder_.CreateAdd(a, b);
    llvm::Value* positive = builder_.CreateICmpSGE(sum, Constant(sum, 0));
    sum = builder_.CreateAdd(sum, builder_.CreateZExt(positive, sum->getType()));
    return builder_.CreateAShr(sum, Constant(sum, 1));
  }
  if (op == "set") {
    ASSIGN_OR_RETURN(llvm::Value * holds, Compare(i, a, b, {Type::kSigned, 1, 64}));
    return builder_.CreateZExt(holds, a->getType());
  }
  if (op == "shl" || op == "shr") {
    llvm::Value* by = i.Has("wrap") ? builder_.CreateAnd(b, Constant(b, 31))
                                    : Intrinsic(llvm::Intrinsic::umin, {b, Constant(b, 32)});
    if (op == "shr") return builder_.CreateAShr(a, by);
    // 33 bits moved by 32 do not fit, which matters to .sat only.
    return i.Has("sat") ? Intrinsic(llvm::Intrinsic::sshl_sat, {a, by}) : builder_.CreateShl(a, by);
  }
  return Unsupported(i, "this instruction is not supported");
}

namespace {

bool ValidSelector(absl::string_view s, unsigned lanes) {
  if (s.empty()) return true;
  const bool bytes = s[0] == 'b';
  if ((!bytes && s[0] != 'h') || s.size() != (lanes == 0 ? 2 : lanes + 1)) return false;
  // Lanes are picked from both sources together.
  const char limit = static_cast<char>('0' + (bytes ? 4 : 2) * (lanes == 0 ? 1 : 2));
  if (lanes != 0 && bytes != (lanes == 4)) return false;
  for (const char c : s.substr(1)) {
    if (c < '0' || c >= limit) return false;
  }
  return true;
}

}  // namespace

// vadd, vsub, vabsdiff, vmin, vmax, vset, vshl, vshr, vmad and, with 2 or 4 behind the name, the
// same on two halves or four bytes.
absl::Status InstructionEmitter::EmitVideo(const Instruction& i) {
  absl::string_view op = i.opcode.substr(1);
  if (op == "mad") return EmitVideoMad(i);
  if (op.back() == '2' || op.back() == '4') {
    return EmitVideoLanes(i, static_cast<unsigned>(op.back() - '0'));
  }
  // vset has no type for its result, which is 0 or 1.
  const bool is_set = op == "set";
  if (i.types.size() < (is_set ? 2u : 3u) || i.operands.size() < 3) {
    return Malformed(i, "types or operands are missing");
  }
  const Type to = is_set ? Type{Type::kUnsigned, 1, 32} : i.types[0];
  const Type type_a = i.types[is_set ? 0 : 1];
  const Type type_b = i.types[is_set ? 1 : 2];
  const absl::string_view target = i.operands[0].selector;
  const bool has_second = i.Has("add") || i.Has("min") || i.Has("max");
  for (int k = 0; k < 3; ++k) {
    if (!ValidSelector(i.operands[k].selector, 0)) return Malformed(i, "an unknown selector");
  }
  const Type b32 = {Type::kBits, 1, 32};
  const bool third = has_second || !target.empty();
  Args args;
  if (third) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, b32}, {2, b32}, {3, b32}}));
  } else {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, b32}, {2, b32}}));
  }
  llvm::Value* a = VideoSelect(args.v[0], i.operands[1].selector, type_a);
  llvm::Value* b = VideoSelect(args.v[1], i.operands[2].selector, type_b);
  ASSIGN_OR_RETURN(llvm::Value * value, VideoOperation(i, op, a, b));
  const unsigned bits = target.empty() ? 32 : target[0] == 'b' ? 8 : 16;
  llvm::Type* narrow = SameShape(value, IntType(32));
  if (i.Has("sat")) {
    value = ClampInteger(value, {Type::kSigned, 1, 64}, bits, to.is_signed());
    value = to.is_signed() ? builder_.CreateSExtOrTrunc(value, narrow)
                           : builder_.CreateZExtOrTrunc(value, narrow);
  } else {
    value = builder_.CreateTrunc(value, narrow);
  }
  llvm::Value* c = args.v[2];
  if (has_second) {
    value = i.Has("add")
                ? builder_.CreateAdd(value, c)
                : Intrinsic(i.Has("min")
                                ? (to.is_signed() ? llvm::Intrinsic::smin : llvm::Intrinsic::umin)
                                : (to.is_signed() ? llvm::Intrinsic::smax : llvm::Intrinsic::umax),
                            {value, c});
  } else if (!target.empty()) {  // put into c
    const unsigned from = static_cast<unsigned>(target[1] - '0') * bits;
    const uint64_t mask = ((uint64_t{1} << bits) - 1) << from;
    value =
        builder_.CreateAnd(builder_.CreateShl(value, Constant(value, from)), Constant(value, mask));
    value = builder_.CreateOr(value, builder_.CreateAnd(c, Constant(c, ~mask)));
  }
  return Set(i, 0, args.Wrap(value), b32);
}

absl::Status InstructionEmitter::EmitVideoLanes(const Instruction& i, unsigned lanes) {
  const absl::string_view op = i.opcode.substr(1, i.opcode.size() - 2);
  const bool is_set = op == "set";
  if (i.types.size() < (is_set ? 2u : 3u) || i.operands.size() < 3) {
    return Malformed(i, "types or operands are missing");
  }
  if (op != "add" && op != "sub" && op != "avrg" && op != "absdiff" && op != "min" && op != "max" &&
      op != "set") {
    return Unsupported(i, "this instruction is not supported");
  }
  const Type to = is_set ? Type{Type::kUnsigned, 1, 32} : i.types[0];
  const Type type_a = i.types[is_set ? 0 : 1];
  const Type type_b = i.types[is_set ? 1 : 2];
  const unsigned bits = 32 / lanes;
  const char kind = lanes == 4 ? 'b' : 'h';
  for (int k = 1; k < 3; ++k) {
    if (!ValidSelector(i.operands[k].selector, lanes)) return Malformed(i, "an unknown selector");
  }
  // Which lanes are written: d.h10, d.b3, ...
  unsigned mask = (1u << lanes) - 1;
  const absl::string_view target = i.operands[0].selector;
  if (!target.empty()) {
    mask = 0;
    for (const char c : target.substr(1)) {
      if (target[0] != kind || c < '0' || c >= static_cast<char>('0' + lanes)) {
        return Malformed(i, "an unknown mask");
      }
      mask |= 1u << (c - '0');
    }
  }
  const Type b32 = {Type::kBits, 1, 32};
  Args args;
  if (i.operands.size() > 3) {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, b32}, {2, b32}, {3, b32}}));
  } else {
    ASSIGN_OR_RETURN(args, Fetch(i, {{1, b32}, {2, b32}}));
    args.v[2] = Constant(args.v[0], 0);
  }
  // A lane of a source is picked from {b, a}; without a selector a gives its own, b its own.
  const auto lane = [&](unsigned operand, unsigned k, Type type) {
    const absl::string_view selector = i.operands[operand].selector;
    unsigned index = operand == 1 ? k : k + lanes;
    if (!selector.empty()) {  // the last digit is lane 0
      index = static_cast<unsigned>(selector[selector.size() - 1 - k] - '0');
    }
    const char name[] = {kind, static_cast<char>('0' + index % lanes)};
    return VideoSelect(args.v[index / lanes], absl::string_view(name, 2), type);
  };
  llvm::Value* c = args.v[2];
  llvm::Value* result = c;
  for (unsigned k = 0; k < lanes; ++k) {
    if ((mask >> k & 1) == 0) continue;
    ASSIGN_OR_RETURN(llvm::Value * value,
                     VideoOperation(i, op, lane(1, k, type_a), lane(2, k, type_b)));
    llvm::Type* narrow = SameShape(value, IntType(32));
    if (i.Has("sat")) {
      value = ClampInteger(value, {Type::kSigned, 1, 64}, bits, to.is_signed());
      value =
          to.is_signed() ? builder_.CreateSExt(value, narrow) : builder_.CreateZExt(value, narrow);
    } else {
      value = builder_.CreateTrunc(value, narrow);
    }
    if (i.Has("add")) {
      result = builder_.CreateAdd(result, value);
      continue;
    }
    const uint64_t place = ((uint64_t{1} << bits) - 1) << (k * bits);
    value = builder_.CreateAnd(builder_.CreateShl(value, Constant(value, k * bits)),
                               Constant(value, place));
    result = builder_.CreateOr(builder_.CreateAnd(result, Constant(result, ~place)), value);
  }
  return Set(i, 0, args.Wrap(result), b32);
}

absl::Status InstructionEmitter::EmitVideoMad(const Instruction& i) {
  if (i.types.size() < 3 || i.operands.size() != 4) return Malformed(i, "vmad takes four operands");
  const Type b32 = {Type::kBits, 1, 32};
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, b32}, {2, b32}, {3, b32}}));
  for (int k = 1; k < 3; ++k) {
    if (!ValidSelector(i.operands[k].selector, 0)) return Malformed(i, "an unknown selector");
  }
  llvm::Type* wide = SameShape(args.v[0], IntType(128));
  const auto factor = [&](int k, Type type) {
    llvm::Value* v = VideoSelect(args.v[k - 1], i.operands[k].selector, type);
    return type.is_signed() ? builder_.CreateSExt(v, wide) : builder_.CreateZExt(v, wide);
  };
  const bool minus_product = i.operands[1].negated != i.operands[2].negated;
  const bool minus_addend = i.operands[3].negated;
  const bool is_signed =
      i.types[1].is_signed() || i.types[2].is_signed() || minus_product || minus_addend;
  llvm::Value* value = builder_.CreateMul(factor(1, i.types[1]), factor(2, i.types[2]));
  llvm::Value* c =
      is_signed ? builder_.CreateSExt(args.v[2], wide) : builder_.CreateZExt(args.v[2], wide);
  if (minus_product) value = builder_.CreateNeg(value);
  if (minus_addend) c = builder_.CreateNeg(c);
  value = builder_.CreateAdd(value, c);
  if (i.Has("po")) value = builder_.CreateAdd(value, Constant(value, 1));
  const unsigned scale = i.Has("shr7") ? 7 : i.Has("shr15") ? 15 : 0;
  value = is_signed ? builder_.CreateAShr(value, Constant(value, scale))
                    : builder_.CreateLShr(value, Constant(value, scale));
  value = i.Has("sat") ? ClampInteger(value, {Type::kSigned, 1, 128}, 32, is_signed)
                       : builder_.CreateTrunc(value, SameShape(value, IntType(32)));
  return Set(i, 0, args.Wrap(value), b32);
}

absl::Status InstructionEmitter::EmitPackedInteger(const Instruction& i) {
  // Two 16-bit lanes in a 32-bit register: twice as many vector elements.
  const Type type = i.type();
  if (type.bits != 32) return Malformed(i, "no such operation on this type");
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
