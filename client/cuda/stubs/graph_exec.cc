// Executable graphs, conditional handles and the memory of graphs.
#include "client/cuda/graph_exec.h"

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

// body(Graphs&, GraphExec&) under the mutex.
template <typename Body>
CUresult WithExec(const char* call, CUgraphExec handle, Body body) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, graphs.FindExec(handle));
    return body(graphs, *exec);
  });
}

CUresult Instantiate(const char* call, CUgraphExec* out, CUgraph handle, uint64_t flags,
                     CUgraphInstantiateResult* result) {
  return AtCudaEdge(call, [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(out, "phGraphExec"));
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(handle));
    ASSIGN_OR_RETURN(std::shared_ptr<GraphExec> exec,
                     GraphExec::Instantiate(session, *graph, flags, result));
    *out = graphs.AddExec(std::move(exec));
    return absl::OkStatus();
  });
}

CUresult Update(const char* call, CUgraphExec exec_handle, CUgraph graph_handle,
                CUgraphExecUpdateResultInfo* info) {
  return WithExec(call, exec_handle, [&](Graphs& graphs, GraphExec& exec) -> absl::Status {
    AssertHeld(graphs);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(graph_handle));
    return exec.Update(*graph, info);
  });
}

absl::Status CheckDevice(Session& session, CUdevice device) {
  if (device >= 0 && device < session.devices().count()) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_DEVICE,
                   absl::StrCat("device ", device, " of ", session.devices().count()));
}

}  // namespace

CUresult cuGraphLaunch(DefaultStream default_stream, CUgraphExec hGraph, CUstream hStream) {
  return AtCudaEdge("cuGraphLaunch", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    wire::StreamId stream;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &stream));
    RETURN_IF_ERROR(CheckImplicitCapture(session, stream));
    const bool capturing = IsCapturing(session, stream);
    std::shared_ptr<Graph> child;
    {
      Graphs& graphs = session.graphs();
      MutexLock lock(&graphs.mutex);
      ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, graphs.FindExec(hGraph));
      if (!capturing) return exec->Launch(stream);
      ASSIGN_OR_RETURN(child, exec->ToGraph());
      child->of_node = true;
    }
    return CaptureWork(session, stream, ChildWork{.graph = std::move(child)});
  });
}

CUresult cuGraphUpload(DefaultStream default_stream, CUgraphExec hGraph, CUstream hStream) {
  return AtCudaEdge("cuGraphUpload", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    wire::GraphUploadRequest request;
    RETURN_IF_ERROR(session.ToWire(hStream, default_stream, &request.hStream));
    RETURN_IF_ERROR(CheckImplicitCapture(session, request.hStream));
    RETURN_IF_ERROR(RefuseWhileCapturing(session, request.hStream));
    {
      MutexLock lock(&session.graphs().mutex);
      ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, session.graphs().FindExec(hGraph));
      request.exec = exec->id();
    }
    return session.Send(request);
  });
}

// The oldest forms report a node that is wrong and a text; we name no single node.
CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                            char* logBuffer, size_t bufferSize) {
  CUgraphInstantiateResult result;
  if (phErrorNode != nullptr) *phErrorNode = nullptr;
  if (logBuffer != nullptr && bufferSize > 0) logBuffer[0] = '\0';
  return Instantiate("cuGraphInstantiate", phGraphExec, hGraph, 0, &result);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                               char* logBuffer, size_t bufferSize) {
  return api::cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                     unsigned long long flags) {
  CUgraphInstantiateResult result;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Instantiate("cuGraphInstantiateWithFlags", phGraphExec, hGraph, flags, &result);
}

