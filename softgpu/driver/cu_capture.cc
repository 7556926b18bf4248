// Stream capture.

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

CUresult Begin(const char* call, NullStream null, CUstream handle, CUstreamCaptureMode mode) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) {
        return BeginCapture(driver, context, stream.shared_from_this(), mode, nullptr, {});
      },
      OnCapture::kIgnore);
}

// The legacy stream is not asked about while a stream that it would wait for is captured.
template <typename Body>
CUresult WithCaptureInfo(const char* call, NullStream null, CUstream handle, Body body) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(CheckImplicitCapture(driver, context, stream));
        return body(GetCaptureInfo(driver, stream));
      },
      OnCapture::kIgnore);
}

CUresult GetInfo(const char* call, NullStream null, CUstream handle, CUstreamCaptureStatus* status,
                 cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                 const CUgraphEdgeData** edges, size_t* count) {
  return WithCaptureInfo(call, null, handle, [&](const CaptureInfo& info) -> absl::Status {
    RETURN_IF_NULL(status);
    *status = info.status;
    if (id != nullptr) *id = info.id;
    if (graph != nullptr) *graph = info.graph;
    if (dependencies != nullptr) *dependencies = info.nodes;
    if (edges != nullptr) *edges = info.edges;
    if (count != nullptr) *count = info.count;
    return absl::OkStatus();
  });
}

CUresult UpdateDependencies(const char* call, NullStream null, CUstream handle,
                            const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                            size_t count, unsigned flags) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context&, Stream& stream) -> absl::Status {
        ASSIGN_OR_RETURN(auto read, ReadDependencies(dependencies, edges, count));
        return UpdateCaptureDependencies(driver, stream, std::move(read), flags);
      },
      OnCapture::kIgnore);
}

}  // namespace

CUresult Do_cuStreamBeginCapture(const char* call, NullStream null, CUstream stream) {
  return Begin(call, null, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult Do_cuStreamBeginCapture_v2(const char* call, NullStream null, CUstream stream,
                                    CUstreamCaptureMode mode) {
  return Begin(call, null, stream, mode);
}

CUresult Do_cuStreamBeginCaptureToGraph(const char* call, NullStream null, CUstream handle,
                                        CUgraph graph_handle, const CUgraphNode* dependencies,
                                        const CUgraphEdgeData* edges, size_t count,
                                        CUstreamCaptureMode mode) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        std::shared_ptr<Graph> graph;
        {
          MutexLock lock(&driver.graph_mutex);
          ASSIGN_OR_RETURN(graph, FindGraph(driver, graph_handle));
        }
        ASSIGN_OR_RETURN(auto after, ReadDependencies(dependencies, edges, count));
        return BeginCapture(driver, context, stream.shared_from_this(), mode, std::move(graph),
                            std::move(after));
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamEndCapture(const char* call, NullStream null, CUstream handle, CUgraph* out) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context&, Stream& stream) -> absl::Status {
        // Who gave the graph needs no handle for it (cuStreamBeginCaptureToGraph).
        if (out == nullptr) return EndCapture(driver, stream).status();
        *out = nullptr;
        ASSIGN_OR_RETURN(*out, EndCapture(driver, stream));
        return absl::OkStatus();
      },
      OnCapture::kIgnore);
}

CUresult Do_cuStreamIsCapturing(const char* call, NullStream null, CUstream handle,
                                CUstreamCaptureStatus* status) {
  return GetInfo(call, null, handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

CUresult Do_cuStreamGetCaptureInfo(const char* call, NullStream null, CUstream handle,
                                   CUstreamCaptureStatus* status, cuuint64_t* id) {
  return GetInfo(call, null, handle, status, id, nullptr, nullptr, nullptr, nullptr);
}

CUresult Do_cuStreamGetCaptureInfo_v2(const char* call, NullStream null, CUstream handle,
                                      CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                      const CUgraphNode** dependencies, size_t* count) {
  return GetInfo(call, null, handle, status, id, graph, dependencies, nullptr, count);
}

CUresult Do_cuStreamGetCaptureInfo_v3(const char* call, NullStream null, CUstream handle,
                                      CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                      const CUgraphNode** dependencies,
                                      const CUgraphEdgeData** edges, size_t* count) {
  return GetInfo(call, null, handle, status, id, graph, dependencies, edges, count);
}

CUresult Do_cuStreamUpdateCaptureDependencies(const char* call, NullStream null, CUstream handle,
                                              CUgraphNode* dependencies, size_t count,
                                              unsigned flags) {
  return UpdateDependencies(call, null, handle, dependencies, nullptr, count, flags);
}

CUresult Do_cuStreamUpdateCaptureDependencies_v2(const char* call, NullStream null, CUstream handle,
                                                 CUgraphNode* dependencies,
                                                 const CUgraphEdgeData* edges, size_t count,
                                                 unsigned flags) {
  return UpdateDependencies(call, null, handle, dependencies, edges, count, flags);
}

}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return WithDriver("cuThreadExchangeStreamCaptureMode", [&](Driver&) -> absl::Status {
    RETURN_IF_NULL(mode);
    if (*mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return InvalidValue(absl::StrCat("capture mode ", static_cast<int>(*mode)));
    }
    *mode = ExchangeCaptureMode(*mode);
    return absl::OkStatus();
  });
}

CU_API_TWINS(cuStreamBeginCapture, _ptsz, (CUstream stream), stream);
CU_API_TWINS(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode), stream,
             mode);
CU_API_TWINS(cuStreamBeginCaptureToGraph, _ptsz,
             (CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
              const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode),
             stream, graph, dependencies, edges, count, mode);
CU_API_TWINS(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph* graph), stream, graph);
CU_API_TWINS(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus* status), stream,
             status);
CU_API_TWINS(cuStreamGetCaptureInfo, _ptsz,
             (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id), stream, status, id);
CU_API_TWINS(cuStreamGetCaptureInfo_v2, _ptsz,
             (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** dependencies, size_t* count),
             stream, status, id, graph, dependencies, count);
CU_API_TWINS(cuStreamGetCaptureInfo_v3, _ptsz,
             (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count),
             stream, status, id, graph, dependencies, edges, count);
CU_API_TWINS(cuStreamUpdateCaptureDependencies, _ptsz,
             (CUstream stream, CUgraphNode* dependencies, size_t count, unsigned flags), stream,
             dependencies, count, flags);
CU_API_TWINS(cuStreamUpdateCaptureDependencies_v2, _ptsz,
             (CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData* edges,
              size_t count, unsigned flags),
             stream, dependencies, edges, count, flags);
