#include "softgpu/driver/graph.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/driver.h"

namespace fargpu::softgpu {
namespace {

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

// The graphs that belong to a node.
std::vector<std::shared_ptr<Graph>> InnerGraphs(const NodeWork& work) {
  if (const auto* child = std::get_if<ChildNode>(&work)) return {child->graph};
  if (const auto* conditional = std::get_if<ConditionalNode>(&work)) return conditional->bodies;
  return {};
}

absl::Status CloneInto(Driver& driver, const Graph& from, Graph& to)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex) {
  if (from.HasMemoryNodes()) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                     "a graph that allocates or frees memory cannot be copied");
  }
  to.cloned_from = from.handle;
  absl::flat_hash_map<const GraphNode*, GraphNode*> copies;
  for (const std::shared_ptr<GraphNode>& node : from.nodes) {
    NodeWork work = node->work;
    if (auto* child = std::get_if<ChildNode>(&work)) {
      ASSIGN_OR_RETURN(child->graph, CloneGraph(driver, *child->graph));
      child->graph->of_node = true;
    } else if (auto* conditional = std::get_if<ConditionalNode>(&work)) {
      for (size_t i = 0; i < conditional->bodies.size(); ++i) {
        ASSIGN_OR_RETURN(conditional->bodies[i], CloneGraph(driver, *conditional->bodies[i]));
        conditional->bodies[i]->of_node = true;
        conditional->body_handles[i] = conditional->bodies[i]->handle;
      }
    }
    ASSIGN_OR_RETURN(GraphNode * copy, AddNode(driver, to, {}, std::move(work)));
    copy->cloned_from = node->handle;
    copies[node.get()] = copy;
  }
  for (const std::shared_ptr<GraphNode>& node : from.nodes) {
    for (const GraphNode::Edge& edge : node->dependencies) {
      RETURN_IF_ERROR(AddEdge(*copies[edge.node], *copies[node.get()], edge.data));
    }
  }
  to.conditions = from.conditions;
  for (const auto& [object, count] : from.user_objects) {
    to.user_objects[object] = count;
    driver.user_objects.at(object).references += count;
  }
  return absl::OkStatus();
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

bool Graph::HasMemoryNodes() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const std::shared_ptr<GraphNode>& node) {
    if (std::holds_alternative<AllocNode>(node->work) ||
        std::holds_alternative<FreeNode>(node->work)) {
      return true;
    }
    const auto inner = InnerGraphs(node->work);
    return std::any_of(inner.begin(), inner.end(),
                       [](const auto& graph) { return graph->HasMemoryNodes(); });
  });
}

absl::Status AddEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data) {
  if (FindEdge(to.dependencies, &from) != to.dependencies.end()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "the dependency exists already");
  }
  if (&from == &to) return CudaError(CUDA_ERROR_INVALID_VALUE, "a node depends on itself");
  to.dependencies.push_back({&from, data});
  from.dependents.push_back({&to, data});
  return absl::OkStatus();
}

absl::Status RemoveEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData* data) {
  const auto edge = FindEdge(to.dependencies, &from);
  if (edge == to.dependencies.end() ||
      (data != nullptr && std::memcmp(&edge->data, data, sizeof(*data)) != 0)) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "there is no such dependency");
  }
  to.dependencies.erase(edge);
  from.dependents.erase(FindEdge(from.dependents, &to));
  return absl::OkStatus();
}

absl::StatusOr<GraphNode*> AddNode(Driver& driver, Graph& graph,
                                   absl::Span<const GraphNode::Edge> dependencies, NodeWork work) {
  for (const GraphNode::Edge& edge : dependencies) {
    if (edge.node->graph != &graph) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "a dependency belongs to another graph");
    }
  }
  auto node = std::make_shared<GraphNode>();
  node->handle = driver.graph_nodes.NewHandle();
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
  driver.graph_nodes.Insert(node->handle, node);
  graph.nodes.push_back(node);
  return node.get();
}

