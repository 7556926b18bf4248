#include "client/cuda/graph.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"

#include "client/cuda/capture.h"
#include "client/cuda/graph_exec.h"
#include "client/cuda/session.h"

namespace fargpu::client {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

// In the order of NodeWork.
constexpr CUgraphNodeType kTypes[] = {
    CU_GRAPH_NODE_TYPE_EMPTY,        CU_GRAPH_NODE_TYPE_KERNEL,
    CU_GRAPH_NODE_TYPE_MEMCPY,       CU_GRAPH_NODE_TYPE_MEMSET,
    CU_GRAPH_NODE_TYPE_HOST,         CU_GRAPH_NODE_TYPE_GRAPH,
    CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC,    CU_GRAPH_NODE_TYPE_MEM_FREE,
    CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_CONDITIONAL};
static_assert(std::size(kTypes) == std::variant_size_v<NodeWork>);

std::vector<GraphNode::Edge>::iterator FindEdge(std::vector<GraphNode::Edge>& edges,
                                                const GraphNode* node) {
  return std::find_if(edges.begin(), edges.end(),
                      [&](const GraphNode::Edge& edge) { return edge.node == node; });
}

}  // namespace

CUgraphNodeType TypeOf(const NodeWork& work) { return kTypes[work.index()]; }

const char* TypeName(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "WAIT_EVENT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "BATCH_MEM_OP";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "CONDITIONAL";
    default:
      return "UNKNOWN";
  }
}

GraphMemory::~GraphMemory() {
  // With its context it is gone already.
  if (!session_.device_memory().Remove(address).has_value()) return;
  wire::CallHeader header;
  header.thread = CurrentThread().number;
  header.context = context_;
  // A session that is over has no memory.
  session_.calls().Send(header, wire::MemFreeV2Request{.dptr = address}).IgnoreError();
}

GraphSeed::~GraphSeed() { session_.Send(wire::GraphForgetRequest{.graph = id}).IgnoreError(); }

std::vector<std::shared_ptr<Graph>> InnerGraphs(const NodeWork& work) {
  if (const auto* child = std::get_if<ChildWork>(&work)) return {child->graph};
  if (const auto* conditional = std::get_if<ConditionalWork>(&work)) return conditional->bodies;
  return {};
}

bool Graph::HasMemoryNodes() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const std::shared_ptr<GraphNode>& node) {
    if (std::holds_alternative<AllocWork>(node->work) ||
        std::holds_alternative<FreeWork>(node->work)) {
      return true;
    }
    const auto inner = InnerGraphs(node->work);
    return std::any_of(inner.begin(), inner.end(),
                       [](const auto& graph) { return graph->HasMemoryNodes(); });
  });
}

std::shared_ptr<GraphSeed> Graph::Seed() const {
  if (!conditions.empty()) return conditions.front().seed;
  for (const std::shared_ptr<GraphNode>& node : nodes) {
    for (const std::shared_ptr<Graph>& inner : InnerGraphs(node->work)) {
      if (std::shared_ptr<GraphSeed> seed = inner->Seed()) return seed;
    }
  }
  return nullptr;
}

Condition* Graph::FindCondition(CUgraphConditionalHandle condition) {
  for (Condition& known : conditions) {
    if (known.handle == condition) return &known;
  }
  return around != nullptr ? around->FindCondition(condition) : nullptr;
}

absl::Status AddEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data) {
  if (FindEdge(to.dependencies, &from) != to.dependencies.end()) {
    return Invalid("the dependency exists already");
  }
  if (&from == &to) return Invalid("a node depends on itself");
  to.dependencies.push_back({&from, data});
  from.dependents.push_back({&to, data});
  return absl::OkStatus();
}

absl::Status RemoveEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData* data) {
  const auto edge = FindEdge(to.dependencies, &from);
  if (edge == to.dependencies.end() ||
      (data != nullptr && std::memcmp(&edge->data, data, sizeof(*data)) != 0)) {
    return Invalid("there is no such dependency");
  }
  to.dependencies.erase(edge);
  from.dependents.erase(FindEdge(from.dependents, &to));
  return absl::OkStatus();
}

