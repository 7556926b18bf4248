// Many copies in one call.

#include "softgpu/driver/array.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/copy_params.h"
#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

struct Batch {
  const CUdeviceptr* destinations;
  const CUdeviceptr* sources;
  const size_t* sizes;
  size_t count;
  const CUmemcpyAttributes* attributes;
  const size_t* first_of_attribute;  // the copies from here on have it
  size_t attribute_count;
};

absl::Status CheckBatch(const Batch& batch) {
  if (batch.count == 0) return InvalidValue("no copies");
  RETURN_IF_NULL(batch.destinations);
  RETURN_IF_NULL(batch.sources);
  RETURN_IF_NULL(batch.sizes);
  RETURN_IF_NULL(batch.attributes);
  RETURN_IF_NULL(batch.first_of_attribute);
  if (batch.attribute_count == 0 || batch.attribute_count > batch.count ||
      batch.first_of_attribute[0] != 0) {
    return InvalidValue(absl::StrCat(batch.attribute_count, " attributes for ", batch.count,
                                     " copies; the first must be of copy 0"));
  }
  for (size_t i = 0; i < batch.attribute_count; ++i) {
    const CUmemcpyAttributes& attributes = batch.attributes[i];
    const bool in_order =
        i == 0 || (batch.first_of_attribute[i] > batch.first_of_attribute[i - 1] &&
                   batch.first_of_attribute[i] < batch.count);
    if (!in_order || attributes.srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
        attributes.srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
        (attributes.flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) != 0) {
      return InvalidValue(absl::StrCat("attributes ", i, ": their copies, order or flags"));
    }
  }
  return absl::OkStatus();
}

CUresult CopyBatch(const char* call, NullStream null, CUstream handle, const Batch& batch,
                   size_t* failed) {
  if (failed != nullptr) *failed = SIZE_MAX;  // the fault is not one copy's
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        if (stream.legacy) return InvalidValue("batches need a stream of their own");
        RETURN_IF_ERROR(CheckBatch(batch));
        size_t attribute = 0;
        for (size_t i = 0; i < batch.count; ++i) {
          if (attribute + 1 < batch.attribute_count &&
              batch.first_of_attribute[attribute + 1] == i) {
            ++attribute;
          }
          CopyPlan plan;
          plan.destination = batch.destinations[i];
          plan.source = batch.sources[i];
          plan.width = batch.sizes[i];
          const bool at_once = batch.attributes[attribute].srcAccessOrder ==
                               CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
          const absl::Status copied = at_once && !stream.is_capturing()
                                          ? CopyNow(driver, context, stream, plan)
                                          : CopyAsync(driver, context, stream, plan);
          if (copied.ok()) continue;
          if (failed != nullptr) *failed = i;
          return copied;
        }
        return absl::OkStatus();
      },
      OnCapture::kRecord);
}

// Bytes of an element of the copy: of the array that takes part; without one 1.
absl::StatusOr<size_t> ElementBytes(Driver& driver, const CUDA_MEMCPY3D_BATCH_OP& op) {
  size_t bytes = 0;
  for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) continue;
    ASSIGN_OR_RETURN(const auto array, FindArray(driver, operand->op.array.array));
    if (bytes != 0 && bytes != array->format.bytes()) {
      return InvalidValue(absl::StrCat("a copy between arrays of elements of ", bytes, " and ",
                                       array->format.bytes(), " bytes"));
    }
    bytes = array->format.bytes();
  }
  return bytes == 0 ? 1 : bytes;
}

struct OperandParams {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t x_bytes = 0, y = 0, z = 0;
  size_t pitch = 0, rows = 0;
};

absl::StatusOr<OperandParams> ReadOperand(const CUmemcpy3DOperand& operand,
                                          const CUextent3D& extent, size_t element) {
  OperandParams params;
  switch (operand.type) {
    case CU_MEMCPY_OPERAND_TYPE_POINTER: {
      const auto& pointer = operand.op.ptr;
      if ((pointer.rowLength != 0 && pointer.rowLength < extent.width) ||
          (pointer.layerHeight != 0 && pointer.layerHeight < extent.height)) {
        return InvalidValue(absl::StrCat("rows of ", pointer.rowLength, " and layers of ",
                                         pointer.layerHeight, " for a copy of ", extent.width, "x",
                                         extent.height));
      }
      params.address = pointer.ptr;
      params.pitch = pointer.rowLength * element;
      params.rows = pointer.layerHeight;
      return params;
    }
    case CU_MEMCPY_OPERAND_TYPE_ARRAY: {
      const auto& array = operand.op.array;
      params.type = CU_MEMORYTYPE_ARRAY;
      params.array = array.array;
      params.x_bytes = array.offset.x * element;
      params.y = array.offset.y;
      params.z = array.offset.z;
      return params;
    }
    default:
      return InvalidValue(absl::StrCat("operand type ", static_cast<int>(operand.type)));
  }
}

