#include "client/cuda/node_params.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "client/cuda/box_copy.h"
#include "client/cuda/capture.h"
#include "client/cuda/copying.h"
#include "client/cuda/device_memory.h"
#include "client/cuda/launch_params.h"
#include "client/cuda/session.h"

namespace fargpu::client {
namespace {

constexpr unsigned kMostValueOperations = 256;

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

absl::StatusOr<const Context*> ContextOrCurrent(Session& session, CUcontext handle) {
  if (handle != nullptr) return session.FindContext(handle);
  return session.CurrentActive();
}

absl::Status CheckDevice(Session& session, int device) {
  if (device >= 0 && device < session.devices().count()) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_DEVICE,
                   absl::StrCat("device ", device, " of ", session.devices().count()));
}

// Checks what a memset would write.
absl::Status CheckFill(Session& session, const CUDA_MEMSET_NODE_PARAMS& params) {
  const size_t element = params.elementSize;
  const auto refuse = [&](absl::string_view why) {
    return Invalid(absl::StrCat(params.height, " rows of ", params.width, " elements of ", element,
                                " bytes, pitch ", params.pitch, ": ", why));
  };
  if (element != 1 && element != 2 && element != 4) return refuse("elements have 1, 2 or 4 bytes");
  if (params.dst % element != 0) return refuse("dst is not aligned");
  if (params.width == 0 || params.height == 0) return refuse("nothing to set");
  size_t row = 0, extent = 0;
  if (__builtin_mul_overflow(params.width, element, &row)) return refuse("too wide");
  if (params.height > 1 && (params.pitch < row || params.pitch % element != 0)) {
    return refuse("the pitch is too small or not a multiple of the element");
  }
  if (__builtin_mul_overflow(params.height - 1, params.pitch, &extent) ||
      __builtin_add_overflow(extent, row, &extent)) {
    return refuse("too large");
  }
  return CheckDeviceRange(session, params.dst, extent);
}

absl::Status CheckValueAddress(Session& session, CUdeviceptr address, size_t bytes) {
  const bool known = session.IsDeviceAddress(address)
                         ? CheckDeviceRange(session, address, bytes).ok()
                         : session.host_memory().Find(address).has_value();
  if (address % bytes == 0 && known) return absl::OkStatus();
  return Invalid(absl::StrCat("0x", absl::Hex(address), " is not ", bytes,
                              " aligned bytes that the device reaches"));
}

absl::Status CheckValueOperation(Session& session, const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
      constexpr unsigned kKnown = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
      if ((operation.waitValue.flags & ~kKnown) != 0) {
        return Invalid(absl::StrCat("wait flags 0x", absl::Hex(operation.waitValue.flags)));
      }
      return CheckValueAddress(session, operation.waitValue.address,
                               operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8);
    }
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      if ((operation.writeValue.flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) != 0) {
        return Invalid(absl::StrCat("write flags 0x", absl::Hex(operation.writeValue.flags)));
      }
      return CheckValueAddress(session, operation.writeValue.address,
                               operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return absl::OkStatus();
    default:
      return Invalid(absl::StrCat("memory operation ", static_cast<int>(operation.operation)));
  }
}

// By members, so that what the program left in unused ones neither travels nor counts as a change.
CUstreamBatchMemOpParams CopyOf(const CUstreamBatchMemOpParams& operation) {
  CUstreamBatchMemOpParams copy;
  std::memset(&copy, 0, sizeof(copy));
  copy.operation = operation.operation;
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      copy.waitValue.address = operation.waitValue.address;
      copy.waitValue.value = operation.waitValue.value;
      copy.waitValue.flags = operation.waitValue.flags;
      break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      copy.waitValue.address = operation.waitValue.address;
      copy.waitValue.value64 = operation.waitValue.value64;
      copy.waitValue.flags = operation.waitValue.flags;
      break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      copy.writeValue.address = operation.writeValue.address;
      copy.writeValue.value = operation.writeValue.value;
      copy.writeValue.flags = operation.writeValue.flags;
      break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      copy.writeValue.address = operation.writeValue.address;
      copy.writeValue.value64 = operation.writeValue.value64;
      copy.writeValue.flags = operation.writeValue.flags;
      break;
    default:
      copy.flushRemoteWrites.flags = operation.flushRemoteWrites.flags;
      break;
  }
  return copy;
}

