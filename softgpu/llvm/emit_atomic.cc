// Instruction family: atom and red. Lanes take their turns in order, in the runtime.
#include <cuda.h>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;
using ptx::Space;

absl::Status InstructionEmitter::EmitAtomic(const Instruction& i) {
  ASSIGN_OR_RETURN(const Access access, ParseAccess(i));
  if (access.count != 1 || i.Has("v2") || i.Has("v4")) return Unsupported(i, "vector atomics");
  const bool returns = i.opcode == "atom";
  const size_t at = returns ? 1 : 0;
  struct Row {
    absl::string_view name;
    AtomicOp op;
  };
  static constexpr Row kOps[] = {
      {"add", AtomicOp::kAdd},       {"min", AtomicOp::kMin},
      {"max", AtomicOp::kMax},       {"inc", AtomicOp::kInc},
      {"dec", AtomicOp::kDec},       {"and", AtomicOp::kAnd},
      {"or", AtomicOp::kOr},         {"xor", AtomicOp::kXor},
      {"exch", AtomicOp::kExchange}, {"cas", AtomicOp::kCompareExchange}};
  const Row* row = nullptr;
  for (const Row& candidate : kOps) {
    if (i.Has(candidate.name)) row = &candidate;
  }
  if (row == nullptr) return Malformed(i, "unknown operation");
  const Type type = access.type;
  AtomicType code;
  const bool bitwise = row->op == AtomicOp::kExchange || row->op == AtomicOp::kCompareExchange ||
                       row->op == AtomicOp::kAnd || row->op == AtomicOp::kOr ||
                       row->op == AtomicOp::kXor;
  if (type.lanes == 2 && type.kind == Type::kFloat) {
    code = AtomicType::kF16x2;
  } else if (type.lanes == 2 && type.kind == Type::kBFloat) {
    code = AtomicType::kBF16x2;
  } else if (type.bits == 16 && type.is_float()) {
    code = type.kind == Type::kFloat ? AtomicType::kF16 : AtomicType::kBF16;
  } else if (type.bits == 16 && row->op == AtomicOp::kCompareExchange) {
    code = AtomicType::kU16;
  } else if (type.kind == Type::kFloat && !bitwise) {
    code = type.bits == 32 ? AtomicType::kF32 : AtomicType::kF64;
  } else if (type.bits == 32) {
    code = type.is_signed() ? AtomicType::kS32 : AtomicType::kU32;
  } else if (type.bits == 64) {
    code = type.is_signed() ? AtomicType::kS64 : AtomicType::kU64;
  } else {
    return Unsupported(i, "this type");
  }
  const bool is_float = code >= AtomicType::kF32 && code <= AtomicType::kBF16;
  if (is_float && row->op != AtomicOp::kAdd && row->op != AtomicOp::kMin &&
      row->op != AtomicOp::kMax) {
    return Unsupported(i, "this operation on floating point numbers");
  }
  const Type bits = {
      type.is_float() && type.bits >= 32 && type.lanes == 1 ? Type::kFloat : Type::kBits, 1,
      type.bits};
  llvm::Type* element = IntType(type.bits);
  ASSIGN_OR_RETURN(LaneValue a, Get(i, at + 1, bits));
  llvm::Value* va = AsVector(builder_, CastTo(a, element));
  llvm::Value* vb = va;
  if (row->op == AtomicOp::kCompareExchange) {
    ASSIGN_OR_RETURN(LaneValue b, Get(i, at + 2, bits));
    vb = AsVector(builder_, CastTo(b, element));
  }
  if (at >= i.operands.size()) return Malformed(i, "the address is missing");
  ASSIGN_OR_RETURN(const LaneValue address,
                   CheckedAddress(i, i.operands[at], access.space, access.bytes()));
  llvm::Value* out = EntryAlloca(VectorOf(element), "old");
  const uint32_t word = static_cast<uint32_t>(row->op) | static_cast<uint32_t>(code) << 8 |
                        (access.space == Space::kShared ? kAtomicBlockPrivate : 0);
  CallRuntime(kRuntimeAtomic, builder_.getVoidTy(),
              {Int32(word), SpillLanes(AsVector(builder_, address), "addresses"),
               MaskBits(ExecMask()), SpillLanes(va, "a"), SpillLanes(vb, "b"), out});
  if (!returns) return absl::OkStatus();
  return Set(i, 0, LaneValue::Varying(builder_.CreateLoad(VectorOf(element), out)), bits);
}

}  // namespace fargpu::softgpu
