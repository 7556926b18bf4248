#include "softgpu/driver/node_params.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/copy_params.h"
#include "softgpu/driver/driver.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/stream_value.h"

namespace fargpu::softgpu {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

absl::StatusOr<std::shared_ptr<Context>> ContextOrCurrent(Driver& driver, CUcontext handle) {
  return driver.FindContext(handle == nullptr ? CurrentContextHandle() : handle);
}

}  // namespace

absl::StatusOr<NodeWork> ReadKernelParams(Driver& driver,
                                          const CUDA_KERNEL_NODE_PARAMS_v3* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  std::shared_ptr<Function> function;
  if (params->func != nullptr) {
    ASSIGN_OR_RETURN(function, driver.FindFunction(params->func));
  } else {
    const std::shared_ptr<Kernel> kernel = driver.kernels.Find(params->kern);
    if (kernel == nullptr) return CudaError(CUDA_ERROR_INVALID_HANDLE, "not a kernel");
    ASSIGN_OR_RETURN(const auto context, ContextOrCurrent(driver, params->ctx));
    ASSIGN_OR_RETURN(function, driver.FunctionOf(*kernel, *context));
  }
  LaunchRequest request;
  request.grid = {params->gridDimX, params->gridDimY, params->gridDimZ};
  request.block = {params->blockDimX, params->blockDimY, params->blockDimZ};
  request.shared_bytes = params->sharedMemBytes;
  request.params = params->kernelParams;
  request.extra = params->extra;
  ASSIGN_OR_RETURN(KernelNode node, PrepareLaunch(driver, std::move(function), request));
  node.given_function = params->func;
  node.given_kernel = params->kern;
  node.given_context = params->ctx;
  return NodeWork(std::move(node));
}

absl::StatusOr<NodeWork> ReadCopyParams(Driver& driver, const CUDA_MEMCPY3D* params,
                                        CUcontext context) {
  if (params == nullptr) return Invalid("copyParams is null");
  RETURN_IF_ERROR(ContextOrCurrent(driver, context).status());
  CopyNode node;
  node.params = *params;
  node.context = context;
  ASSIGN_OR_RETURN(node.plan, PlanOf(driver, *params));
  RETURN_IF_ERROR(CheckCopy(driver, node.plan, WhenToRun::kLater));
  return NodeWork(std::move(node));
}

absl::StatusOr<NodeWork> ReadFillParams(Driver& driver, const CUDA_MEMSET_NODE_PARAMS* params,
                                        CUcontext context) {
  if (params == nullptr) return Invalid("memsetParams is null");
  RETURN_IF_ERROR(ContextOrCurrent(driver, context).status());
  FillNode node;
  std::memcpy(&node.params, params, sizeof(*params));
  node.params.ctx = context;
  node.plan = {.destination = params->dst,
               .pitch = params->pitch,
               .value = params->value,
               .element = params->elementSize,
               .width = params->width,
               .height = params->height};
  RETURN_IF_ERROR(CheckFill(driver, node.plan, WhenToRun::kLater));
  return NodeWork(std::move(node));
}

absl::StatusOr<NodeWork> ReadHostParams(const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  if (params->fn == nullptr) return Invalid("the node's function is null");
  return NodeWork(HostNode{.function = params->fn, .data = params->userData});
}

absl::StatusOr<NodeWork> ReadEvent(Driver& driver, CUevent event, CUgraphNodeType type) {
  if (driver.events.Find(event) == nullptr) {
    return CudaError(CUDA_ERROR_INVALID_HANDLE, "not an event");
  }
  if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) return NodeWork(WaitNode{.event = event});
  return NodeWork(RecordNode{.event = event});
}

