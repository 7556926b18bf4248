#include "softgpu/driver/capture.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/driver.h"

namespace fargpu::softgpu {
namespace {

// Trivially destructible: calls come in while the thread ends.
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

absl::Status Invalidated() {
  return CudaError(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                   "an earlier call spoiled the stream's capture");
}

absl::Status NotCapturing() {
  return CudaError(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
}

bool Contains(const std::vector<CaptureDependency>& dependencies, CUgraphNode node) {
  return std::any_of(dependencies.begin(), dependencies.end(),
                     [&](const CaptureDependency& known) { return known.node == node; });
}

void Join(std::vector<CaptureDependency>& dependencies,
          const std::vector<CaptureDependency>& more) {
  for (const CaptureDependency& dependency : more) {
    if (!Contains(dependencies, dependency.node)) dependencies.push_back(dependency);
  }
}

// The stream's capture, if it is in one that is still good.
absl::StatusOr<std::shared_ptr<Capture>> LiveCapture(Stream& stream) {
  if (stream.capture == nullptr) return NotCapturing();
  if (stream.capture->invalidated) return Invalidated();
  return stream.capture;
}

std::vector<CaptureDependency>& FrontierOf(Capture& capture, Stream& stream) {
  for (auto& [member, frontier] : capture.streams) {
    if (member.get() == &stream) return frontier;
  }
  // A stream that is capturing is in its capture.
  return capture.streams.begin()->second;
}

std::vector<GraphNode::Edge> Resolve(Driver& driver,
                                     const std::vector<CaptureDependency>& dependencies)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex) {
  std::vector<GraphNode::Edge> edges;
  for (const CaptureDependency& dependency : dependencies) {
    if (const auto node = driver.graph_nodes.Find(dependency.node)) {
      edges.push_back({node.get(), dependency.data});
    }
  }
  return edges;
}

void Finish(Driver& driver, const std::shared_ptr<Capture>& capture)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex) {
  capture->ended = true;
  for (auto& [stream, frontier] : capture->streams) {
    stream->capturing.store(false, std::memory_order_release);
    stream->capture = nullptr;
  }
  capture->streams.clear();
  capture->origin = nullptr;
  auto& captures = driver.captures;
  captures.erase(std::remove(captures.begin(), captures.end(), capture), captures.end());
  driver.capture_count.store(static_cast<int>(captures.size()), std::memory_order_release);
}

// Whether everything that the capture's streams did comes before the end of its first stream.
bool IsJoined(Driver& driver, Capture& capture) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex) {
  absl::flat_hash_set<const GraphNode*> before;
  std::vector<const GraphNode*> open;
  for (const GraphNode::Edge& edge : Resolve(driver, FrontierOf(capture, *capture.origin))) {
    open.push_back(edge.node);
  }
  while (!open.empty()) {
    const GraphNode* const node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    for (const GraphNode::Edge& edge : node->dependencies) open.push_back(edge.node);
  }
  for (auto& [stream, frontier] : capture.streams) {
    for (const GraphNode::Edge& edge : Resolve(driver, frontier)) {
      if (!before.contains(edge.node)) return false;
    }
  }
  return true;
}

}  // namespace

CUstreamCaptureMode ExchangeCaptureMode(CUstreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

absl::Status CheckAllowedDuringCapture(Driver& driver) {
  if (driver.capture_count.load(std::memory_order_acquire) == 0 ||
      thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return absl::OkStatus();
  }
  MutexLock lock(&driver.graph_mutex);
  bool forbidden = false;
  for (const std::shared_ptr<Capture>& capture : driver.captures) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool own = capture->thread == ThreadNumber();
    const bool of_all = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !of_all) continue;
    capture->invalidated = true;
    forbidden = true;
  }
  if (!forbidden) return absl::OkStatus();
  return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   "not allowed while a stream is being captured");
}