// Memory for a node that allocates. The thread may be capturing; this call of ours is not part.
absl::StatusOr<std::shared_ptr<GraphMemory>> NewMemory(Session& session, int device, size_t bytes) {
  if (bytes == 0) return Invalid("a node that allocates 0 bytes");
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  if (context->device != device) {
    return CudaError(
        CUDA_ERROR_NOT_SUPPORTED,
        absl::StrCat("memory of device ", device, " from a context of device ", context->device));
  }
  const RelaxedScope relaxed;
  CUdeviceptr address = 0;
  RETURN_IF_ERROR(AllocateDeviceMemory(session, bytes, nullptr, &address));
  std::optional<MemoryRange> range = session.device_memory().Remove(address);
  range->graph = true;
  RETURN_IF_ERROR(session.device_memory().Insert(*range));
  auto memory = std::make_shared<GraphMemory>(&session, context->id, device, address, bytes);
  AssertHeld(session.graphs());
  session.graphs().AddMemory(memory);
  return memory;
}

}  // namespace

absl::StatusOr<NodeWork> ReadKernelParams(Session& session,
                                          const CUDA_KERNEL_NODE_PARAMS_v3* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  CUfunction handle = params->func;
  if (handle == nullptr) handle = reinterpret_cast<CUfunction>(params->kern);
  ASSIGN_OR_RETURN(const Function* function, session.FindFunction(handle));
  const Geometry geometry = {{params->gridDimX, params->gridDimY, params->gridDimZ},
                             {params->blockDimX, params->blockDimY, params->blockDimZ},
                             params->sharedMemBytes};
  ASSIGN_OR_RETURN(KernelWork work,
                   KernelWorkOf(session, *function, geometry, params->kernelParams, params->extra));
  work.given_function = params->func;
  work.given_kernel = params->func == nullptr ? params->kern : nullptr;
  work.given_context = params->ctx;
  if (params->func == nullptr) {
    ASSIGN_OR_RETURN(const Context* context, ContextOrCurrent(session, params->ctx));
    work.context = context->id;
  }
  return NodeWork(std::move(work));
}

absl::StatusOr<NodeWork> ReadCopyParams(Session& session, const CUDA_MEMCPY3D* params,
                                        CUcontext context) {
  if (params == nullptr) return Invalid("copyParams is null");
  ASSIGN_OR_RETURN(const Context* of_copy, ContextOrCurrent(session, context));
  const CUDA_MEMCPY3D& p = *params;
  CopyWork work;
  work.params = p;
  work.given_context = context;
  work.context = of_copy->id;
  ASSIGN_OR_RETURN(work.plan,
                   PlanBox(session,
                           {.type = p.dstMemoryType,
                            .host = p.dstHost,
                            .device = p.dstDevice,
                            .array = p.dstArray,
                            .x_bytes = p.dstXInBytes,
                            .y = p.dstY,
                            .z = p.dstZ,
                            .pitch = p.dstPitch,
                            .rows = p.dstHeight,
                            .level = p.dstLOD},
                           {.type = p.srcMemoryType,
                            .host = p.srcHost,
                            .device = p.srcDevice,
                            .array = p.srcArray,
                            .x_bytes = p.srcXInBytes,
                            .y = p.srcY,
                            .z = p.srcZ,
                            .pitch = p.srcPitch,
                            .rows = p.srcHeight,
                            .level = p.srcLOD},
                           {.width = p.WidthInBytes, .height = p.Height, .depth = p.Depth}));
  return NodeWork(std::move(work));
}

absl::StatusOr<NodeWork> ReadFillParams(Session& session, const CUDA_MEMSET_NODE_PARAMS* params,
                                        CUcontext context) {
  if (params == nullptr) return Invalid("memsetParams is null");
  ASSIGN_OR_RETURN(const Context* of_fill, ContextOrCurrent(session, context));
  RETURN_IF_ERROR(CheckFill(session, *params));
  FillWork work;
  std::memcpy(&work.params, params, sizeof(*params));
  work.params.ctx = context;
  work.context = of_fill->id;
  return NodeWork(std::move(work));
}

