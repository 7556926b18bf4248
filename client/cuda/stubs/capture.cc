// Stream capture, of which nothing travels.
#include "client/cuda/capture.h"

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

// body(Session&, StreamId) with a current context that has not failed.
template <typename Body>
CUresult WithStream(const char* call, DefaultStream default_stream, CUstream handle, Body body) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(handle, default_stream, &stream));
    return body(session, stream);
  });
}

CUresult Begin(const char* call, DefaultStream default_stream, CUstream handle,
               CUstreamCaptureMode mode) {
  return WithStream(call, default_stream, handle, [&](Session& session, wire::StreamId stream) {
    return BeginCapture(session, stream, session.FindStream(handle), mode, nullptr, {});
  });
}

CUresult GetInfo(const char* call, DefaultStream default_stream, CUstream handle,
                 CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                 const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  return WithStream(call, default_stream, handle,
                    [&](Session& session, wire::StreamId stream) -> absl::Status {
                      RETURN_IF_ERROR(CheckImplicitCapture(session, stream));
                      const CaptureInfo info = GetCaptureInfo(session, stream);
                      RETURN_IF_ERROR(NotNull(status, "captureStatus_out"));
                      *status = info.status;
                      if (id != nullptr) *id = info.id;
                      if (graph != nullptr) *graph = info.graph;
                      if (dependencies != nullptr) *dependencies = info.nodes;
                      if (edges != nullptr) *edges = info.edges;
                      if (count != nullptr) *count = info.count;
                      return absl::OkStatus();
                    });
}

CUresult UpdateDependencies(const char* call, DefaultStream default_stream, CUstream handle,
                            const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                            size_t count, unsigned flags) {
  return WithStream(call, default_stream, handle,
                    [&](Session& session, wire::StreamId stream) -> absl::Status {
                      ASSIGN_OR_RETURN(auto read, ReadDependencies(dependencies, edges, count));
                      return UpdateCaptureDependencies(session, stream, std::move(read), flags);
                    });
}

}  // namespace

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return AtCudaEdge("cuThreadExchangeStreamCaptureMode", [&](Session&) -> absl::Status {
    RETURN_IF_ERROR(NotNull(mode, "mode"));
    if (*mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("capture mode ", static_cast<int>(*mode)));
    }
    std::swap(*mode, CurrentThread().capture_mode);
    return absl::OkStatus();
  });
}

CUresult cuStreamBeginCapture(DefaultStream default_stream, CUstream hStream) {
  return Begin("cuStreamBeginCapture", default_stream, hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(DefaultStream default_stream, CUstream hStream,
                                 CUstreamCaptureMode mode) {
  return Begin("cuStreamBeginCapture_v2", default_stream, hStream, mode);
}

CUresult cuStreamBeginCaptureToGraph(DefaultStream default_stream, CUstream hStream, CUgraph hGraph,
                                     const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) {
  return WithStream("cuStreamBeginCaptureToGraph", default_stream, hStream,
                    [&](Session& session, wire::StreamId stream) -> absl::Status {
                      std::shared_ptr<Graph> graph;
                      {
                        MutexLock lock(&session.graphs().mutex);
                        ASSIGN_OR_RETURN(graph, session.graphs().Find(hGraph));
                      }
                      ASSIGN_OR_RETURN(auto after, ReadDependencies(dependencies, dependencyData,
                                                                    numDependencies));
                      return BeginCapture(session, stream, session.FindStream(hStream), mode,
                                          std::move(graph), std::move(after));
                    });
}

CUresult cuStreamEndCapture(DefaultStream default_stream, CUstream hStream, CUgraph* phGraph) {
  return WithStream("cuStreamEndCapture", default_stream, hStream,
                    [&](Session& session, wire::StreamId stream) -> absl::Status {
                      // Who gave the graph needs no handle for it (cuStreamBeginCaptureToGraph).
                      if (phGraph == nullptr) return EndCapture(session, stream).status();
                      *phGraph = nullptr;
                      ASSIGN_OR_RETURN(*phGraph, EndCapture(session, stream));
                      return absl::OkStatus();
                    });
}

CUresult cuStreamIsCapturing(DefaultStream default_stream, CUstream hStream,
                             CUstreamCaptureStatus* captureStatus) {
  return GetInfo("cuStreamIsCapturing", default_stream, hStream, captureStatus, nullptr, nullptr,
                 nullptr, nullptr, nullptr);
}

CUresult cuStreamGetCaptureInfo(DefaultStream default_stream, CUstream hStream,
                                CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out) {
  return GetInfo("cuStreamGetCaptureInfo", default_stream, hStream, captureStatus_out, id_out,
                 nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamGetCaptureInfo_v2(DefaultStream default_stream, CUstream hStream,
                                   CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out,
                                   CUgraph* graph_out, const CUgraphNode** dependencies_out,
                                   size_t* numDependencies_out) {
  return GetInfo("cuStreamGetCaptureInfo_v2", default_stream, hStream, captureStatus_out, id_out,
                 graph_out, dependencies_out, nullptr, numDependencies_out);
}

CUresult cuStreamGetCaptureInfo_v3(DefaultStream default_stream, CUstream hStream,
                                   CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out,
                                   CUgraph* graph_out, const CUgraphNode** dependencies_out,
                                   const CUgraphEdgeData** edgeData_out,
                                   size_t* numDependencies_out) {
  return GetInfo("cuStreamGetCaptureInfo_v3", default_stream, hStream, captureStatus_out, id_out,
                 graph_out, dependencies_out, edgeData_out, numDependencies_out);
}

CUresult cuStreamUpdateCaptureDependencies(DefaultStream default_stream, CUstream hStream,
                                           CUgraphNode* dependencies, size_t numDependencies,
                                           unsigned int flags) {
  return UpdateDependencies("cuStreamUpdateCaptureDependencies", default_stream, hStream,
                            dependencies, nullptr, numDependencies, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2(DefaultStream default_stream, CUstream hStream,
                                              CUgraphNode* dependencies,
                                              const CUgraphEdgeData* dependencyData,
                                              size_t numDependencies, unsigned int flags) {
  return UpdateDependencies("cuStreamUpdateCaptureDependencies_v2", default_stream, hStream,
                            dependencies, dependencyData, numDependencies, flags);
}

}  // namespace fargpu::client::api