Graphs::~Graphs() = default;

std::shared_ptr<Graph> Graphs::New() {
  auto graph = std::make_shared<Graph>();
  graph->handle = reinterpret_cast<CUgraph>(NewHandle());
  graph->id = {session_.NewId()};
  graphs_[graph->handle] = graph;
  return graph;
}

absl::StatusOr<std::shared_ptr<Graph>> Graphs::Find(CUgraph handle) {
  const auto found = graphs_.find(handle);
  if (found == graphs_.end()) return Invalid("not a graph");
  return found->second;
}

std::shared_ptr<GraphNode> Graphs::NodeOrNull(CUgraphNode handle) {
  const auto found = nodes_.find(handle);
  return found == nodes_.end() ? nullptr : found->second;
}

absl::StatusOr<std::shared_ptr<GraphNode>> Graphs::FindNode(CUgraphNode handle) {
  if (std::shared_ptr<GraphNode> node = NodeOrNull(handle)) return node;
  return Invalid("not a node of a graph");
}

absl::StatusOr<GraphNode*> Graphs::AddNode(Graph& graph,
                                           absl::Span<const GraphNode::Edge> dependencies,
                                           NodeWork work) {
  for (const GraphNode::Edge& edge : dependencies) {
    if (edge.node->graph != &graph) return Invalid("a dependency belongs to another graph");
  }
  auto node = std::make_shared<GraphNode>();
  node->handle = reinterpret_cast<CUgraphNode>(NewHandle());
  node->graph = &graph;
  node->work = std::move(work);
  for (const GraphNode::Edge& edge : dependencies) {
    if (absl::Status added = AddEdge(*edge.node, *node, edge.data); !added.ok()) {
      for (const GraphNode::Edge& done : node->dependencies) {
        done.node->dependents.erase(FindEdge(done.node->dependents, node.get()));
      }
      return added;
    }
  }
  for (const std::shared_ptr<Graph>& inner : InnerGraphs(node->work)) inner->around = &graph;
  nodes_[node->handle] = node;
  graph.nodes.push_back(node);
  return node.get();
}

void Graphs::RemoveNode(GraphNode& node) {
  for (const GraphNode::Edge& edge : node.dependencies) {
    edge.node->dependents.erase(FindEdge(edge.node->dependents, &node));
  }
  for (const GraphNode::Edge& edge : node.dependents) {
    edge.node->dependencies.erase(FindEdge(edge.node->dependencies, &node));
  }
  for (const std::shared_ptr<Graph>& inner : InnerGraphs(node.work)) (void)Forget(inner);
  nodes_.erase(node.handle);
  auto& nodes = node.graph->nodes;
  nodes.erase(std::find_if(nodes.begin(), nodes.end(),
                           [&](const auto& candidate) { return candidate.get() == &node; }));
}

