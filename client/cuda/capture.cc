#include "client/cuda/capture.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "client/cuda/session.h"

namespace fargpu::client {
namespace {

constexpr uint64_t kLegacy = 1;     // also 0
constexpr uint64_t kPerThread = 2;  // as CUDA numbers them

bool IsLegacy(wire::StreamId stream) { return stream.value <= kLegacy; }

uint64_t CurrentContextId(Session& session) {
  const absl::StatusOr<Context*> context = session.CurrentActive();
  return context.ok() ? (*context)->id.value : 0;
}

absl::Status Invalidated() {
  return CudaError(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                   "an earlier call spoiled the stream's capture");
}

absl::Status NotCapturing() {
  return CudaError(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
}

void Join(std::vector<CaptureDependency>& dependencies,
          const std::vector<CaptureDependency>& more) {
  for (const CaptureDependency& dependency : more) {
    const bool known =
        std::any_of(dependencies.begin(), dependencies.end(),
                    [&](const CaptureDependency& old) { return old.node == dependency.node; });
    if (!known) dependencies.push_back(dependency);
  }
}

std::shared_ptr<Capture> CaptureOf(Graphs& graphs, const StreamKey& key)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(graphs.mutex) {
  const auto found = graphs.capturing.find(key);
  return found == graphs.capturing.end() ? nullptr : found->second;
}

// The stream's capture, if it is in one that is still good.
absl::StatusOr<std::shared_ptr<Capture>> LiveCapture(Graphs& graphs, const StreamKey& key)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(graphs.mutex) {
  const std::shared_ptr<Capture> capture = CaptureOf(graphs, key);
  if (capture == nullptr) return NotCapturing();
  if (capture->invalidated) return Invalidated();
  return capture;
}

std::vector<GraphNode::Edge> Resolve(Graphs& graphs,
                                     const std::vector<CaptureDependency>& dependencies)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(graphs.mutex) {
  std::vector<GraphNode::Edge> edges;
  for (const CaptureDependency& dependency : dependencies) {
    if (const auto node = graphs.NodeOrNull(dependency.node)) {
      edges.push_back({node.get(), dependency.data});
    }
  }
  return edges;
}

void Finish(Graphs& graphs, const std::shared_ptr<Capture>& capture)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(graphs.mutex) {
  capture->ended = true;
  for (auto& [key, member] : capture->streams) graphs.capturing.erase(key);
  capture->streams.clear();
  auto& captures = graphs.captures;
  captures.erase(std::remove(captures.begin(), captures.end(), capture), captures.end());
  graphs.capture_count.store(static_cast<int>(captures.size()), std::memory_order_release);
}

// Whether everything that the capture's streams did comes before the end of its first stream.
bool IsJoined(Graphs& graphs, Capture& capture) ABSL_EXCLUSIVE_LOCKS_REQUIRED(graphs.mutex) {
  absl::flat_hash_set<const GraphNode*> before;
  std::vector<const GraphNode*> open;
  for (const GraphNode::Edge& edge : Resolve(graphs, capture.streams[capture.origin].frontier)) {
    open.push_back(edge.node);
  }
  while (!open.empty()) {
    const GraphNode* const node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    for (const GraphNode::Edge& edge : node->dependencies) open.push_back(edge.node);
  }
  for (auto& [key, member] : capture.streams) {
    for (const GraphNode::Edge& edge : Resolve(graphs, member.frontier)) {
      if (!before.contains(edge.node)) return false;
    }
  }
  return true;
}

bool AnyCapture(Graphs& graphs) { return graphs.capture_count.load(std::memory_order_acquire) > 0; }

}  // namespace

StreamKey KeyOf(Session& session, wire::StreamId stream) {
  if (stream.value >= Session::kFirstId) return {.id = stream.value};
  return {.id = stream.value == kPerThread ? kPerThread : kLegacy,
          .context = CurrentContextId(session),
          .thread = stream.value == kPerThread ? CurrentThread().number : 0};
}

RelaxedScope::RelaxedScope()
    : before_(std::exchange(CurrentThread().capture_mode, CU_STREAM_CAPTURE_MODE_RELAXED)) {}
RelaxedScope::~RelaxedScope() { CurrentThread().capture_mode = before_; }

bool IsCapturing(Session& session, wire::StreamId stream) {
  Graphs& graphs = session.graphs();
  if (!AnyCapture(graphs)) return false;
  const StreamKey key = KeyOf(session, stream);
  MutexLock lock(&graphs.mutex);
  return CaptureOf(graphs, key) != nullptr;
}

absl::Status CheckAllowedDuringCapture(Session& session) {
  Graphs& graphs = session.graphs();
  const ThreadState& thread = CurrentThread();
  if (!AnyCapture(graphs) || thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return absl::OkStatus();
  }
  MutexLock lock(&graphs.mutex);
  bool forbidden = false;
  for (const std::shared_ptr<Capture>& capture : graphs.captures) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool own = capture->thread == thread.number;
    const bool of_all = thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !of_all) continue;
    capture->invalidated = true;
    forbidden = true;
  }
  if (!forbidden) return absl::OkStatus();
  return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   "not allowed while a stream is being captured");
}

