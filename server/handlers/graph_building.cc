#include "server/handlers/graph_building.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server/handlers/box_places.h"

namespace fargpu::server::handlers {
namespace {

template <typename Message>
absl::Status Decode(Call& call, wire::Bytes body, Message* message) {
  if (absl::Status decoded = wire::DecodeMessage(body, message); !decoded.ok()) {
    return call.Malformed(decoded.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<CUcontext> ContextOf(Call& call, wire::ContextId id) {
  Context context;
  RETURN_IF_ERROR(call.Resolve(id, &context));
  return context.handle;
}

void CUDA_CB DoNothing(void*) {}

// The driver's form of a kernel node; the pointers are into this.
struct KernelParams {
  CUDA_KERNEL_NODE_PARAMS params = {};
  std::vector<void*> pointers;
  std::vector<CUlaunchAttribute> attributes;
};

absl::Status ReadKernel(Call& call, wire::Bytes body, KernelParams* kernel) {
  wire::GraphKernel message;
  RETURN_IF_ERROR(Decode(call, body, &message));
  Function function;
  RETURN_IF_ERROR(call.objects().functions.Find(message.function, &function));
  if (message.params.size() < function.layout->bytes) {
    return call.Malformed(absl::StrCat("a kernel node with ", message.params.size(),
                                       " bytes of parameters; the kernel takes ",
                                       function.layout->bytes));
  }
  for (uint32_t offset : function.layout->offsets) {
    kernel->pointers.push_back(const_cast<char*>(message.params.data()) + offset);
  }
  kernel->params.gridDimX = message.grid[0];
  kernel->params.gridDimY = message.grid[1];
  kernel->params.gridDimZ = message.grid[2];
  kernel->params.blockDimX = message.block[0];
  kernel->params.blockDimY = message.block[1];
  kernel->params.blockDimZ = message.block[2];
  kernel->params.sharedMemBytes = message.shared_bytes;
  kernel->params.kernelParams = kernel->pointers.data();
  if (function.is_kernel) {
    kernel->params.kern = reinterpret_cast<CUkernel>(function.handle);
    ASSIGN_OR_RETURN(kernel->params.ctx, ContextOf(call, message.context));
  } else {
    kernel->params.func = function.handle;
  }
  kernel->attributes = std::move(message.attributes);
  for (const CUlaunchAttribute& attribute : kernel->attributes) {
    if (!IsPlainAttribute(attribute.id)) {
      return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                       absl::StrCat("launch attribute ", static_cast<int>(attribute.id)));
    }
  }
  return absl::OkStatus();
}

struct CopyParams {
  CUDA_MEMCPY3D params = {};
  CUcontext context = nullptr;
  wire::GraphCopy::Host host = wire::GraphCopy::kNone;
  std::shared_ptr<HostWork> work;
};

absl::Status ReadCopy(Call& call, wire::Bytes body, CopyParams* copy) {
  wire::GraphCopy message;
  RETURN_IF_ERROR(Decode(call, body, &message));
  if (message.host > wire::GraphCopy::kDestination) {
    return call.Malformed(absl::StrCat("a copy node with host side ", message.host));
  }
  ASSIGN_OR_RETURN(copy->context, ContextOf(call, message.context));
  copy->host = static_cast<wire::GraphCopy::Host>(message.host);
  CUDA_MEMCPY3D& box = copy->params;
  box.WidthInBytes = message.shape.width;
  box.Height = message.shape.height;
  box.Depth = message.shape.depth;
  if (copy->host != wire::GraphCopy::kNone) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(message.shape.width, message.shape.height, &bytes) ||
        __builtin_mul_overflow(bytes, message.shape.depth, &bytes) || bytes == 0) {
      return call.Malformed("a copy node without bytes, or with more than there are");
    }
    const bool source = copy->host == wire::GraphCopy::kSource;
    ASSIGN_OR_RETURN(copy->work, call.resources().host_functions.NewWork(
                                     source ? HostWork::Kind::kPull : HostWork::Kind::kPush,
                                     message.token, bytes));
    if (source) {
      box.srcMemoryType = CU_MEMORYTYPE_HOST;
      box.srcHost = copy->work->bytes();
      box.srcPitch = message.shape.width;
      box.srcHeight = message.shape.height;
    } else {
      box.dstMemoryType = CU_MEMORYTYPE_HOST;
      box.dstHost = copy->work->bytes();
      box.dstPitch = message.shape.width;
      box.dstHeight = message.shape.height;
    }
  }
  if (copy->host != wire::GraphCopy::kSource) {
    RETURN_IF_ERROR(SetBoxSource(call, message.from, &box));
  }
  if (copy->host != wire::GraphCopy::kDestination) {
    RETURN_IF_ERROR(SetBoxDestination(call, message.to, &box));
  }
  return absl::OkStatus();
}

struct FillParams {
  CUDA_MEMSET_NODE_PARAMS params = {};
  CUcontext context = nullptr;
};

absl::Status ReadFill(Call& call, wire::Bytes body, FillParams* fill) {
  wire::GraphFill message;
  RETURN_IF_ERROR(Decode(call, body, &message));
  ASSIGN_OR_RETURN(fill->context, ContextOf(call, message.context));
  fill->params.dst = message.address;
  fill->params.pitch = message.pitch;
  fill->params.value = message.value;
  fill->params.elementSize = message.element_bytes;
  fill->params.width = message.width;
  fill->params.height = message.height;
  return absl::OkStatus();
}

absl::Status ReadHost(Call& call, wire::Bytes body, std::shared_ptr<HostWork>* work) {
  wire::GraphHost message;
  RETURN_IF_ERROR(Decode(call, body, &message));
  ASSIGN_OR_RETURN(
      *work, call.resources().host_functions.NewWork(HostWork::Kind::kFunction, message.token, 0));
  return absl::OkStatus();
}

CUDA_HOST_NODE_PARAMS HostParams(const std::shared_ptr<HostWork>& work) {
  return {.fn = &HostWork::Entry, .userData = work.get()};
}

struct ValueParams {
  std::vector<CUstreamBatchMemOpParams> operations;
  CUDA_BATCH_MEM_OP_NODE_PARAMS params = {};
};

absl::Status ReadValues(Call& call, wire::Bytes body, ValueParams* values) {
  wire::GraphValues message;
  RETURN_IF_ERROR(Decode(call, body, &message));
  ASSIGN_OR_RETURN(values->params.ctx, ContextOf(call, message.context));
  values->operations = std::move(message.operations);
  values->params.count = static_cast<unsigned>(values->operations.size());
  values->params.paramArray = values->operations.data();
  values->params.flags = message.flags;
  return absl::OkStatus();
}

absl::Status ReadEvent(Call& call, wire::Bytes body, CUevent* event) {
  wire::GraphEvent message;
  RETURN_IF_ERROR(Decode(call, body, &message));
  return call.Resolve(message.event, event);
}

// Adds one node.
class NodeBuilder {
 public:
  NodeBuilder(Call& call, CUgraph graph, std::vector<CUgraphNode> dependencies, wire::Bytes body,
              GraphNode* node)
      : call_(call),
        driver_(call.driver()),
        graph_(graph),
        dependencies_(std::move(dependencies)),
        body_(body),
        node_(*node) {}

