#pragma once

#include <cuda.h>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cuda/capture_rules.h"
#include "client/cuda/graph.h"
#include "client/cuda/handle_arena.h"

// Stream capture: work that is added to a graph instead of being sent. No call of a capture
// travels.
namespace fargpu::client {

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint32_t thread = 0;   // that began it
  uint64_t context = 0;  // id
  std::shared_ptr<Graph> graph;
  bool into_own_graph = true;  // false: the program gave the graph
  bool invalidated = false;
  bool ended = false;
  StreamKey origin;
  struct Member {
    bool non_blocking = false;
    std::vector<CaptureDependency> frontier;  // what the next node depends on
  };
  std::map<StreamKey, Member> streams;
  // What cuStreamGetCaptureInfo points to.
  std::vector<CUgraphNode> reported_nodes;
  std::vector<CUgraphEdgeData> reported_edges;
};

StreamKey KeyOf(Session& session, wire::StreamId stream);
// Is the stream being captured? False at once while nothing is.
bool IsCapturing(Session& session, wire::StreamId stream);

// Adds what was called on a capturing stream to its graph. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if
// an earlier call spoiled the capture.
absl::Status CaptureWork(Session& session, wire::StreamId stream, NodeWork work);
absl::Status CaptureRecord(Session& session, wire::StreamId stream, wire::EventId event);
// A wait on an event that was recorded in a capture: `stream` joins it. kNotFound if no capture is
// involved. `slot` is the stream's, or nullptr for a special one.
absl::Status CaptureWait(Session& session, wire::StreamId stream, const HandleSlot* slot,
                         wire::EventId event);
// The event has been recorded outside of captures.
void ForgetCapturedEvent(Session& session, wire::EventId event);
// The program destroys `stream`: a capture that it began can no longer be ended.
void ForgetCaptureOf(Session& session, wire::StreamId stream);

absl::Status BeginCapture(Session& session, wire::StreamId stream, const HandleSlot* slot,
                          CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                          std::vector<CaptureDependency> after);
absl::StatusOr<CUgraph> EndCapture(Session& session, wire::StreamId stream);

struct CaptureInfo {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
};
CaptureInfo GetCaptureInfo(Session& session, wire::StreamId stream);
absl::Status UpdateCaptureDependencies(Session& session, wire::StreamId stream,
                                       std::vector<CaptureDependency> dependencies, unsigned flags);

// Dependencies as cuda.h's arrays give them; `edges` may be null.
absl::StatusOr<std::vector<CaptureDependency>> ReadDependencies(const CUgraphNode* nodes,
                                                                const CUgraphEdgeData* edges,
                                                                size_t count);

// While it lives, captures forbid this thread nothing: for calls of our own.
class RelaxedScope {
 public:
  RelaxedScope();
  ~RelaxedScope();

 private:
  const CUstreamCaptureMode before_;
};

}  // namespace fargpu::client
