// The nodes of graphs by kind: adding them, asking for and setting their parameters.

#include <algorithm>
#include <cstring>

#include "softgpu/driver/edge.h"
#include "softgpu/driver/graph_exec.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/node_params.h"

namespace fargpu::softgpu {
namespace {

absl::StatusOr<std::vector<GraphNode::Edge>> ReadEdges(Driver& driver, const CUgraphNode* nodes,
                                                       const CUgraphEdgeData* data, size_t count)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex) {
  std::vector<GraphNode::Edge> edges;
  if (count > 0) RETURN_IF_NULL(nodes);
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, FindNode(driver, nodes[i]));
    edges.push_back({node.get(), data == nullptr ? CUgraphEdgeData{} : data[i]});
  }
  return edges;
}

// Adds the node whose work read(driver, graph) gives.
template <typename Read>
CUresult Add(const char* call, CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies,
             const CUgraphEdgeData* data, size_t count, Read read,
             CUgraphNodeParams* results = nullptr) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    ASSIGN_OR_RETURN(const auto edges, ReadEdges(driver, dependencies, data, count));
    ASSIGN_OR_RETURN(NodeWork work, read(driver, *graph));
    ASSIGN_OR_RETURN(GraphNode* const node, AddNode(driver, *graph, edges, std::move(work)));
    if (results != nullptr) WriteNodeResults(node->work, results);
    *out = node->handle;
    return absl::OkStatus();
  });
}

// body(Driver&, GraphNode&, Kind&) for a node of that kind.
template <typename Kind, typename Body>
CUresult WithNodeOf(const char* call, CUgraphNode handle, Body body) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, FindNode(driver, handle));
    auto* const work = std::get_if<Kind>(&node->work);
    if (work == nullptr) {
      return InvalidValue(absl::StrCat("the node is of kind ", TypeName(TypeOf(node->work))));
    }
    return body(driver, *node, *work);
  });
}

// Replaces the work of a node of that kind by what read(driver) gives.
template <typename Kind, typename Read>
CUresult Set(const char* call, CUgraphNode handle, Read read) {
  return WithNodeOf<Kind>(call, handle,
                          [&](Driver& driver, GraphNode& node, Kind&) -> absl::Status {
                            ASSIGN_OR_RETURN(node.work, read(driver));
                            return absl::OkStatus();
                          });
}

template <typename Read>
CUresult SetInExec(const char* call, CUgraphExec handle, CUgraphNode node, Read read) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    const std::shared_ptr<GraphExec> exec = driver.graph_execs.Find(handle);
    if (exec == nullptr) return InvalidValue("not an executable graph");
    ASSIGN_OR_RETURN(NodeWork work, read(driver));
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
absl::StatusOr<NodeWork> ReadKernel(Driver& driver, const Params* params) {
  RETURN_IF_NULL(params);
  const CUDA_KERNEL_NODE_PARAMS_v3 wide = Widen(*params);
  return ReadKernelParams(driver, &wide);
}

template <typename Params>
CUresult AddKernel(const char* call, CUgraphNode* out, CUgraph graph,
                   const CUgraphNode* dependencies, size_t count, const Params* params) {
  return Add(call, out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) { return ReadKernel(driver, params); });
}

template <typename Params>
CUresult GetKernel(const char* call, CUgraphNode handle, Params* params) {
  return WithNodeOf<KernelNode>(call, handle,
                                [&](Driver&, GraphNode& node, KernelNode&) -> absl::Status {
                                  RETURN_IF_NULL(params);
                                  const CUDA_KERNEL_NODE_PARAMS_v3 wide = WriteKernelParams(node);
                                  std::memcpy(params, &wide, sizeof(*params));
                                  return absl::OkStatus();
                                });
}

