// Loads and stores whose lane offsets are known: wide moves, broadcasts and permutations in place
// of gathers and scatters.
#include <algorithm>
#include <cstdint>

#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {
namespace {

constexpr int kHalf = kWarpSize / 2;
// What the lanes of half a warp read may spread over so many vectors of kHalf elements; picking
// elements out of more costs more than a gather does.
constexpr int64_t kMaxChunks = 4;
constexpr int kMaxDistinct = 4;

}  // namespace

// Half a warp's part of PatternLoad: <16 x T>, or null. `extent` bytes from each lane's address on
// belong to the access; the elements of a vector access at different `offset`s read the same
// chunks, which LLVM then loads once.
llvm::Value* InstructionEmitter::HalfPatternLoad(llvm::Value* address, const int64_t* lanes,
                                                 int64_t offset, int64_t extent, llvm::Type* type) {
  const int64_t size = type->getScalarSizeInBits() / 8;
  auto* half_type = llvm::FixedVectorType::get(type, kHalf);
  const auto pointer = [&](int64_t at) {
    return builder_.CreateIntToPtr(
        builder_.CreateAdd(address, builder_.getInt64(static_cast<uint64_t>(at))),
        builder_.getPtrTy());
  };
  bool uniform = true;
  bool contiguous = true;
  bool multiple = true;
  const int64_t low = *std::min_element(lanes, lanes + kHalf);
  const int64_t high = *std::max_element(lanes, lanes + kHalf);
  for (int k = 0; k < kHalf; ++k) {
    uniform = uniform && lanes[k] == lanes[0];
    contiguous = contiguous && lanes[k] == lanes[0] + k * size;
    multiple = multiple && (lanes[k] - low) % size == 0;
  }
  if (uniform) {
    return builder_.CreateVectorSplat(
        kHalf, builder_.CreateAlignedLoad(type, pointer(lanes[0] + offset), llvm::Align(size)));
  }
  if (contiguous) {
    return builder_.CreateAlignedLoad(half_type, pointer(lanes[0] + offset), llvm::Align(size));
  }
  const int64_t elements = (high - low + extent) / size;
  const int64_t chunks = (elements + kHalf - 1) / kHalf;
  if (!multiple || chunks > kMaxChunks) return nullptr;
  // Every element between the lowest and the highest is read. It lies on a page of one of these
  // two (the span is far below a page), so it may be read; those behind the highest may not.
  llvm::Value* chunk[kMaxChunks] = {};
  for (int64_t c = 0; c < chunks; ++c) {
    llvm::Value* at = pointer(low + c * kHalf * size);
    const int64_t rest = elements - c * kHalf;
    if (rest >= kHalf) {
      chunk[c] = builder_.CreateAlignedLoad(half_type, at, llvm::Align(size));
      continue;
    }
    llvm::SmallVector<llvm::Constant*, kHalf> some;
    for (int64_t k = 0; k < kHalf; ++k) some.push_back(builder_.getInt1(k < rest));
    chunk[c] =
        builder_.CreateMaskedLoad(half_type, at, llvm::Align(size), llvm::ConstantVector::get(some),
                                  llvm::Constant::getNullValue(half_type));
  }
  // Two chunks at a time: that is one permutation.
  llvm::SmallVector<int, kHalf> pick[2];
  llvm::SmallVector<int, kHalf> join;
  for (int k = 0; k < kHalf; ++k) {
    const int64_t element = (lanes[k] - low + offset) / size;
    for (int64_t pair = 0; pair < 2; ++pair) {
      const int64_t within = element - pair * 2 * kHalf;
      pick[pair].push_back(within >= 0 && within < 2 * kHalf ? static_cast<int>(within) : -1);
    }
    join.push_back(element < 2 * kHalf ? k : kHalf + k);
  }
  const auto permuted = [&](int64_t pair) {
    llvm::Value* second = chunk[2 * pair + 1];
    if (second == nullptr) second = llvm::PoisonValue::get(half_type);
    return builder_.CreateShuffleVector(chunk[2 * pair], second, pick[pair]);
  };
  llvm::Value* first = permuted(0);
  return chunks <= 2 ? first : builder_.CreateShuffleVector(first, permuted(1), join);
}

