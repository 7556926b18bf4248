// Instruction families: matrices that a warp holds together (mma, wmma), and their tiles in shared
// memory (ldmatrix, stmatrix, movmatrix).
#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;

namespace {

struct TypeRow {
  absl::string_view name;
  MatrixType type;
  unsigned bits;
};
constexpr TypeRow kMatrixTypes[] = {
    {"f16", MatrixType::kF16, 16}, {"bf16", MatrixType::kBF16, 16}, {"tf32", MatrixType::kTF32, 32},
    {"f32", MatrixType::kF32, 32}, {"f64", MatrixType::kF64, 64},   {"s8", MatrixType::kS8, 8},
    {"u8", MatrixType::kU8, 8},    {"s4", MatrixType::kS4, 4},      {"u4", MatrixType::kU4, 4},
    {"b1", MatrixType::kB1, 1},    {"s32", MatrixType::kS32, 32},   {"e4m3", MatrixType::kE4M3, 8},
    {"e5m2", MatrixType::kE5M2, 8}};

unsigned BitsOf(MatrixType type) {
  for (const TypeRow& row : kMatrixTypes) {
    if (row.type == type) return row.bits;
  }
  return 0;
}

unsigned RegisterBits(MatrixType type) { return type == MatrixType::kF64 ? 64 : 32; }

// Registers of a lane that hold `elements` elements of a matrix.
unsigned Registers(unsigned elements, MatrixType type) {
  return std::max(1u, elements * BitsOf(type) / (kWarpSize * RegisterBits(type)));
}

// "m16n8k16"
bool ParseShape(absl::string_view text, MatrixCode* code) {
  const size_t n = text.find('n'), k = text.find('k');
  unsigned values[3];
  if (text.empty() || text[0] != 'm' || n == text.npos || k == text.npos || k < n) return false;
  if (!absl::SimpleAtoi(text.substr(1, n - 1), &values[0]) ||
      !absl::SimpleAtoi(text.substr(n + 1, k - n - 1), &values[1]) ||
      !absl::SimpleAtoi(text.substr(k + 1), &values[2])) {
    return false;
  }
  code->m = static_cast<uint16_t>(values[0]);
  code->n = static_cast<uint16_t>(values[1]);
  code->k = static_cast<uint16_t>(values[2]);
  return true;
}

// The layouts of the fragments hold for these sizes.
bool IsKnownShape(const MatrixCode& code, unsigned bits, unsigned register_bits) {
  const unsigned words = code.k * bits / register_bits;
  return (code.m == 8 || code.m == 16 || code.m == 32) &&
         (code.n == 8 || code.n == 16 || code.n == 32) && code.m * code.n <= 256 &&
         (words == 4 || words == 8 || words == 16) && code.k * bits % register_bits == 0;
}

}  // namespace

absl::StatusOr<MatrixCode> InstructionEmitter::ParseMatrix(const Instruction& i,
                                                           std::vector<MatrixType>* types) {
  MatrixCode code;
  bool has_shape = false;
  for (const absl::string_view m : i.modifiers) {
    if (!has_shape && ParseShape(m, &code)) {
      has_shape = true;
      continue;
    }
    for (const TypeRow& row : kMatrixTypes) {
      if (row.name == m) types->push_back(row.type);
    }
  }
  if (!has_shape) return Unsupported(i, "this shape");
  code.clamp = i.Has("satfinite");
  code.and_bits = i.Has("and");
  return code;
}

