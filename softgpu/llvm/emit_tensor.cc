// Instruction family: copies of tiles of tensors that a tensor map describes.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;

namespace {

constexpr ptx::Type kU16 = {ptx::Type::kUnsigned, 1, 16};
constexpr ptx::Type kS32 = {ptx::Type::kSigned, 1, 32};

unsigned RankOf(const ptx::Instruction& i) {
  for (const absl::string_view m : i.modifiers) {
    if (m.size() == 2 && m[0] >= '1' && m[0] <= '5' && m[1] == 'd') {
      return static_cast<unsigned>(m[0] - '0');
    }
  }
  return 0;
}

bool HasIm2col(const ptx::Instruction& i) { return i.Has("im2col") || i.Has("im2col_no_offs"); }

}  // namespace

// To shared memory: [to], [map, {coordinates}], [barrier] {, {offsets}} {, mask} {, policy}.
// From it: [map, {coordinates}], [from] {, policy}; with .reduce likewise.
absl::Status InstructionEmitter::EmitTensorCopy(const Instruction& i) {
  const bool load = i.Has("mbarrier::complete_tx::bytes");
  const size_t map = load ? 1 : 0;
  if (i.operands.size() < (load ? 3u : 2u) || i.operands[map].kind != Kind::kAddress ||
      i.operands[map].parts.size() != 2) {
    return Malformed(i, "takes a tensor map with coordinates, and addresses");
  }
  for (const absl::string_view mode : {"im2col::w", "im2col::w::128"}) {
    if (i.Has(mode)) return Unsupported(i, absl::StrCat("mode .", mode));
  }
  const unsigned rank = RankOf(i);
  if (rank == 0) return Malformed(i, "the number of dimensions is missing");
  const bool rows = i.Has("tile::gather4") || i.Has("tile::scatter4");
  uint64_t code = rank | (load ? kTensorLoad : 0) | (rows ? kTensorRows : 0) |
                  (HasIm2col(i) ? kTensorIm2col : 0);
  Operand address = i.operands[map];
  const Operand coordinates = address.parts[1];
  address.parts.resize(1);
  RETURN_IF_ERROR(PutUncheckedAddress(i, address, 1));
  const unsigned count = rows ? 5 : rank;
  const size_t given = coordinates.kind == Kind::kVector ? coordinates.parts.size() : 1;
  if (given != count) {
    return Malformed(i, absl::StrCat("has ", given, " coordinates, not ", count));
  }
  for (unsigned k = 0; k < count; ++k) {
    const Operand& one = coordinates.kind == Kind::kVector ? coordinates.parts[k] : coordinates;
    RETURN_IF_ERROR(PutOperand(i, one, kS32, 2 + k));
  }
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[load ? 0 : 1], 0));
  if (load) {
    RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[2], 7));
    size_t next = 3;
    if ((code & kTensorIm2col) != 0) {
      if (i.operands.size() <= next) return Malformed(i, "the offsets are missing");
      const Operand& offsets = i.operands[next++];
      const size_t n = offsets.kind == Kind::kVector ? offsets.parts.size() : 1;
      if (n + 2 != rank) return Malformed(i, absl::StrCat("has ", n, " offsets, not ", rank - 2));
      for (size_t k = 0; k < n; ++k) {
        RETURN_IF_ERROR(PutOperand(i, offsets.kind == Kind::kVector ? offsets.parts[k] : offsets,
                                   kU16, static_cast<unsigned>(9 + k)));
      }
    }
    if (i.Has("multicast::cluster")) {
      if (i.operands.size() <= next) return Malformed(i, "the mask of blocks is missing");
      RETURN_IF_ERROR(PutOperand(i, i.operands[next], kU16, 8));
      code |= kMulticast;
    }
  } else if (i.Has("reduce")) {
    static constexpr std::pair<absl::string_view, AtomicOp> kOps[] = {
        {"add", AtomicOp::kAdd}, {"min", AtomicOp::kMin}, {"max", AtomicOp::kMax},
        {"inc", AtomicOp::kInc}, {"dec", AtomicOp::kDec}, {"and", AtomicOp::kAnd},
        {"or", AtomicOp::kOr},   {"xor", AtomicOp::kXor}};
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps),
                                  [&](const auto& row) { return i.Has(row.first); });
    if (op == std::end(kOps)) return Malformed(i, "unknown operation");
    code |= kBulkReduce | static_cast<uint64_t>(op->second) << 8;
  }
  RunOperation(Operation::kTensorCopy, code, i);
  return absl::OkStatus();
}

// tensormap.replace.tile.field [map] {, ordinal}, value, and tensormap.cp_fenceproxy.
absl::Status InstructionEmitter::EmitTensorMap(const Instruction& i) {
  const bool shared = i.Has("shared") || i.Has("shared::cta");
  if (i.Has("cp_fenceproxy")) {
    if (i.operands.size() < 2) return Malformed(i, "takes two addresses");
    RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[0], 0));
    RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[1], 1));
    PutSlot(2, Splat(builder_, Int32(128)));
    RunOperation(Operation::kBulkCopy, shared ? kFromShared : 0, i);
    return absl::OkStatus();
  }
  static constexpr std::pair<absl::string_view, TensorField> kFields[] = {
      {"global_address", TensorField::kAddress},
      {"rank", TensorField::kRank},
      {"box_dim", TensorField::kBox},
      {"global_dim", TensorField::kSize},
      {"global_stride", TensorField::kStride},
      {"element_stride", TensorField::kStep},
      {"elemtype", TensorField::kType},
      {"interleave_layout", TensorField::kInterleave},
      {"swizzle_mode", TensorField::kSwizzle},
      {"fill_mode", TensorField::kFill}};
  const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const auto& row) { return i.Has(row.first); });
  if (!i.Has("replace") || field == std::end(kFields) || i.operands.size() < 2) {
    return Unsupported(i, "this operation");
  }
  uint64_t ordinal = 0;
  if (i.operands.size() > 2) {
    if (i.operands[1].kind != Kind::kImmediate) return Malformed(i, "the ordinal is no constant");
    ordinal = i.operands[1].bits;
  }
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[0], 1));
  const bool wide = field->second == TensorField::kAddress || field->second == TensorField::kStride;
  ASSIGN_OR_RETURN(const LaneValue value,
                   Get(i, i.operands.size() - 1,
                       Type{Type::kUnsigned, 1, static_cast<uint16_t>(wide ? 64 : 32)}));
  PutSlot(2, AsVector(builder_, Resize(value, 64, false)));
  RunOperation(
      Operation::kTensorReplace,
      static_cast<uint64_t>(field->second) | (ordinal & 0xff) << 8 | (shared ? kToShared : 0), i);
  return absl::OkStatus();
}

// multimem.*: an address of several devices' memory at once is here one device's.
absl::Status InstructionEmitter::EmitMultimem(const Instruction& i) {
  if (i.Has("cp")) return EmitCpAsync(i);
  if (i.Has("ld_reduce")) return EmitLoad(i);
  if (i.Has("st")) return EmitStore(i);
  if (i.Has("red")) return EmitAtomic(i);
  return Unsupported(i, "this operation");
}

}  // namespace fargpu::softgpu
