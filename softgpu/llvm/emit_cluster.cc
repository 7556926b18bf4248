// What concerns the other blocks of a cluster: where their shared memory lies, and who they are.
#include <cstddef>

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

namespace {

constexpr ptx::Type kU32 = {ptx::Type::kUnsigned, 1, 32};
constexpr ptx::Type kU64 = {ptx::Type::kUnsigned, 1, 64};
constexpr uint64_t kOffsetMask = (uint64_t{1} << kClusterShift) - 1;

}  // namespace

llvm::Value* InstructionEmitter::ClusterSize(int axis) {
  return ContextField(builder_.getInt32Ty(), offsetof(WarpContext, cluster_size) + 4 * axis,
                      "cluster_size");
}

llvm::Value* InstructionEmitter::ClusterRank() {
  llvm::Value* rank = Int32(0);
  for (int axis = 2; axis >= 0; --axis) {
    rank = builder_.CreateMul(rank, ClusterSize(axis));
    rank = builder_.CreateAdd(rank, builder_.CreateURem(BlockIndex(axis), ClusterSize(axis)));
  }
  return rank;
}

llvm::Value* InstructionEmitter::ClusterField(size_t offset, const char* name) {
  // Other blocks of the cluster are about: all of them must be there at once.
  suspends_ = true;
  return ContextField(builder_.getInt64Ty(), offset, name);
}

LaneValue InstructionEmitter::PlainOfCluster(const LaneValue& address, unsigned bytes) {
  const Args args = Unify({address});
  llvm::Value* a = args.v[0];
  const auto field = [&](size_t offset, const char* name) {
    return Splatted(args, ClusterField(offset, name));
  };
  llvm::Value* size = builder_.CreateZExt(
      builder_.CreateMul(builder_.CreateMul(ClusterSize(0), ClusterSize(1)), ClusterSize(2)),
      builder_.getInt64Ty());
  llvm::Value* rank = builder_.CreateLShr(a, Constant(a, kClusterShift));
  llvm::Value* offset = builder_.CreateAnd(a, Constant(a, kOffsetMask));
  llvm::Value* other = builder_.CreateAdd(
      field(offsetof(WarpContext, cluster_shared), "cluster"),
      builder_.CreateMul(builder_.CreateSub(rank, Constant(a, 1)),
                         field(offsetof(WarpContext, cluster_stride), "stride")));
  llvm::Value* base =
      builder_.CreateSelect(builder_.CreateICmpEQ(rank, Constant(a, 0)),
                            field(offsetof(WarpContext, shared_base), "shared"), other);
  llvm::Value* end = builder_.CreateAdd(offset, Constant(a, bytes));
  llvm::Value* inside = builder_.CreateAnd(
      builder_.CreateICmpULE(rank, Splatted(args, size)),
      builder_.CreateICmpULE(end, field(offsetof(WarpContext, shared_bytes), "bytes")));
  return args.Wrap(builder_.CreateSelect(inside, builder_.CreateAdd(base, offset), Constant(a, 0)));
}

LaneValue InstructionEmitter::ClusterOfPlain(const LaneValue& address) {
  const Args args = Unify({address});
  llvm::Value* a = args.v[0];
  const auto field = [&](size_t offset, const char* name) {
    return Splatted(args, ClusterField(offset, name));
  };
  llvm::Value* own = builder_.CreateSub(a, field(offsetof(WarpContext, shared_base), "shared"));
  llvm::Value* is_own =
      builder_.CreateICmpULT(own, field(offsetof(WarpContext, shared_bytes), "bytes"));
  llvm::Value* stride = field(offsetof(WarpContext, cluster_stride), "stride");
  llvm::Value* distance =
      builder_.CreateSub(a, field(offsetof(WarpContext, cluster_shared), "cluster"));
  llvm::Value* rank = builder_.CreateAdd(builder_.CreateUDiv(distance, stride), Constant(a, 1));
  llvm::Value* other = builder_.CreateOr(builder_.CreateShl(rank, Constant(a, kClusterShift)),
                                         builder_.CreateURem(distance, stride));
  return args.Wrap(builder_.CreateSelect(is_own, own, other));
}

absl::Status InstructionEmitter::EmitClusterAddress(const Instruction& i) {
  const bool window = i.Has("shared::cluster");
  const Type type = {Type::kUnsigned, 1, i.type().bits};
  if (!window && type.bits != 64) return Unsupported(i, "generic addresses of 32 bits");
  ASSIGN_OR_RETURN(const LaneValue given, Get(i, 1, kU64));
  if (i.opcode == "getctarank") {
    const LaneValue address = window ? given : ClusterOfPlain(given);
    const Args args = Unify({address});
    llvm::Value* rank = builder_.CreateLShr(args.v[0], Constant(args.v[0], kClusterShift));
    rank = builder_.CreateTrunc(rank, SameShape(rank, builder_.getInt32Ty()));
    rank = builder_.CreateSelect(builder_.CreateICmpEQ(rank, Constant(rank, 0)),
                                 Splatted(args, ClusterRank()),
                                 builder_.CreateSub(rank, Constant(rank, 1)));
    return Set(i, 0, args.Wrap(rank), kU32);
  }
  ASSIGN_OR_RETURN(const LaneValue block, Get(i, 2, kU32));
  const Args args = Unify({given, Resize(block, 64, false)});
  llvm::Value* a = args.v[0];
  if (window) {
    llvm::Value* rank = builder_.CreateAdd(args.v[1], Constant(a, 1));
    llvm::Value* mapped = builder_.CreateOr(builder_.CreateShl(rank, Constant(a, kClusterShift)),
                                            builder_.CreateAnd(a, Constant(a, kOffsetMask)));
    suspends_ = true;
    return Set(i, 0, Resize(args.Wrap(mapped), type.bits, false), type);
  }
  const auto field = [&](size_t offset, const char* name) {
    return Splatted(args, ClusterField(offset, name));
  };
  llvm::Value* offset = builder_.CreateSub(a, field(offsetof(WarpContext, shared_base), "shared"));
  llvm::Value* base = builder_.CreateAdd(
      field(offsetof(WarpContext, cluster_shared), "cluster"),
      builder_.CreateMul(args.v[1], field(offsetof(WarpContext, cluster_stride), "stride")));
  return Set(i, 0, args.Wrap(builder_.CreateAdd(base, offset)), type);
}

absl::Status InstructionEmitter::CompleteAsync(const Instruction& i, unsigned bytes) {
  if (i.operands.size() < 3) return Malformed(i, "the barrier object is missing");
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[2], 1));
  PutSlot(2, Splat(builder_, Int32(bytes)));
  RunOperation(Operation::kBarrierObject,
               static_cast<uint64_t>(BarrierObjectOp::kComplete) | kToShared, i);
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
