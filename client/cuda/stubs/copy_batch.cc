// Many copies in one call.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/box_copy.h"
#include "client/cuda/capture.h"
#include "client/cuda/copying.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

struct Batch {
  const CUdeviceptr* destinations;
  const CUdeviceptr* sources;
  const size_t* sizes;
  size_t count;
  const CUmemcpyAttributes* attributes;
  const size_t* first_of_attribute;  // the copies from here on have it
  size_t attribute_count;
};

bool IsOrder(CUmemcpySrcAccessOrder order) {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

absl::Status CheckBatch(const Batch& batch) {
  if (batch.count == 0) return Invalid("no copies");
  RETURN_IF_ERROR(NotNull(batch.destinations, "dsts"));
  RETURN_IF_ERROR(NotNull(batch.sources, "srcs"));
  RETURN_IF_ERROR(NotNull(batch.sizes, "sizes"));
  RETURN_IF_ERROR(NotNull(batch.attributes, "attrs"));
  RETURN_IF_ERROR(NotNull(batch.first_of_attribute, "attrsIdxs"));
  if (batch.attribute_count == 0 || batch.attribute_count > batch.count ||
      batch.first_of_attribute[0] != 0) {
    return Invalid(absl::StrCat(batch.attribute_count, " attributes for ", batch.count,
                                " copies; the first must be of copy 0"));
  }
  for (size_t i = 0; i < batch.attribute_count; ++i) {
    const CUmemcpyAttributes& attributes = batch.attributes[i];
    const bool in_order =
        i == 0 || (batch.first_of_attribute[i] > batch.first_of_attribute[i - 1] &&
                   batch.first_of_attribute[i] < batch.count);
    if (!in_order || !IsOrder(attributes.srcAccessOrder) ||
        (attributes.flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) != 0) {
      return Invalid(absl::StrCat("attributes ", i, ": their copies, order or flags"));
    }
  }
  return absl::OkStatus();
}

// body(Session&, StreamId) for a stream that is not the legacy one.
template <typename Body>
CUresult WithOwnStream(const char* call, DefaultStream default_stream, CUstream handle, Body body) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(handle, default_stream, &stream));
    RETURN_IF_ERROR(CheckImplicitCapture(session, stream));
    if (stream.value < 2) return Invalid("batches need a stream of their own");
    return body(session, stream);
  });
}

// The source may change as soon as the call has returned.
absl::Status AfterCopyAtOnce(Session& session, wire::StreamId stream,
                             CUmemcpySrcAccessOrder order) {
  if (order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL || IsCapturing(session, stream)) {
    return absl::OkStatus();
  }
  return SynchronizeStream(session, stream);
}

CUresult CopyBatch(const char* call, DefaultStream default_stream, CUstream handle,
                   const Batch& batch, size_t* failed) {
  if (failed != nullptr) *failed = SIZE_MAX;  // the fault is not one copy's
  return WithOwnStream(
      call, default_stream, handle, [&](Session& session, wire::StreamId stream) -> absl::Status {
        RETURN_IF_ERROR(CheckBatch(batch));
        size_t attribute = 0;
        for (size_t i = 0; i < batch.count; ++i) {
          if (attribute + 1 < batch.attribute_count &&
              batch.first_of_attribute[attribute + 1] == i) {
            ++attribute;
          }
          absl::Status copied = CopyUnifiedAsync(session, batch.destinations[i], batch.sources[i],
                                                 batch.sizes[i], stream);
          if (copied.ok()) {
            copied = AfterCopyAtOnce(session, stream, batch.attributes[attribute].srcAccessOrder);
          }
          if (copied.ok()) continue;
          if (failed != nullptr) *failed = i;
          return copied;
        }
        return absl::OkStatus();
      });
}

// Bytes of an element of the copy: of the array that takes part; without one 1.
absl::StatusOr<size_t> ElementBytes(Session& session, const CUDA_MEMCPY3D_BATCH_OP& op) {
  size_t bytes = 0;
  for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) continue;
    ASSIGN_OR_RETURN(const Array* array, session.FindArray(operand->op.array.array));
    if (bytes != 0 && bytes != array->element_bytes) {
      return Invalid(absl::StrCat("a copy between arrays of elements of ", bytes, " and ",
                                  array->element_bytes, " bytes"));
    }
    bytes = array->element_bytes;
  }
  return bytes == 0 ? 1 : bytes;
}