absl::Status Graphs::CloneInto(const Graph& from, Graph& to) {
  if (from.HasMemoryNodes()) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                     "a graph that allocates or frees memory cannot be copied");
  }
  to.cloned_from = from.handle;
  to.conditions = from.conditions;
  absl::flat_hash_map<const GraphNode*, GraphNode*> copies;
  for (const std::shared_ptr<GraphNode>& node : from.nodes) {
    NodeWork work = node->work;
    if (auto* child = std::get_if<ChildWork>(&work)) {
      ASSIGN_OR_RETURN(child->graph, Clone(*child->graph));
      child->graph->of_node = true;
    } else if (auto* conditional = std::get_if<ConditionalWork>(&work)) {
      for (size_t i = 0; i < conditional->bodies.size(); ++i) {
        ASSIGN_OR_RETURN(conditional->bodies[i], Clone(*conditional->bodies[i]));
        conditional->bodies[i]->of_node = true;
        conditional->body_handles[i] = conditional->bodies[i]->handle;
      }
    }
    ASSIGN_OR_RETURN(GraphNode * copy, AddNode(to, {}, std::move(work)));
    copy->cloned_from = node->handle;
    copies[node.get()] = copy;
  }
  for (const std::shared_ptr<GraphNode>& node : from.nodes) {
    for (const GraphNode::Edge& edge : node->dependencies) {
      RETURN_IF_ERROR(AddEdge(*copies[edge.node], *copies[node.get()], edge.data));
    }
  }
  for (const auto& [object, count] : from.user_objects) {
    to.user_objects[object] = count;
    user_objects_.at(object).references += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Graph>> Graphs::Clone(const Graph& graph) {
  const std::shared_ptr<Graph> copy = New();
  if (absl::Status cloned = CloneInto(graph, *copy); !cloned.ok()) {
    (void)Forget(copy);
    return cloned;
  }
  return copy;
}

std::vector<UserObject> Graphs::Forget(const std::shared_ptr<Graph>& graph) {
  std::vector<UserObject> ended;
  graphs_.erase(graph->handle);
  for (const std::shared_ptr<GraphNode>& node : graph->nodes) {
    nodes_.erase(node->handle);
    for (const std::shared_ptr<Graph>& inner : InnerGraphs(node->work)) {
      const std::vector<UserObject> more = Forget(inner);
      ended.insert(ended.end(), more.begin(), more.end());
    }
  }
  for (const auto& [object, count] : graph->user_objects) {
    UserObject last;
    const absl::StatusOr<bool> gone = ReleaseUserObject(object, count, &last);
    if (gone.ok() && *gone) ended.push_back(last);
  }
  graph->user_objects.clear();
  return ended;
}

CUuserObject Graphs::NewUserObject(UserObject object) {
  const auto handle = reinterpret_cast<CUuserObject>(NewHandle());
  user_objects_[handle] = object;
  return handle;
}

UserObject* Graphs::FindUserObject(CUuserObject handle) {
  const auto found = user_objects_.find(handle);
  return found == user_objects_.end() ? nullptr : &found->second;
}

absl::StatusOr<bool> Graphs::ReleaseUserObject(CUuserObject handle, uint64_t count,
                                               UserObject* last) {
  UserObject* const object = FindUserObject(handle);
  if (object == nullptr) return Invalid("not a user object");
  if (count == 0 || count > object->references) {
    return Invalid(absl::StrCat("releasing ", count, " of ", object->references,
                                " references to a user object"));
  }
  object->references -= count;
  if (object->references > 0) return false;
  *last = *object;
  user_objects_.erase(handle);
  return true;
}

void Graphs::Destroy(const std::vector<UserObject>& objects) {
  for (const UserObject& object : objects) {
    ThreadState& thread = CurrentThread();
    const bool before = std::exchange(thread.in_host_function, true);
    object.destroy(object.pointer);
    thread.in_host_function = before;
  }
}

CUgraphExec Graphs::AddExec(std::shared_ptr<GraphExec> exec) {
  const auto handle = reinterpret_cast<CUgraphExec>(NewHandle());
  execs_[handle] = std::move(exec);
  return handle;
}

absl::StatusOr<std::shared_ptr<GraphExec>> Graphs::FindExec(CUgraphExec handle) {
  const auto found = execs_.find(handle);
  if (found == execs_.end()) return Invalid("not an executable graph");
  return found->second;
}

std::shared_ptr<GraphExec> Graphs::RemoveExec(CUgraphExec handle) {
  const auto found = execs_.find(handle);
  if (found == execs_.end()) return nullptr;
  std::shared_ptr<GraphExec> exec = std::move(found->second);
  execs_.erase(found);
  return exec;
}

void Graphs::AddMemory(const std::shared_ptr<GraphMemory>& memory) {
  memory_[memory->address] = memory;
}

std::shared_ptr<GraphMemory> Graphs::FindMemory(uint64_t address) {
  const auto found = memory_.find(address);
  if (found == memory_.end()) return nullptr;
  std::shared_ptr<GraphMemory> memory = found->second.lock();
  if (memory == nullptr) memory_.erase(found);
  return memory;
}

void Graphs::SetLive(GraphMemory& memory, bool live) {
  if (memory.live == live) return;
  memory.live = live;
  MemoryUse& use = memory_use_[memory.device];
  use.current += live ? memory.bytes : -memory.bytes;
  use.high = std::max(use.high, use.current);
}

std::vector<GraphNode*> OrderOf(const Graph& graph) {
  absl::flat_hash_map<const GraphNode*, size_t> missing;
  // Of what could run, always what was added first: a min-heap of positions.
  absl::flat_hash_map<const GraphNode*, size_t> position;
  std::vector<size_t> ready;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode* node = graph.nodes[i].get();
    position[node] = i;
    missing[node] = node->dependencies.size();
    if (node->dependencies.empty()) ready.push_back(i);
  }
  std::make_heap(ready.begin(), ready.end(), std::greater<>());
  std::vector<GraphNode*> order;
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end(), std::greater<>());
    GraphNode* const node = graph.nodes[ready.back()].get();
    ready.pop_back();
    order.push_back(node);
    for (const GraphNode::Edge& edge : node->dependents) {
      if (--missing[edge.node] > 0) continue;
      ready.push_back(position[edge.node]);
      std::push_heap(ready.begin(), ready.end(), std::greater<>());
    }
  }
  if (order.size() != graph.nodes.size()) order.clear();
  return order;
}