// Attributes stay when parameters change.
template <typename Params>
CUresult SetKernel(const char* call, CUgraphNode handle, const Params* params) {
  return WithNodeOf<KernelNode>(
      call, handle, [&](Driver& driver, GraphNode& node, KernelNode& old) -> absl::Status {
        ASSIGN_OR_RETURN(NodeWork work, ReadKernel(driver, params));
        std::get<KernelNode>(work).attributes = old.attributes;
        node.work = std::move(work);
        return absl::OkStatus();
      });
}

template <typename Params>
CUresult SetKernelInExec(const char* call, CUgraphExec exec, CUgraphNode node,
                         const Params* params) {
  return SetInExec(call, exec, node, [&](Driver& driver) { return ReadKernel(driver, params); });
}

// Nodes that allocate, free or decide keep what they were made with.
absl::Status CheckSettable(const CUgraphNodeParams& params, CUgraphNodeType type) {
  if (params.type != type) {
    return InvalidValue(absl::StrCat("parameters of kind ", TypeName(params.type),
                                     " for a node of kind ", TypeName(type)));
  }
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
      type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    return InvalidValue(absl::StrCat("a node of kind ", TypeName(type), " cannot be changed"));
  }
  return absl::OkStatus();
}

#define RETURN_NULL_AS_INVALID(pointer) \
  if ((pointer) == nullptr) return CUDA_ERROR_INVALID_VALUE

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph,
                                     const CUgraphNode* dependencies, size_t count,
                                     const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return AddKernel("cuGraphAddKernelNode", out, graph, dependencies, count, params);
}
CU_API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return GetKernel("cuGraphKernelNodeGetParams", node, params);
}
CU_API CUresult cuGraphKernelNodeSetParams(CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return SetKernel("cuGraphKernelNodeSetParams", node, params);
}
CU_API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return SetKernelInExec("cuGraphExecKernelNodeSetParams", exec, node, params);
}

CU_API CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph,
                                        const CUgraphNode* dependencies, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS* params) {
  return AddKernel("cuGraphAddKernelNode_v2", out, graph, dependencies, count, params);
}
CU_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return GetKernel("cuGraphKernelNodeGetParams_v2", node, params);
}
CU_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                              const CUDA_KERNEL_NODE_PARAMS* params) {
  return SetKernel("cuGraphKernelNodeSetParams_v2", node, params);
}
CU_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_KERNEL_NODE_PARAMS* params) {
  return SetKernelInExec("cuGraphExecKernelNodeSetParams_v2", exec, node, params);
}

CU_API CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph,
                                     const CUgraphNode* dependencies, size_t count,
                                     const CUDA_MEMCPY3D* params, CUcontext context) {
  return Add("cuGraphAddMemcpyNode", out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) { return ReadCopyParams(driver, params, context); });
}
CU_API CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  return WithNodeOf<CopyNode>("cuGraphMemcpyNodeGetParams", node,
                              [&](Driver&, GraphNode&, CopyNode& copy) -> absl::Status {
                                RETURN_IF_NULL(params);
                                *params = copy.params;
                                return absl::OkStatus();
                              });
}
CU_API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return WithNodeOf<CopyNode>(
      "cuGraphMemcpyNodeSetParams", node,
      [&](Driver& driver, GraphNode& changed, CopyNode& copy) -> absl::Status {
        ASSIGN_OR_RETURN(changed.work, ReadCopyParams(driver, params, copy.context));
        return absl::OkStatus();
      });
}
CU_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_MEMCPY3D* params, CUcontext context) {
  return SetInExec("cuGraphExecMemcpyNodeSetParams", exec, node,
                   [&](Driver& driver) { return ReadCopyParams(driver, params, context); });
}