  absl::Status Add() {
    RETURN_IF_ERROR(AddOfType());
    if (node_.first == nullptr) node_.first = node_.node;
    if (node_.last == nullptr) node_.last = node_.node;
    return absl::OkStatus();
  }

 private:
  absl::Status AddOfType() {
    switch (node_.type) {
      case CU_GRAPH_NODE_TYPE_EMPTY:
        RETURN_IF_CUDA_ERROR(driver_.cuGraphAddEmptyNode(&node_.node, graph_, dependencies_.data(),
                                                         dependencies_.size()));
        return absl::OkStatus();
      case CU_GRAPH_NODE_TYPE_KERNEL:
        return AddKernel();
      case CU_GRAPH_NODE_TYPE_MEMCPY:
        return AddCopy();
      case CU_GRAPH_NODE_TYPE_MEMSET: {
        FillParams fill;
        RETURN_IF_ERROR(ReadFill(call_, body_, &fill));
        RETURN_IF_CUDA_ERROR(driver_.cuGraphAddMemsetNode(&node_.node, graph_, dependencies_.data(),
                                                          dependencies_.size(), &fill.params,
                                                          fill.context));
        return absl::OkStatus();
      }
      case CU_GRAPH_NODE_TYPE_HOST:
        RETURN_IF_ERROR(ReadHost(call_, body_, &node_.work));
        RETURN_IF_ERROR(AddHost(dependencies_));
        node_.node = node_.host;
        return absl::OkStatus();
      case CU_GRAPH_NODE_TYPE_GRAPH:
        return AddChild();
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
        CUevent event = nullptr;
        RETURN_IF_ERROR(ReadEvent(call_, body_, &event));
        RETURN_IF_CUDA_ERROR(
            node_.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT
                ? driver_.cuGraphAddEventWaitNode(&node_.node, graph_, dependencies_.data(),
                                                  dependencies_.size(), event)
                : driver_.cuGraphAddEventRecordNode(&node_.node, graph_, dependencies_.data(),
                                                    dependencies_.size(), event));
        return absl::OkStatus();
      }
      case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        ValueParams values;
        RETURN_IF_ERROR(ReadValues(call_, body_, &values));
        RETURN_IF_CUDA_ERROR(driver_.cuGraphAddBatchMemOpNode(
            &node_.node, graph_, dependencies_.data(), dependencies_.size(), &values.params));
        return absl::OkStatus();
      }
      case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return AddConditional();
      default:
        return call_.Malformed(
            absl::StrCat("a node of type ", static_cast<int>(node_.type), " in a graph"));
    }
  }