absl::StatusOr<NodeWork> ReadHostParams(const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  if (params->fn == nullptr) return Invalid("the node's function is null");
  return NodeWork(HostWork{.function = params->fn, .data = params->userData});
}

absl::StatusOr<NodeWork> ReadEvent(Session& session, CUevent event, CUgraphNodeType type) {
  wire::EventId id;
  RETURN_IF_ERROR(session.ToWire(event, &id));
  if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) return NodeWork(WaitWork{.event = event, .id = id});
  return NodeWork(RecordWork{.event = event, .id = id});
}

absl::StatusOr<NodeWork> ReadValueParams(Session& session,
                                         const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  if (params->count > kMostValueOperations || params->flags != 0 ||
      (params->count > 0 && params->paramArray == nullptr)) {
    return Invalid(absl::StrCat(params->count, " memory operations, flags ", params->flags));
  }
  ASSIGN_OR_RETURN(const Context* context, ContextOrCurrent(session, params->ctx));
  ValueWork work;
  work.given_context = params->ctx;
  work.context = context->id;
  for (unsigned i = 0; i < params->count; ++i) {
    RETURN_IF_ERROR(CheckValueOperation(session, params->paramArray[i]));
    work.operations.push_back(CopyOf(params->paramArray[i]));
  }
  return NodeWork(std::move(work));
}

absl::StatusOr<NodeWork> ReadAllocParams(Session& session,
                                         const CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (params == nullptr) return Invalid("nodeParams is null");
  const CUmemPoolProps& pool = params->poolProps;
  if (pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return Invalid("memory of graphs is pinned, on a device and not exported");
  }
  RETURN_IF_ERROR(CheckDevice(session, pool.location.id));
  if (params->accessDescCount > 0 && params->accessDescs == nullptr) {
    return Invalid("accessDescs is null");
  }
  AllocWork work;
  std::memcpy(&work.params, params, sizeof(*params));
  for (size_t i = 0; i < params->accessDescCount; ++i) {
    RETURN_IF_ERROR(CheckDevice(session, params->accessDescs[i].location.id));
    work.access.push_back(params->accessDescs[i]);
  }
  work.params.accessDescs = nullptr;
  ASSIGN_OR_RETURN(work.memory, NewMemory(session, pool.location.id, params->bytesize));
  work.params.dptr = work.memory->address;
  return NodeWork(std::move(work));
}

absl::StatusOr<NodeWork> ReadFreeParams(Session& session, CUdeviceptr address) {
  AssertHeld(session.graphs());
  std::shared_ptr<GraphMemory> memory = session.graphs().FindMemory(address);
  if (memory == nullptr) {
    return Invalid(
        absl::StrCat("0x", absl::Hex(address), " was not given by a node that allocates"));
  }
  return NodeWork(FreeWork{.address = address, .memory = std::move(memory)});
}

absl::StatusOr<NodeWork> ReadChildParams(Session& session, CUgraph child,
                                         CUgraphChildGraphNodeOwnership ownership) {
  Graphs& graphs = session.graphs();
  AssertHeld(graphs);
  ASSIGN_OR_RETURN(std::shared_ptr<Graph> graph, graphs.Find(child));
  const bool conditional = std::any_of(graph->nodes.begin(), graph->nodes.end(), [](auto& node) {
    return std::holds_alternative<ConditionalWork>(node->work);
  });
  if (conditional) return CudaError(CUDA_ERROR_NOT_SUPPORTED, "a child with conditional nodes");
  if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    if (graph->of_node) return Invalid("the graph belongs to a node already");
  } else {
    ASSIGN_OR_RETURN(graph, graphs.Clone(*graph));
  }
  graph->of_node = true;
  return NodeWork(ChildWork{.graph = std::move(graph)});
}