absl::StatusOr<NodeWork> ReadAllocParams(Driver& driver, const CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  const CUmemPoolProps& pool = params->poolProps;
  if (pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return Invalid("memory of graphs is pinned, on a device and not exported");
  }
  RETURN_IF_ERROR(driver.CheckDevice(pool.location.id));
  if (params->accessDescCount > 0 && params->accessDescs == nullptr) {
    return Invalid("accessDescs is null");
  }
  AllocNode node;
  std::memcpy(&node.params, params, sizeof(*params));
  for (size_t i = 0; i < params->accessDescCount; ++i) {
    RETURN_IF_ERROR(driver.CheckDevice(params->accessDescs[i].location.id));
    node.access.push_back(params->accessDescs[i]);
  }
  node.params.accessDescs = nullptr;
  ASSIGN_OR_RETURN(node.params.dptr,
                   driver.memory.ReserveGraphRange(pool.location.id, params->bytesize));
  node.allocation = std::make_shared<GraphAllocation>(driver.memory, node.params.dptr);
  return NodeWork(std::move(node));
}

absl::StatusOr<NodeWork> ReadFreeParams(Driver& driver, CUdeviceptr address) {
  const auto found = driver.memory.Find(address);
  if (!found || found->base != address || found->kind != AllocationKind::kGraph) {
    return Invalid(
        absl::StrCat("0x", absl::Hex(address), " was not given by a node that allocates"));
  }
  return NodeWork(FreeNode{.address = address});
}

absl::Status CheckValueOperation(Driver& driver, const CUstreamBatchMemOpParams& operation) {
  const auto check_address = [&](CUdeviceptr address, size_t bytes) -> absl::Status {
    if (address % bytes == 0 && (driver.memory.Accessible(address, bytes, Access::kReadWrite) ||
                                 driver.registered.Find(address))) {
      return absl::OkStatus();
    }
    return Invalid(absl::StrCat("0x", absl::Hex(address), " is not ", bytes,
                                " aligned bytes that the device reaches"));
  };
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
      constexpr unsigned kKnown = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
      if ((operation.waitValue.flags & ~kKnown) != 0) {
        return Invalid(absl::StrCat("wait flags 0x", absl::Hex(operation.waitValue.flags)));
      }
      return check_address(operation.waitValue.address,
                           operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8);
    }
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      if ((operation.writeValue.flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) != 0) {
        return Invalid(absl::StrCat("write flags 0x", absl::Hex(operation.writeValue.flags)));
      }
      return check_address(operation.writeValue.address,
                           operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return absl::OkStatus();
    default:
      return Invalid(absl::StrCat("memory operation ", static_cast<int>(operation.operation)));
  }
}

absl::StatusOr<NodeWork> ReadValueParams(Driver& driver,
                                         const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  if (params->count > kMostValueOperations || params->flags != 0 ||
      (params->count > 0 && params->paramArray == nullptr)) {
    return Invalid(absl::StrCat(params->count, " memory operations, flags ", params->flags));
  }
  RETURN_IF_ERROR(ContextOrCurrent(driver, params->ctx).status());
  ValueNode node;
  node.context = params->ctx;
  for (unsigned i = 0; i < params->count; ++i) {
    RETURN_IF_ERROR(CheckValueOperation(driver, params->paramArray[i]));
    node.operations.push_back(params->paramArray[i]);
  }
  return NodeWork(std::move(node));
}

absl::StatusOr<NodeWork> ReadChildParams(Driver& driver, CUgraph child,
                                         CUgraphChildGraphNodeOwnership ownership) {
  ASSIGN_OR_RETURN(std::shared_ptr<Graph> graph, FindGraph(driver, child));
  const bool conditional = std::any_of(graph->nodes.begin(), graph->nodes.end(), [](auto& node) {
    return std::holds_alternative<ConditionalNode>(node->work);
  });
  if (conditional) return CudaError(CUDA_ERROR_NOT_SUPPORTED, "a child with conditional nodes");
  if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    if (graph->of_node) return Invalid("the graph belongs to a node already");
  } else {
    ASSIGN_OR_RETURN(graph, CloneGraph(driver, *graph));
  }
  graph->of_node = true;
  return NodeWork(ChildNode{.graph = std::move(graph)});
}