  absl::Status AddHost(const std::vector<CUgraphNode>& after) {
    const CUDA_HOST_NODE_PARAMS params = HostParams(node_.work);
    RETURN_IF_CUDA_ERROR(
        driver_.cuGraphAddHostNode(&node_.host, graph_, after.data(), after.size(), &params));
    return absl::OkStatus();
  }

  absl::Status AddKernel() {
    KernelParams kernel;
    RETURN_IF_ERROR(ReadKernel(call_, body_, &kernel));
    RETURN_IF_CUDA_ERROR(driver_.cuGraphAddKernelNode_v2(&node_.node, graph_, dependencies_.data(),
                                                         dependencies_.size(), &kernel.params));
    for (const CUlaunchAttribute& attribute : kernel.attributes) {
      RETURN_IF_CUDA_ERROR(
          driver_.cuGraphKernelNodeSetAttribute(node_.node, attribute.id, &attribute.value));
    }
    return absl::OkStatus();
  }

  absl::Status AddCopy() {
    CopyParams copy;
    RETURN_IF_ERROR(ReadCopy(call_, body_, &copy));
    node_.work = copy.work;
    node_.copy_host = copy.host;
    std::vector<CUgraphNode> after = dependencies_;
    if (copy.host == wire::GraphCopy::kSource) {
      RETURN_IF_ERROR(AddHost(dependencies_));
      after = {node_.host};
      node_.first = node_.host;
    }
    RETURN_IF_CUDA_ERROR(driver_.cuGraphAddMemcpyNode(&node_.node, graph_, after.data(),
                                                      after.size(), &copy.params, copy.context));
    if (copy.host == wire::GraphCopy::kDestination) {
      RETURN_IF_ERROR(AddHost({node_.node}));
      node_.last = node_.host;
    }
    return absl::OkStatus();
  }

