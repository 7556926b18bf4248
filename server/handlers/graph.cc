// Graphs. They live in the client; the driver gets one when it is instantiated (docs/design/010).
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server/handlers/graph_building.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

absl::Status FindExec(Call& call, wire::GraphExecId id, std::shared_ptr<GraphExec>* graph) {
  RETURN_IF_ERROR(call.objects().graph_execs.Find(id, graph));
  if ((*graph)->exec == nullptr) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("graph ", id.value, " has not been instantiated"));
  }
  return absl::OkStatus();
}

// All that was sent of a graph, as one run of bytes.
std::string DescriptionOf(const std::vector<GraphExec::Part>& parts) {
  std::vector<char> bytes;
  wire::Encoder encoder(&bytes);
  for (const GraphExec::Part& part : parts) {
    wire::GraphNode node = part.node;
    node.body = part.body;
    node.VisitFields(encoder);
  }
  return std::string(bytes.begin(), bytes.end());
}

absl::Status NewSource(Call& call, std::shared_ptr<GraphSource>* source) {
  CUgraph graph = nullptr;
  RETURN_IF_CUDA_ERROR(call.driver().cuGraphCreate(&graph, 0));
  *source = std::make_shared<GraphSource>(&call.driver(), graph);
  return absl::OkStatus();
}

// The graph that conditional handles were made for, with the nodes in it.
absl::Status BuildFromSeed(Call& call, wire::GraphId seed, GraphExec& graph) {
  RETURN_IF_ERROR(call.objects().graph_seeds.Find(seed, &graph.source));
  std::string description = DescriptionOf(graph.parts);
  if (graph.source->description.empty()) {
    RETURN_IF_ERROR(BuildGraph(call, graph.parts, graph.source->graph(), &graph.source->nodes));
    graph.source->description = std::move(description);
    return absl::OkStatus();
  }
  if (graph.source->description == description) return absl::OkStatus();
  return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                   "a graph with conditional nodes was changed after it was instantiated");
}

}  // namespace

absl::Status GraphPart(const wire::GraphPartRequest& request, Call& call,
                       wire::GraphPartReply* reply) {
  std::shared_ptr<GraphExec> graph;
  if (!call.objects().graph_execs.Find(request.exec, &graph).ok()) {
    graph = std::make_shared<GraphExec>(&call.driver());
    RETURN_IF_ERROR(call.Named(call.objects().graph_execs.Insert(request.exec, graph)));
  }
  if (graph->exec != nullptr) return call.Malformed("nodes for a graph that is instantiated");
  if (request.nodes.size() > GraphExec::kMaxNodes - graph->parts.size()) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("a graph of more than ", GraphExec::kMaxNodes, " nodes"));
  }
  for (const wire::GraphNode& node : request.nodes) {
    graph->parts.push_back({.node = node, .body = std::string(node.body.begin(), node.body.end())});
    graph->parts.back().node.body = {};
  }
  return absl::OkStatus();
}

absl::Status GraphInstantiate(const wire::GraphInstantiateRequest& request, Call& call,
                              wire::GraphInstantiateReply* reply) {
  std::shared_ptr<GraphExec> graph;
  if (!call.objects().graph_execs.Find(request.exec, &graph).ok()) {
    // A graph without nodes.
    graph = std::make_shared<GraphExec>(&call.driver());
    RETURN_IF_ERROR(call.Named(call.objects().graph_execs.Insert(request.exec, graph)));
  }
  if (graph->exec != nullptr) return call.Malformed("a graph is instantiated twice");
  absl::Status built;
  if (request.seed.value != 0) {
    built = BuildFromSeed(call, request.seed, *graph);
  } else {
    built = NewSource(call, &graph->source);
    if (built.ok()) {
      built = BuildGraph(call, graph->parts, graph->source->graph(), &graph->source->nodes);
    }
  }
  if (built.ok()) {
    built = FromCuResult(call.driver().cuGraphInstantiateWithFlags(
                             &graph->exec, graph->source->graph(), request.flags),
                         "cuGraphInstantiateWithFlags");
  }
  if (!built.ok()) {
    call.objects().graph_execs.Erase(request.exec);
    return built;
  }
  graph->nodes = graph->source->nodes;
  graph->parts = {};
  CollectWorks(*graph);
  return absl::OkStatus();
}

