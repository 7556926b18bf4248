// Graphs, their nodes and edges.

#include <algorithm>
#include <fstream>

#include "softgpu/driver/edge.h"
#include "softgpu/driver/node_params.h"

namespace fargpu::softgpu {
namespace {

constexpr CUgraphEdgeData kPlainEdge = {};

// body(Driver&) under the graph mutex.
template <typename Body>
CUresult WithGraphs(const char* call, Body body) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    MutexLock lock(&driver.graph_mutex);
    return body(driver);
  });
}

// body(Driver&, GraphNode&).
template <typename Body>
CUresult WithNode(const char* call, CUgraphNode handle, Body body) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, FindNode(driver, handle));
    return body(driver, *node);
  });
}

// The two-call convention of cuGraphGetNodes and the like: without an array, how many there are;
// with one, as many as fit, null where there are no more.
template <typename Write>
absl::Status WriteArray(size_t available, size_t* count, bool has_array, bool has_edges,
                        Write write) {
  RETURN_IF_NULL(count);
  if (!has_array) {
    *count = available;
    return absl::OkStatus();
  }
  for (size_t i = 0; i < *count; ++i) write(i, i < available);
  *count = std::min(*count, available);
  if (*count < available && has_edges) {
    return CudaError(CUDA_ERROR_LOSSY_QUERY, "more edges than fit");
  }
  return absl::OkStatus();
}

bool IsPlain(const CUgraphEdgeData& data) {
  return data.from_port == 0 && data.to_port == 0 && data.type == 0;
}

// Edges with data are refused where the caller has no place for it.
absl::Status WriteEdgeNodes(const std::vector<GraphNode::Edge>& edges, CUgraphNode* nodes,
                            CUgraphEdgeData* data, size_t* count) {
  if (nodes != nullptr && data == nullptr) {
    for (const GraphNode::Edge& edge : edges) {
      if (!IsPlain(edge.data)) {
        return CudaError(CUDA_ERROR_LOSSY_QUERY, "an edge has data and edgeData is null");
      }
    }
  }
  return WriteArray(edges.size(), count, nodes != nullptr, false, [&](size_t i, bool is_there) {
    nodes[i] = is_there ? edges[i].node->handle : nullptr;
    if (data != nullptr) data[i] = is_there ? edges[i].data : kPlainEdge;
  });
}

CUresult GetEdges(const char* call, CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                  CUgraphEdgeData* data, size_t* count) {
  return WithGraphs(call, [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    if ((from == nullptr) != (to == nullptr)) return InvalidValue("one of from and to is null");
    struct Pair {
      CUgraphNode from, to;
      CUgraphEdgeData data;
    };
    std::vector<Pair> pairs;
    for (const std::shared_ptr<GraphNode>& node : graph->nodes) {
      for (const GraphNode::Edge& edge : node->dependencies) {
        if (from != nullptr && data == nullptr && !IsPlain(edge.data)) {
          return CudaError(CUDA_ERROR_LOSSY_QUERY, "an edge has data and edgeData is null");
        }
        pairs.push_back({edge.node->handle, node->handle, edge.data});
      }
    }
    return WriteArray(pairs.size(), count, from != nullptr, false, [&](size_t i, bool is_there) {
      from[i] = is_there ? pairs[i].from : nullptr;
      to[i] = is_there ? pairs[i].to : nullptr;
      if (data != nullptr) data[i] = is_there ? pairs[i].data : kPlainEdge;
    });
  });
}

CUresult ChangeEdges(const char* call, CUgraph handle, const CUgraphNode* from,
                     const CUgraphNode* to, const CUgraphEdgeData* data, size_t count, bool add) {
  return WithGraphs(call, [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    if (count == 0) return absl::OkStatus();
    RETURN_IF_NULL(from);
    RETURN_IF_NULL(to);
    if (!add && graph->HasMemoryNodes()) {
      return NotSupported("a graph that allocates memory keeps its edges");
    }
    for (size_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(const auto source, FindNode(driver, from[i]));
      ASSIGN_OR_RETURN(const auto target, FindNode(driver, to[i]));
      if (source->graph != graph.get() || target->graph != graph.get()) {
        return InvalidValue("an edge between nodes of other graphs");
      }
      RETURN_IF_ERROR(add ? AddEdge(*source, *target, data == nullptr ? kPlainEdge : data[i])
                          : RemoveEdge(*source, *target, data == nullptr ? nullptr : &data[i]));
    }
    return absl::OkStatus();
  });
}

