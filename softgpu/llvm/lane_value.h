#pragma once

#include <array>
#include <cstdint>

#include "llvm/IR/IRBuilder.h"

#include "softgpu/llvm/warp_context.h"

namespace fargpu::softgpu {

using LaneOffsets = std::array<int64_t, kWarpSize>;

// LaneValue::value_bits is followed up to here, so that no type of 32 bits or more overflows.
inline constexpr unsigned kKnownBits = 31;

// base + scale * index, in every lane.
struct ScaledIndex {
  llvm::Value* index = nullptr;  // <32 x i32> or <32 x i64>
  llvm::Value* base = nullptr;   // i64; null: zero
  int64_t scale = 1;
  bool sign = false;  // how a narrow index is widened
  // No lane that counts has the index's highest bit set: both ways of widening are the same.
  bool positive = false;
};

// A value of a warp, in one of three forms:
//  - uniform: `scalar`, the same in all lanes;
//  - pattern: `scalar` + (*offsets)[lane], known to the compiler. If `valid` is set, that holds
//    only where it is true, and `vector` is right always;
//  - varying: `vector`, <32 x T>.
struct LaneValue {
  llvm::Value* scalar = nullptr;
  const LaneOffsets* offsets = nullptr;
  llvm::Value* valid = nullptr;
  llvm::Value* vector = nullptr;
  unsigned zero_bits = 0;  // low bits of a pattern's scalar that are known to be zero
  // Every lane of a pattern is known to be below 2^value_bits, hence not negative either.
  unsigned value_bits = 64;
  // What a varying value of 64 bits was made of: lanes are compared in the narrow index at less
  // cost.
  const ScaledIndex* scaled = nullptr;
  // Of an address: true (i1) where the lanes of each half of the warp are `stride` bytes apart, and
  // all of them may be accessed.
  llvm::Value* in_runs = nullptr;
  int64_t stride = 0;

  bool uniform() const { return scalar != nullptr && offsets == nullptr; }
  bool pattern() const { return scalar != nullptr && offsets != nullptr; }

  static LaneValue Uniform(llvm::Value* v) { return {.scalar = v}; }
  static LaneValue Varying(llvm::Value* v) { return {.vector = v}; }
};

inline llvm::Value* Splat(llvm::IRBuilder<>& builder, llvm::Value* scalar) {
  return builder.CreateVectorSplat(kWarpSize, scalar);
}

inline llvm::Constant* OffsetVector(llvm::Type* type, const LaneOffsets& offsets) {
  std::array<llvm::Constant*, kWarpSize> elements;
  for (int i = 0; i < kWarpSize; ++i) {
    elements[i] = llvm::ConstantInt::get(type, static_cast<uint64_t>(offsets[i]), true);
  }
  return llvm::ConstantVector::get(elements);
}

// The value as <32 x T>.
inline llvm::Value* AsVector(llvm::IRBuilder<>& builder, const LaneValue& value) {
  if (value.vector != nullptr) return value.vector;
  llvm::Value* splat = Splat(builder, value.scalar);
  if (value.offsets == nullptr) return splat;
  return builder.CreateAdd(splat, OffsetVector(value.scalar->getType(), *value.offsets));
}

}  // namespace fargpu::softgpu
