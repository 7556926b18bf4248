// Tensor maps: checked as cuda.h says, kept as softgpu/tensor_map.h lays them out.

#include <cstring>

#include "softgpu/driver/edge.h"
#include "softgpu/tensor_map.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t kLargestSize = uint64_t{1} << 32;
constexpr uint64_t kLargestStride = uint64_t{1} << 40;
constexpr uint32_t kLargestBox = 256;
constexpr uint32_t kLargestStep = 8;
constexpr uint32_t kMostPixels = 1024;

// What both kinds of maps are made of.
struct Request {
  CUtensorMap* out;
  CUtensorMapDataType type;
  uint32_t rank;
  void* address;
  const cuuint64_t* sizes;
  const cuuint64_t* strides;
  const cuuint32_t* steps;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

absl::StatusOr<TensorType> TypeOf(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return TensorType::kU8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
      return TensorType::kU16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
      return TensorType::kU32;
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
      return TensorType::kS32;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
      return TensorType::kU64;
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
      return TensorType::kS64;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return TensorType::kF16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return TensorType::kF32;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return TensorType::kF64;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return TensorType::kBF16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
      return TensorType::kFlushedF32;
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
      return TensorType::kTF32;
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return TensorType::kFlushedTF32;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B:
    case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B:
      return NotSupported("tensors of elements of 4 or 6 bits");
  }
  return InvalidValue(absl::StrCat("tensorDataType ", static_cast<int>(type)));
}

bool IsFloat(TensorType type) { return type >= TensorType::kF16; }

absl::StatusOr<TensorSwizzle> SwizzleOf(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return TensorSwizzle::kNone;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return TensorSwizzle::k32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return TensorSwizzle::k64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return TensorSwizzle::k128;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B:
      return TensorSwizzle::k128Atom32;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B:
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B:
      return NotSupported(absl::StrCat("swizzle mode ", static_cast<int>(swizzle)));
  }
  return InvalidValue(absl::StrCat("swizzle ", static_cast<int>(swizzle)));
}

uint64_t SpanOf(TensorSwizzle swizzle) {
  switch (swizzle) {
    case TensorSwizzle::k32:
      return 32;
    case TensorSwizzle::k64:
      return 64;
    default:
      return 128;
  }
}

absl::Status CheckAddress(const void* address) {
  if (reinterpret_cast<uint64_t>(address) % 16 == 0) return absl::OkStatus();
  return InvalidValue(absl::StrCat("globalAddress 0x",
                                   absl::Hex(reinterpret_cast<uint64_t>(address)),
                                   " is not a multiple of 16"));
}

// All but the box. `row` elements lie beside each other in shared memory.
absl::StatusOr<TensorMap> MakeMap(const Request& r, uint32_t lowest_rank, uint32_t row) {
  RETURN_IF_NULL(r.out);
  RETURN_IF_NULL(r.address);
  RETURN_IF_NULL(r.sizes);
  RETURN_IF_NULL(r.steps);
  if (reinterpret_cast<uint64_t>(r.out) % alignof(TensorMap) != 0) {
    return InvalidValue("tensorMap is not aligned to 64 bytes");
  }
  if (r.rank < lowest_rank || r.rank > kMaxTensorRank) {
    return InvalidValue(
        absl::StrCat("tensorRank ", r.rank, ": ", lowest_rank, " to ", kMaxTensorRank));
  }
  if (r.rank > 1) RETURN_IF_NULL(r.strides);
  if (r.interleave < CU_TENSOR_MAP_INTERLEAVE_NONE || r.interleave > CU_TENSOR_MAP_INTERLEAVE_32B) {
    return InvalidValue(absl::StrCat("interleave ", static_cast<int>(r.interleave)));
  }
  if (r.promotion < CU_TENSOR_MAP_L2_PROMOTION_NONE ||
      r.promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
    return InvalidValue(absl::StrCat("l2Promotion ", static_cast<int>(r.promotion)));
  }
  if (r.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
      r.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) {
    return InvalidValue(absl::StrCat("oobFill ", static_cast<int>(r.fill)));
  }
  TensorMap map;
  ASSIGN_OR_RETURN(map.type, TypeOf(r.type));
  ASSIGN_OR_RETURN(map.swizzle, SwizzleOf(r.swizzle));
  RETURN_IF_ERROR(CheckAddress(r.address));
  if (r.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
    if (!IsFloat(map.type)) return InvalidValue("oobFill NaN of elements that are no floats");
    map.fill = TensorFill::kNaN;
  }
  const uint64_t element = TensorElementBytes(map.type);
  for (uint32_t k = 0; k < r.rank; ++k) {
    if (r.sizes[k] == 0 || r.sizes[k] > kLargestSize) {
      return InvalidValue(
          absl::StrCat("globalDim[", k, "] is ", r.sizes[k], ": 1 to ", kLargestSize));
    }
    // The first step counts only where the layout is interleaved.
    const uint32_t step = k == 0 ? 1 : r.steps[k];
    if (step == 0 || step > kLargestStep) {
      return InvalidValue(
          absl::StrCat("elementStrides[", k, "] is ", step, ": 1 to ", kLargestStep));
    }
    map.sizes[k] = r.sizes[k];
    map.steps[k] = step;
    if (k + 1 == r.rank) break;
    if (r.strides[k] % 16 != 0 || r.strides[k] >= kLargestStride) {
      return InvalidValue(absl::StrCat("globalStrides[", k, "] is ", r.strides[k],
                                       ": a multiple of 16 below ", kLargestStride));
    }
    map.strides[k] = r.strides[k];
  }
  if (r.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) {
    if (r.rank < 3) return InvalidValue("interleaved tensors have at least 3 dimensions");
    return NotSupported("interleaved tensors");
  }
  if (row * element % 16 != 0) {
    return InvalidValue(absl::StrCat("rows of ", row, " elements have ", row * element,
                                     " bytes, not a multiple of 16"));
  }
  if (map.swizzle != TensorSwizzle::kNone && row * element > SpanOf(map.swizzle)) {
    return InvalidValue(absl::StrCat("rows of ", row * element,
                                     " bytes; with this swizzle at most ", SpanOf(map.swizzle)));
  }
  map.magic = TensorMap::kMagic;
  map.rank = static_cast<uint8_t>(r.rank);
  map.address = reinterpret_cast<uint64_t>(r.address);
  return map;
}

