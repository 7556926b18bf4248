// Instruction families: moves, selections, comparisons, trap.
#include <cuda.h>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;
using llvm::CmpInst;

absl::Status InstructionEmitter::EmitMov(const Instruction& i) {
  if (i.operands.size() != 2) return Malformed(i, "mov takes two operands");
  const Operand& to = i.operands[0];
  const Operand& from = i.operands[1];
  const Type type = i.type();
  if (type.kind == Type::kPred) {
    ASSIGN_OR_RETURN(const LaneValue value, Get(i, 1, type));
    return Set(i, 0, value, type);
  }
  Type bits = type;
  bits.kind = i.Has("extend") && type.is_signed() ? Type::kSigned : Type::kBits;
  bits.lanes = 1;
  if (from.kind == Kind::kVector) {  // pack
    const size_t n = from.parts.size();
    if (n != 2 && n != 4) return Malformed(i, "a vector of 2 or 4 registers is needed");
    const uint16_t width = type.bits / n;
    LaneValue parts[4];
    for (size_t k = 0; k < n; ++k) {
      ASSIGN_OR_RETURN(parts[k], Get(i, from.parts[k], {Type::kBits, 1, width}));
    }
    const Args args =
        n == 2 ? Unify({parts[0], parts[1]}) : Unify({parts[0], parts[1], parts[2], parts[3]});
    llvm::Value* whole = nullptr;
    for (size_t k = 0; k < n; ++k) {
      llvm::Value* wide = builder_.CreateZExt(args.v[k], SameShape(args.v[k], IntType(type.bits)));
      if (k > 0) wide = builder_.CreateShl(wide, Constant(wide, k * width));
      whole = whole == nullptr ? wide : builder_.CreateOr(whole, wide);
    }
    return Set(i, 0, args.Wrap(whole), bits);
  }
  ASSIGN_OR_RETURN(const LaneValue value, Get(i, 1, bits));
  if (to.kind == Kind::kVector) {  // unpack
    const size_t n = to.parts.size();
    if (n != 2 && n != 4) return Malformed(i, "a vector of 2 or 4 registers is needed");
    const uint16_t width = type.bits / n;
    const Args args = Unify({value});
    for (size_t k = 0; k < n; ++k) {
      llvm::Value* part = args.v[0];
      if (k > 0) part = builder_.CreateLShr(part, Constant(part, k * width));
      part = builder_.CreateTrunc(part, SameShape(part, IntType(width)));
      RETURN_IF_ERROR(Set(i, to.parts[k], args.Wrap(part), {Type::kBits, 1, width}));
    }
    return absl::OkStatus();
  }
  return Set(i, 0, value, bits);
}

absl::Status InstructionEmitter::EmitCvta(const Instruction& i) {
  Type type = {Type::kUnsigned, 1, 64};
  if (i.type().bits == 32) return Unsupported(i, "32-bit addresses");
  ASSIGN_OR_RETURN(LaneValue value, Get(i, 1, type));
  const bool to = i.Has("to");
  const bool shared = i.Has("shared") || i.Has("shared::cta");
  const bool local = i.Has("local");
  if (i.Has("shared::cluster")) {
    return Set(i, 0, to ? ClusterOfPlain(value) : PlainOfCluster(value, 0), type);
  }
  if (!shared && !local) return Set(i, 0, value, type);  // global, const, param: plain addresses
  LaneValue base;
  if (shared) {
    base = LaneValue::Uniform(
        ContextField(builder_.getInt64Ty(), offsetof(WarpContext, shared_base), "shared"));
  } else {
    base.scalar = LocalBase();
    LaneOffsets offsets;
    for (int k = 0; k < kWarpSize; ++k) offsets[k] = k * static_cast<int64_t>(kernel_.local_bytes);
    base.offsets = Keep(offsets);
  }
  return Set(i, 0, PatternAdd(value, base, to), type);
}

absl::Status InstructionEmitter::EmitSelp(const Instruction& i) {
  Type type = i.type();
  type.kind = Type::kBits;
  type.lanes = 1;
  ASSIGN_OR_RETURN(const LaneValue a, Get(i, 1, type));
  ASSIGN_OR_RETURN(const LaneValue b, Get(i, 2, type));
  ASSIGN_OR_RETURN(const LaneValue p, Get(i, 3, {Type::kPred, 1, 1}));
  if (p.uniform() && !(a.uniform() && b.uniform())) {
    return Set(i, 0,
               LaneValue::Varying(
                   builder_.CreateSelect(p.scalar, AsVector(builder_, a), AsVector(builder_, b))),
               type);
  }
  const Args args = Unify({p, a, b});
  return Set(i, 0, args.Wrap(builder_.CreateSelect(args.v[0], args.v[1], args.v[2])), type);
}