absl::Status GraphUpdate(const wire::GraphUpdateRequest& request, Call& call,
                         wire::GraphUpdateReply* reply) {
  std::shared_ptr<GraphExec> graph;
  RETURN_IF_ERROR(FindExec(call, request.exec, &graph));
  if (request.positions.size() != request.bodies.size()) {
    return call.Malformed(absl::StrCat(request.positions.size(), " nodes to update with ",
                                       request.bodies.size(), " bodies"));
  }
  for (size_t i = 0; i < request.positions.size(); ++i) {
    RETURN_IF_ERROR(UpdateGraphNode(call, *graph, request.positions[i], request.bodies[i]));
  }
  return absl::OkStatus();
}

absl::Status GraphEnable(const wire::GraphEnableRequest& request, Call& call,
                         wire::GraphEnableReply* reply) {
  std::shared_ptr<GraphExec> graph;
  RETURN_IF_ERROR(FindExec(call, request.exec, &graph));
  return EnableGraphNode(call, *graph, request.position, request.enabled);
}

absl::Status GraphLaunch(const wire::GraphLaunchRequest& request, Call& call,
                         wire::GraphLaunchReply* reply) {
  std::shared_ptr<GraphExec> graph;
  RETURN_IF_ERROR(FindExec(call, request.exec, &graph));
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  Context context;
  RETURN_IF_ERROR(call.CurrentContext(&context));
  RETURN_IF_ERROR(call.resources().admission->Admit({.device = context.device, .stream = stream}));
  RETURN_IF_CUDA_ERROR(call.driver().cuGraphLaunch(graph->exec, stream));
  if (graph->works->empty()) return absl::OkStatus();
  // The run holds pointers to them, and the program may destroy the graph meanwhile.
  return call.resources().copies.Keep(call.header().context, stream, graph->works, 0);
}

absl::Status GraphUpload(const wire::GraphUploadRequest& request, Call& call,
                         wire::GraphUploadReply* reply) {
  std::shared_ptr<GraphExec> graph;
  RETURN_IF_ERROR(FindExec(call, request.exec, &graph));
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  RETURN_IF_CUDA_ERROR(call.driver().cuGraphUpload(graph->exec, stream));
  return absl::OkStatus();
}

absl::Status GraphExecDestroy(const wire::GraphExecDestroyRequest& request, Call& call,
                              wire::GraphExecDestroyReply* reply) {
  if (call.objects().graph_execs.Erase(request.exec)) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("no graph ", request.exec.value));
}

absl::Status GraphConditionalHandleCreate(const wire::GraphConditionalHandleCreateRequest& request,
                                          Call& call,
                                          wire::GraphConditionalHandleCreateReply* reply) {
  std::shared_ptr<GraphSource> source;
  if (!call.objects().graph_seeds.Find(request.graph, &source).ok()) {
    RETURN_IF_ERROR(NewSource(call, &source));
    RETURN_IF_ERROR(call.Named(call.objects().graph_seeds.Insert(request.graph, source)));
  }
  Context context;
  RETURN_IF_ERROR(call.Resolve(request.context, &context));
  CUgraphConditionalHandle handle = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuGraphConditionalHandleCreate(
      &handle, source->graph(), context.handle, request.default_value, request.flags));
  reply->handle = handle;
  return absl::OkStatus();
}

absl::Status GraphForget(const wire::GraphForgetRequest& request, Call& call,
                         wire::GraphForgetReply* reply) {
  call.objects().graph_seeds.Erase(request.graph);
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