void Write(const TensorMap& map, CUtensorMap* out) {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  std::memcpy(out, &map, sizeof map);
}

absl::Status EncodeTiled(const Request& r, const cuuint32_t* box) {
  RETURN_IF_NULL(box);
  for (uint32_t k = 0; k < r.rank && k < kMaxTensorRank; ++k) {
    if (box[k] == 0 || box[k] > kLargestBox) {
      return InvalidValue(absl::StrCat("boxDim[", k, "] is ", box[k], ": 1 to ", kLargestBox));
    }
  }
  ASSIGN_OR_RETURN(TensorMap map, MakeMap(r, 1, r.rank == 0 ? 1 : box[0]));
  for (uint32_t k = 0; k < r.rank; ++k) map.box[k] = box[k];
  Write(map, r.out);
  return absl::OkStatus();
}

absl::Status EncodeIm2col(const Request& r, const int* lower, const int* upper, uint32_t channels,
                          uint32_t pixels) {
  RETURN_IF_NULL(lower);
  RETURN_IF_NULL(upper);
  if (channels == 0 || channels > kLargestBox || pixels == 0 || pixels > kMostPixels) {
    return InvalidValue(absl::StrCat(channels, " channels of ", pixels, " pixels; at most ",
                                     kLargestBox, " of ", kMostPixels));
  }
  ASSIGN_OR_RETURN(TensorMap map, MakeMap(r, 3, channels));
  const uint32_t spatial = r.rank - 2;
  const int range = spatial == 1 ? 32768 : spatial == 2 ? 128 : 16;
  int16_t corners[6] = {};
  for (uint32_t k = 0; k < spatial; ++k) {
    // Corners are given from the outermost axis to the innermost.
    const int low = lower[spatial - 1 - k];
    const int high = upper[spatial - 1 - k];
    if (low < -range || low >= range || high < -range || high >= range) {
      return InvalidValue(absl::StrCat("corners of the box at ", low, " and ", high, ": ", -range,
                                       " to ", range - 1));
    }
    if (static_cast<int64_t>(map.sizes[1 + k]) + high - low <= 0) {
      return InvalidValue("the box of pixels is empty");
    }
    corners[k] = static_cast<int16_t>(low);
    corners[3 + k] = static_cast<int16_t>(high);
  }
  map.im2col = true;
  map.box[0] = channels;
  map.box[1] = pixels;
  std::memcpy(&map.box[2], corners, sizeof corners);
  Write(map, r.out);
  return absl::OkStatus();
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank,
                                       void* address, const cuuint64_t* sizes,
                                       const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill) {
  return WithDriver("cuTensorMapEncodeTiled", [&](Driver&) {
    return EncodeTiled(
        {out, type, rank, address, sizes, strides, steps, interleave, swizzle, promotion, fill},
        box);
  });
}

CU_API CUresult cuTensorMapEncodeIm2col(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank,
                                        void* address, const cuuint64_t* sizes,
                                        const cuuint64_t* strides, const int* lower,
                                        const int* upper, cuuint32_t channels, cuuint32_t pixels,
                                        const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle,
                                        CUtensorMapL2promotion promotion,
                                        CUtensorMapFloatOOBfill fill) {
  return WithDriver("cuTensorMapEncodeIm2col", [&](Driver&) {
    return EncodeIm2col(
        {out, type, rank, address, sizes, strides, steps, interleave, swizzle, promotion, fill},
        lower, upper, channels, pixels);
  });
}

CU_API CUresult cuTensorMapReplaceAddress(CUtensorMap* out, void* address) {
  return WithDriver("cuTensorMapReplaceAddress", [&](Driver&) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(address);
    TensorMap map;
    std::memcpy(static_cast<void*>(&map), out, sizeof map);
    if (map.magic != TensorMap::kMagic) return InvalidValue("not a tensor map");
    RETURN_IF_ERROR(CheckAddress(address));
    map.address = reinterpret_cast<uint64_t>(address);
    Write(map, out);
    return absl::OkStatus();
  });
}