// Loads by a known pattern of lane offsets. Null if there is no cheap way. Lanes outside the mask
// get anything.
llvm::Value* InstructionEmitter::PatternLoad(const LaneValue& address, unsigned offset,
                                             unsigned extent, llvm::Type* type, llvm::Value* mask,
                                             bool full) {
  const LaneOffsets& lanes = *address.offsets;
  const int64_t size = type->getScalarSizeInBits() / 8;
  bool contiguous = true;
  for (int k = 0; k < kWarpSize; ++k) contiguous = contiguous && lanes[k] == lanes[0] + k * size;
  const auto pointer = [&](int64_t at) {
    llvm::Value* a =
        builder_.CreateAdd(address.scalar, builder_.getInt64(static_cast<uint64_t>(at + offset)));
    return builder_.CreateIntToPtr(a, builder_.getPtrTy());
  };
  if (contiguous) {
    if (full)
      return builder_.CreateAlignedLoad(VectorOf(type), pointer(lanes[0]), llvm::Align(size));
    return builder_.CreateMaskedLoad(VectorOf(type), pointer(lanes[0]), llvm::Align(size), mask,
                                     llvm::Constant::getNullValue(VectorOf(type)));
  }
  if (!full) return nullptr;
  llvm::Value* first = HalfPatternLoad(address.scalar, lanes.data(), offset, extent, type);
  if (first != nullptr) {
    const bool same = std::equal(lanes.begin(), lanes.begin() + kHalf, lanes.begin() + kHalf);
    llvm::Value* second =
        same ? first : HalfPatternLoad(address.scalar, lanes.data() + kHalf, offset, extent, type);
    if (second != nullptr) {
      llvm::SmallVector<int, kWarpSize> both;
      for (int k = 0; k < kWarpSize; ++k) both.push_back(k);
      return builder_.CreateShuffleVector(first, second, both);
    }
  }
  llvm::SmallVector<int64_t, kMaxDistinct + 1> distinct;
  for (const int64_t lane : lanes) {
    if (std::find(distinct.begin(), distinct.end(), lane) != distinct.end()) continue;
    if (distinct.size() == kMaxDistinct) return nullptr;
    distinct.push_back(lane);
  }
  llvm::Value* few = llvm::PoisonValue::get(llvm::FixedVectorType::get(type, kMaxDistinct));
  for (size_t k = 0; k < distinct.size(); ++k) {
    few = builder_.CreateInsertElement(
        few, builder_.CreateAlignedLoad(type, pointer(distinct[k]), llvm::Align(size)), k);
  }
  llvm::SmallVector<int, kWarpSize> shuffle;
  for (const int64_t lane : lanes) {
    shuffle.push_back(
        static_cast<int>(std::find(distinct.begin(), distinct.end(), lane) - distinct.begin()));
  }
  return builder_.CreateShuffleVector(few, shuffle);
}

bool InstructionEmitter::PatternStore(const LaneValue& address, unsigned offset, llvm::Value* value,
                                      llvm::Value* mask, bool full) {
  const LaneOffsets& lanes = *address.offsets;
  const int64_t size = value->getType()->getScalarSizeInBits() / 8;
  // Runs of contiguous lanes, each one masked store; more than two are not worth it.
  for (const int run : {kWarpSize, kWarpSize / 2}) {
    bool fits = true;
    for (int k = 0; k < kWarpSize; ++k) {
      fits = fits && lanes[k] == lanes[k / run * run] + (k % run) * size;
    }
    if (!fits) continue;
    for (int first = 0; first < kWarpSize; first += run) {
      llvm::Value* a = builder_.CreateAdd(
          address.scalar, builder_.getInt64(static_cast<uint64_t>(lanes[first] + offset)));
      llvm::Value* pointer = builder_.CreateIntToPtr(a, builder_.getPtrTy());
      llvm::Value* part = value;
      llvm::Value* part_mask = mask;
      if (run != kWarpSize) {
        llvm::SmallVector<int, kWarpSize> pick;
        for (int k = 0; k < run; ++k) pick.push_back(first + k);
        part = builder_.CreateShuffleVector(value, pick);
        if (!full) part_mask = builder_.CreateShuffleVector(mask, pick);
      }
      if (full) {
        builder_.CreateAlignedStore(part, pointer, llvm::Align(size));
      } else {
        builder_.CreateMaskedStore(part, pointer, llvm::Align(size), part_mask);
      }
    }
    return true;
  }
  return false;
}

}  // namespace fargpu::softgpu