CU_API CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph,
                                     const CUgraphNode* dependencies, size_t count,
                                     const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return Add("cuGraphAddMemsetNode", out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) { return ReadFillParams(driver, params, context); });
}
CU_API CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  return WithNodeOf<FillNode>("cuGraphMemsetNodeGetParams", node,
                              [&](Driver&, GraphNode&, FillNode& fill) -> absl::Status {
                                RETURN_IF_NULL(params);
                                std::memcpy(params, &fill.params, sizeof(*params));
                                return absl::OkStatus();
                              });
}
CU_API CUresult cuGraphMemsetNodeSetParams(CUgraphNode node,
                                           const CUDA_MEMSET_NODE_PARAMS* params) {
  return WithNodeOf<FillNode>(
      "cuGraphMemsetNodeSetParams", node,
      [&](Driver& driver, GraphNode& changed, FillNode& fill) -> absl::Status {
        ASSIGN_OR_RETURN(changed.work, ReadFillParams(driver, params, fill.params.ctx));
        return absl::OkStatus();
      });
}
CU_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_MEMSET_NODE_PARAMS* params,
                                               CUcontext context) {
  return SetInExec("cuGraphExecMemsetNodeSetParams", exec, node,
                   [&](Driver& driver) { return ReadFillParams(driver, params, context); });
}

CU_API CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                   size_t count, const CUDA_HOST_NODE_PARAMS* params) {
  return Add("cuGraphAddHostNode", out, graph, dependencies, nullptr, count,
             [&](Driver&, Graph&) { return ReadHostParams(params); });
}
CU_API CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  return WithNodeOf<HostNode>("cuGraphHostNodeGetParams", node,
                              [&](Driver&, GraphNode&, HostNode& host) -> absl::Status {
                                RETURN_IF_NULL(params);
                                *params = {.fn = host.function, .userData = host.data};
                                return absl::OkStatus();
                              });
}
CU_API CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return Set<HostNode>("cuGraphHostNodeSetParams", node,
                       [&](Driver&) { return ReadHostParams(params); });
}
CU_API CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_HOST_NODE_PARAMS* params) {
  return SetInExec("cuGraphExecHostNodeSetParams", exec, node,
                   [&](Driver&) { return ReadHostParams(params); });
}

CU_API CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph,
                                    const CUgraphNode* dependencies, size_t count) {
  return Add("cuGraphAddEmptyNode", out, graph, dependencies, nullptr, count,
             [&](Driver&, Graph&) -> absl::StatusOr<NodeWork> { return NodeWork(EmptyNode{}); });
}

CU_API CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph,
                                         const CUgraphNode* dependencies, size_t count,
                                         CUgraph child) {
  return Add("cuGraphAddChildGraphNode", out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
               return ReadChildParams(driver, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
             });
}
CU_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* out) {
  return WithNodeOf<ChildNode>("cuGraphChildGraphNodeGetGraph", node,
                               [&](Driver&, GraphNode&, ChildNode& child) -> absl::Status {
                                 RETURN_IF_NULL(out);
                                 *out = child.graph->handle;
                                 return absl::OkStatus();
                               });
}
CU_API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                   CUgraph child) {
  return WithDriver("cuGraphExecChildGraphNodeSetParams", [&](Driver& driver) -> absl::Status {
    const std::shared_ptr<GraphExec> exec = driver.graph_execs.Find(handle);
    if (exec == nullptr) return InvalidValue("not an executable graph");
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, child));
    return exec->SetChild(driver, node, *graph);
  });
}