absl::StatusOr<NodeWork> ReadConditionalParams(Session& session, Graph& graph,
                                               const CUDA_CONDITIONAL_NODE_PARAMS& params) {
  Condition* const condition = graph.FindCondition(params.handle);
  if (condition == nullptr || condition->used) {
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
  ASSIGN_OR_RETURN(const Context* context, ContextOrCurrent(session, params.ctx));
  condition->used = true;
  ConditionalWork work;
  work.handle = params.handle;
  work.type = params.type;
  work.context = context->id;
  Graphs& graphs = session.graphs();
  AssertHeld(graphs);
  for (unsigned i = 0; i < params.size; ++i) {
    work.bodies.push_back(graphs.New());
    work.bodies.back()->of_node = true;
    work.body_handles.push_back(work.bodies.back()->handle);
  }
  return NodeWork(std::move(work));
}

absl::StatusOr<NodeWork> ReadNodeParams(Session& session, Graph& graph,
                                        const CUgraphNodeParams& params) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return ReadKernelParams(session, &params.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      if (params.memcpy.flags != 0) return Invalid("flags of a copy node");
      return ReadCopyParams(session, &params.memcpy.copyParams, params.memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return ReadFillParams(session,
                            reinterpret_cast<const CUDA_MEMSET_NODE_PARAMS*>(&params.memset),
                            params.memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
      return ReadHostParams(reinterpret_cast<const CUDA_HOST_NODE_PARAMS*>(&params.host));
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return ReadChildParams(session, params.graph.graph, params.graph.ownership);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return NodeWork(EmptyWork{});
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ReadEvent(session, params.eventWait.event, params.type);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ReadEvent(session, params.eventRecord.event, params.type);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return ReadAllocParams(session,
                             reinterpret_cast<const CUDA_MEM_ALLOC_NODE_PARAMS*>(&params.alloc));
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return ReadFreeParams(session, params.free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return ReadValueParams(session,
                             reinterpret_cast<const CUDA_BATCH_MEM_OP_NODE_PARAMS*>(&params.memOp));
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return ReadConditionalParams(session, graph, params.conditional);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "external semaphores");
    default:
      return Invalid(absl::StrCat("node type ", static_cast<int>(params.type)));
  }
}

void WriteNodeResults(NodeWork& work, CUgraphNodeParams* params) {
  if (const auto* alloc = std::get_if<AllocWork>(&work)) {
    params->alloc.dptr = alloc->params.dptr;
  } else if (auto* conditional = std::get_if<ConditionalWork>(&work)) {
    params->conditional.phGraph_out = conditional->body_handles.data();
  } else if (const auto* child = std::get_if<ChildWork>(&work)) {
    params->graph.graph = child->graph->handle;
  }
}

CUDA_KERNEL_NODE_PARAMS_v3 WriteKernelParams(GraphNode& node) {
  KernelWork& kernel = std::get<KernelWork>(node.work);
  CUDA_KERNEL_NODE_PARAMS_v3 params = {};
  params.func = kernel.given_function;
  params.kern = kernel.given_kernel;
  params.ctx = kernel.given_context;
  params.gridDimX = kernel.grid[0];
  params.gridDimY = kernel.grid[1];
  params.gridDimZ = kernel.grid[2];
  params.blockDimX = kernel.block[0];
  params.blockDimY = kernel.block[1];
  params.blockDimZ = kernel.block[2];
  params.sharedMemBytes = kernel.shared_bytes;
  node.param_pointers.clear();
  for (const uint32_t offset : kernel.param_offsets) {
    node.param_pointers.push_back(kernel.params.data() + offset);
  }
  params.kernelParams = node.param_pointers.data();
  return params;
}

absl::Status CaptureAlloc(Session& session, wire::StreamId stream, int device, size_t bytes,
                          CUdeviceptr* address) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  params.bytesize = bytes;
  NodeWork work;
  {
    MutexLock lock(&session.graphs().mutex);
    ASSIGN_OR_RETURN(work, ReadAllocParams(session, &params));
  }
  const CUdeviceptr given = std::get<AllocWork>(work).params.dptr;
  RETURN_IF_ERROR(CaptureWork(session, stream, std::move(work)));
  *address = given;
  return absl::OkStatus();
}

absl::Status CaptureFree(Session& session, wire::StreamId stream, CUdeviceptr address) {
  NodeWork work;
  {
    MutexLock lock(&session.graphs().mutex);
    ASSIGN_OR_RETURN(work, ReadFreeParams(session, address));
  }
  return CaptureWork(session, stream, std::move(work));
}

}  // namespace fargpu::client
