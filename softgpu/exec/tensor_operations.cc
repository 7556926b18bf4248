#include "softgpu/exec/tensor_operations.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <cuda.h>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

#include "softgpu/exec/async_operations.h"
#include "softgpu/exec/atomics.h"
#include "softgpu/exec/launch_failure.h"
#include "softgpu/tensor_map.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t kSharedAlignment = 128;

[[noreturn]] void Fail(const OperationCall& call, int lane, CUresult code, absl::string_view what) {
  EndLaunch(call.context, code,
            absl::StrFormat("%s, %s, PTX line %u: %s", Where(call.context),
                            ThreadOf(call.context, lane), call.line, what));
}

// The bits of an address in shared memory that choose the bank are mixed with those above them.
uint64_t Swizzled(TensorSwizzle swizzle, uint64_t address) {
  switch (swizzle) {
    case TensorSwizzle::kNone:
      return address;
    case TensorSwizzle::k32:
      return address ^ (address >> 7 & 1) << 4;
    case TensorSwizzle::k64:
      return address ^ (address >> 7 & 3) << 4;
    case TensorSwizzle::k128:
      return address ^ (address >> 7 & 7) << 4;
    case TensorSwizzle::k128Atom32:
      return address ^ (address >> 7 & 3) << 5;
  }
  return address;
}

// What elements outside of the tensor hold.
uint64_t FillOf(const TensorMap& map) {
  if (map.fill == TensorFill::kZero) return 0;
  switch (map.type) {
    case TensorType::kF16:
      return 0x7fff;
    case TensorType::kBF16:
      return 0x7fff;
    case TensorType::kF64:
      return 0x7fffffffffffffff;
    default:
      return 0x7fffffff;
  }
}

AtomicType AtomicTypeOf(const OperationCall& call, int lane, TensorType type) {
  switch (type) {
    case TensorType::kU32:
      return AtomicType::kU32;
    case TensorType::kS32:
      return AtomicType::kS32;
    case TensorType::kU64:
      return AtomicType::kU64;
    case TensorType::kS64:
      return AtomicType::kS64;
    case TensorType::kF16:
      return AtomicType::kF16;
    case TensorType::kBF16:
      return AtomicType::kBF16;
    case TensorType::kF32:
    case TensorType::kFlushedF32:
      return AtomicType::kF32;
    case TensorType::kF64:
      return AtomicType::kF64;
    default:
      Fail(call, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "a reduction of elements of this type");
  }
}

// One tile on its way between the tensor and shared memory, element by element.
class TileCopy {
 public:
  TileCopy(const OperationCall& call, int lane, const TensorMap& map)
      : call_(call), lane_(lane), map_(map), element_(TensorElementBytes(map.type)) {
    if ((call.code & kBulkReduce) != 0) {
      atomic_ = static_cast<uint32_t>(call.code >> 8 & 0xff) |
                static_cast<uint32_t>(AtomicTypeOf(call, lane, map.type)) << 8;
    }
  }

  // Shared memory starts at plain address `plain`, which kernels call `address`.
  void SetShared(uint64_t plain, uint64_t address) {
    plain_ = plain;
    address_ = address;
    position_ = 0;
  }

  // The next element of the tile is the one at `at` in the tensor.
  void Next(const int64_t* at) {
    uint64_t offset = 0;
    bool inside = true;
    for (int k = 0; k < map_.rank; ++k) {
      inside = inside && at[k] >= 0 && static_cast<uint64_t>(at[k]) < map_.sizes[k];
      offset += static_cast<uint64_t>(at[k]) * (k == 0 ? element_ : map_.strides[k - 1]);
    }
    const uint64_t in_shared = Swizzled(map_.swizzle, address_ + position_) - address_;
    char* const shared = reinterpret_cast<char*>(plain_ + in_shared);
    position_ += element_;
    const uint64_t place = map_.address + offset;
    if (inside && !InWindow(place, element_)) {
      Fail(call_, lane_, CUDA_ERROR_ILLEGAL_ADDRESS,
           absl::StrFormat("a tensor map leads to 0x%x", place));
    }
    if ((call_.code & kTensorLoad) != 0) {
      uint64_t value = FillOf(map_);
      if (inside) {
        std::memcpy(&value, reinterpret_cast<const void*>(place), element_);
        value = Flushed(value);
      }
      std::memcpy(shared, &value, element_);
    } else if (inside && (call_.code & kBulkReduce) != 0) {
      uint64_t operand = 0;
      uint64_t old = 0;
      uint64_t addresses[kWarpSize] = {place};
      std::memcpy(&operand, shared, element_);
      RunAtomic(atomic_, addresses, 1, &operand, &operand, &old);
    } else if (inside) {
      uint64_t value = 0;
      std::memcpy(&value, shared, element_);
      value = Flushed(value);
      std::memcpy(reinterpret_cast<void*>(place), &value, element_);
    }
  }

