// Loads and stores at addresses that differ between lanes in ways unknown to the compiler. Often
// they are neighbours all the same, such as the rows of a tile or of a matrix whose width is an
// argument: whether the lanes of each half of the warp form a run is asked at run time. What a run
// takes is one move; the rest is gathered and scattered.
#include <cstdint>

#include "llvm/IR/Intrinsics.h"

#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {
namespace {

constexpr int kHalf = kWarpSize / 2;

llvm::Value* Widened(llvm::IRBuilder<>& builder, const ScaledIndex& at, llvm::Value* index,
                     llvm::Type* wide) {
  return at.sign ? builder.CreateSExt(index, wide) : builder.CreateZExt(index, wide);
}

}  // namespace

llvm::Value* InstructionEmitter::AllLanes(const LaneValue& value) {
  if (value.scaled == nullptr) return AsVector(builder_, value);
  const ScaledIndex& at = *value.scaled;
  llvm::Value* sum = Widened(builder_, at, at.index, VectorOf(builder_.getInt64Ty()));
  if (at.scale != 1) sum = builder_.CreateMul(sum, Constant(sum, static_cast<uint64_t>(at.scale)));
  return at.base == nullptr ? sum : builder_.CreateAdd(sum, Splat(builder_, at.base));
}

llvm::Value* InstructionEmitter::OneLane(const LaneValue& value, int lane) {
  const ScaledIndex& at = *value.scaled;
  llvm::Value* index = builder_.CreateExtractElement(at.index, static_cast<uint64_t>(lane));
  llvm::Value* sum = Widened(builder_, at, index, builder_.getInt64Ty());
  if (at.scale != 1) sum = builder_.CreateMul(sum, Constant(sum, static_cast<uint64_t>(at.scale)));
  return at.base == nullptr ? sum : builder_.CreateAdd(sum, at.base);
}

// Are the lanes of each half of the warp, as far as they are in the mask, `stride` bytes apart? i1.
// The scale divides the stride.
llvm::Value* InstructionEmitter::FormRuns(const ScaledIndex& at, unsigned stride,
                                          llvm::Value* mask) {
  llvm::Type* type = at.index->getType()->getScalarType();
  const int64_t step = stride / at.scale;
  llvm::SmallVector<int, kWarpSize> firsts;
  LaneOffsets steps;
  for (int k = 0; k < kWarpSize; ++k) {
    firsts.push_back(k / kHalf * kHalf);
    steps[k] = k % kHalf * step;
  }
  llvm::Value* expected =
      builder_.CreateAdd(builder_.CreateShuffleVector(at.index, firsts), OffsetVector(type, steps));
  llvm::Value* differs = builder_.CreateAnd(builder_.CreateICmpNE(at.index, expected), mask);
  llvm::Value* runs = builder_.CreateICmpEQ(MaskBits(differs), Int32(0));
  if (type->getIntegerBitWidth() == 64) return runs;
  // The narrow index must not wrap around within a run.
  for (const int lane : {0, kHalf}) {
    llvm::Value* index = builder_.CreateExtractElement(at.index, static_cast<uint64_t>(lane));
    llvm::Value* last =
        builder_.CreateAdd(Widened(builder_, at, index, builder_.getInt64Ty()),
                           builder_.getInt64(static_cast<uint64_t>(step * (kHalf - 1))));
    llvm::Value* back =
        Widened(builder_, at, builder_.CreateTrunc(last, type), builder_.getInt64Ty());
    runs = builder_.CreateAnd(runs, builder_.CreateICmpEQ(last, back));
  }
  return runs;
}

llvm::Value* InstructionEmitter::HalfOf(llvm::Value* vector, int half) {
  llvm::SmallVector<int, kHalf> lanes;
  for (int k = 0; k < kHalf; ++k) lanes.push_back(half * kHalf + k);
  return builder_.CreateShuffleVector(vector, lanes);
}