CU_API CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph,
                                          const CUgraphNode* dependencies, size_t count,
                                          CUevent event) {
  return Add("cuGraphAddEventRecordNode", out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) {
               return ReadEvent(driver, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
             });
}
CU_API CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return WithNodeOf<RecordNode>("cuGraphEventRecordNodeGetEvent", node,
                                [&](Driver&, GraphNode&, RecordNode& work) -> absl::Status {
                                  RETURN_IF_NULL(event);
                                  *event = work.event;
                                  return absl::OkStatus();
                                });
}
CU_API CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return Set<RecordNode>("cuGraphEventRecordNodeSetEvent", node, [&](Driver& driver) {
    return ReadEvent(driver, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  });
}
CU_API CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                   CUevent event) {
  return SetInExec("cuGraphExecEventRecordNodeSetEvent", exec, node, [&](Driver& driver) {
    return ReadEvent(driver, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  });
}

CU_API CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph,
                                        const CUgraphNode* dependencies, size_t count,
                                        CUevent event) {
  return Add("cuGraphAddEventWaitNode", out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) {
               return ReadEvent(driver, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
             });
}
CU_API CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return WithNodeOf<WaitNode>("cuGraphEventWaitNodeGetEvent", node,
                              [&](Driver&, GraphNode&, WaitNode& work) -> absl::Status {
                                RETURN_IF_NULL(event);
                                *event = work.event;
                                return absl::OkStatus();
                              });
}
CU_API CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return Set<WaitNode>("cuGraphEventWaitNodeSetEvent", node, [&](Driver& driver) {
    return ReadEvent(driver, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  });
}
CU_API CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                 CUevent event) {
  return SetInExec("cuGraphExecEventWaitNodeSetEvent", exec, node, [&](Driver& driver) {
    return ReadEvent(driver, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  });
}

CU_API CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph,
                                       const CUgraphNode* dependencies, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  RETURN_NULL_AS_INVALID(params);
  CUgraphNodeParams results = {};
  const CUresult result = Add(
      "cuGraphAddMemAllocNode", out, graph, dependencies, nullptr, count,
      [&](Driver& driver, Graph&) { return ReadAllocParams(driver, params); }, &results);
  if (result == CUDA_SUCCESS) params->dptr = results.alloc.dptr;
  return result;
}
CU_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return WithNodeOf<AllocNode>("cuGraphMemAllocNodeGetParams", node,
                               [&](Driver&, GraphNode&, AllocNode& alloc) -> absl::Status {
                                 RETURN_IF_NULL(params);
                                 std::memcpy(params, &alloc.params, sizeof(*params));
                                 params->accessDescs = alloc.access.data();
                                 return absl::OkStatus();
                               });
}
CU_API CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph,
                                      const CUgraphNode* dependencies, size_t count,
                                      CUdeviceptr address) {
  return Add("cuGraphAddMemFreeNode", out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) { return ReadFreeParams(driver, address); });
}
CU_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
  return WithNodeOf<FreeNode>("cuGraphMemFreeNodeGetParams", node,
                              [&](Driver&, GraphNode&, FreeNode& free) -> absl::Status {
                                RETURN_IF_NULL(address);
                                *address = free.address;
                                return absl::OkStatus();
                              });
}

CU_API CUresult cuGraphAddBatchMemOpNode(CUgraphNode* out, CUgraph graph,
                                         const CUgraphNode* dependencies, size_t count,
                                         const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return Add("cuGraphAddBatchMemOpNode", out, graph, dependencies, nullptr, count,
             [&](Driver& driver, Graph&) { return ReadValueParams(driver, params); });
}
CU_API CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node,
                                               CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return WithNodeOf<ValueNode>("cuGraphBatchMemOpNodeGetParams", node,
                               [&](Driver&, GraphNode&, ValueNode& value) -> absl::Status {
                                 RETURN_IF_NULL(params);
                                 *params = {.ctx = value.context,
                                            .count = static_cast<unsigned>(value.operations.size()),
                                            .paramArray = value.operations.data(),
                                            .flags = value.flags};
                                 return absl::OkStatus();
                               });
}
CU_API CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                               const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return Set<ValueNode>("cuGraphBatchMemOpNodeSetParams", node,
                        [&](Driver& driver) { return ReadValueParams(driver, params); });
}
CU_API CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return SetInExec("cuGraphExecBatchMemOpNodeSetParams", exec, node,
                   [&](Driver& driver) { return ReadValueParams(driver, params); });
}