void RemoveNode(Driver& driver, GraphNode& node) {
  for (const GraphNode::Edge& edge : node.dependencies) {
    edge.node->dependents.erase(FindEdge(edge.node->dependents, &node));
  }
  for (const GraphNode::Edge& edge : node.dependents) {
    edge.node->dependencies.erase(FindEdge(edge.node->dependencies, &node));
  }
  for (const std::shared_ptr<Graph>& inner : InnerGraphs(node.work)) {
    (void)ForgetGraph(driver, inner);
  }
  driver.graph_nodes.Remove(node.handle);
  auto& nodes = node.graph->nodes;
  nodes.erase(std::find_if(nodes.begin(), nodes.end(),
                           [&](const auto& candidate) { return candidate.get() == &node; }));
}

std::shared_ptr<Graph> NewGraph(Driver& driver) {
  auto graph = std::make_shared<Graph>();
  graph->handle = driver.graphs.NewHandle();
  driver.graphs.Insert(graph->handle, graph);
  return graph;
}

absl::StatusOr<std::shared_ptr<Graph>> CloneGraph(Driver& driver, const Graph& graph) {
  const std::shared_ptr<Graph> copy = NewGraph(driver);
  if (absl::Status cloned = CloneInto(driver, graph, *copy); !cloned.ok()) {
    (void)ForgetGraph(driver, copy);
    return cloned;
  }
  return copy;
}

absl::StatusOr<bool> ReleaseUserObject(Driver& driver, CUuserObject handle, uint64_t count,
                                       UserObject* last) {
  const auto found = driver.user_objects.find(handle);
  if (found == driver.user_objects.end()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "not a user object");
  }
  if (count == 0 || count > found->second.references) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("releasing ", count, " of ", found->second.references,
                                  " references to a user object"));
  }
  found->second.references -= count;
  if (found->second.references > 0) return false;
  *last = found->second;
  driver.user_objects.erase(found);
  return true;
}

std::vector<UserObject> ForgetGraph(Driver& driver, const std::shared_ptr<Graph>& graph) {
  std::vector<UserObject> ended;
  driver.graphs.Remove(graph->handle);
  for (const std::shared_ptr<GraphNode>& node : graph->nodes) {
    driver.graph_nodes.Remove(node->handle);
    for (const std::shared_ptr<Graph>& inner : InnerGraphs(node->work)) {
      const std::vector<UserObject> more = ForgetGraph(driver, inner);
      ended.insert(ended.end(), more.begin(), more.end());
    }
  }
  for (const auto& [object, count] : graph->user_objects) {
    UserObject last;
    const absl::StatusOr<bool> gone = ReleaseUserObject(driver, object, count, &last);
    if (gone.ok() && *gone) ended.push_back(last);
  }
  graph->user_objects.clear();
  return ended;
}

void DestroyUserObjects(const std::vector<UserObject>& objects) {
  for (const UserObject& object : objects) {
    HostFunctionScope scope;
    object.destroy(object.pointer);
  }
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

absl::StatusOr<std::shared_ptr<Graph>> FindGraph(Driver& driver, CUgraph handle) {
  if (std::shared_ptr<Graph> graph = driver.graphs.Find(handle)) return graph;
  return CudaError(CUDA_ERROR_INVALID_VALUE, "not a graph");
}

absl::StatusOr<std::shared_ptr<GraphNode>> FindNode(Driver& driver, CUgraphNode handle) {
  if (std::shared_ptr<GraphNode> node = driver.graph_nodes.Find(handle)) return node;
  return CudaError(CUDA_ERROR_INVALID_VALUE, "not a node of a graph");
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
      if (const auto* kernel = std::get_if<KernelNode>(&node->work)) {
        absl::StrAppend(&label, "\\n", kernel->function->info.name);
        if (verbose || (flags & CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS) != 0) {
          absl::StrAppend(&label, "\\n<<<", kernel->grid.x, "x", kernel->grid.y, "x",
                          kernel->grid.z, ",", kernel->block.x, "x", kernel->block.y, "x",
                          kernel->block.z, ",", kernel->shared_bytes, ">>>");
        }
      } else if (const auto* copy = std::get_if<CopyNode>(&node->work)) {
        absl::StrAppend(&label, "\\n", copy->plan.width, "x", copy->plan.height, "x",
                        copy->plan.depth, " bytes");
      } else if (const auto* fill = std::get_if<FillNode>(&node->work)) {
        absl::StrAppend(&label, "\\n", fill->plan.width, "x", fill->plan.height, " of ",
                        fill->plan.element, " bytes");
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

}  // namespace fargpu::softgpu