  // The child's nodes come behind and are added to the driver's copy of an empty graph.
  absl::Status AddChild() {
    CUgraph empty = nullptr;
    RETURN_IF_CUDA_ERROR(driver_.cuGraphCreate(&empty, 0));
    const CUresult added = driver_.cuGraphAddChildGraphNode(
        &node_.node, graph_, dependencies_.data(), dependencies_.size(), empty);
    driver_.cuGraphDestroy(empty);
    RETURN_IF_CUDA_ERROR(added);
    node_.inner.resize(1);
    RETURN_IF_CUDA_ERROR(driver_.cuGraphChildGraphNodeGetGraph(node_.node, node_.inner.data()));
    return absl::OkStatus();
  }

  absl::Status AddConditional() {
    wire::GraphConditional message;
    RETURN_IF_ERROR(Decode(call_, body_, &message));
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = message.handle;
    params.conditional.type = static_cast<CUgraphConditionalNodeType>(message.type);
    params.conditional.size = message.bodies;
    ASSIGN_OR_RETURN(params.conditional.ctx, ContextOf(call_, message.context));
    RETURN_IF_CUDA_ERROR(driver_.cuGraphAddNode_v2(&node_.node, graph_, dependencies_.data(),
                                                   nullptr, dependencies_.size(), &params));
    for (uint32_t i = 0; i < message.bodies; ++i) {
      node_.inner.push_back(params.conditional.phGraph_out[i]);
    }
    return absl::OkStatus();
  }

  Call& call_;
  Driver& driver_;
  const CUgraph graph_;
  const std::vector<CUgraphNode> dependencies_;
  const wire::Bytes body_;
  GraphNode& node_;
};

}  // namespace

absl::Status BuildGraph(Call& call, const std::vector<GraphExec::Part>& parts, CUgraph graph,
                        std::vector<GraphNode>* nodes) {
  nodes->clear();
  nodes->reserve(parts.size());
  for (const GraphExec::Part& part : parts) {
    const wire::GraphNode& message = part.node;
    GraphNode node;
    node.type = static_cast<CUgraphNodeType>(message.type);
    node.parent = message.parent;
    node.branch = message.branch;
    CUgraph into = graph;
    if (message.parent != wire::GraphNode::kNoParent) {
      if (message.parent >= nodes->size() ||
          message.branch >= (*nodes)[message.parent].inner.size()) {
        return call.Malformed(absl::StrCat("node ", nodes->size(), " of a graph lies in branch ",
                                           message.branch, " of node ", message.parent));
      }
      into = (*nodes)[message.parent].inner[message.branch];
    }
    std::vector<CUgraphNode> dependencies;
    for (uint32_t position : message.dependencies) {
      if (position >= nodes->size() || (*nodes)[position].parent != message.parent ||
          (*nodes)[position].branch != message.branch) {
        return call.Malformed(
            absl::StrCat("node ", nodes->size(), " of a graph depends on node ", position));
      }
      dependencies.push_back((*nodes)[position].last);
    }
    const bool with_edges = !message.edges.empty();
    if (with_edges && message.edges.size() != dependencies.size()) {
      return call.Malformed(absl::StrCat(message.edges.size(), " edges for ", dependencies.size(),
                                         " dependencies of a node"));
    }
    std::vector<CUgraphNode> plain = with_edges ? std::vector<CUgraphNode>() : dependencies;
    RETURN_IF_ERROR(NodeBuilder(call, into, std::move(plain), part.body, &node).Add());
    if (with_edges && !dependencies.empty()) {
      const std::vector<CUgraphNode> to(dependencies.size(), node.first);
      RETURN_IF_CUDA_ERROR(call.driver().cuGraphAddDependencies_v2(
          into, dependencies.data(), to.data(), message.edges.data(), dependencies.size()));
    }
    nodes->push_back(std::move(node));
  }
  return absl::OkStatus();
}