 private:
  uint64_t Flushed(uint64_t value) const {
    if (map_.type != TensorType::kFlushedF32 && map_.type != TensorType::kFlushedTF32) return value;
    return (value & 0x7f800000) == 0 ? value & 0x80000000 : value;
  }

  const OperationCall& call_;
  const int lane_;
  const TensorMap& map_;
  const uint64_t element_;
  uint32_t atomic_ = 0;
  uint64_t plain_ = 0;
  uint64_t address_ = 0;
  uint64_t position_ = 0;
};

uint64_t Steps(const TensorMap& map, int axis) {
  return (map.box[axis] + map.steps[axis] - 1) / map.steps[axis];
}

void CopyTile(const TensorMap& map, const int64_t* start, TileCopy* copy) {
  uint64_t index[kMaxTensorRank] = {};
  int64_t at[kMaxTensorRank];
  while (true) {
    for (int k = 0; k < map.rank; ++k)
      at[k] = start[k] + static_cast<int64_t>(index[k] * map.steps[k]);
    copy->Next(at);
    int axis = 0;
    while (axis < map.rank && ++index[axis] == Steps(map, axis)) index[axis++] = 0;
    if (axis == map.rank) return;
  }
}

// Rows start[1], ... start[4] of a matrix, from column start[0] on.
void CopyRows(const TensorMap& map, const int64_t* start, TileCopy* copy) {
  for (int row = 1; row <= 4; ++row) {
    for (uint64_t k = 0; k < Steps(map, 0); ++k) {
      const int64_t at[2] = {start[0] + static_cast<int64_t>(k * map.steps[0]), start[row]};
      copy->Next(at);
    }
  }
}

// Pixels one after another, from the one at start[1], ... on, inside of the box on each axis; of
// each its channels from start[0] on.
void CopyPixels(const OperationCall& call, int lane, const TensorMap& map, const int64_t* start,
                TileCopy* copy) {
  const int spatial = map.rank - 2;
  int16_t corners[6];
  std::memcpy(corners, &map.box[2], sizeof corners);
  int64_t pixel[kMaxTensorRank];
  std::copy(start, start + map.rank, pixel);
  const uint32_t channels = map.box[0];
  for (uint32_t n = 0; n < map.box[1]; ++n) {
    int64_t at[kMaxTensorRank];
    std::copy(pixel, pixel + map.rank, at);
    for (int k = 0; k < spatial; ++k) {
      if ((call.code & kTensorLoad) != 0) at[1 + k] += call.slots.Of<uint16_t>(9 + k)[lane];
    }
    for (uint32_t c = 0; c < channels; ++c) {
      at[0] = start[0] + c;
      copy->Next(at);
    }
    int axis = 0;
    for (; axis < spatial; ++axis) {
      int64_t& place = pixel[1 + axis];
      place += map.steps[1 + axis];
      if (place < static_cast<int64_t>(map.sizes[1 + axis]) + corners[3 + axis]) break;
      place = corners[axis];
    }
    if (axis == spatial) ++pixel[map.rank - 1];
  }
}

}  // namespace

