// Instruction families: logic, shifts, bit fields, permutations.
#include <algorithm>
#include <bit>
#include <cuda.h>

#include "absl/strings/str_cat.h"
#include "llvm/IR/Intrinsics.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

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
    if (left && HasForm(value) && by < type.bits) {
      const LaneValue factor =
          LaneValue::Uniform(llvm::ConstantInt::get(IntType(type.bits), uint64_t{1} << by));
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
  if (i.opcode == "bfe") return EmitBitFieldExtract(i);
  if (i.opcode == "bfi") return EmitBitFieldInsert(i);
  if (i.opcode == "fns") return EmitFindNth(i);
  const Type u32 = {Type::kUnsigned, 1, 32};
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
  llvm::Value* down = type.is_signed() ? builder_.CreateAShr(up, by) : builder_.CreateLShr(up, by);
  llvm::Value* result = builder_.CreateTrunc(down, args.v[0]->getType());
  return Set(i, 0, args.Wrap(builder_.CreateSelect(none, Constant(result, 0), result)), type);
}

absl::Status InstructionEmitter::EmitBitFieldExtract(const Instruction& i) {
  const Type type = i.type();
  const Type u32 = {Type::kUnsigned, 1, 32};
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
  llvm::Value* shifted = type.is_signed() ? builder_.CreateAShr(v, by) : builder_.CreateLShr(v, by);
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

absl::Status InstructionEmitter::EmitBitFieldInsert(const Instruction& i) {
  const Type type = i.type();
  const Type u32 = {Type::kUnsigned, 1, 32};
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

absl::Status InstructionEmitter::EmitFindNth(const Instruction& i) {
  // d = place of the |offset|-th bit of the mask that is set, from `base` up (offset > 0) or down;
  // with offset 0, `base` if its bit is set. All ones if there is none.
  const Type u32 = {Type::kUnsigned, 1, 32};
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, u32}, {2, u32}, {3, u32}}));
  llvm::Value* mask = args.v[0];
  llvm::Value* base = args.v[1];
  llvm::Value* offset = args.v[2];
  llvm::Value* zero = Constant(mask, 0);
  llvm::Value* one = Constant(mask, 1);
  llvm::Value* none = Constant(mask, 0xffffffff);
  llvm::Value* down = builder_.CreateICmpSLT(offset, zero);
  llvm::Value* here = builder_.CreateICmpEQ(offset, zero);
  // Downwards is upwards in the mask written backwards.
  llvm::Value* start =
      builder_.CreateSelect(down, builder_.CreateSub(Constant(mask, 31), base), base);
  llvm::Value* inside = builder_.CreateICmpULT(base, Constant(mask, 32));
  start = builder_.CreateAnd(start, Constant(mask, 31));
  llvm::Value* bits =
      builder_.CreateSelect(down, Intrinsic(llvm::Intrinsic::bitreverse, {mask}), mask);
  bits = builder_.CreateLShr(bits, start);
  llvm::Value* wanted = builder_.CreateIntrinsic(offset->getType(), llvm::Intrinsic::abs,
                                                 {offset, builder_.getFalse()});
  wanted = builder_.CreateSelect(here, zero, builder_.CreateSub(wanted, one));
  // Where the count of set bits below passes `wanted`, by halving.
  llvm::Value* position = zero;
  llvm::Value* left = wanted;
  llvm::Value* rest = bits;
  for (unsigned width = 16; width > 0; width /= 2) {
    llvm::Value* low = builder_.CreateAnd(rest, Constant(mask, (uint64_t{1} << width) - 1));
    llvm::Value* count = Intrinsic(llvm::Intrinsic::ctpop, {low});
    llvm::Value* above = builder_.CreateICmpUGE(left, count);
    left = builder_.CreateSelect(above, builder_.CreateSub(left, count), left);
    rest = builder_.CreateSelect(above, builder_.CreateLShr(rest, Constant(mask, width)), rest);
    position =
        builder_.CreateSelect(above, builder_.CreateAdd(position, Constant(mask, width)), position);
  }
  llvm::Value* found = builder_.CreateICmpULT(wanted, Intrinsic(llvm::Intrinsic::ctpop, {bits}));
  llvm::Value* at = builder_.CreateAdd(start, position);
  at = builder_.CreateSelect(down, builder_.CreateSub(Constant(mask, 31), at), at);
  // With offset 0 only the bit at `base` itself counts.
  llvm::Value* set = builder_.CreateICmpNE(builder_.CreateAnd(bits, one), zero);
  found = builder_.CreateSelect(here, set, found);
  llvm::Value* result = builder_.CreateSelect(builder_.CreateAnd(found, inside),
                                              builder_.CreateSelect(here, base, at), none);
  return Set(i, 0, args.Wrap(result), u32);
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
  if (i.operands[0].kind != Operand::Kind::kPair) return Set(i, 0, args.Wrap(result), b32);
  // lop3.or.b32 d|p, a, b, c, table, q: p = (d != 0) or q.
  const Type pred = {Type::kPred, 1, 1};
  ASSIGN_OR_RETURN(const LaneValue q, Get(i, 5, pred));
  const LaneValue any = args.Wrap(builder_.CreateICmpNE(result, Constant(result, 0)));
  const Args both = Unify({any, q});
  llvm::Value* p = i.Has("and")   ? builder_.CreateAnd(both.v[0], both.v[1])
                   : i.Has("xor") ? builder_.CreateXor(both.v[0], both.v[1])
                                  : builder_.CreateOr(both.v[0], both.v[1]);
  RETURN_IF_ERROR(Set(i, i.operands[0].parts[0], args.Wrap(result), b32));
  return Set(i, i.operands[0].parts[1], both.Wrap(p), pred);
}

}  // namespace fargpu::softgpu
