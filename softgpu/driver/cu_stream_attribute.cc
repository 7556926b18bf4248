// Attributes of streams: hints that are kept and told.

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

absl::Status CheckStreamAttribute(CUstreamAttrID attribute) {
  switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return absl::OkStatus();
    default:
      return InvalidValue(absl::StrCat("stream attribute ", static_cast<int>(attribute)));
  }
}

}  // namespace

CUresult Do_cuStreamGetAttribute(const char* call, NullStream null, CUstream handle,
                                 CUstreamAttrID attribute, CUstreamAttrValue* value) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context&, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(value);
        RETURN_IF_ERROR(CheckStreamAttribute(attribute));
        *value = CUstreamAttrValue{};
        if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
          value->syncPolicy = CU_SYNC_POLICY_AUTO;
        } else if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
          value->priority = stream.priority;
        }
        MutexLock lock(&stream.attributes_mutex);
        const auto set = stream.attributes.find(attribute);
        if (set != stream.attributes.end()) *value = set->second;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamSetAttribute(const char* call, NullStream null, CUstream handle,
                                 CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  return WithStream(
      call, null, handle,
      [&](Driver&, Context&, Stream& stream) -> absl::Status {
        RETURN_IF_NULL(value);
        RETURN_IF_ERROR(CheckStreamAttribute(attribute));
        if (attribute == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW) {
          const float ratio = value->accessPolicyWindow.hitRatio;
          if (!(ratio >= 0 && ratio <= 1)) return InvalidValue(absl::StrCat("hit ratio ", ratio));
        }
        MutexLock lock(&stream.attributes_mutex);
        stream.attributes[attribute] = *value;
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamCopyAttributes(const char* call, NullStream null, CUstream destination,
                                   CUstream source) {
  return WithStream(
      call, null, destination,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        ASSIGN_OR_RETURN(const std::shared_ptr<Stream> from,
                         driver.FindStream(context, source, null == NullStream::kPerThread));
        if (from.get() == &stream) return absl::OkStatus();
        std::map<int, CUstreamAttrValue> copy;
        {
          MutexLock lock(&from->attributes_mutex);
          copy = from->attributes;
        }
        MutexLock lock(&stream.attributes_mutex);
        stream.attributes = std::move(copy);
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

}  // namespace fargpu::softgpu

CU_API_TWINS(cuStreamGetAttribute, _ptsz,
             (CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue* value), stream,
             attribute, value);
CU_API_TWINS(cuStreamSetAttribute, _ptsz,
             (CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value), stream,
             attribute, value);
CU_API_TWINS(cuStreamCopyAttributes, _ptsz, (CUstream destination, CUstream source), destination,
             source);