absl::Status CheckNewUserObject(CUuserObject* out, CUhostFn destroy, unsigned count,
                                unsigned flags) {
  RETURN_IF_NULL(out);
  RETURN_IF_NULL(destroy);
  // NO_DESTRUCTOR_SYNC must be given: nobody can wait for the destructor.
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || count == 0) {
    return InvalidValue(absl::StrCat("user object with ", count, " references, flags ", flags));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  return WithGraphs("cuGraphCreate", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    RETURN_IF_NULL(out);
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    *out = NewGraph(driver)->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphDestroy(CUgraph handle) {
  std::vector<UserObject> ended;
  const CUresult result = WithGraphs("cuGraphDestroy", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    if (graph->of_node) return InvalidValue("the graph belongs to a node");
    for (const std::shared_ptr<Capture>& capture : driver.captures) {
      if (capture->graph == graph) return InvalidValue("the graph is being captured");
    }
    ended = ForgetGraph(driver, graph);
    return absl::OkStatus();
  });
  DestroyUserObjects(ended);
  return result;
}

CU_API CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
  return WithGraphs("cuGraphClone", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> copy, CloneGraph(driver, *graph));
    *out = copy->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  return WithGraphs("cuGraphNodeFindInClone", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, clone));
    for (const std::shared_ptr<GraphNode>& node : graph->nodes) {
      if (node->cloned_from == original && original != nullptr) {
        *out = node->handle;
        return absl::OkStatus();
      }
    }
    return InvalidValue("the clone has no copy of that node");
  });
}

CU_API CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return WithNode("cuGraphNodeGetType", handle, [&](Driver&, GraphNode& node) -> absl::Status {
    RETURN_IF_NULL(type);
    *type = TypeOf(node.work);
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return WithGraphs("cuGraphGetNodes", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    return WriteArray(
        graph->nodes.size(), count, nodes != nullptr, false,
        [&](size_t i, bool is_there) { nodes[i] = is_there ? graph->nodes[i]->handle : nullptr; });
  });
}

CU_API CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return WithGraphs("cuGraphGetRootNodes", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    std::vector<CUgraphNode> roots;
    for (const std::shared_ptr<GraphNode>& node : graph->nodes) {
      if (node->dependencies.empty()) roots.push_back(node->handle);
    }
    return WriteArray(roots.size(), count, nodes != nullptr, false,
                      [&](size_t i, bool is_there) { nodes[i] = is_there ? roots[i] : nullptr; });
  });
}

CU_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return GetEdges("cuGraphGetEdges", graph, from, to, nullptr, count);
}
CU_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                   CUgraphEdgeData* data, size_t* count) {
  return GetEdges("cuGraphGetEdges_v2", graph, from, to, data, count);
}

CU_API CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return WithNode("cuGraphNodeGetDependencies", handle, [&](Driver&, GraphNode& node) {
    return WriteEdgeNodes(node.dependencies, nodes, nullptr, count);
  });
}
CU_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes,
                                              CUgraphEdgeData* data, size_t* count) {
  return WithNode("cuGraphNodeGetDependencies_v2", handle, [&](Driver&, GraphNode& node) {
    return WriteEdgeNodes(node.dependencies, nodes, data, count);
  });
}
CU_API CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes,
                                             size_t* count) {
  return WithNode("cuGraphNodeGetDependentNodes", handle, [&](Driver&, GraphNode& node) {
    return WriteEdgeNodes(node.dependents, nodes, nullptr, count);
  });
}
CU_API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes,
                                                CUgraphEdgeData* data, size_t* count) {
  return WithNode("cuGraphNodeGetDependentNodes_v2", handle, [&](Driver&, GraphNode& node) {
    return WriteEdgeNodes(node.dependents, nodes, data, count);
  });
}

