// Instruction families: asynchronous copies (which happen at once), barrier objects in memory, and
// what else tells address spaces apart.
#include <cstddef>

#include "absl/strings/match.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;

namespace {

constexpr ptx::Type kU32 = {ptx::Type::kUnsigned, 1, 32};
constexpr ptx::Type kU16 = {ptx::Type::kUnsigned, 1, 16};
constexpr ptx::Type kU64 = {ptx::Type::kUnsigned, 1, 64};
constexpr ptx::Type kPredicate = {ptx::Type::kPred, 1, 1};

bool IsShared(absl::string_view modifier) {
  return modifier == "shared" || modifier == "shared::cta" || modifier == "shared::cluster";
}

// Is the first state space among the modifiers .shared?
bool IsSharedObject(const ptx::Instruction& i) {
  for (const absl::string_view m : i.modifiers) {
    if (IsShared(m)) return true;
  }
  return false;
}

// The immediate that operand `k` is; `otherwise` if it is none.
uint64_t ImmediateOr(const ptx::Instruction& i, size_t k, uint64_t otherwise) {
  if (k >= i.operands.size() || i.operands[k].kind != Kind::kImmediate) return otherwise;
  return i.operands[k].bits;
}

}  // namespace

absl::Status InstructionEmitter::EmitCpAsync(const Instruction& i) {
  if (i.Has("bulk") || i.opcode == "cp.reduce") return EmitBulkCopy(i);
  if (i.Has("reduce")) return EmitBulkCopy(i);
  // Everything has been copied when the instruction that started it ends.
  if (i.Has("commit_group") || i.Has("wait_group") || i.Has("wait_all")) return absl::OkStatus();
  if (i.Has("mbarrier") || i.Has("mbarrier::arrive")) {
    // Without .noinc the count is raised before the arrival lowers it.
    if (!i.Has("noinc")) return absl::OkStatus();
    RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[0], 1));
    PutSlot(2, Splat(builder_, Int32(1)));
    RunOperation(
        Operation::kBarrierObject,
        static_cast<uint64_t>(BarrierObjectOp::kArrive) | (IsSharedObject(i) ? kToShared : 0), i);
    return absl::OkStatus();
  }
  if (!i.Has("ca") && !i.Has("cg")) return Unsupported(i, "this kind of copy");
  if (i.operands.size() < 3) return Malformed(i, "takes two addresses and a size");
  const uint64_t bytes = ImmediateOr(i, 2, 0);
  if (bytes != 4 && bytes != 8 && bytes != 16) return Malformed(i, "copies 4, 8 or 16 bytes");
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[0], 0));
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[1], 1));
  // Behind the size: bytes to read, or a predicate to read nothing, or a cache policy of 64 bits.
  llvm::Value* read = Splat(builder_, Int32(static_cast<uint32_t>(bytes)));
  if (i.operands.size() > 3) {
    const Operand& more = i.operands[3];
    const bool is_register = more.kind == Kind::kRegister;
    const unsigned bits = is_register ? kernel_.registers[more.index].type.bits : 32;
    if (bits == 1) {
      ASSIGN_OR_RETURN(const LaneValue ignore, Get(i, 3, kPredicate));
      read = builder_.CreateSelect(AsVector(builder_, ignore),
                                   llvm::Constant::getNullValue(read->getType()), read);
    } else if (bits == 32) {
      ASSIGN_OR_RETURN(const LaneValue given, Get(i, 3, kU32));
      read = AsVector(builder_, given);
    }
  }
  PutSlot(2, read);
  RunOperation(Operation::kCopy, bytes | kToShared, i);
  return absl::OkStatus();
}

