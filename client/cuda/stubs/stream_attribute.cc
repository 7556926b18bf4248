// Attributes of streams: hints that are kept here and told to the worker.
#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/capture.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status CheckAttribute(CUstreamAttrID attribute) {
  switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return absl::OkStatus();
    default:
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("stream attribute ", static_cast<int>(attribute)));
  }
}

absl::Status FindStream(Session& session, DefaultStream default_stream, CUstream handle,
                        wire::StreamId* stream) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  return session.ToWire(handle, default_stream, stream);
}

// By members, so that nothing of what the program left in the union travels.
absl::Status Send(Session& session, wire::StreamId stream, CUstreamAttrID attribute,
                  const CUstreamAttrValue& value) {
  wire::StreamSetAttributeRequest request{.hStream = stream};
  request.attribute.id = attribute;
  switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      request.attribute.value.accessPolicyWindow = value.accessPolicyWindow;
      break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      request.attribute.value.syncPolicy = value.syncPolicy;
      break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      request.attribute.value.priority = value.priority;
      break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      request.attribute.value.memSyncDomainMap = value.memSyncDomainMap;
      break;
    default:
      request.attribute.value.memSyncDomain = value.memSyncDomain;
      break;
  }
  return session.Send(request);
}

}  // namespace

CUresult cuStreamGetAttribute(DefaultStream default_stream, CUstream hStream, CUstreamAttrID attr,
                              CUstreamAttrValue* value) {
  return AtCudaEdge("cuStreamGetAttribute", [&](Session& session) -> absl::Status {
    wire::StreamId stream;
    RETURN_IF_ERROR(FindStream(session, default_stream, hStream, &stream));
    RETURN_IF_ERROR(NotNull(value, "value"));
    RETURN_IF_ERROR(CheckAttribute(attr));
    *value = CUstreamAttrValue{};
    if (attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
      value->syncPolicy = CU_SYNC_POLICY_AUTO;
    } else if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
      const HandleSlot* slot = session.FindStream(hStream);
      value->priority = slot != nullptr ? slot->priority : 0;
    }
    if (const auto set = session.stream_attributes().Find(KeyOf(session, stream), attr)) {
      *value = *set;
    }
    return absl::OkStatus();
  });
}

CUresult cuStreamSetAttribute(DefaultStream default_stream, CUstream hStream, CUstreamAttrID attr,
                              const CUstreamAttrValue* param) {
  return AtCudaEdge("cuStreamSetAttribute", [&](Session& session) -> absl::Status {
    wire::StreamId stream;
    RETURN_IF_ERROR(FindStream(session, default_stream, hStream, &stream));
    RETURN_IF_ERROR(NotNull(param, "param"));
    RETURN_IF_ERROR(CheckAttribute(attr));
    if (attr == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW) {
      const float ratio = param->accessPolicyWindow.hitRatio;
      if (!(ratio >= 0 && ratio <= 1)) {
        return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("hit ratio ", ratio));
      }
    }
    RETURN_IF_ERROR(Send(session, stream, attr, *param));
    session.stream_attributes().Set(KeyOf(session, stream), attr, *param);
    return absl::OkStatus();
  });
}

CUresult cuStreamCopyAttributes(DefaultStream default_stream, CUstream dst, CUstream src) {
  return AtCudaEdge("cuStreamCopyAttributes", [&](Session& session) -> absl::Status {
    wire::StreamId to, from;
    RETURN_IF_ERROR(FindStream(session, default_stream, dst, &to));
    RETURN_IF_ERROR(FindStream(session, default_stream, src, &from));
    const StreamKey to_key = KeyOf(session, to);
    const StreamKey from_key = KeyOf(session, from);
    if (to_key == from_key) return absl::OkStatus();
    for (const auto& [attribute, value] : session.stream_attributes().Copy(from_key, to_key)) {
      RETURN_IF_ERROR(Send(session, to, static_cast<CUstreamAttrID>(attribute), value));
    }
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