CUresult cuGraphInstantiateWithParams(DefaultStream, CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return AtCudaEdge("cuGraphInstantiateWithParams", [&](Session&) -> absl::Status {
    RETURN_IF_ERROR(NotNull(instantiateParams, "instantiateParams"));
    instantiateParams->hErrNode_out = nullptr;
    return FromCuResult(Instantiate("cuGraphInstantiateWithParams", phGraphExec, hGraph,
                                    instantiateParams->flags, &instantiateParams->result_out),
                        "the graph");
  });
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  return AtCudaEdge("cuGraphExecDestroy", [&](Session& session) -> absl::Status {
    std::vector<UserObject> ended;
    {
      Graphs& graphs = session.graphs();
      MutexLock lock(&graphs.mutex);
      const std::shared_ptr<GraphExec> exec = graphs.RemoveExec(hGraphExec);
      if (exec == nullptr) return Invalid("not an executable graph");
      ended = exec->Release();
    }
    Graphs::Destroy(ended);
    return absl::OkStatus();
  });
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  return WithExec("cuGraphExecGetFlags", hGraphExec, [&](Graphs&, GraphExec& exec) -> absl::Status {
    RETURN_IF_ERROR(NotNull(flags, "flags"));
    *flags = exec.flags();
    return absl::OkStatus();
  });
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
  if (updateResult_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info = {};
  const CUresult updated = Update("cuGraphExecUpdate", hGraphExec, hGraph, &info);
  if (hErrorNode_out != nullptr) *hErrorNode_out = info.errorNode;
  *updateResult_out = info.result;
  return updated;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo* resultInfo) {
  return AtCudaEdge("cuGraphExecUpdate_v2", [&](Session&) -> absl::Status {
    RETURN_IF_ERROR(NotNull(resultInfo, "resultInfo"));
    return FromCuResult(Update("cuGraphExecUpdate_v2", hGraphExec, hGraph, resultInfo),
                        "the update");
  });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  return WithExec("cuGraphNodeSetEnabled", hGraphExec,
                  [&](Graphs&, GraphExec& exec) { return exec.SetEnabled(hNode, isEnabled != 0); });
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int* isEnabled) {
  return WithExec("cuGraphNodeGetEnabled", hGraphExec,
                  [&](Graphs&, GraphExec& exec) -> absl::Status {
                    RETURN_IF_ERROR(NotNull(isEnabled, "isEnabled"));
                    ASSIGN_OR_RETURN(const bool is_enabled, exec.IsEnabled(hNode));
                    *isEnabled = is_enabled ? 1 : 0;
                    return absl::OkStatus();
                  });
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph,
                                        CUcontext ctx, unsigned int defaultLaunchValue,
                                        unsigned int flags) {
  return AtCudaEdge("cuGraphConditionalHandleCreate", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pHandle_out, "pHandle_out"));
    if ((flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) != 0) {
      return Invalid(absl::StrCat("flags ", flags));
    }
    wire::GraphConditionalHandleCreateRequest request{.default_value = defaultLaunchValue,
                                                      .flags = flags};
    if (ctx != nullptr) {
      RETURN_IF_ERROR(session.ToWire(ctx, &request.context));
    } else {
      ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
      request.context = context->id;
    }
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, graphs.Find(hGraph));
    // The worker makes the handle for the outermost graph, which is all that it will instantiate.
    const Graph* outermost = graph.get();
    while (outermost->around != nullptr) outermost = outermost->around;
    std::shared_ptr<GraphSeed> seed = outermost->Seed();
    if (seed == nullptr) seed = std::make_shared<GraphSeed>(&session, outermost->id);
    request.graph = seed->id;
    wire::GraphConditionalHandleCreateReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    graph->conditions.push_back({.handle = reply.handle, .seed = std::move(seed), .used = false});
    *pHandle_out = reply.handle;
    return absl::OkStatus();
  });
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  return AtCudaEdge("cuDeviceGetGraphMemAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(value, "value"));
    RETURN_IF_ERROR(CheckDevice(session, device));
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    const Graphs::MemoryUse use = graphs.UseOf(device);
    switch (attr) {
      case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *static_cast<cuuint64_t*>(value) = use.current;
        return absl::OkStatus();
      case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *static_cast<cuuint64_t*>(value) = use.high;
        return absl::OkStatus();
    }
    return Invalid(absl::StrCat("attribute ", static_cast<int>(attr)));
  });
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  return AtCudaEdge("cuDeviceSetGraphMemAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(value, "value"));
    RETURN_IF_ERROR(CheckDevice(session, device));
    const bool is_mark =
        attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (!is_mark || *static_cast<const cuuint64_t*>(value) != 0) {
      return Invalid("only high-water marks can be set, to 0");
    }
    Graphs& graphs = session.graphs();
    MutexLock lock(&graphs.mutex);
    graphs.UseOf(device).high = graphs.UseOf(device).current;
    return absl::OkStatus();
  });
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  // Memory of graphs is theirs as long as they are; there is none beside.
  return AtCudaEdge("cuDeviceGraphMemTrim",
                    [&](Session& session) { return CheckDevice(session, device); });
}

}  // namespace fargpu::client::api