CU_API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from,
                                       const CUgraphNode* to, size_t count) {
  return ChangeEdges("cuGraphAddDependencies", graph, from, to, nullptr, count, /*add=*/true);
}
CU_API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                          const CUgraphNode* to, const CUgraphEdgeData* data,
                                          size_t count) {
  return ChangeEdges("cuGraphAddDependencies_v2", graph, from, to, data, count, /*add=*/true);
}
CU_API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from,
                                          const CUgraphNode* to, size_t count) {
  return ChangeEdges("cuGraphRemoveDependencies", graph, from, to, nullptr, count, /*add=*/false);
}
CU_API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                             const CUgraphNode* to, const CUgraphEdgeData* data,
                                             size_t count) {
  return ChangeEdges("cuGraphRemoveDependencies_v2", graph, from, to, data, count, /*add=*/false);
}

CU_API CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return WithNode("cuGraphDestroyNode", handle,
                  [&](Driver& driver, GraphNode& node)
                      ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
                        if (node.graph->HasMemoryNodes()) {
                          return NotSupported("a graph that allocates memory keeps its nodes");
                        }
                        RemoveNode(driver, node);
                        return absl::OkStatus();
                      });
}

CU_API CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned flags) {
  std::string text;
  const CUresult made = WithGraphs("cuGraphDebugDotPrint", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    RETURN_IF_NULL(path);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    text = DotOf(*graph, flags);
    return absl::OkStatus();
  });
  if (made != CUDA_SUCCESS) return made;
  return AtEdge("cuGraphDebugDotPrint", [&]() -> absl::Status {
    std::ofstream file(path);
    file << text;
    file.close();
    if (file) return absl::OkStatus();
    return CudaError(CUDA_ERROR_OPERATING_SYSTEM, absl::StrCat("cannot write ", path));
  });
}

CU_API CUresult cuUserObjectCreate(CUuserObject* out, void* pointer, CUhostFn destroy,
                                   unsigned count, unsigned flags) {
  return WithGraphs("cuUserObjectCreate", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    RETURN_IF_ERROR(CheckNewUserObject(out, destroy, count, flags));
    const auto handle = reinterpret_cast<CUuserObject>(NewHandleValue());
    driver.user_objects[handle] = {
        .handle = handle, .pointer = pointer, .destroy = destroy, .references = count};
    *out = handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
  return WithGraphs("cuUserObjectRetain", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    const auto found = driver.user_objects.find(handle);
    if (found == driver.user_objects.end() || count == 0) {
      return InvalidValue(absl::StrCat("not a user object, or ", count, " references"));
    }
    found->second.references += count;
    return absl::OkStatus();
  });
}

CU_API CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
  std::vector<UserObject> ended;
  const CUresult result = WithGraphs("cuUserObjectRelease", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    UserObject last;
    ASSIGN_OR_RETURN(const bool gone, ReleaseUserObject(driver, handle, count, &last));
    if (gone) ended.push_back(last);
    return absl::OkStatus();
  });
  DestroyUserObjects(ended);
  return result;
}

CU_API CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject object, unsigned count,
                                        unsigned flags) {
  return WithGraphs("cuGraphRetainUserObject", [&](Driver& driver) -> absl::Status {
    AssertGraphsHeld(driver);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, graph_handle));
    const auto found = driver.user_objects.find(object);
    if (found == driver.user_objects.end() || count == 0 ||
        (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
      return InvalidValue(
          absl::StrCat("not a user object, ", count, " references, or flags ", flags));
    }
    // Moved references were the caller's; others are new.
    if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) {
      found->second.references += count;
    } else if (found->second.references < count) {
      return InvalidValue(
          absl::StrCat("moving ", count, " of ", found->second.references, " references"));
    }
    graph->user_objects[object] += count;
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject object,
                                         unsigned count) {
  std::vector<UserObject> ended;
  const CUresult result =
      WithGraphs("cuGraphReleaseUserObject", [&](Driver& driver) -> absl::Status {
        AssertGraphsHeld(driver);
        ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, graph_handle));
        const auto held = graph->user_objects.find(object);
        if (held == graph->user_objects.end() || held->second < count) {
          return InvalidValue("the graph has fewer references to the object");
        }
        UserObject last;
        ASSIGN_OR_RETURN(const bool gone, ReleaseUserObject(driver, object, count, &last));
        if (gone) ended.push_back(last);
        held->second -= count;
        if (held->second == 0) graph->user_objects.erase(held);
        return absl::OkStatus();
      });
  DestroyUserObjects(ended);
  return result;
}
