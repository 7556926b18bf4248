// The nodes of graphs by kind: adding them, asking for and setting their parameters.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/graph_exec.h"
#include "client/cuda/launch_params.h"
#include "client/cuda/node_params.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

absl::StatusOr<std::vector<GraphNode::Edge>> ReadEdges(Graphs& graphs, const CUgraphNode* nodes,
                                                       const CUgraphEdgeData* data, size_t count)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(graphs.mutex) {
  std::vector<GraphNode::Edge> edges;
  if (count > 0) RETURN_IF_ERROR(NotNull(nodes, "nodes"));
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, graphs.FindNode(nodes[i]));
    edges.push_back({node.get(), data == nullptr ? CUgraphEdgeData{} : data[i]});
  }
  return edges;
}

// Adds the node whose work read(session, graph) gives.
template <typename Read>
CUresult Add(const char* call, CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies,
             const CUgraphEdgeData* data, size_t count, Read read,
             CUgraphNodeParams* results = nullptr) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(out, "out"));
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    ASSIGN_OR_RETURN(const auto edges, ReadEdges(graphs, dependencies, data, count));
    ASSIGN_OR_RETURN(NodeWork work, read(session, *graph));
    ASSIGN_OR_RETURN(GraphNode* const node, graphs.AddNode(*graph, edges, std::move(work)));
    if (results != nullptr) WriteNodeResults(node->work, results);
    *out = node->handle;
    return absl::OkStatus();
  });
}

// body(Session&, GraphNode&, Kind&) for a node of that kind.
template <typename Kind, typename Body>
CUresult WithNodeOf(const char* call, CUgraphNode handle, Body body) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, graphs.FindNode(handle));
    auto* const work = std::get_if<Kind>(&node->work);
    if (work == nullptr) {
      return Invalid(absl::StrCat("the node is of kind ", TypeName(TypeOf(node->work))));
    }
    return body(session, *node, *work);
  });
}

// Replaces the work of a node of that kind by what read(session) gives.
template <typename Kind, typename Read>
CUresult Set(const char* call, CUgraphNode handle, Read read) {
  return WithNodeOf<Kind>(call, handle,
                          [&](Session& session, GraphNode& node, Kind&) -> absl::Status {
                            ASSIGN_OR_RETURN(node.work, read(session));
                            return absl::OkStatus();
                          });
}

template <typename Read>
CUresult SetInExec(const char* call, CUgraphExec handle, CUgraphNode node, Read read) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, graphs.FindExec(handle));
    ASSIGN_OR_RETURN(NodeWork work, read(session));
    return exec->SetWork(node, std::move(work));
  });
}

CUDA_KERNEL_NODE_PARAMS_v3 Widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  CUDA_KERNEL_NODE_PARAMS_v3 wide = {};
  static_assert(sizeof(params) <= sizeof(wide));
  std::memcpy(&wide, &params, sizeof(params));
  return wide;
}
CUDA_KERNEL_NODE_PARAMS_v3 Widen(const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  CUDA_KERNEL_NODE_PARAMS_v3 wide = {};
  static_assert(sizeof(params) <= sizeof(wide));
  std::memcpy(&wide, &params, sizeof(params));
  return wide;
}

// The versions of the struct differ in what follows the common fields.
template <typename Params>
absl::StatusOr<NodeWork> ReadKernel(Session& session, const Params* params) {
  RETURN_IF_ERROR(NotNull(params, "params"));
  const CUDA_KERNEL_NODE_PARAMS_v3 wide = Widen(*params);
  return ReadKernelParams(session, &wide);
}

template <typename Params>
CUresult AddKernel(const char* call, CUgraphNode* out, CUgraph graph,
                   const CUgraphNode* dependencies, size_t count, const Params* params) {
  return Add(call, out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) { return ReadKernel(session, params); });
}

template <typename Params>
CUresult GetKernel(const char* call, CUgraphNode handle, Params* params) {
  return WithNodeOf<KernelWork>(call, handle,
                                [&](Session&, GraphNode& node, KernelWork&) -> absl::Status {
                                  RETURN_IF_ERROR(NotNull(params, "params"));
                                  const CUDA_KERNEL_NODE_PARAMS_v3 wide = WriteKernelParams(node);
                                  std::memcpy(params, &wide, sizeof(*params));
                                  return absl::OkStatus();
                                });
}

