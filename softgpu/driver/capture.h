#pragma once

#include <cuda.h>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/driver/graph.h"

// Stream capture: work that is added to a graph instead of to a stream. What a capture knows is
// guarded by Driver::graph_mutex, like the graph that it builds.
namespace fargpu::softgpu {

// By handle, so that a node which the program takes out of the graph meanwhile is only missing.
struct CaptureDependency {
  CUgraphNode node = nullptr;
  CUgraphEdgeData data = {};
};

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;  // that began it
  uint64_t context = 0;
  std::shared_ptr<Graph> graph;
  bool into_own_graph = true;  // false: the program gave the graph
  bool invalidated = false;
  bool ended = false;
  std::shared_ptr<Stream> origin;
  // What the next node of each stream depends on.
  std::map<std::shared_ptr<Stream>, std::vector<CaptureDependency>> streams;
  // What cuStreamGetCaptureInfo points to.
  std::vector<CUgraphNode> reported_nodes;
  std::vector<CUgraphEdgeData> reported_edges;
};

// Where an event was recorded in a capture.
struct CapturedEvent {
  std::shared_ptr<Capture> capture;
  std::vector<CaptureDependency> after;
};

// For calls that a capture in progress may forbid, such as allocations: what the thread's mode says
// (cuThreadExchangeStreamCaptureMode). CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED spoils the capture.
absl::Status CheckAllowedDuringCapture(Driver& driver);
CUstreamCaptureMode ExchangeCaptureMode(CUstreamCaptureMode mode);

// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT if `stream` is the legacy one, which everything of a capturing
// stream would have to wait for.
absl::Status CheckImplicitCapture(Driver& driver, Context& context, const Stream& stream);
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, spoiling the capture, if `stream` is capturing.
absl::Status RefuseWhileCapturing(Driver& driver, Stream& stream);

// The program destroys `stream`: a capture that it began can no longer be ended.
void ForgetCaptureOf(Driver& driver, Stream& stream);

// Adds what was called on a capturing stream to its graph. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
// if an earlier call spoiled the capture.
absl::Status CaptureWork(Driver& driver, Stream& stream, NodeWork work);
absl::Status CaptureRecord(Driver& driver, Stream& stream, Event& event);
// A wait on an event that was recorded in a capture: `stream` joins it. kNotFound if the event was
// recorded outside of any and the stream is not capturing either.
absl::Status CaptureWait(Driver& driver, const std::shared_ptr<Stream>& stream, Event& event);

absl::Status BeginCapture(Driver& driver, Context& context, const std::shared_ptr<Stream>& stream,
                          CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                          std::vector<CaptureDependency> after);
absl::StatusOr<CUgraph> EndCapture(Driver& driver, Stream& stream);

struct CaptureInfo {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
};
CaptureInfo GetCaptureInfo(Driver& driver, const Stream& stream);
absl::Status UpdateCaptureDependencies(Driver& driver, Stream& stream,
                                       std::vector<CaptureDependency> dependencies, unsigned flags);

// Dependencies as cuda.h's arrays give them; `edges` may be null.
absl::StatusOr<std::vector<CaptureDependency>> ReadDependencies(const CUgraphNode* nodes,
                                                                const CUgraphEdgeData* edges,
                                                                size_t count);

// Ends all captures of a context's streams: the context goes.
void EndCaptures(Driver& driver, const Context& context);

}  // namespace fargpu::softgpu
