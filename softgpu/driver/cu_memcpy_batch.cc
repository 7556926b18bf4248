// Many copies in one call.

#include "softgpu/driver/copy.h"
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

}  // namespace

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