absl::StatusOr<NodeWork> ReadConditionalParams(Driver& driver, Graph& graph,
                                               const CUDA_CONDITIONAL_NODE_PARAMS& params) {
  // A handle is made for one graph; the body of a condition may use that of the graph around it.
  const auto known =
      std::find_if(graph.conditions.begin(), graph.conditions.end(),
                   [&](const Condition& condition) { return condition.handle == params.handle; });
  if (known == graph.conditions.end() || known->used) {
    return Invalid("the handle is not one of the graph's, or has a node already");
  }
  const bool size_fits =
      (params.type == CU_GRAPH_COND_TYPE_IF && (params.size == 1 || params.size == 2)) ||
      (params.type == CU_GRAPH_COND_TYPE_WHILE && params.size == 1) ||
      (params.type == CU_GRAPH_COND_TYPE_SWITCH && params.size > 0);
  if (!size_fits) {
    return Invalid(absl::StrCat("conditional node of type ", static_cast<int>(params.type),
                                " with ", params.size, " graphs"));
  }
  known->used = true;
  ConditionalNode node;
  node.handle = params.handle;
  node.type = params.type;
  node.context = params.ctx;
  for (unsigned i = 0; i < params.size; ++i) {
    node.bodies.push_back(NewGraph(driver));
    node.bodies.back()->of_node = true;
    node.body_handles.push_back(node.bodies.back()->handle);
  }
  return NodeWork(std::move(node));
}

absl::StatusOr<NodeWork> ReadNodeParams(Driver& driver, Graph& graph,
                                        const CUgraphNodeParams& params) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return ReadKernelParams(driver, &params.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      if (params.memcpy.flags != 0) return Invalid("flags of a copy node");
      return ReadCopyParams(driver, &params.memcpy.copyParams, params.memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return ReadFillParams(driver,
                            reinterpret_cast<const CUDA_MEMSET_NODE_PARAMS*>(&params.memset),
                            params.memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
      return ReadHostParams(reinterpret_cast<const CUDA_HOST_NODE_PARAMS*>(&params.host));
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return ReadChildParams(driver, params.graph.graph, params.graph.ownership);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return NodeWork(EmptyNode{});
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ReadEvent(driver, params.eventWait.event, params.type);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ReadEvent(driver, params.eventRecord.event, params.type);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return ReadAllocParams(driver,
                             reinterpret_cast<const CUDA_MEM_ALLOC_NODE_PARAMS*>(&params.alloc));
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return ReadFreeParams(driver, params.free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return ReadValueParams(driver,
                             reinterpret_cast<const CUDA_BATCH_MEM_OP_NODE_PARAMS*>(&params.memOp));
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return ReadConditionalParams(driver, graph, params.conditional);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "external semaphores");
    default:
      return Invalid(absl::StrCat("node type ", static_cast<int>(params.type)));
  }
}

void WriteNodeResults(NodeWork& work, CUgraphNodeParams* params) {
  if (const auto* alloc = std::get_if<AllocNode>(&work)) {
    params->alloc.dptr = alloc->params.dptr;
  } else if (auto* conditional = std::get_if<ConditionalNode>(&work)) {
    params->conditional.phGraph_out = conditional->body_handles.data();
  } else if (const auto* child = std::get_if<ChildNode>(&work)) {
    params->graph.graph = child->graph->handle;
  }
}

CUDA_KERNEL_NODE_PARAMS_v3 WriteKernelParams(GraphNode& node) {
  KernelNode& kernel = std::get<KernelNode>(node.work);
  CUDA_KERNEL_NODE_PARAMS_v3 params = {};
  params.func = kernel.given_function;
  params.kern = kernel.given_kernel;
  params.ctx = kernel.given_context;
  params.gridDimX = kernel.grid.x;
  params.gridDimY = kernel.grid.y;
  params.gridDimZ = kernel.grid.z;
  params.blockDimX = kernel.block.x;
  params.blockDimY = kernel.block.y;
  params.blockDimZ = kernel.block.z;
  params.sharedMemBytes = kernel.shared_bytes;
  node.param_pointers.clear();
  for (const KernelParam& param : kernel.function->info.params) {
    node.param_pointers.push_back(kernel.params.data() + param.offset);
  }
  params.kernelParams = node.param_pointers.data();
  return params;
}

}  // namespace fargpu::softgpu
