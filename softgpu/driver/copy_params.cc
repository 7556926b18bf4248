#include "softgpu/driver/copy_params.h"

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/array.h"

namespace fargpu::softgpu {
namespace {

// One side of a copy, as cuda.h's structs name it.
struct CopySide {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t x_bytes, y, z;
  size_t pitch;
  size_t rows;  // per slice
  size_t level;
};

struct PlacedSide {
  uint64_t address = 0;
  Side side = Side::kUnified;
  size_t pitch = 0;
  size_t slice = 0;
  ArrayPlace array;
};

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

absl::StatusOr<PlacedSide> PlaceInArray(Driver& driver, const CopySide& side, size_t width,
                                        size_t height, size_t depth) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Array> array, FindArray(driver, side.array));
  const auto inside = [](size_t start, size_t count, size_t size) {
    return start <= size && count <= size - start;
  };
  if (!inside(side.x_bytes, width, array->row_bytes()) ||
      !inside(side.y, height, array->memory.height) ||
      !inside(side.z, depth, array->memory.depth)) {
    return Invalid(absl::StrCat("copy of ", width, "x", height, "x", depth, " bytes at ",
                                side.x_bytes, ",", side.y, ",", side.z, " of an array of ",
                                array->row_bytes(), "x", array->memory.height, "x",
                                array->memory.depth, " bytes"));
  }
  PlacedSide placed;
  placed.side = Side::kDevice;
  placed.pitch = array->memory.row_pitch;
  placed.slice = array->memory.slice_pitch;
  placed.address =
      array->memory.address + side.x_bytes + side.y * placed.pitch + side.z * placed.slice;
  placed.array = {.array = side.array, .x_bytes = side.x_bytes, .y = side.y, .z = side.z};
  return placed;
}

absl::StatusOr<PlacedSide> PlaceSide(Driver& driver, const CopySide& side, size_t width,
                                     size_t height, size_t depth) {
  if (side.level != 0) return Invalid(absl::StrCat("level ", side.level, ": must be 0"));
  PlacedSide placed;
  switch (side.type) {
    case CU_MEMORYTYPE_HOST:
      placed.address = reinterpret_cast<uint64_t>(side.host);
      placed.side = Side::kHost;
      break;
    case CU_MEMORYTYPE_DEVICE:
      placed.address = side.device;
      placed.side = Side::kDevice;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      placed.address = side.device;
      break;
    case CU_MEMORYTYPE_ARRAY:
      return PlaceInArray(driver, side, width, height, depth);
    default:
      return Invalid(absl::StrCat("memory type ", static_cast<int>(side.type)));
  }
  placed.pitch = side.pitch == 0 ? width : side.pitch;
  placed.slice = placed.pitch * (side.rows == 0 ? height : side.rows);
  if (placed.address != 0) {
    placed.address += side.x_bytes + side.y * placed.pitch + side.z * placed.slice;
  }
  return placed;
}

absl::StatusOr<CopyPlan> Plan(Driver& driver, const CopySide& source, const CopySide& destination,
                              size_t width, size_t height, size_t depth) {
  ASSIGN_OR_RETURN(const PlacedSide from, PlaceSide(driver, source, width, height, depth));
  ASSIGN_OR_RETURN(const PlacedSide to, PlaceSide(driver, destination, width, height, depth));
  CopyPlan plan;
  plan.source = from.address;
  plan.source_side = from.side;
  plan.source_pitch = from.pitch;
  plan.source_slice = from.slice;
  plan.source_array = from.array;
  plan.destination = to.address;
  plan.destination_side = to.side;
  plan.destination_pitch = to.pitch;
  plan.destination_slice = to.slice;
  plan.destination_array = to.array;
  plan.width = width;
  plan.height = height;
  plan.depth = depth;
  return plan;
}