absl::StatusOr<llvm::Value*> InstructionEmitter::Compare(const Instruction& i, llvm::Value* a,
                                                         llvm::Value* b, Type type) {
  struct Row {
    absl::string_view name;
    CmpInst::Predicate is_signed, is_unsigned, is_float;
  };
  static constexpr Row kRows[] = {
      {"eq", CmpInst::ICMP_EQ, CmpInst::ICMP_EQ, CmpInst::FCMP_OEQ},
      {"ne", CmpInst::ICMP_NE, CmpInst::ICMP_NE, CmpInst::FCMP_ONE},
      {"lt", CmpInst::ICMP_SLT, CmpInst::ICMP_ULT, CmpInst::FCMP_OLT},
      {"le", CmpInst::ICMP_SLE, CmpInst::ICMP_ULE, CmpInst::FCMP_OLE},
      {"gt", CmpInst::ICMP_SGT, CmpInst::ICMP_UGT, CmpInst::FCMP_OGT},
      {"ge", CmpInst::ICMP_SGE, CmpInst::ICMP_UGE, CmpInst::FCMP_OGE},
      {"lo", CmpInst::ICMP_ULT, CmpInst::ICMP_ULT, CmpInst::BAD_FCMP_PREDICATE},
      {"ls", CmpInst::ICMP_ULE, CmpInst::ICMP_ULE, CmpInst::BAD_FCMP_PREDICATE},
      {"hi", CmpInst::ICMP_UGT, CmpInst::ICMP_UGT, CmpInst::BAD_FCMP_PREDICATE},
      {"hs", CmpInst::ICMP_UGE, CmpInst::ICMP_UGE, CmpInst::BAD_FCMP_PREDICATE},
      {"equ", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_UEQ},
      {"neu", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_UNE},
      {"ltu", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_ULT},
      {"leu", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_ULE},
      {"gtu", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_UGT},
      {"geu", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_UGE},
      {"num", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_ORD},
      {"nan", CmpInst::BAD_ICMP_PREDICATE, CmpInst::BAD_ICMP_PREDICATE, CmpInst::FCMP_UNO},
  };
  for (const Row& row : kRows) {
    if (!i.Has(row.name)) continue;
    if (type.is_float()) {
      if (row.is_float == CmpInst::BAD_FCMP_PREDICATE) break;
      return builder_.CreateFCmp(row.is_float, Flush(i, type, a), Flush(i, type, b));
    }
    const auto predicate = type.is_signed() ? row.is_signed : row.is_unsigned;
    if (predicate == CmpInst::BAD_ICMP_PREDICATE) break;
    return builder_.CreateICmp(predicate, a, b);
  }
  return Malformed(i, "there is no comparison for this type");
}

// Results of a comparison: one, or of packed halves two.
absl::StatusOr<std::vector<LaneValue>> InstructionEmitter::CompareOperands(const Instruction& i,
                                                                           Type type) {
  Type bits = type;
  if (type.bits == 16 || type.lanes == 2) {
    bits.lanes = 1;
    if (type.is_float()) bits.kind = Type::kBits;
  }
  const bool halves = type.is_float() && (type.bits == 16 || type.lanes == 2);
  if (type.lanes == 2 && !(halves && type.bits == 32)) {
    return Unsupported(i, "comparison of such packed values");
  }
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, bits}, {2, bits}}));
  std::vector<LaneValue> results;
  for (unsigned lane = 0; lane < type.lanes; ++lane) {
    llvm::Value* v[2];
    for (int k = 0; k < 2; ++k) {
      v[k] = args.v[k];
      if (!halves) continue;
      llvm::Value* part = builder_.CreateLShr(v[k], Constant(v[k], 16 * lane));
      part = builder_.CreateTrunc(part, SameShape(part, IntType(16)));
      const Type element = {type.kind, 1, 16};
      v[k] = LoadHalf(element, i.Has("ftz") ? FlushHalf(element, part) : part);
    }
    ASSIGN_OR_RETURN(llvm::Value * holds,
                     Compare(i, v[0], v[1], halves ? Type{Type::kFloat, 1, 32} : type));
    results.push_back(args.Wrap(holds));
  }
  return results;
}