// Pointers for a gather or scatter. Where there are narrow offsets from one base, the machine takes
// them as they are: 16 lanes at once in place of 8, and nothing to widen.
llvm::Value* InstructionEmitter::LanePointers(const LaneValue& address, unsigned offset) {
  llvm::Value* base = nullptr;
  llvm::Value* index = nullptr;
  unsigned scale = 1;
  if (address.pattern() && address.valid == nullptr) {
    bool narrow = true;
    for (const int64_t k : *address.offsets) narrow = narrow && k == static_cast<int32_t>(k);
    if (narrow) {
      base = address.scalar;
      index = OffsetVector(builder_.getInt32Ty(), *address.offsets);
    }
  } else if (address.scaled != nullptr && address.scaled->base != nullptr) {
    const ScaledIndex& at = *address.scaled;
    const bool narrow = at.index->getType()->getScalarType()->isIntegerTy(32);
    const bool scalable = at.scale == 1 || at.scale == 2 || at.scale == 4 || at.scale == 8;
    if (narrow && scalable && (at.sign || at.positive)) {
      base = at.base;
      index = at.index;
      scale = static_cast<unsigned>(at.scale);
    }
  }
  if (base != nullptr) {
    if (offset != 0) base = builder_.CreateAdd(base, builder_.getInt64(offset));
    return builder_.CreateGEP(IntType(scale * 8),
                              builder_.CreateIntToPtr(base, builder_.getPtrTy()), index);
  }
  llvm::Value* addresses = AllLanes(address);
  if (offset != 0) addresses = builder_.CreateAdd(addresses, Constant(addresses, offset));
  return builder_.CreateIntToPtr(addresses, VectorOf(builder_.getPtrTy()));
}

llvm::Value* InstructionEmitter::Gather(const LaneValue& address, unsigned offset, llvm::Type* type,
                                        llvm::Value* mask) {
  const unsigned size = type->getScalarSizeInBits() / 8;
  if (size < 4 || !options_.avx512) {
    // No such gather in hardware: a loop in the runtime is smaller than 32 branches here.
    llvm::Value* addresses = AllLanes(address);
    if (offset != 0) addresses = builder_.CreateAdd(addresses, Constant(addresses, offset));
    llvm::Value* out = EntryAlloca(VectorOf(type), "loaded");
    CallRuntime(kRuntimeLoad, builder_.getVoidTy(),
                {SpillLanes(addresses, "addresses"), MaskBits(mask), Int32(size), out, Int32(0)});
    return builder_.CreateLoad(VectorOf(type), out);
  }
  return builder_.CreateMaskedGather(VectorOf(type), LanePointers(address, offset),
                                     llvm::Align(size), mask,
                                     llvm::Constant::getNullValue(VectorOf(type)));
}

void InstructionEmitter::Scatter(const LaneValue& address, unsigned offset, llvm::Value* value,
                                 llvm::Value* mask) {
  const unsigned size = value->getType()->getScalarSizeInBits() / 8;
  if (size < 4 || !options_.avx512) {
    llvm::Value* addresses = AllLanes(address);
    if (offset != 0) addresses = builder_.CreateAdd(addresses, Constant(addresses, offset));
    CallRuntime(kRuntimeStore, builder_.getVoidTy(),
                {SpillLanes(addresses, "addresses"), MaskBits(mask), Int32(size),
                 SpillLanes(value, "stored"), Int32(0)});
    return;
  }
  builder_.CreateMaskedScatter(value, LanePointers(address, offset), llvm::Align(size), mask);
}

llvm::Value* InstructionEmitter::GatherElement(const LaneValue& original, unsigned offset,
                                               unsigned extent, llvm::Type* type,
                                               llvm::Value* mask) {
  const unsigned size = type->getScalarSizeInBits() / 8;
  const bool full = BlockMaskIsFull() && guard() == nullptr;
  // Patterns that one move takes were found before.
  if (original.pattern() && original.valid == nullptr) return Gather(original, offset, type, mask);
  LaneValue address = original;
  if (address.in_runs == nullptr) {
    address = LaneValue::Varying(AsVector(builder_, original));
    address.scaled = Keep(ScaledIndex{.index = address.vector});
    address.in_runs = FormRuns(*address.scaled, extent, mask);
    address.stride = extent;
  }
  auto* near = llvm::BasicBlock::Create(context_, "near", function_);
  auto* far = llvm::BasicBlock::Create(context_, "far", function_);
  auto* join = llvm::BasicBlock::Create(context_, "gathered", function_);
  auto* half_type = llvm::FixedVectorType::get(type, kHalf);
  llvm::BranchInst* branch = builder_.CreateCondBr(address.in_runs, near, far);

  builder_.SetInsertPoint(near);
  llvm::Value* halves[2] = {};
  for (int half = 0; half < 2; ++half) {
    llvm::Value* start = OneLane(address, half * kHalf);
    if (full) {
      int64_t lanes[kHalf];
      for (int k = 0; k < kHalf; ++k) lanes[k] = k * address.stride;
      halves[half] = HalfPatternLoad(start, lanes, offset, extent, type);
    } else if (address.stride == static_cast<int64_t>(size)) {
      llvm::Value* pointer = builder_.CreateIntToPtr(
          builder_.CreateAdd(start, builder_.getInt64(offset)), builder_.getPtrTy());
      halves[half] =
          builder_.CreateMaskedLoad(half_type, pointer, llvm::Align(size), HalfOf(mask, half),
                                    llvm::Constant::getNullValue(half_type));
    }
  }
  const bool can = halves[0] != nullptr && halves[1] != nullptr;
  llvm::Value* loaded = nullptr;
  if (can) {
    llvm::SmallVector<int, kWarpSize> all;
    for (int k = 0; k < kWarpSize; ++k) all.push_back(k);
    loaded = builder_.CreateShuffleVector(halves[0], halves[1], all);
    builder_.CreateBr(join);
  } else {
    branch->setCondition(builder_.getFalse());
    builder_.CreateUnreachable();
  }

  builder_.SetInsertPoint(far);
  llvm::Value* gathered = Gather(address, offset, type, mask);
  builder_.CreateBr(join);
  builder_.SetInsertPoint(join);
  if (!can) return gathered;
  llvm::PHINode* result = builder_.CreatePHI(VectorOf(type), 2);
  result->addIncoming(loaded, near);
  result->addIncoming(gathered, far);
  return result;
}