std::string DotOf(const Graph& graph, unsigned flags) {
  const bool verbose = (flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE) != 0;
  std::string text = "digraph dot {\n";
  const auto emit = [&](const Graph& inner, const auto& self) -> void {
    absl::flat_hash_map<const GraphNode*, size_t> numbers;
    for (size_t i = 0; i < inner.nodes.size(); ++i) numbers[inner.nodes[i].get()] = i;
    const uint64_t id = reinterpret_cast<uint64_t>(inner.handle);
    const auto name = [&](const GraphNode* node) {
      return absl::StrCat("\"graph_", id, "_node_", numbers[node], "\"");
    };
    absl::StrAppend(&text, "subgraph cluster_", id, " {\nlabel=\"graph_", id, "\"\n");
    for (const std::shared_ptr<GraphNode>& node : inner.nodes) {
      std::string label = absl::StrCat(numbers[node.get()], "\\n", TypeName(TypeOf(node->work)));
      if (const auto* kernel = std::get_if<KernelWork>(&node->work)) {
        absl::StrAppend(&label, "\\n", kernel->name);
        if (verbose || (flags & CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS) != 0) {
          const auto& grid = kernel->grid;
          const auto& block = kernel->block;
          absl::StrAppend(&label, "\\n<<<", grid[0], "x", grid[1], "x", grid[2], ",", block[0], "x",
                          block[1], "x", block[2], ",", kernel->shared_bytes, ">>>");
        }
      } else if (const auto* copy = std::get_if<CopyWork>(&node->work)) {
        const wire::BoxShape& shape = copy->plan.shape;
        absl::StrAppend(&label, "\\n", shape.width, "x", shape.height, "x", shape.depth, " bytes");
      } else if (const auto* fill = std::get_if<FillWork>(&node->work)) {
        absl::StrAppend(&label, "\\n", fill->params.width, "x", fill->params.height, " of ",
                        fill->params.elementSize, " bytes");
      }
      absl::StrAppend(&text, name(node.get()), "[shape=\"rectangle\" label=\"", label, "\"];\n");
    }
    for (const std::shared_ptr<GraphNode>& node : inner.nodes) {
      for (const GraphNode::Edge& edge : node->dependents) {
        absl::StrAppend(&text, name(node.get()), " -> ", name(edge.node), ";\n");
      }
    }
    for (const std::shared_ptr<GraphNode>& node : inner.nodes) {
      for (const std::shared_ptr<Graph>& child : InnerGraphs(node->work)) self(*child, self);
    }
    text += "}\n";
  };
  emit(graph, emit);
  text += "}\n";
  return text;
}

}  // namespace fargpu::client