void TensorCopy(const OperationCall& call) {
  for (uint32_t lanes = call.mask; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    const uint64_t map_address =
        PlainAddress(call, lane, false, call.slots.Of<uint64_t>(1)[lane], sizeof(TensorMap), 64);
    TensorMap map;
    std::memcpy(&map, reinterpret_cast<const void*>(map_address), sizeof map);
    const int rank = static_cast<int>(call.code & 0xff);
    const bool im2col = (call.code & kTensorIm2col) != 0;
    const bool rows = (call.code & kTensorRows) != 0;
    if (map.magic != TensorMap::kMagic || map.rank != rank || map.im2col != im2col ||
        (rows && rank != 2)) {
      Fail(call, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
           absl::StrFormat("at 0x%x lies no tensor map of %d dimensions for this mode", map_address,
                           rank));
    }
    for (int k = 0; k < rank; ++k) {
      if (map.steps[k] == 0 || (map.box[k] == 0 && (!im2col || k < 2))) {
        Fail(call, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "a tensor map of nothing");
      }
    }
    int64_t start[kMaxTensorRank] = {};
    for (int k = 0; k < (rows ? kMaxTensorRank : rank); ++k) {
      start[k] = call.slots.Of<int32_t>(static_cast<unsigned>(2 + k))[lane];
    }
    uint64_t bytes = TensorElementBytes(map.type);
    if (im2col) {
      bytes *= uint64_t{map.box[0]} * map.box[1];
    } else if (rows) {
      bytes *= 4 * Steps(map, 0);
    } else {
      for (int k = 0; k < rank; ++k) bytes *= Steps(map, k);
    }
    TileCopy copy(call, lane, map);
    const uint64_t shared = call.slots.Of<uint64_t>(0)[lane];
    const auto run = [&](uint64_t address) {
      const uint64_t plain = PlainAddress(call, lane, true, address, bytes, kSharedAlignment);
      // What is mixed are the bits of the offset in the block's memory.
      copy.SetShared(plain, address & ((uint64_t{1} << kClusterShift) - 1));
      if (im2col) {
        CopyPixels(call, lane, map, start, &copy);
      } else if (rows) {
        CopyRows(map, start, &copy);
      } else {
        CopyTile(map, start, &copy);
      }
    };
    const auto complete = [&](uint64_t barrier) {
      CompleteBytes(PlainAddress(call, lane, true, barrier, 8, 8), bytes);
    };
    const uint64_t barrier = call.slots.Of<uint64_t>(7)[lane];
    if ((call.code & kMulticast) != 0) {
      for (uint32_t rest = call.slots.Of<uint16_t>(8)[lane]; rest != 0; rest &= rest - 1) {
        const int block = std::countr_zero(rest);
        run(AddressInBlock(shared, block));
        complete(AddressInBlock(barrier, block));
      }
      continue;
    }
    run(shared);
    if ((call.code & kTensorLoad) != 0) complete(barrier);
  }
}

void TensorReplace(const OperationCall& call) {
  for (uint32_t lanes = call.mask; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    const bool shared = (call.code & kToShared) != 0;
    auto* const place = reinterpret_cast<void*>(
        PlainAddress(call, lane, shared, call.slots.Of<uint64_t>(1)[lane], sizeof(TensorMap), 128));
    const uint64_t value = call.slots.Of<uint64_t>(2)[lane];
    const uint64_t ordinal = call.code >> 8 & 0xff;
    TensorMap map;
    std::memcpy(&map, place, sizeof map);
    const auto refuse = [&](absl::string_view what) {
      Fail(call, lane, CUDA_ERROR_NOT_SUPPORTED,
           absl::StrFormat("%s %d in a tensor map", what, value));
    };
    const auto field = static_cast<TensorField>(call.code & 0xff);
    if (map.magic != TensorMap::kMagic || ordinal >= kMaxTensorRank ||
        (field == TensorField::kStride && ordinal >= kMaxTensorRank - 1)) {
      Fail(call, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "no tensor map, or no such dimension");
    }
    switch (field) {
      case TensorField::kAddress:
        map.address = value;
        break;
      case TensorField::kRank:  // one less than the number of dimensions
        if (value >= kMaxTensorRank) refuse("rank");
        map.rank = static_cast<uint8_t>(value + 1);
        break;
      case TensorField::kBox:
        map.box[ordinal] = static_cast<uint32_t>(value);
        break;
      case TensorField::kSize:
        map.sizes[ordinal] = value;
        break;
      case TensorField::kStride:
        map.strides[ordinal] = value;
        break;
      case TensorField::kStep:
        map.steps[ordinal] = ordinal == 0 ? 1 : static_cast<uint32_t>(value);
        break;
      case TensorField::kType:
        if (value > static_cast<uint64_t>(TensorType::kFlushedTF32)) refuse("element type");
        map.type = static_cast<TensorType>(value);
        break;
      case TensorField::kInterleave:
        if (value != 0) refuse("interleaved layout");
        break;
      case TensorField::kSwizzle:
        if (value > static_cast<uint64_t>(TensorSwizzle::k128)) refuse("swizzle mode");
        map.swizzle = static_cast<TensorSwizzle>(value);
        break;
      case TensorField::kFill:
        if (value > static_cast<uint64_t>(TensorFill::kNaN)) refuse("fill mode");
        map.fill = static_cast<TensorFill>(value);
        break;
    }
    std::memcpy(place, &map, sizeof map);
  }
}

}  // namespace fargpu::softgpu