absl::StatusOr<CopyPlan> PlanOf3D(Driver& driver, const CUDA_MEMCPY3D_BATCH_OP& op) {
  constexpr size_t kMost = size_t{1} << 40;
  const CUextent3D& extent = op.extent;
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0 || extent.width > kMost) {
    return InvalidValue(
        absl::StrCat("a copy of ", extent.width, "x", extent.height, "x", extent.depth));
  }
  if (op.srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
      op.srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
      (op.flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) != 0) {
    return InvalidValue(
        absl::StrCat("order ", static_cast<int>(op.srcAccessOrder), ", flags ", op.flags));
  }
  ASSIGN_OR_RETURN(const size_t element, ElementBytes(driver, op));
  ASSIGN_OR_RETURN(const OperandParams from, ReadOperand(op.src, extent, element));
  ASSIGN_OR_RETURN(const OperandParams to, ReadOperand(op.dst, extent, element));
  CUDA_MEMCPY3D params = {};
  params.srcMemoryType = from.type;
  params.srcDevice = from.address;
  params.srcArray = from.array;
  params.srcXInBytes = from.x_bytes;
  params.srcY = from.y;
  params.srcZ = from.z;
  params.srcPitch = from.pitch;
  params.srcHeight = from.rows;
  params.dstMemoryType = to.type;
  params.dstDevice = to.address;
  params.dstArray = to.array;
  params.dstXInBytes = to.x_bytes;
  params.dstY = to.y;
  params.dstZ = to.z;
  params.dstPitch = to.pitch;
  params.dstHeight = to.rows;
  params.WidthInBytes = extent.width * element;
  params.Height = extent.height;
  params.Depth = extent.depth;
  return PlanOf(driver, params);
}

CUresult CopyBatch3D(const char* call, NullStream null, CUstream handle, size_t count,
                     const CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed,
                     unsigned long long flags) {
  if (failed != nullptr) *failed = SIZE_MAX;  // the fault is not one copy's
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        if (stream.legacy) return InvalidValue("batches need a stream of their own");
        RETURN_IF_NULL(operations);
        if (count == 0 || flags != 0) {
          return InvalidValue(absl::StrCat(count, " copies, flags ", flags));
        }
        for (size_t i = 0; i < count; ++i) {
          const absl::Status copied = [&]() -> absl::Status {
            ASSIGN_OR_RETURN(const CopyPlan plan, PlanOf3D(driver, operations[i]));
            const bool at_once =
                operations[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
            return at_once && !stream.is_capturing() ? CopyNow(driver, context, stream, plan)
                                                     : CopyAsync(driver, context, stream, plan);
          }();
          if (copied.ok()) continue;
          if (failed != nullptr) *failed = i;
          return copied;
        }
        return absl::OkStatus();
      },
      OnCapture::kRecord);
}

}  // namespace

CUresult Do_cuMemcpy3DBatchAsync(const char* call, NullStream null, size_t count,
                                 CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed,
                                 unsigned long long flags, CUstream stream) {
  return CopyBatch3D(call, null, stream, count, operations, failed, flags);
}

CUresult Do_cuMemcpy3DBatchAsync_v2(const char* call, NullStream null, size_t count,
                                    CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags,
                                    CUstream stream) {
  return CopyBatch3D(call, null, stream, count, operations, nullptr, flags);
}

CUresult Do_cuMemcpyBatchAsync(const char* call, NullStream null, CUdeviceptr* destinations,
                               CUdeviceptr* sources, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* first_of_attribute,
                               size_t attribute_count, size_t* failed, CUstream stream) {
  return CopyBatch(
      call, null, stream,
      {destinations, sources, sizes, count, attributes, first_of_attribute, attribute_count},
      failed);
}

CUresult Do_cuMemcpyBatchAsync_v2(const char* call, NullStream null, CUdeviceptr* destinations,
                                  CUdeviceptr* sources, size_t* sizes, size_t count,
                                  CUmemcpyAttributes* attributes, size_t* first_of_attribute,
                                  size_t attribute_count, CUstream stream) {
  return CopyBatch(
      call, null, stream,
      {destinations, sources, sizes, count, attributes, first_of_attribute, attribute_count},
      nullptr);
}

}  // namespace fargpu::softgpu

CU_API_TWINS(cuMemcpyBatchAsync, _ptsz,
             (CUdeviceptr * destinations, CUdeviceptr* sources, size_t* sizes, size_t count,
              CUmemcpyAttributes* attributes, size_t* first_of_attribute, size_t attribute_count,
              size_t* failed, CUstream stream),
             destinations, sources, sizes, count, attributes, first_of_attribute, attribute_count,
             failed, stream);
CU_API_TWINS(cuMemcpyBatchAsync_v2, _ptsz,
             (CUdeviceptr * destinations, CUdeviceptr* sources, size_t* sizes, size_t count,
              CUmemcpyAttributes* attributes, size_t* first_of_attribute, size_t attribute_count,
              CUstream stream),
             destinations, sources, sizes, count, attributes, first_of_attribute, attribute_count,
             stream);
CU_API_TWINS(cuMemcpy3DBatchAsync, _ptsz,
             (size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed,
              unsigned long long flags, CUstream stream),
             count, operations, failed, flags, stream);
CU_API_TWINS(cuMemcpy3DBatchAsync_v2, _ptsz,
             (size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags,
              CUstream stream),
             count, operations, flags, stream);