// cp.async.bulk.<to>.<from>... [to], [from], bytes {, [mbarrier]} {, policy}, and the same with a
// reduction at the other end.
absl::Status InstructionEmitter::EmitBulkCopy(const Instruction& i) {
  if (i.Has("commit_group") || i.Has("wait_group") || i.Has("prefetch")) return absl::OkStatus();
  if (i.Has("tensor")) return EmitTensorCopy(i);
  std::vector<absl::string_view> spaces;
  for (const absl::string_view m : i.modifiers) {
    if (IsShared(m) || m == "global") spaces.push_back(m);
  }
  const bool has_barrier = i.Has("mbarrier::complete_tx::bytes");
  if (spaces.size() != 2 || i.operands.size() < (has_barrier ? 4u : 3u)) {
    return Malformed(i, "takes two state spaces, two addresses and a size");
  }
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[0], 0));
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[1], 1));
  RETURN_IF_ERROR(PutOperand(i, i.operands[2], kU32, 2));
  uint64_t code = (IsShared(spaces[0]) ? kToShared : 0) | (IsShared(spaces[1]) ? kFromShared : 0);
  if (has_barrier) {
    RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[3], 3));
    code |= kBulkBarrier;
  }
  if (i.Has("multicast::cluster")) {
    if (i.operands.size() < 5) return Malformed(i, "the mask of blocks is missing");
    RETURN_IF_ERROR(PutOperand(i, i.operands[4], kU16, 4));
    code |= kMulticast;
  }
  if (i.Has("reduce")) {
    if (i.types.size() != 1) return Malformed(i, "takes one type");
    const Type type = i.types[0];
    const AtomicOp op = i.Has("add")   ? AtomicOp::kAdd
                        : i.Has("min") ? AtomicOp::kMin
                        : i.Has("max") ? AtomicOp::kMax
                        : i.Has("and") ? AtomicOp::kAnd
                        : i.Has("or")  ? AtomicOp::kOr
                        : i.Has("xor") ? AtomicOp::kXor
                        : i.Has("inc") ? AtomicOp::kInc
                                       : AtomicOp::kDec;
    AtomicType word;
    if (type.kind == Type::kBFloat) {
      word = AtomicType::kBF16;
    } else if (type.kind == Type::kFloat) {
      word = type.bits == 16   ? AtomicType::kF16
             : type.bits == 32 ? AtomicType::kF32
                               : AtomicType::kF64;
    } else if (type.bits == 32) {
      word = type.is_signed() ? AtomicType::kS32 : AtomicType::kU32;
    } else if (type.bits == 64) {
      word = type.is_signed() ? AtomicType::kS64 : AtomicType::kU64;
    } else {
      return Unsupported(i, "this type");
    }
    code |= kBulkReduce | static_cast<uint64_t>(op) << 8 | static_cast<uint64_t>(word) << 16;
  }
  RunOperation(Operation::kBulkCopy, code, i);
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitBarrierObject(const Instruction& i) {
  if (i.operands.empty()) return Malformed(i, "has no operands");
  const bool drop = i.Has("arrive_drop");
  const bool arrive = i.Has("arrive") || drop;
  const bool test = i.Has("test_wait") || i.Has("try_wait");
  const uint64_t space = IsSharedObject(i) ? kToShared : 0;
  const auto run = [&](BarrierObjectOp op) {
    RunOperation(Operation::kBarrierObject, static_cast<uint64_t>(op) | space, i);
  };
  const auto put_count = [&](size_t operand) -> absl::Status {
    if (operand < i.operands.size()) return PutOperand(i, i.operands[operand], kU32, 2);
    PutSlot(2, Splat(builder_, Int32(1)));
    return absl::OkStatus();
  };
  if (i.Has("pending_count")) {
    RETURN_IF_ERROR(PutOperand(i, i.operands[1], kU64, 3));
    run(BarrierObjectOp::kPendingCount);
    return Set(i, 0, LaneValue::Varying(GetSlot(0, builder_.getInt32Ty())), kU32);
  }
  const size_t at = arrive || test ? 1 : 0;
  if (i.operands.size() <= at) return Malformed(i, "the address is missing");
  RETURN_IF_ERROR(PutUncheckedAddress(i, i.operands[at], 1));
  if (test) {
    const bool parity = i.Has("parity");
    if (i.operands.size() < 3) return Malformed(i, "the state is missing");
    ASSIGN_OR_RETURN(const LaneValue state, Get(i, 2, parity ? kU32 : kU64));
    PutSlot(parity ? 2 : 3, AsVector(builder_, state));
    run(parity ? BarrierObjectOp::kTestParity : BarrierObjectOp::kTestState);
    llvm::Value* done = builder_.CreateICmpNE(GetSlot(0, builder_.getInt32Ty()),
                                              llvm::Constant::getNullValue(VectorOf(IntType(32))));
    // Who waits is to be served by other warps.
    auto* wait = llvm::BasicBlock::Create(context_, "not_done", function_);
    auto* on = llvm::BasicBlock::Create(context_, "tested", function_);
    llvm::Value* missing = builder_.CreateAnd(builder_.CreateNot(done), ExecMask());
    builder_.CreateCondBr(Any(missing), wait, on);
    builder_.SetInsertPoint(wait);
    LetOthersRun();
    builder_.CreateBr(on);
    builder_.SetInsertPoint(on);
    // The same object and phase in all lanes: the same answer.
    ASSIGN_OR_RETURN(const LaneValue object, Get(i, i.operands[at].parts[0], kU64));
    if (object.uniform() && state.uniform() && parity) {
      return Set(i, 0, LaneValue::Uniform(FirstActive(done)), kPredicate);
    }
    return Set(i, 0, LaneValue::Varying(done), kPredicate);
  }
  if (arrive) {
    RETURN_IF_ERROR(put_count(2));
    run(drop                 ? BarrierObjectOp::kArriveDrop
        : i.Has("expect_tx") ? BarrierObjectOp::kArriveExpect
                             : BarrierObjectOp::kArrive);
    return Set(i, 0, LaneValue::Varying(GetSlot(0, builder_.getInt64Ty())), kU64);
  }
  RETURN_IF_ERROR(put_count(1));
  if (i.Has("init")) {
    run(BarrierObjectOp::kInit);
  } else if (i.Has("inval")) {
    run(BarrierObjectOp::kInvalidate);
  } else if (i.Has("expect_tx")) {
    run(BarrierObjectOp::kExpect);
  } else if (i.Has("complete_tx")) {
    run(BarrierObjectOp::kComplete);
  } else {
    return Unsupported(i, "this operation");
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitIsSpace(const Instruction& i) {
  ASSIGN_OR_RETURN(const LaneValue address, Get(i, 1, kU64));
  llvm::Type* i64 = builder_.getInt64Ty();
  const Args args = Unify({address});
  llvm::Value* a = args.v[0];
  // Is it in [base, base + size)?
  const auto inside = [&](llvm::Value* base, llvm::Value* size) {
    return builder_.CreateICmpULT(builder_.CreateSub(a, Splatted(args, base)),
                                  Splatted(args, size));
  };
  llvm::Value* shared = inside(ContextField(i64, offsetof(WarpContext, shared_base), "shared"),
                               ContextField(i64, offsetof(WarpContext, shared_bytes), "bytes"));
  llvm::Value* local = inside(
      LocalBase(), builder_.getInt64(kernel_.local_bytes * static_cast<uint64_t>(kWarpSize)));
  llvm::Value* param = inside(ContextField(i64, offsetof(WarpContext, params), "params"),
                              builder_.getInt64(kParamBlockBytes));
  llvm::Value* rank_count =
      builder_.CreateMul(builder_.CreateMul(ClusterSize(0), ClusterSize(1)), ClusterSize(2));
  llvm::Value* result;
  if (i.Has("shared::cluster")) {
    result =
        inside(ClusterField(offsetof(WarpContext, cluster_shared), "cluster"),
               builder_.CreateMul(ClusterField(offsetof(WarpContext, cluster_stride), "stride"),
                                  builder_.CreateZExt(rank_count, i64)));
  } else if (IsSharedObject(i)) {
    result = shared;
  } else if (i.Has("local")) {
    result = local;
  } else if (i.Has("param") || i.Has("param::entry")) {
    result = param;
  } else if (i.Has("const")) {
    // Constant variables lie among the others.
    result = Splatted(args, builder_.getFalse());
  } else {
    result = builder_.CreateAnd(
        inside(builder_.getInt64(options_.window.base), builder_.getInt64(options_.window.size)),
        builder_.CreateNot(builder_.CreateOr(shared, local)));
  }
  return Set(i, 0, args.Wrap(result), kPredicate);
}

absl::Status InstructionEmitter::EmitCreatePolicy(const Instruction& i) {
  // A hint to a cache that there is not.
  return Set(i, 0, LaneValue::Uniform(builder_.getInt64(0)), kU64);
}

}  // namespace fargpu::softgpu