// Tiles of matrices are read row by row, a page or more apart, which the CPU does not foresee. In a
// loop with barriers every warp waits for the slowest load of the tile.
void InstructionEmitter::PrefetchNextRound(const LaneValue& address) {
  llvm::BasicBlock* join = nullptr;
  if (!address.pattern()) {
    if (address.in_runs == nullptr) return;
    auto* near = llvm::BasicBlock::Create(context_, "foresee", function_);
    join = llvm::BasicBlock::Create(context_, "foreseen", function_);
    builder_.CreateCondBr(address.in_runs, near, join);
    builder_.SetInsertPoint(near);
  }
  for (const int lane : {0, kHalf}) {
    llvm::Value* start =
        address.pattern()
            ? builder_.CreateAdd(address.scalar, builder_.getInt64(static_cast<uint64_t>((
                                                     *address.offsets)[static_cast<size_t>(lane)])))
            : OneLane(address, lane);
    llvm::AllocaInst* last = EntryAlloca(builder_.getInt64Ty(), "last");
    // In the first round there is no last one: what is asked for then is no matter.
    llvm::Value* before = builder_.CreateFreeze(builder_.CreateLoad(builder_.getInt64Ty(), last));
    builder_.CreateStore(start, last);
    llvm::Value* next = builder_.CreateAdd(start, builder_.CreateSub(start, before));
    // For reading; to keep in all caches; data.
    builder_.CreateIntrinsic(
        llvm::Intrinsic::prefetch, {builder_.getPtrTy()},
        {builder_.CreateIntToPtr(next, builder_.getPtrTy()), Int32(0), Int32(3), Int32(1)});
  }
  if (join == nullptr) return;
  builder_.CreateBr(join);
  builder_.SetInsertPoint(join);
}

void InstructionEmitter::ScatterElement(const LaneValue& original, unsigned offset,
                                        llvm::Value* value, llvm::Value* mask) {
  const unsigned size = value->getType()->getScalarSizeInBits() / 8;
  const bool full = BlockMaskIsFull() && guard() == nullptr;
  if (original.pattern() && original.valid == nullptr) {
    Scatter(original, offset, value, mask);
    return;
  }
  LaneValue address = original;
  if (address.in_runs == nullptr) {
    address = LaneValue::Varying(AsVector(builder_, original));
    address.scaled = Keep(ScaledIndex{.index = address.vector});
    address.in_runs = FormRuns(*address.scaled, size, mask);
    address.stride = size;
  }
  auto* far = llvm::BasicBlock::Create(context_, "far", function_);
  auto* join = llvm::BasicBlock::Create(context_, "scattered", function_);
  if (address.stride == static_cast<int64_t>(size)) {
    auto* near = llvm::BasicBlock::Create(context_, "near", function_);
    builder_.CreateCondBr(address.in_runs, near, far);
    builder_.SetInsertPoint(near);
    for (int half = 0; half < 2; ++half) {
      llvm::Value* pointer = builder_.CreateIntToPtr(
          builder_.CreateAdd(OneLane(address, half * kHalf), builder_.getInt64(offset)),
          builder_.getPtrTy());
      if (full) {
        builder_.CreateAlignedStore(HalfOf(value, half), pointer, llvm::Align(size));
      } else {
        builder_.CreateMaskedStore(HalfOf(value, half), pointer, llvm::Align(size),
                                   HalfOf(mask, half));
      }
    }
    builder_.CreateBr(join);
  } else {
    builder_.CreateBr(far);
  }

  builder_.SetInsertPoint(far);
  Scatter(address, offset, value, mask);
  builder_.CreateBr(join);
  builder_.SetInsertPoint(join);
}

}  // namespace fargpu::softgpu