absl::StatusOr<BoxSide> SideOf(const CUmemcpy3DOperand& operand, const CUextent3D& extent,
                               size_t element) {
  BoxSide side;
  switch (operand.type) {
    case CU_MEMCPY_OPERAND_TYPE_POINTER: {
      const auto& pointer = operand.op.ptr;
      if ((pointer.rowLength != 0 && pointer.rowLength < extent.width) ||
          (pointer.layerHeight != 0 && pointer.layerHeight < extent.height)) {
        return Invalid(absl::StrCat("rows of ", pointer.rowLength, " and layers of ",
                                    pointer.layerHeight, " for a copy of ", extent.width, "x",
                                    extent.height));
      }
      side.device = pointer.ptr;
      side.pitch = pointer.rowLength * element;
      side.rows = pointer.layerHeight;
      return side;
    }
    case CU_MEMCPY_OPERAND_TYPE_ARRAY: {
      const auto& array = operand.op.array;
      side.type = CU_MEMORYTYPE_ARRAY;
      side.array = array.array;
      side.x_bytes = array.offset.x * element;
      side.y = array.offset.y;
      side.z = array.offset.z;
      return side;
    }
    default:
      return Invalid(absl::StrCat("operand type ", static_cast<int>(operand.type)));
  }
}

absl::Status CopyOne(Session& session, const CUDA_MEMCPY3D_BATCH_OP& op, wire::StreamId stream) {
  constexpr size_t kMost = size_t{1} << 40;
  const CUextent3D& extent = op.extent;
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0 || extent.width > kMost) {
    return Invalid(absl::StrCat("a copy of ", extent.width, "x", extent.height, "x", extent.depth));
  }
  if (!IsOrder(op.srcAccessOrder) ||
      (op.flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) != 0) {
    return Invalid(
        absl::StrCat("order ", static_cast<int>(op.srcAccessOrder), ", flags ", op.flags));
  }
  ASSIGN_OR_RETURN(const size_t element, ElementBytes(session, op));
  ASSIGN_OR_RETURN(const BoxSide from, SideOf(op.src, extent, element));
  ASSIGN_OR_RETURN(const BoxSide to, SideOf(op.dst, extent, element));
  RETURN_IF_ERROR(
      CopyBox(session, to, from,
              {.width = extent.width * element, .height = extent.height, .depth = extent.depth},
              stream, Waits::kNo));
  return AfterCopyAtOnce(session, stream, op.srcAccessOrder);
}

CUresult CopyBatch3D(const char* call, DefaultStream default_stream, CUstream handle, size_t count,
                     const CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed,
                     unsigned long long flags) {
  if (failed != nullptr) *failed = SIZE_MAX;  // the fault is not one copy's
  return WithOwnStream(call, default_stream, handle,
                       [&](Session& session, wire::StreamId stream) -> absl::Status {
                         RETURN_IF_ERROR(NotNull(operations, "opList"));
                         if (count == 0 || flags != 0)
                           return Invalid(absl::StrCat(count, " copies, flags ", flags));
                         for (size_t i = 0; i < count; ++i) {
                           const absl::Status copied = CopyOne(session, operations[i], stream);
                           if (copied.ok()) continue;
                           if (failed != nullptr) *failed = i;
                           return copied;
                         }
                         return absl::OkStatus();
                       });
}

}  // namespace

CUresult cuMemcpyBatchAsync(DefaultStream default_stream, CUdeviceptr* dsts, CUdeviceptr* srcs,
                            size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
                            size_t* attrsIdxs, size_t numAttrs, size_t* failIdx, CUstream hStream) {
  return CopyBatch("cuMemcpyBatchAsync", default_stream, hStream,
                   {dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs}, failIdx);
}

CUresult cuMemcpyBatchAsync_v2(DefaultStream default_stream, CUdeviceptr* dsts, CUdeviceptr* srcs,
                               size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
                               size_t* attrsIdxs, size_t numAttrs, CUstream hStream) {
  return CopyBatch("cuMemcpyBatchAsync_v2", default_stream, hStream,
                   {dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs}, nullptr);
}

CUresult cuMemcpy3DBatchAsync(DefaultStream default_stream, size_t numOps,
                              CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx,
                              unsigned long long flags, CUstream hStream) {
  return CopyBatch3D("cuMemcpy3DBatchAsync", default_stream, hStream, numOps, opList, failIdx,
                     flags);
}

CUresult cuMemcpy3DBatchAsync_v2(DefaultStream default_stream, size_t numOps,
                                 CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags,
                                 CUstream hStream) {
  return CopyBatch3D("cuMemcpy3DBatchAsync_v2", default_stream, hStream, numOps, opList, nullptr,
                     flags);
}

}  // namespace fargpu::client::api
