#pragma once

#include <cstdint>

// What a CUtensorMap holds: the driver half writes it, programs pass it on as 128 opaque bytes, the
// executor reads it where a kernel names its address.
namespace fargpu::softgpu {

inline constexpr int kMaxTensorRank = 5;

enum class TensorType : uint8_t {
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64,
  kBF16,
  kFlushedF32,  // denormals become zero on their way
  kTF32,
  kFlushedTF32,
};
enum class TensorSwizzle : uint8_t { kNone, k32, k64, k128, k128Atom32 };
enum class TensorFill : uint8_t { kZero, kNaN };

struct alignas(64) TensorMap {
  static constexpr uint16_t kMagic = 0x7e50;

  uint16_t magic = 0;
  uint8_t rank = 0;
  bool im2col = false;
  TensorType type = TensorType::kU8;
  TensorSwizzle swizzle = TensorSwizzle::kNone;
  TensorFill fill = TensorFill::kZero;
  uint8_t reserved = 0;
  uint64_t address = 0;
  uint64_t sizes[kMaxTensorRank] = {};        // elements
  uint64_t strides[kMaxTensorRank - 1] = {};  // bytes, of dimension 1 and on
  uint32_t steps[kMaxTensorRank] = {};        // from one element that is copied to the next
  // Tiles: elements that they span on each axis.
  // im2col: channels, pixels, then the corners of the box that pixels stay in, in bytes: lower
  // x, y, z, upper x, y, z, of 16 bits each.
  uint32_t box[kMaxTensorRank] = {};
};
static_assert(sizeof(TensorMap) == 128, "the size of CUtensorMap");

inline constexpr unsigned TensorElementBytes(TensorType type) {
  switch (type) {
    case TensorType::kU8:
      return 1;
    case TensorType::kU16:
    case TensorType::kF16:
    case TensorType::kBF16:
      return 2;
    case TensorType::kU64:
    case TensorType::kS64:
    case TensorType::kF64:
      return 8;
    default:
      return 4;
  }
}

}  // namespace fargpu::softgpu