// The structs name their fields alike.
template <typename Params>
absl::StatusOr<CopyPlan> PlanOf3D(Driver& driver, const Params& p) {
  return Plan(driver,
              {.type = p.srcMemoryType,
               .host = p.srcHost,
               .device = p.srcDevice,
               .array = p.srcArray,
               .x_bytes = p.srcXInBytes,
               .y = p.srcY,
               .z = p.srcZ,
               .pitch = p.srcPitch,
               .rows = p.srcHeight,
               .level = p.srcLOD},
              {.type = p.dstMemoryType,
               .host = p.dstHost,
               .device = p.dstDevice,
               .array = p.dstArray,
               .x_bytes = p.dstXInBytes,
               .y = p.dstY,
               .z = p.dstZ,
               .pitch = p.dstPitch,
               .rows = p.dstHeight,
               .level = p.dstLOD},
              p.WidthInBytes, p.Height, p.Depth);
}

}  // namespace

absl::StatusOr<CopyPlan> PlanOf(Driver& driver, const CUDA_MEMCPY3D& params) {
  return PlanOf3D(driver, params);
}

absl::StatusOr<CopyPlan> PlanOf(Driver& driver, const CUDA_MEMCPY3D_PEER& params) {
  return PlanOf3D(driver, params);
}

absl::StatusOr<CopyPlan> PlanOf(Driver& driver, const CUDA_MEMCPY2D& p) {
  return Plan(driver,
              {.type = p.srcMemoryType,
               .host = p.srcHost,
               .device = p.srcDevice,
               .array = p.srcArray,
               .x_bytes = p.srcXInBytes,
               .y = p.srcY,
               .z = 0,
               .pitch = p.srcPitch,
               .rows = 0,
               .level = 0},
              {.type = p.dstMemoryType,
               .host = p.dstHost,
               .device = p.dstDevice,
               .array = p.dstArray,
               .x_bytes = p.dstXInBytes,
               .y = p.dstY,
               .z = 0,
               .pitch = p.dstPitch,
               .rows = 0,
               .level = 0},
              p.WidthInBytes, p.Height, 1);
}

CUDA_MEMCPY3D ParamsOf(const CopyPlan& plan) {
  CUDA_MEMCPY3D params = {};
  const auto type = [](Side side) {
    return side == Side::kHost     ? CU_MEMORYTYPE_HOST
           : side == Side::kDevice ? CU_MEMORYTYPE_DEVICE
                                   : CU_MEMORYTYPE_UNIFIED;
  };
  const auto rows = [](size_t slice, size_t pitch) { return pitch == 0 ? 0 : slice / pitch; };
  if (plan.source_array.array != nullptr) {
    params.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    params.srcArray = plan.source_array.array;
    params.srcXInBytes = plan.source_array.x_bytes;
    params.srcY = plan.source_array.y;
    params.srcZ = plan.source_array.z;
  } else {
    params.srcMemoryType = type(plan.source_side);
    if (plan.source_side == Side::kHost) {
      params.srcHost = reinterpret_cast<const void*>(plan.source);
    } else {
      params.srcDevice = plan.source;
    }
    params.srcPitch = plan.source_pitch;
    params.srcHeight = rows(plan.source_slice, plan.source_pitch);
  }
  if (plan.destination_array.array != nullptr) {
    params.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    params.dstArray = plan.destination_array.array;
    params.dstXInBytes = plan.destination_array.x_bytes;
    params.dstY = plan.destination_array.y;
    params.dstZ = plan.destination_array.z;
  } else {
    params.dstMemoryType = type(plan.destination_side);
    if (plan.destination_side == Side::kHost) {
      params.dstHost = reinterpret_cast<void*>(plan.destination);
    } else {
      params.dstDevice = plan.destination;
    }
    params.dstPitch = plan.destination_pitch;
    params.dstHeight = rows(plan.destination_slice, plan.destination_pitch);
  }
  params.WidthInBytes = plan.width;
  params.Height = plan.height;
  params.Depth = plan.depth;
  return params;
}

}  // namespace fargpu::softgpu