absl::Status UpdateGraphNode(Call& call, GraphExec& graph, uint32_t position, wire::Bytes body) {
  if (position >= graph.nodes.size()) {
    return call.Malformed(absl::StrCat("an update of node ", position, " of ", graph.nodes.size()));
  }
  GraphNode& node = graph.nodes[position];
  Driver& driver = call.driver();
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      KernelParams kernel;
      RETURN_IF_ERROR(ReadKernel(call, body, &kernel));
      RETURN_IF_CUDA_ERROR(
          driver.cuGraphExecKernelNodeSetParams_v2(graph.exec, node.node, &kernel.params));
      return absl::OkStatus();
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      CopyParams copy;
      RETURN_IF_ERROR(ReadCopy(call, body, &copy));
      if (copy.host != node.copy_host) {
        return call.Malformed("an update turns a copy node around");
      }
      RETURN_IF_CUDA_ERROR(
          driver.cuGraphExecMemcpyNodeSetParams(graph.exec, node.node, &copy.params, copy.context));
      if (copy.work == nullptr) return absl::OkStatus();
      node.work = std::move(copy.work);
      break;
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      RETURN_IF_ERROR(ReadHost(call, body, &node.work));
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      FillParams fill;
      RETURN_IF_ERROR(ReadFill(call, body, &fill));
      RETURN_IF_CUDA_ERROR(
          driver.cuGraphExecMemsetNodeSetParams(graph.exec, node.node, &fill.params, fill.context));
      return absl::OkStatus();
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
      CUevent event = nullptr;
      RETURN_IF_ERROR(ReadEvent(call, body, &event));
      RETURN_IF_CUDA_ERROR(
          node.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT
              ? driver.cuGraphExecEventWaitNodeSetEvent(graph.exec, node.node, event)
              : driver.cuGraphExecEventRecordNodeSetEvent(graph.exec, node.node, event));
      return absl::OkStatus();
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      ValueParams values;
      RETURN_IF_ERROR(ReadValues(call, body, &values));
      RETURN_IF_CUDA_ERROR(
          driver.cuGraphExecBatchMemOpNodeSetParams(graph.exec, node.node, &values.params));
      return absl::OkStatus();
    }
    default:
      return call.Malformed(
          absl::StrCat("an update of a node of type ", static_cast<int>(node.type)));
  }
  // The client's part has been replaced: runs from now on come to the new one.
  CollectWorks(graph);
  if (!node.enabled) return absl::OkStatus();
  const CUDA_HOST_NODE_PARAMS params = HostParams(node.work);
  RETURN_IF_CUDA_ERROR(driver.cuGraphExecHostNodeSetParams(graph.exec, node.host, &params));
  return absl::OkStatus();
}

absl::Status EnableGraphNode(Call& call, GraphExec& graph, uint32_t position, bool enabled) {
  if (position >= graph.nodes.size()) {
    return call.Malformed(absl::StrCat("node ", position, " of ", graph.nodes.size()));
  }
  GraphNode& node = graph.nodes[position];
  node.enabled = enabled;
  if (node.work != nullptr) {
    // The driver cannot leave out a host node, so it becomes one that does nothing.
    const CUDA_HOST_NODE_PARAMS params =
        enabled ? HostParams(node.work)
                : CUDA_HOST_NODE_PARAMS{.fn = &DoNothing, .userData = nullptr};
    RETURN_IF_CUDA_ERROR(
        call.driver().cuGraphExecHostNodeSetParams(graph.exec, node.host, &params));
    if (node.type == CU_GRAPH_NODE_TYPE_HOST) return absl::OkStatus();
  }
  RETURN_IF_CUDA_ERROR(call.driver().cuGraphNodeSetEnabled(graph.exec, node.node, enabled ? 1 : 0));
  return absl::OkStatus();
}

void CollectWorks(GraphExec& graph) {
  auto works = std::make_shared<std::vector<std::shared_ptr<HostWork>>>();
  for (const GraphNode& node : graph.nodes) {
    if (node.work != nullptr) works->push_back(node.work);
  }
  graph.works = std::move(works);
}

}  // namespace fargpu::server::handlers
