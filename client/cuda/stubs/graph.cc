// Graphs, their nodes and edges, and user objects: the client's business alone.
#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/capture.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}
absl::Status Unsupported(absl::string_view message) {
  return CudaError(CUDA_ERROR_NOT_SUPPORTED, message);
}

constexpr CUgraphEdgeData kPlainEdge = {};

// body(Graphs&) under the graph mutex.
template <typename Body>
CUresult WithGraphs(const char* call, Body body) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    return body(graphs);
  });
}

// body(Graphs&, GraphNode&).
template <typename Body>
CUresult WithNode(const char* call, CUgraphNode handle, Body body) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, graphs.FindNode(handle));
    return body(graphs, *node);
  });
}

// The two-call convention of cuGraphGetNodes and the like: without an array, how many there are;
// with one, as many as fit, null where there are no more.
template <typename Write>
absl::Status WriteArray(size_t available, size_t* count, bool has_array, bool has_edges,
                        Write write) {
  RETURN_IF_ERROR(NotNull(count, "count"));
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
  return WithGraphs(call, [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    if ((from == nullptr) != (to == nullptr)) return Invalid("one of from and to is null");
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
  return WithGraphs(call, [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    if (count == 0) return absl::OkStatus();
    RETURN_IF_ERROR(NotNull(from, "from"));
    RETURN_IF_ERROR(NotNull(to, "to"));
    if (!add && graph->HasMemoryNodes()) {
      return Unsupported("a graph that allocates memory keeps its edges");
    }
    for (size_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(const auto source, graphs.FindNode(from[i]));
      ASSIGN_OR_RETURN(const auto target, graphs.FindNode(to[i]));
      if (source->graph != graph.get() || target->graph != graph.get()) {
        return Invalid("an edge between nodes of other graphs");
      }
      RETURN_IF_ERROR(add ? AddEdge(*source, *target, data == nullptr ? kPlainEdge : data[i])
                          : RemoveEdge(*source, *target, data == nullptr ? nullptr : &data[i]));
    }
    return absl::OkStatus();
  });
}

absl::Status CheckNewUserObject(CUuserObject* out, CUhostFn destroy, unsigned count,
                                unsigned flags) {
  RETURN_IF_ERROR(NotNull(out, "out"));
  RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(destroy), "destroy"));
  // NO_DESTRUCTOR_SYNC must be given: nobody can wait for the destructor.
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || count == 0) {
    return Invalid(absl::StrCat("user object with ", count, " references, flags ", flags));
  }
  return absl::OkStatus();
}

}  // namespace

CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  return WithGraphs("cuGraphCreate", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    RETURN_IF_ERROR(NotNull(out, "out"));
    if (flags != 0) return Invalid(absl::StrCat("flags ", flags, ": must be 0"));
    *out = graphs.New()->handle;
    return absl::OkStatus();
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  std::vector<UserObject> ended;
  const CUresult result = WithGraphs("cuGraphDestroy", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    if (graph->of_node) return Invalid("the graph belongs to a node");
    for (const std::shared_ptr<Capture>& capture : graphs.captures) {
      if (capture->graph == graph) return Invalid("the graph is being captured");
    }
    ended = graphs.Forget(graph);
    return absl::OkStatus();
  });
  Graphs::Destroy(ended);
  return result;
}

CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
  return WithGraphs("cuGraphClone", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    RETURN_IF_ERROR(NotNull(out, "out"));
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> copy, graphs.Clone(*graph));
    *out = copy->handle;
    return absl::OkStatus();
  });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  return WithGraphs("cuGraphNodeFindInClone", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    RETURN_IF_ERROR(NotNull(out, "out"));
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(clone));
    for (const std::shared_ptr<GraphNode>& node : graph->nodes) {
      if (node->cloned_from == original && original != nullptr) {
        *out = node->handle;
        return absl::OkStatus();
      }
    }
    return Invalid("the clone has no copy of that node");
  });
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return WithNode("cuGraphNodeGetType", handle, [&](Graphs&, GraphNode& node) -> absl::Status {
    RETURN_IF_ERROR(NotNull(type, "type"));
    *type = TypeOf(node.work);
    return absl::OkStatus();
  });
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return WithGraphs("cuGraphGetNodes", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    return WriteArray(
        graph->nodes.size(), count, nodes != nullptr, false,
        [&](size_t i, bool is_there) { nodes[i] = is_there ? graph->nodes[i]->handle : nullptr; });
  });
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return WithGraphs("cuGraphGetRootNodes", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    std::vector<CUgraphNode> roots;
    for (const std::shared_ptr<GraphNode>& node : graph->nodes) {
      if (node->dependencies.empty()) roots.push_back(node->handle);
    }
    return WriteArray(roots.size(), count, nodes != nullptr, false,
                      [&](size_t i, bool is_there) { nodes[i] = is_there ? roots[i] : nullptr; });
  });
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return GetEdges("cuGraphGetEdges", graph, from, to, nullptr, count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* data, size_t* count) {
  return GetEdges("cuGraphGetEdges_v2", graph, from, to, data, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return WithNode("cuGraphNodeGetDependencies", handle, [&](Graphs&, GraphNode& node) {
    return WriteEdgeNodes(node.dependencies, nodes, nullptr, count);
  });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes,
                                       CUgraphEdgeData* data, size_t* count) {
  return WithNode("cuGraphNodeGetDependencies_v2", handle, [&](Graphs&, GraphNode& node) {
    return WriteEdgeNodes(node.dependencies, nodes, data, count);
  });
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return WithNode("cuGraphNodeGetDependentNodes", handle, [&](Graphs&, GraphNode& node) {
    return WriteEdgeNodes(node.dependents, nodes, nullptr, count);
  });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes,
                                         CUgraphEdgeData* data, size_t* count) {
  return WithNode("cuGraphNodeGetDependentNodes_v2", handle, [&](Graphs&, GraphNode& node) {
    return WriteEdgeNodes(node.dependents, nodes, data, count);
  });
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t count) {
  return ChangeEdges("cuGraphAddDependencies", graph, from, to, nullptr, count, /*add=*/true);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* data, size_t count) {
  return ChangeEdges("cuGraphAddDependencies_v2", graph, from, to, data, count, /*add=*/true);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t count) {
  return ChangeEdges("cuGraphRemoveDependencies", graph, from, to, nullptr, count, /*add=*/false);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData* data, size_t count) {
  return ChangeEdges("cuGraphRemoveDependencies_v2", graph, from, to, data, count, /*add=*/false);
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return WithNode("cuGraphDestroyNode", handle,
                  [&](Graphs& graphs, GraphNode& node)
                      ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
                        if (node.graph->HasMemoryNodes()) {
                          return Unsupported("a graph that allocates memory keeps its nodes");
                        }
                        graphs.RemoveNode(node);
                        return absl::OkStatus();
                      });
}

CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned flags) {
  std::string text;
  const CUresult made = WithGraphs("cuGraphDebugDotPrint", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    RETURN_IF_ERROR(NotNull(path, "path"));
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    text = DotOf(*graph, flags);
    return absl::OkStatus();
  });
  if (made != CUDA_SUCCESS) return made;
  return AtCudaEdge("cuGraphDebugDotPrint", [&](Session&) -> absl::Status {
    std::ofstream file(path);
    file << text;
    file.close();
    if (file) return absl::OkStatus();
    return CudaError(CUDA_ERROR_OPERATING_SYSTEM, absl::StrCat("cannot write ", path));
  });
}

CUresult cuUserObjectCreate(CUuserObject* out, void* pointer, CUhostFn destroy, unsigned count,
                            unsigned flags) {
  return WithGraphs("cuUserObjectCreate", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    RETURN_IF_ERROR(CheckNewUserObject(out, destroy, count, flags));
    *out = graphs.NewUserObject({.pointer = pointer, .destroy = destroy, .references = count});
    return absl::OkStatus();
  });
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
  return WithGraphs("cuUserObjectRetain", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    UserObject* const found = graphs.FindUserObject(handle);
    if (found == nullptr || count == 0) {
      return Invalid(absl::StrCat("not a user object, or ", count, " references"));
    }
    found->references += count;
    return absl::OkStatus();
  });
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
  std::vector<UserObject> ended;
  const CUresult result = WithGraphs("cuUserObjectRelease", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    UserObject last;
    ASSIGN_OR_RETURN(const bool gone, graphs.ReleaseUserObject(handle, count, &last));
    if (gone) ended.push_back(last);
    return absl::OkStatus();
  });
  Graphs::Destroy(ended);
  return result;
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject object, unsigned count,
                                 unsigned flags) {
  return WithGraphs("cuGraphRetainUserObject", [&](Graphs& graphs) -> absl::Status {
    AssertHeld(graphs);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(graph_handle));
    UserObject* const found = graphs.FindUserObject(object);
    if (found == nullptr || count == 0 || (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
      return Invalid(absl::StrCat("not a user object, ", count, " references, or flags ", flags));
    }
    // Moved references were the caller's; others are new.
    if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) {
      found->references += count;
    } else if (found->references < count) {
      return Invalid(absl::StrCat("moving ", count, " of ", found->references, " references"));
    }
    graph->user_objects[object] += count;
    return absl::OkStatus();
  });
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject object, unsigned count) {
  std::vector<UserObject> ended;
  const CUresult result =
      WithGraphs("cuGraphReleaseUserObject", [&](Graphs& graphs) -> absl::Status {
        AssertHeld(graphs);
        ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(graph_handle));
        const auto held = graph->user_objects.find(object);
        if (held == graph->user_objects.end() || held->second < count) {
          return Invalid("the graph has fewer references to the object");
        }
        UserObject last;
        ASSIGN_OR_RETURN(const bool gone, graphs.ReleaseUserObject(object, count, &last));
        if (gone) ended.push_back(last);
        held->second -= count;
        if (held->second == 0) graph->user_objects.erase(held);
        return absl::OkStatus();
      });
  Graphs::Destroy(ended);
  return result;
}

}  // namespace fargpu::client::api