CU_API CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                               size_t count, CUgraphNodeParams* params) {
  RETURN_NULL_AS_INVALID(params);
  return Add(
      "cuGraphAddNode", out, graph, dependencies, nullptr, count,
      [&](Driver& driver, Graph& target)
          ABSL_NO_THREAD_SAFETY_ANALYSIS { return ReadNodeParams(driver, target, *params); },
      params);
}
CU_API CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                  const CUgraphEdgeData* data, size_t count,
                                  CUgraphNodeParams* params) {
  RETURN_NULL_AS_INVALID(params);
  return Add(
      "cuGraphAddNode_v2", out, graph, dependencies, data, count,
      [&](Driver& driver, Graph& target)
          ABSL_NO_THREAD_SAFETY_ANALYSIS { return ReadNodeParams(driver, target, *params); },
      params);
}

CU_API CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams* params) {
  return WithDriver("cuGraphNodeSetParams", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(params);
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> node, FindNode(driver, handle));
    RETURN_IF_ERROR(CheckSettable(*params, TypeOf(node->work)));
    ASSIGN_OR_RETURN(NodeWork work, ReadNodeParams(driver, *node->graph, *params));
    if (auto* kernel = std::get_if<KernelNode>(&work)) {
      kernel->attributes = std::get<KernelNode>(node->work).attributes;
    }
    node->work = std::move(work);
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                         CUgraphNodeParams* params) {
  return WithDriver("cuGraphExecNodeSetParams", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(params);
    const std::shared_ptr<GraphExec> exec = driver.graph_execs.Find(handle);
    if (exec == nullptr) return InvalidValue("not an executable graph");
    MutexLock lock(&driver.graph_mutex);
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      ASSIGN_OR_RETURN(const std::shared_ptr<Graph> child, FindGraph(driver, params->graph.graph));
      return exec->SetChild(driver, node, *child);
    }
    RETURN_IF_ERROR(CheckSettable(*params, params->type));
    Graph nowhere;
    ASSIGN_OR_RETURN(NodeWork work, ReadNodeParams(driver, nowhere, *params));
    return exec->SetWork(node, std::move(work));
  });
}

CU_API CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                              CUkernelNodeAttrValue* value) {
  return WithNodeOf<KernelNode>("cuGraphKernelNodeGetAttribute", node,
                                [&](Driver&, GraphNode&, KernelNode& kernel) -> absl::Status {
                                  RETURN_IF_NULL(value);
                                  CUlaunchAttributeValue found = {};
                                  RETURN_IF_ERROR(CheckLaunchAttribute(attribute, found));
                                  if (const auto set = kernel.attributes.find(attribute);
                                      set != kernel.attributes.end())
                                    found = set->second;
                                  *value = found;
                                  return absl::OkStatus();
                                });
}
CU_API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                              const CUkernelNodeAttrValue* value) {
  return WithNodeOf<KernelNode>(
      "cuGraphKernelNodeSetAttribute", node,
      [&](Driver& driver, GraphNode&, KernelNode& kernel) -> absl::Status {
        RETURN_IF_NULL(value);
        RETURN_IF_ERROR(CheckLaunchAttribute(attribute, *value));
        KernelNode changed = kernel;
        changed.attributes[attribute] = *value;
        RETURN_IF_ERROR(CheckLaunch(driver, changed));
        kernel = std::move(changed);
        return absl::OkStatus();
      });
}
CU_API CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode destination, CUgraphNode source) {
  return WithNodeOf<KernelNode>(
      "cuGraphKernelNodeCopyAttributes", destination,
      [&](Driver& driver, GraphNode&, KernelNode& kernel) -> absl::Status {
        AssertGraphsHeld(driver);
        ASSIGN_OR_RETURN(const std::shared_ptr<GraphNode> from, FindNode(driver, source));
        const auto* const other = std::get_if<KernelNode>(&from->work);
        if (other == nullptr) return InvalidValue("the source is not a kernel node");
        kernel.attributes = other->attributes;
        return absl::OkStatus();
      });
}