absl::Status CheckImplicitCapture(Driver& driver, Context& context, const Stream& stream) {
  if (driver.capture_count.load(std::memory_order_acquire) == 0 || !stream.legacy) {
    return absl::OkStatus();
  }
  MutexLock lock(&driver.graph_mutex);
  for (const std::shared_ptr<Capture>& capture : driver.captures) {
    if (capture->context != context.id) continue;
    for (const auto& [member, frontier] : capture->streams) {
      if ((member->flags & CU_STREAM_NON_BLOCKING) != 0) continue;
      capture->invalidated = true;
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                       "the legacy stream would wait for a stream that is being captured");
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseWhileCapturing(Driver& driver, Stream& stream) {
  if (!stream.capturing.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(&driver.graph_mutex);
  if (stream.capture == nullptr) return absl::OkStatus();
  stream.capture->invalidated = true;
  return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   "not possible on a stream that is being captured");
}

void ForgetCaptureOf(Driver& driver, Stream& stream) {
  if (!stream.is_capturing()) return;
  std::vector<UserObject> ended;
  {
    MutexLock lock(&driver.graph_mutex);
    const std::shared_ptr<Capture> capture = stream.capture;
    // Other members have done their part; the first stream may still end the capture.
    if (capture == nullptr || capture->origin.get() != &stream) return;
    Finish(driver, capture);
    if (capture->into_own_graph) ended = ForgetGraph(driver, capture->graph);
  }
  DestroyUserObjects(ended);
}

absl::Status CaptureWork(Driver& driver, Stream& stream, NodeWork work) {
  MutexLock lock(&driver.graph_mutex);
  ASSIGN_OR_RETURN(const std::shared_ptr<Capture> capture, LiveCapture(stream));
  std::vector<CaptureDependency>& frontier = FrontierOf(*capture, stream);
  ASSIGN_OR_RETURN(GraphNode* const node,
                   AddNode(driver, *capture->graph, Resolve(driver, frontier), std::move(work)));
  frontier = {{node->handle, {}}};
  return absl::OkStatus();
}

absl::Status CaptureRecord(Driver& driver, Stream& stream, Event& event) {
  MutexLock lock(&driver.graph_mutex);
  ASSIGN_OR_RETURN(const std::shared_ptr<Capture> capture, LiveCapture(stream));
  event.captured = std::make_shared<CapturedEvent>(
      CapturedEvent{.capture = capture, .after = FrontierOf(*capture, stream)});
  event.was_captured.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status CaptureWait(Driver& driver, const std::shared_ptr<Stream>& stream, Event& event) {
  MutexLock lock(&driver.graph_mutex);
  if (event.captured == nullptr) {
    if (stream->capture == nullptr) return absl::NotFoundError("no capture is involved");
    stream->capture->invalidated = true;
    return CudaError(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                     "a captured stream waits for an event that was recorded outside");
  }
  const std::shared_ptr<Capture> capture = event.captured->capture;
  if (capture->ended) {
    return CudaError(CUDA_ERROR_CAPTURED_EVENT,
                     "the event was recorded in a capture that has ended");
  }
  if (capture->invalidated) return Invalidated();
  if (stream->capture == nullptr) {
    if (stream->legacy) {
      capture->invalidated = true;
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream cannot be captured");
    }
    stream->capture = capture;
    stream->capturing.store(true, std::memory_order_release);
    capture->streams[stream] = event.captured->after;
    return absl::OkStatus();
  }
  if (stream->capture != capture) {
    stream->capture->invalidated = true;
    capture->invalidated = true;
    return CudaError(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would become one");
  }
  Join(FrontierOf(*capture, *stream), event.captured->after);
  return absl::OkStatus();
}

absl::Status BeginCapture(Driver& driver, Context& context, const std::shared_ptr<Stream>& stream,
                          CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                          std::vector<CaptureDependency> after) {
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("capture mode ", static_cast<int>(mode)));
  }
  if (stream->legacy) {
    return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured");
  }
  MutexLock lock(&driver.graph_mutex);
  if (stream->capture != nullptr) {
    return CudaError(CUDA_ERROR_ILLEGAL_STATE, "the stream is being captured already");
  }
  for (const CaptureDependency& dependency : after) {
    const auto node = driver.graph_nodes.Find(dependency.node);
    if (node == nullptr || node->graph != graph.get()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "a dependency is not a node of the graph");
    }
  }
  auto capture = std::make_shared<Capture>();
  capture->id = NewHandleValue();
  capture->mode = mode;
  capture->thread = ThreadNumber();
  capture->context = context.id;
  capture->into_own_graph = graph == nullptr;
  capture->graph = graph == nullptr ? NewGraph(driver) : std::move(graph);
  capture->origin = stream;
  capture->streams[stream] = std::move(after);
  stream->capture = capture;
  stream->capturing.store(true, std::memory_order_release);
  driver.captures.push_back(std::move(capture));
  driver.capture_count.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<CUgraph> EndCapture(Driver& driver, Stream& stream) {
  std::vector<UserObject> ended;
  absl::StatusOr<CUgraph> result;
  {
    MutexLock lock(&driver.graph_mutex);
    const std::shared_ptr<Capture> capture = stream.capture;
    if (capture == nullptr) return NotCapturing();
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != ThreadNumber()) {
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                       "another thread began the stream's capture");
    }
    if (capture->origin.get() != &stream) {
      capture->invalidated = true;
      return CudaError(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                       "the stream was not the first of its capture");
    }
    const bool joined = IsJoined(driver, *capture);
    Finish(driver, capture);
    if (!capture->invalidated && joined) {
      result = capture->graph->handle;
    } else {
      if (capture->into_own_graph) ended = ForgetGraph(driver, capture->graph);
      result = capture->invalidated
                   ? Invalidated()
                   : CudaError(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                               "a stream of the capture did work that the first one does not wait "
                               "for");
    }
  }
  DestroyUserObjects(ended);
  return result;
}