// Attributes stay when parameters change.
template <typename Params>
CUresult SetKernel(const char* call, CUgraphNode handle, const Params* params) {
  return WithNodeOf<KernelWork>(
      call, handle, [&](Session& session, GraphNode& node, KernelWork& old) -> absl::Status {
        ASSIGN_OR_RETURN(NodeWork work, ReadKernel(session, params));
        std::get<KernelWork>(work).attributes = old.attributes;
        node.work = std::move(work);
        return absl::OkStatus();
      });
}

template <typename Params>
CUresult SetKernelInExec(const char* call, CUgraphExec exec, CUgraphNode node,
                         const Params* params) {
  return SetInExec(call, exec, node, [&](Session& session) { return ReadKernel(session, params); });
}

// Nodes that allocate, free or decide keep what they were made with.
absl::Status CheckSettable(const CUgraphNodeParams& params, CUgraphNodeType type) {
  if (params.type != type) {
    return Invalid(absl::StrCat("parameters of kind ", TypeName(params.type),
                                " for a node of kind ", TypeName(type)));
  }
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
      type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    return Invalid(absl::StrCat("a node of kind ", TypeName(type), " cannot be changed"));
  }
  return absl::OkStatus();
}

#define RETURN_NULL_AS_INVALID(pointer) \
  if ((pointer) == nullptr) return CUDA_ERROR_INVALID_VALUE

}  // namespace

CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return AddKernel("cuGraphAddKernelNode", out, graph, dependencies, count, params);
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return GetKernel("cuGraphKernelNodeGetParams", node, params);
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return SetKernel("cuGraphKernelNodeSetParams", node, params);
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return SetKernelInExec("cuGraphExecKernelNodeSetParams", exec, node, params);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
  return AddKernel("cuGraphAddKernelNode_v2", out, graph, dependencies, count, params);
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return GetKernel("cuGraphKernelNodeGetParams_v2", node, params);
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return SetKernel("cuGraphKernelNodeSetParams_v2", node, params);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
  return SetKernelInExec("cuGraphExecKernelNodeSetParams_v2", exec, node, params);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMCPY3D* params, CUcontext context) {
  return Add("cuGraphAddMemcpyNode", out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) { return ReadCopyParams(session, params, context); });
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  return WithNodeOf<CopyWork>("cuGraphMemcpyNodeGetParams", node,
                              [&](Session&, GraphNode&, CopyWork& copy) -> absl::Status {
                                RETURN_IF_ERROR(NotNull(params, "params"));
                                *params = copy.params;
                                return absl::OkStatus();
                              });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return WithNodeOf<CopyWork>(
      "cuGraphMemcpyNodeSetParams", node,
      [&](Session& session, GraphNode& changed, CopyWork& copy) -> absl::Status {
        ASSIGN_OR_RETURN(changed.work, ReadCopyParams(session, params, copy.given_context));
        return absl::OkStatus();
      });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* params, CUcontext context) {
  return SetInExec("cuGraphExecMemcpyNodeSetParams", exec, node,
                   [&](Session& session) { return ReadCopyParams(session, params, context); });
}

CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS* params,
                              CUcontext context) {
  return Add("cuGraphAddMemsetNode", out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) { return ReadFillParams(session, params, context); });
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  return WithNodeOf<FillWork>("cuGraphMemsetNodeGetParams", node,
                              [&](Session&, GraphNode&, FillWork& fill) -> absl::Status {
                                RETURN_IF_ERROR(NotNull(params, "params"));
                                std::memcpy(params, &fill.params, sizeof(*params));
                                return absl::OkStatus();
                              });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  return WithNodeOf<FillWork>(
      "cuGraphMemsetNodeSetParams", node,
      [&](Session& session, GraphNode& changed, FillWork& fill) -> absl::Status {
        ASSIGN_OR_RETURN(changed.work, ReadFillParams(session, params, fill.params.ctx));
        return absl::OkStatus();
      });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return SetInExec("cuGraphExecMemsetNodeSetParams", exec, node,
                   [&](Session& session) { return ReadFillParams(session, params, context); });
}

CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS* params) {
  return Add("cuGraphAddHostNode", out, graph, dependencies, nullptr, count,
             [&](Session&, Graph&) { return ReadHostParams(params); });
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  return WithNodeOf<HostWork>("cuGraphHostNodeGetParams", node,
                              [&](Session&, GraphNode&, HostWork& host) -> absl::Status {
                                RETURN_IF_ERROR(NotNull(params, "params"));
                                *params = {.fn = host.function, .userData = host.data};
                                return absl::OkStatus();
                              });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return Set<HostWork>("cuGraphHostNodeSetParams", node,
                       [&](Session&) { return ReadHostParams(params); });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* params) {
  return SetInExec("cuGraphExecHostNodeSetParams", exec, node,
                   [&](Session&) { return ReadHostParams(params); });
}

CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                             size_t count) {
  return Add("cuGraphAddEmptyNode", out, graph, dependencies, nullptr, count,
             [&](Session&, Graph&) -> absl::StatusOr<NodeWork> { return NodeWork(EmptyWork{}); });
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, CUgraph child) {
  return Add("cuGraphAddChildGraphNode", out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) {
               return ReadChildParams(session, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
             });
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* out) {
  return WithNodeOf<ChildWork>("cuGraphChildGraphNodeGetGraph", node,
                               [&](Session&, GraphNode&, ChildWork& child) -> absl::Status {
                                 RETURN_IF_ERROR(NotNull(out, "out"));
                                 *out = child.graph->handle;
                                 return absl::OkStatus();
                               });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node, CUgraph child) {
  return AtCudaEdge("cuGraphExecChildGraphNodeSetParams", [&](Session& session) -> absl::Status {
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, graphs.FindExec(handle));
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(child));
    return exec->SetChild(node, *graph);
  });
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                   size_t count, CUevent event) {
  return Add("cuGraphAddEventRecordNode", out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) {
               return ReadEvent(session, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
             });
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return WithNodeOf<RecordWork>("cuGraphEventRecordNodeGetEvent", node,
                                [&](Session&, GraphNode&, RecordWork& work) -> absl::Status {
                                  RETURN_IF_ERROR(NotNull(event, "event"));
                                  *event = work.event;
                                  return absl::OkStatus();
                                });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return Set<RecordWork>("cuGraphEventRecordNodeSetEvent", node, [&](Session& session) {
    return ReadEvent(session, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  });
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return SetInExec("cuGraphExecEventRecordNodeSetEvent", exec, node, [&](Session& session) {
    return ReadEvent(session, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  });
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, CUevent event) {
  return Add("cuGraphAddEventWaitNode", out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) {
               return ReadEvent(session, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
             });
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return WithNodeOf<WaitWork>("cuGraphEventWaitNodeGetEvent", node,
                              [&](Session&, GraphNode&, WaitWork& work) -> absl::Status {
                                RETURN_IF_ERROR(NotNull(event, "event"));
                                *event = work.event;
                                return absl::OkStatus();
                              });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return Set<WaitWork>("cuGraphEventWaitNodeSetEvent", node, [&](Session& session) {
    return ReadEvent(session, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  });
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return SetInExec("cuGraphExecEventWaitNodeSetEvent", exec, node, [&](Session& session) {
    return ReadEvent(session, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  });
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  RETURN_NULL_AS_INVALID(params);
  CUgraphNodeParams results = {};
  const CUresult result = Add(
      "cuGraphAddMemAllocNode", out, graph, dependencies, nullptr, count,
      [&](Session& session, Graph&) { return ReadAllocParams(session, params); }, &results);
  if (result == CUDA_SUCCESS) params->dptr = results.alloc.dptr;
  return result;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return WithNodeOf<AllocWork>("cuGraphMemAllocNodeGetParams", node,
                               [&](Session&, GraphNode&, AllocWork& alloc) -> absl::Status {
                                 RETURN_IF_ERROR(NotNull(params, "params"));
                                 std::memcpy(params, &alloc.params, sizeof(*params));
                                 params->accessDescs = alloc.access.data();
                                 return absl::OkStatus();
                               });
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                               size_t count, CUdeviceptr address) {
  return Add("cuGraphAddMemFreeNode", out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) { return ReadFreeParams(session, address); });
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
  return WithNodeOf<FreeWork>("cuGraphMemFreeNodeGetParams", node,
                              [&](Session&, GraphNode&, FreeWork& free) -> absl::Status {
                                RETURN_IF_ERROR(NotNull(address, "address"));
                                *address = free.address;
                                return absl::OkStatus();
                              });
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return Add("cuGraphAddBatchMemOpNode", out, graph, dependencies, nullptr, count,
             [&](Session& session, Graph&) { return ReadValueParams(session, params); });
}
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return WithNodeOf<ValueWork>("cuGraphBatchMemOpNodeGetParams", node,
                               [&](Session&, GraphNode&, ValueWork& value) -> absl::Status {
                                 RETURN_IF_ERROR(NotNull(params, "params"));
                                 *params = {.ctx = value.given_context,
                                            .count = static_cast<unsigned>(value.operations.size()),
                                            .paramArray = value.operations.data(),
                                            .flags = value.flags};
                                 return absl::OkStatus();
                               });
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return Set<ValueWork>("cuGraphBatchMemOpNodeSetParams", node,
                        [&](Session& session) { return ReadValueParams(session, params); });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return SetInExec("cuGraphExecBatchMemOpNodeSetParams", exec, node,
                   [&](Session& session) { return ReadValueParams(session, params); });
}

CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                        size_t count, CUgraphNodeParams* params) {
  RETURN_NULL_AS_INVALID(params);
  return Add(
      "cuGraphAddNode", out, graph, dependencies, nullptr, count,
      [&](Session& session, Graph& target) { return ReadNodeParams(session, target, *params); },
      params);
}
CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* data, size_t count, CUgraphNodeParams* params) {
  RETURN_NULL_AS_INVALID(params);
  return Add(
      "cuGraphAddNode_v2", out, graph, dependencies, data, count,
      [&](Session& session, Graph& target) { return ReadNodeParams(session, target, *params); },
      params);
}

CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams* params) {
  return AtCudaEdge("cuGraphNodeSetParams", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(params, "params"));
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, graphs.FindNode(handle));
    RETURN_IF_ERROR(CheckSettable(*params, TypeOf(node->work)));
    ASSIGN_OR_RETURN(NodeWork work, ReadNodeParams(session, *node->graph, *params));
    if (auto* kernel = std::get_if<KernelWork>(&work)) {
      kernel->attributes = std::get<KernelWork>(node->work).attributes;
    }
    node->work = std::move(work);
    return absl::OkStatus();
  });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node, CUgraphNodeParams* params) {
  return AtCudaEdge("cuGraphExecNodeSetParams", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(params, "params"));
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, graphs.FindExec(handle));
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      ASSIGN_OR_RETURN(const std::shared_ptr<Graph> child, graphs.Find(params->graph.graph));
      return exec->SetChild(node, *child);
    }
    RETURN_IF_ERROR(CheckSettable(*params, params->type));
    Graph nowhere;
    ASSIGN_OR_RETURN(NodeWork work, ReadNodeParams(session, nowhere, *params));
    return exec->SetWork(node, std::move(work));
  });
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       CUkernelNodeAttrValue* value) {
  return WithNodeOf<KernelWork>("cuGraphKernelNodeGetAttribute", node,
                                [&](Session&, GraphNode&, KernelWork& kernel) -> absl::Status {
                                  RETURN_IF_ERROR(NotNull(value, "value"));
                                  CUlaunchAttributeValue found = {};
                                  RETURN_IF_ERROR(CheckLaunchAttribute(attribute, found));
                                  if (const auto set = kernel.attributes.find(attribute);
                                      set != kernel.attributes.end())
                                    found = set->second;
                                  *value = found;
                                  return absl::OkStatus();
                                });
}
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value) {
  return WithNodeOf<KernelWork>(
      "cuGraphKernelNodeSetAttribute", node,
      [&](Session& session, GraphNode&, KernelWork& kernel) -> absl::Status {
        RETURN_IF_ERROR(NotNull(value, "value"));
        RETURN_IF_ERROR(CheckLaunchAttribute(attribute, *value));
        kernel.attributes[attribute] = *value;
        return absl::OkStatus();
      });
}
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode destination, CUgraphNode source) {
  return WithNodeOf<KernelWork>(
      "cuGraphKernelNodeCopyAttributes", destination,
      [&](Session& session, GraphNode&, KernelWork& kernel) -> absl::Status {
        AssertHeld(session.graphs());
        ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> from, session.graphs().FindNode(source));
        const auto* const other = std::get_if<KernelWork>(&from->work);
        if (other == nullptr) return Invalid("the source is not a kernel node");
        kernel.attributes = other->attributes;
        return absl::OkStatus();
      });
}

}  // namespace fargpu::client::api