absl::Status InstructionEmitter::PutRegisters(const Instruction& i, const Operand& operand,
                                              unsigned slot, unsigned bits, unsigned count) {
  const std::vector<Operand> parts =
      operand.kind == Kind::kVector ? operand.parts : std::vector<Operand>{operand};
  if (parts.size() != count) {
    return Malformed(i, absl::StrCat("a fragment of ", parts.size(), " registers, not ", count));
  }
  const Type type = {Type::kBits, 1, static_cast<uint16_t>(bits)};
  for (unsigned k = 0; k < count; ++k) {
    // The same register often comes in pieces of another kind, so the type is that of bits.
    ASSIGN_OR_RETURN(const LaneValue value, Get(i, parts[k], type));
    PutSlot(slot + k, AsVector(builder_, value));
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::SetRegisters(const Instruction& i, const Operand& operand,
                                              unsigned slot, unsigned bits, unsigned count) {
  const std::vector<Operand> parts =
      operand.kind == Kind::kVector ? operand.parts : std::vector<Operand>{operand};
  if (parts.size() != count) {
    return Malformed(i, absl::StrCat("a fragment of ", parts.size(), " registers, not ", count));
  }
  const Type type = {Type::kBits, 1, static_cast<uint16_t>(bits)};
  for (unsigned k = 0; k < count; ++k) {
    RETURN_IF_ERROR(Set(i, parts[k], LaneValue::Varying(GetSlot(slot + k, IntType(bits))), type));
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::PutUncheckedAddress(const Instruction& i, const Operand& operand,
                                                     unsigned slot) {
  if (operand.kind != Kind::kAddress) return Malformed(i, "an address is needed");
  ASSIGN_OR_RETURN(const LaneValue base, Get(i, operand.parts[0], Type{Type::kUnsigned, 1, 64}));
  const LaneValue address = PatternAdd(
      base, LaneValue::Uniform(builder_.getInt64(static_cast<uint64_t>(operand.offset))), false);
  PutSlot(slot, AsVector(builder_, address));
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitMatrixMultiply(const Instruction& i) {
  if (i.Has("sp") || i.Has("sp::ordered_metadata")) return Unsupported(i, "sparse matrices");
  if (i.Has("block_scale")) return Unsupported(i, "scaled blocks");
  std::vector<MatrixType> types;
  ASSIGN_OR_RETURN(MatrixCode code, ParseMatrix(i, &types));
  const bool wmma = i.opcode == "wmma";
  if (types.size() == 2 && wmma) {  // f16: only the types of D and C are written
    code.a = code.b = MatrixType::kF16;
    code.d = types[0];
    code.c = types[1];
  } else if (types.size() == 4) {
    code.d = types[0];
    code.a = types[1];
    code.b = types[2];
    code.c = types[3];
  } else {
    return Unsupported(i, "this combination of types");
  }
  if (i.operands.size() != 4) return Malformed(i, "takes D, A, B and C");
  std::vector<absl::string_view> layouts;
  for (const absl::string_view m : i.modifiers) {
    if (m == "row" || m == "col") layouts.push_back(m);
  }
  const unsigned bits = BitsOf(code.a);
  const unsigned register_bits = RegisterBits(code.a);
  unsigned a_count, b_count, c_count, d_count;
  if (!wmma && code.m == 8 && code.n == 8 && code.k == 4 && code.a == MatrixType::kF16) {
    if (layouts.size() != 2) return Malformed(i, "the layouts of A and B are missing");
    code.quads = true;
    code.column_major_a = layouts[0] == "col";
    code.row_major_b = layouts[1] == "row";
    a_count = b_count = 2;
    c_count = code.c == MatrixType::kF16 ? 4 : 8;
    d_count = code.d == MatrixType::kF16 ? 4 : 8;
  } else {
    if (!IsKnownShape(code, bits, register_bits)) return Unsupported(i, "this shape");
    a_count = Registers(code.m * code.k, code.a);
    b_count = Registers(code.n * code.k, code.b);
    c_count = Registers(code.m * code.n, code.c);
    d_count = Registers(code.m * code.n, code.d);
    // Fragments of f16 hold every element twice.
    if (wmma && code.a == MatrixType::kF16) a_count = b_count = 8;
  }
  RETURN_IF_ERROR(PutRegisters(i, i.operands[1], 8, register_bits, a_count));
  RETURN_IF_ERROR(PutRegisters(i, i.operands[2], 16, register_bits, b_count));
  RETURN_IF_ERROR(PutRegisters(i, i.operands[3], 24, RegisterBits(code.c), c_count));
  RunOperation(Operation::kMatrixMultiply, code.Pack(), i);
  return SetRegisters(i, i.operands[0], 0, RegisterBits(code.d), d_count);
}

absl::Status InstructionEmitter::EmitWmma(const Instruction& i) {
  if (i.Has("mma")) return EmitMatrixMultiply(i);
  const bool load = i.Has("load");
  if (!load && !i.Has("store")) return Unsupported(i, "this instruction");
  std::vector<MatrixType> types;
  ASSIGN_OR_RETURN(MatrixCode code, ParseMatrix(i, &types));
  if (types.size() != 1) return Malformed(i, "takes one type");
  code.a = types[0];
  code.role = i.Has("a") ? MatrixRole::kA : i.Has("b") ? MatrixRole::kB : MatrixRole::kAccumulator;
  code.column_major_a = i.Has("col");
  code.shared = i.Has("shared") || i.Has("shared::cta");
  if (code.role != MatrixRole::kAccumulator &&
      !IsKnownShape(code, BitsOf(code.a), RegisterBits(code.a))) {
    return Unsupported(i, "this shape");
  }
  if (code.m * code.n > 256 || code.m * code.n < 64) return Unsupported(i, "this shape");
  if (code.role != MatrixRole::kAccumulator && BitsOf(code.a) < 8 &&
      code.column_major_a == (code.role == MatrixRole::kA)) {
    return Unsupported(i, "this layout of elements of less than a byte");
  }
  const unsigned rows = code.role == MatrixRole::kB ? code.k : code.m;
  const unsigned columns = code.role == MatrixRole::kA ? code.k : code.n;
  unsigned count = Registers(rows * columns, code.a);
  if (code.a == MatrixType::kF16 && code.role != MatrixRole::kAccumulator) count = 8;
  if (i.operands.size() < 2 || i.operands.size() > 3) return Malformed(i, "takes 2 or 3 operands");
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[load ? 1 : 0], 8));
  if (i.operands.size() == 3) {
    RETURN_IF_ERROR(PutOperand(i, i.operands[2], Type{Type::kUnsigned, 1, 32}, 9));
  } else {
    PutSlot(9, Splat(builder_, Int32(code.column_major_a ? rows : columns)));
  }
  if (load) {
    RunOperation(Operation::kMatrixLoad, code.Pack(), i);
    return SetRegisters(i, i.operands[0], 0, RegisterBits(code.a), count);
  }
  RETURN_IF_ERROR(PutRegisters(i, i.operands[1], 0, RegisterBits(code.a), count));
  RunOperation(Operation::kMatrixStore, code.Pack(), i);
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitTile(const Instruction& i) {
  if (i.Has("m16n16") || i.Has("m8n16") || i.Has("m16n8") || i.Has("b8")) {
    return Unsupported(i, "this shape");
  }
  if (i.operands.size() != 2) return Malformed(i, "takes two operands");
  if (i.opcode == "movmatrix") {
    RETURN_IF_ERROR(PutRegisters(i, i.operands[1], 8, 32, 1));
    RunOperation(Operation::kTileTranspose, 0, i);
    return SetRegisters(i, i.operands[0], 0, 32, 1);
  }
  const bool load = i.opcode == "ldmatrix";
  const unsigned count = i.Has("x4") ? 4 : i.Has("x2") ? 2 : 1;
  // A generic address is a plain one; an address in .shared is an offset.
  const bool shared = i.Has("shared") || i.Has("shared::cta");
  const uint64_t code = count | (i.Has("trans") ? kTileTransposed : 0) | (shared ? kTileShared : 0);
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[load ? 1 : 0], 8));
  if (load) {
    RunOperation(Operation::kTileLoad, code, i);
    return SetRegisters(i, i.operands[0], 0, 32, count);
  }
  RETURN_IF_ERROR(PutRegisters(i, i.operands[1], 0, 32, count));
  RunOperation(Operation::kTileStore, code, i);
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