// A comparison's result combined with operand 3, if there is one.
absl::StatusOr<LaneValue> InstructionEmitter::CombinePredicate(const Instruction& i,
                                                               const LaneValue& value) {
  if (i.operands.size() <= 3) return value;
  ASSIGN_OR_RETURN(const LaneValue c, Get(i, 3, Type{Type::kPred, 1, 1}));
  const Args args = Unify({value, c});
  return args.Wrap(i.Has("and")  ? builder_.CreateAnd(args.v[0], args.v[1])
                   : i.Has("or") ? builder_.CreateOr(args.v[0], args.v[1])
                                 : builder_.CreateXor(args.v[0], args.v[1]));
}

absl::Status InstructionEmitter::EmitSetp(const Instruction& i) {
  if (i.types.empty()) return Malformed(i, "the type is missing");
  const Type type = i.types.back();
  const Type pred = {Type::kPred, 1, 1};
  if (i.operands.size() < 3) return Malformed(i, "setp takes at least three operands");
  const bool both = i.operands[0].kind == Kind::kPair;
  ASSIGN_OR_RETURN(std::vector<LaneValue> results, CompareOperands(i, type));
  if (type.lanes == 2 && !both) return Malformed(i, "packed values need two predicates");
  if (both && type.lanes == 1) {  // q is the opposite
    const Args args = Unify({results[0]});
    results.push_back(args.Wrap(builder_.CreateNot(args.v[0])));
  }
  for (LaneValue& result : results) {
    ASSIGN_OR_RETURN(result, CombinePredicate(i, result));
  }
  if (!both) return Set(i, 0, results[0], pred);
  RETURN_IF_ERROR(Set(i, i.operands[0].parts[0], results[0], pred));
  return Set(i, i.operands[0].parts[1], results[1], pred);
}

absl::Status InstructionEmitter::EmitSet(const Instruction& i) {
  if (i.types.size() != 2) return Malformed(i, "set needs two types");
  const Type to = i.types[0];
  const Type type = i.types[1];
  if (to.bits < 16 || to.bits > 64 || (type.lanes == 2 && to.bits != 32) ||
      (type.lanes == 1 && to.lanes == 2)) {
    return Malformed(i, "such types do not go together");
  }
  ASSIGN_OR_RETURN(const std::vector<LaneValue> results, CompareOperands(i, type));
  const uint16_t width = to.bits / type.lanes;
  // True is all ones, or 1.0 in a floating point destination.
  const uint64_t one = !to.is_float()             ? ~uint64_t{0}
                       : width == 32              ? 0x3f800000
                       : to.kind == Type::kBFloat ? 0x3f80
                                                  : 0x3c00;
  llvm::Value* whole = nullptr;
  bool uniform = true;
  for (const LaneValue& result : results) {
    ASSIGN_OR_RETURN(const LaneValue flag_value, CombinePredicate(i, result));
    const Args flag = Unify({flag_value});
    uniform = flag.uniform;
    llvm::Type* shape = SameShape(flag.v[0], IntType(width));
    llvm::Value* value = builder_.CreateSelect(
        flag.v[0], llvm::ConstantInt::get(shape, llvm::APInt(64, one).trunc(width)),
        llvm::ConstantInt::get(shape, 0));
    if (type.lanes == 2) value = builder_.CreateZExt(value, SameShape(value, IntType(32)));
    whole = whole == nullptr
                ? value
                : builder_.CreateOr(whole, builder_.CreateShl(value, Constant(value, width)));
  }
  return Set(i, 0, uniform ? LaneValue::Uniform(whole) : LaneValue::Varying(whole),
             {Type::kBits, 1, to.bits});
}

absl::Status InstructionEmitter::EmitSlct(const Instruction& i) {
  if (i.types.size() != 2) return Malformed(i, "slct needs two types");
  Type type = i.types[0];
  type.kind = Type::kBits;
  const Type selector = i.types[1];
  ASSIGN_OR_RETURN(const Args args, Fetch(i, {{1, type}, {2, type}, {3, selector}}));
  llvm::Value* c = selector.is_float() ? Flush(i, selector, args.v[2]) : args.v[2];
  llvm::Value* positive =
      selector.is_float() ? builder_.CreateFCmpOGE(c, llvm::Constant::getNullValue(c->getType()))
                          : builder_.CreateICmpSGE(c, Constant(c, 0));
  return Set(i, 0, args.Wrap(builder_.CreateSelect(positive, args.v[0], args.v[1])), type);
}

absl::Status InstructionEmitter::EmitNothing(const Instruction& i) { return absl::OkStatus(); }

absl::Status InstructionEmitter::EmitTrap(const Instruction& i) {
  FailIf(Any(ExecMask()), kRuntimeTrap, {Int32(static_cast<uint32_t>(i.location.line))});
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