absl::Status CheckImplicitCapture(Session& session, wire::StreamId stream) {
  Graphs& graphs = session.graphs();
  if (!AnyCapture(graphs) || !IsLegacy(stream)) return absl::OkStatus();
  const uint64_t context = CurrentContextId(session);
  MutexLock lock(&graphs.mutex);
  for (const std::shared_ptr<Capture>& capture : graphs.captures) {
    if (capture->context != context) continue;
    for (const auto& [key, member] : capture->streams) {
      if (member.non_blocking) continue;
      capture->invalidated = true;
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                       "the legacy stream would wait for a stream that is being captured");
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseWhileCapturing(Session& session, wire::StreamId stream) {
  Graphs& graphs = session.graphs();
  if (!AnyCapture(graphs)) return absl::OkStatus();
  const StreamKey key = KeyOf(session, stream);
  MutexLock lock(&graphs.mutex);
  const std::shared_ptr<Capture> capture = CaptureOf(graphs, key);
  if (capture == nullptr) return absl::OkStatus();
  capture->invalidated = true;
  return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   "not possible on a stream that is being captured");
}

absl::Status CheckEventNotCaptured(Session& session, wire::EventId event) {
  Graphs& graphs = session.graphs();
  if (!graphs.any_captured_event.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(&graphs.mutex);
  const auto found = graphs.captured_events.find(event.value);
  if (found == graphs.captured_events.end()) return absl::OkStatus();
  // Nothing of it has run; asking spoils the capture.
  found->second.capture->invalidated = true;
  return CudaError(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture");
}

void ForgetCapturedEvent(Session& session, wire::EventId event) {
  Graphs& graphs = session.graphs();
  if (!graphs.any_captured_event.load(std::memory_order_acquire)) return;
  MutexLock lock(&graphs.mutex);
  graphs.captured_events.erase(event.value);
  graphs.any_captured_event.store(!graphs.captured_events.empty(), std::memory_order_release);
}

void ForgetCaptureOf(Session& session, wire::StreamId stream) {
  Graphs& graphs = session.graphs();
  if (!AnyCapture(graphs)) return;
  const StreamKey key = KeyOf(session, stream);
  std::vector<UserObject> ended;
  {
    MutexLock lock(&graphs.mutex);
    const std::shared_ptr<Capture> capture = CaptureOf(graphs, key);
    // Other members have done their part; the first stream may still end the capture.
    if (capture == nullptr || capture->origin != key) return;
    Finish(graphs, capture);
    if (capture->into_own_graph) ended = graphs.Forget(capture->graph);
  }
  Graphs::Destroy(ended);
}

absl::Status CaptureWork(Session& session, wire::StreamId stream, NodeWork work) {
  Graphs& graphs = session.graphs();
  const StreamKey key = KeyOf(session, stream);
  MutexLock lock(&graphs.mutex);
  ASSIGN_OR_RETURN(const std::shared_ptr<Capture> capture, LiveCapture(graphs, key));
  std::vector<CaptureDependency>& frontier = capture->streams[key].frontier;
  ASSIGN_OR_RETURN(GraphNode* const node,
                   graphs.AddNode(*capture->graph, Resolve(graphs, frontier), std::move(work)));
  frontier = {{node->handle, {}}};
  return absl::OkStatus();
}

absl::Status CaptureRecord(Session& session, wire::StreamId stream, wire::EventId event) {
  Graphs& graphs = session.graphs();
  const StreamKey key = KeyOf(session, stream);
  MutexLock lock(&graphs.mutex);
  ASSIGN_OR_RETURN(const std::shared_ptr<Capture> capture, LiveCapture(graphs, key));
  graphs.captured_events[event.value] = {.capture = capture,
                                         .after = capture->streams[key].frontier};
  graphs.any_captured_event.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status CaptureWait(Session& session, wire::StreamId stream, const HandleSlot* slot,
                         wire::EventId event) {
  Graphs& graphs = session.graphs();
  if (!AnyCapture(graphs)) return absl::NotFoundError("nothing is being captured");
  const StreamKey key = KeyOf(session, stream);
  MutexLock lock(&graphs.mutex);
  const std::shared_ptr<Capture> own = CaptureOf(graphs, key);
  const auto found = graphs.captured_events.find(event.value);
  if (found == graphs.captured_events.end()) {
    if (own == nullptr) return absl::NotFoundError("no capture is involved");
    own->invalidated = true;
    return CudaError(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                     "a captured stream waits for an event that was recorded outside");
  }
  const std::shared_ptr<Capture> capture = found->second.capture;
  if (capture->ended) {
    return CudaError(CUDA_ERROR_CAPTURED_EVENT,
                     "the event was recorded in a capture that has ended");
  }
  if (capture->invalidated) return Invalidated();
  if (own == nullptr) {
    if (IsLegacy(stream)) {
      capture->invalidated = true;
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream cannot be captured");
    }
    graphs.capturing[key] = capture;
    capture->streams[key] = {
        .non_blocking = slot != nullptr && (slot->flags & CU_STREAM_NON_BLOCKING) != 0,
        .frontier = found->second.after};
    return absl::OkStatus();
  }
  if (own != capture) {
    own->invalidated = true;
    capture->invalidated = true;
    return CudaError(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would become one");
  }
  Join(capture->streams[key].frontier, found->second.after);
  return absl::OkStatus();
}

absl::Status BeginCapture(Session& session, wire::StreamId stream, const HandleSlot* slot,
                          CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                          std::vector<CaptureDependency> after) {
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("capture mode ", static_cast<int>(mode)));
  }
  if (IsLegacy(stream)) {
    return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured");
  }
  Graphs& graphs = session.graphs();
  const StreamKey key = KeyOf(session, stream);
  uint64_t context = CurrentContextId(session);
  if (slot != nullptr) {
    ASSIGN_OR_RETURN(const Context* of_stream, session.FindContext(slot->context));
    context = of_stream->id.value;
  }
  MutexLock lock(&graphs.mutex);
  if (CaptureOf(graphs, key) != nullptr) {
    return CudaError(CUDA_ERROR_ILLEGAL_STATE, "the stream is being captured already");
  }
  for (const CaptureDependency& dependency : after) {
    const auto node = graphs.NodeOrNull(dependency.node);
    if (node == nullptr || node->graph != graph.get()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "a dependency is not a node of the graph");
    }
  }
  auto capture = std::make_shared<Capture>();
  capture->id = session.NewId();
  capture->mode = mode;
  capture->thread = CurrentThread().number;
  capture->context = context;
  capture->into_own_graph = graph == nullptr;
  capture->graph = graph == nullptr ? graphs.New() : std::move(graph);
  capture->origin = key;
  capture->streams[key] = {
      .non_blocking = slot != nullptr && (slot->flags & CU_STREAM_NON_BLOCKING) != 0,
      .frontier = std::move(after)};
  graphs.capturing[key] = capture;
  graphs.captures.push_back(std::move(capture));
  graphs.capture_count.store(static_cast<int>(graphs.captures.size()), std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<CUgraph> EndCapture(Session& session, wire::StreamId stream) {
  Graphs& graphs = session.graphs();
  const StreamKey key = KeyOf(session, stream);
  std::vector<UserObject> ended;
  absl::StatusOr<CUgraph> result;
  {
    MutexLock lock(&graphs.mutex);
    const std::shared_ptr<Capture> capture = CaptureOf(graphs, key);
    if (capture == nullptr) return NotCapturing();
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        capture->thread != CurrentThread().number) {
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                       "another thread began the stream's capture");
    }
    if (capture->origin != key) {
      capture->invalidated = true;
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                       "the stream was not the first of its capture");
    }
    const bool joined = IsJoined(graphs, *capture);
    Finish(graphs, capture);
    if (!capture->invalidated && joined) {
      result = capture->graph->handle;
    } else {
      if (capture->into_own_graph) ended = graphs.Forget(capture->graph);
      result = capture->invalidated
                   ? Invalidated()
                   : CudaError(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                               "a stream of the capture did work that the first one does not wait "
                               "for");
    }
  }
  Graphs::Destroy(ended);
  return result;
}

CaptureInfo GetCaptureInfo(Session& session, wire::StreamId stream) {
  CaptureInfo info;
  Graphs& graphs = session.graphs();
  if (!AnyCapture(graphs)) return info;
  const StreamKey key = KeyOf(session, stream);
  MutexLock lock(&graphs.mutex);
  const std::shared_ptr<Capture> capture = CaptureOf(graphs, key);
  if (capture == nullptr) return info;
  info.id = capture->id;
  info.status =
      capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (capture->invalidated) return info;
  info.graph = capture->graph->handle;
  capture->reported_nodes.clear();
  capture->reported_edges.clear();
  for (const CaptureDependency& dependency : capture->streams[key].frontier) {
    capture->reported_nodes.push_back(dependency.node);
    capture->reported_edges.push_back(dependency.data);
  }
  info.count = capture->reported_nodes.size();
  info.nodes = capture->reported_nodes.data();
  info.edges = capture->reported_edges.data();
  return info;
}

absl::Status UpdateCaptureDependencies(Session& session, wire::StreamId stream,
                                       std::vector<CaptureDependency> dependencies,
                                       unsigned flags) {
  if (flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES && flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", flags));
  }
  Graphs& graphs = session.graphs();
  const StreamKey key = KeyOf(session, stream);
  MutexLock lock(&graphs.mutex);
  ASSIGN_OR_RETURN(const std::shared_ptr<Capture> capture, LiveCapture(graphs, key));
  for (const CaptureDependency& dependency : dependencies) {
    const auto node = graphs.NodeOrNull(dependency.node);
    if (node == nullptr || node->graph != capture->graph.get()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "a dependency is not a node of the capture");
    }
  }
  std::vector<CaptureDependency>& frontier = capture->streams[key].frontier;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) frontier.clear();
  Join(frontier, dependencies);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CaptureDependency>> ReadDependencies(const CUgraphNode* nodes,
                                                                const CUgraphEdgeData* edges,
                                                                size_t count) {
  std::vector<CaptureDependency> dependencies;
  if (count > 0 && nodes == nullptr) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "dependencies is null");
  }
  for (size_t i = 0; i < count; ++i) {
    dependencies.push_back({nodes[i], edges == nullptr ? CUgraphEdgeData{} : edges[i]});
  }
  return dependencies;
}

}  // namespace fargpu::client