CaptureInfo GetCaptureInfo(Driver& driver, const Stream& stream) {
  CaptureInfo info;
  if (!stream.capturing.load(std::memory_order_acquire)) return info;
  MutexLock lock(&driver.graph_mutex);
  if (stream.capture == nullptr) return info;
  Capture& capture = *stream.capture;
  info.id = capture.id;
  info.status =
      capture.invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (capture.invalidated) return info;
  info.graph = capture.graph->handle;
  capture.reported_nodes.clear();
  capture.reported_edges.clear();
  for (const CaptureDependency& dependency : FrontierOf(capture, const_cast<Stream&>(stream))) {
    capture.reported_nodes.push_back(dependency.node);
    capture.reported_edges.push_back(dependency.data);
  }
  info.count = capture.reported_nodes.size();
  info.nodes = capture.reported_nodes.data();
  info.edges = capture.reported_edges.data();
  return info;
}

absl::Status UpdateCaptureDependencies(Driver& driver, Stream& stream,
                                       std::vector<CaptureDependency> dependencies,
                                       unsigned flags) {
  if (flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES && flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("flags ", flags));
  }
  MutexLock lock(&driver.graph_mutex);
  ASSIGN_OR_RETURN(const std::shared_ptr<Capture> capture, LiveCapture(stream));
  for (const CaptureDependency& dependency : dependencies) {
    const auto node = driver.graph_nodes.Find(dependency.node);
    if (node == nullptr || node->graph != capture->graph.get()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "a dependency is not a node of the capture");
    }
  }
  std::vector<CaptureDependency>& frontier = FrontierOf(*capture, stream);
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

void EndCaptures(Driver& driver, const Context& context) {
  MutexLock lock(&driver.graph_mutex);
  const std::vector<std::shared_ptr<Capture>> captures = driver.captures;
  for (const std::shared_ptr<Capture>& capture : captures) {
    if (capture->context == context.id) Finish(driver, capture);
  }
}

}  // namespace fargpu::softgpu
