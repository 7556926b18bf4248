// Executable graphs, conditional handles and the memory of graphs.

#include "softgpu/driver/edge.h"
#include "softgpu/driver/graph_exec.h"

namespace fargpu::softgpu {
namespace {

absl::StatusOr<std::shared_ptr<GraphExec>> FindExec(Driver& driver, CUgraphExec handle) {
  if (std::shared_ptr<GraphExec> exec = driver.graph_execs.Find(handle)) return exec;
  return InvalidValue("not an executable graph");
}

CUresult Instantiate(const char* call, CUgraphExec* out, CUgraph handle, uint64_t flags,
                     CUgraphInstantiateResult* result) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, handle));
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec,
                     GraphExec::Instantiate(driver, *graph, flags, result));
    *out = exec->handle;
    return absl::OkStatus();
  });
}

CUresult Update(const char* call, CUgraphExec exec_handle, CUgraph graph_handle,
                CUgraphExecUpdateResultInfo* info) {
  return WithDriver(call, [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(info);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, FindExec(driver, exec_handle));
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, graph_handle));
    return exec->Update(driver, *graph, info);
  });
}

}  // namespace

CUresult Do_cuGraphLaunch(const char* call, NullStream null, CUgraphExec handle, CUstream stream) {
  return WithStream(
      call, null, stream,
      [&](Driver& driver, Context& context, Stream& target) -> absl::Status {
        ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, FindExec(driver, handle));
        if (!target.is_capturing()) return exec->Launch(driver, context, target);
        std::shared_ptr<Graph> child;
        {
          MutexLock lock(&driver.graph_mutex);
          ASSIGN_OR_RETURN(child, exec->ToGraph(driver));
          child->of_node = true;
        }
        return CaptureWork(driver, target, ChildNode{.graph = std::move(child)});
      },
      OnCapture::kRecord);
}

// There is no device to send anything to.
CUresult Do_cuGraphUpload(const char* call, NullStream null, CUgraphExec handle, CUstream stream) {
  return WithStream(
      call, null, stream,
      [&](Driver& driver, Context&, Stream&) { return FindExec(driver, handle).status(); },
      OnCapture::kRefuse);
}

}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API_TWINS(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), exec, stream);
CU_API_TWINS(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), exec, stream);

// The oldest forms report a node that is wrong and a text; we name no single node.
CU_API CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                                   char* log, size_t log_bytes) {
  CUgraphInstantiateResult result;
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes > 0) log[0] = '\0';
  return Instantiate("cuGraphInstantiate", out, graph, 0, &result);
}
CU_API CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                                      char* log, size_t log_bytes) {
  return cuGraphInstantiate(out, graph, error_node, log, log_bytes);
}
CU_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph,
                                            unsigned long long flags) {
  CUgraphInstantiateResult result;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Instantiate("cuGraphInstantiateWithFlags", out, graph, flags, &result);
}

namespace fargpu::softgpu {

CUresult Do_cuGraphInstantiateWithParams(const char* call, NullStream, CUgraphExec* out,
                                         CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (Driver::Get() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  return Instantiate(call, out, graph, params->flags, &params->result_out);
}

}  // namespace fargpu::softgpu

CU_API_TWINS(cuGraphInstantiateWithParams, _ptsz,
             (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params), out, graph,
             params);

CU_API CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return WithDriver("cuGraphExecDestroy", [&](Driver& driver) -> absl::Status {
    // Runs under way have what they need.
    const std::shared_ptr<GraphExec> exec = driver.graph_execs.Remove(handle);
    if (exec == nullptr) return InvalidValue("not an executable graph");
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return WithDriver("cuGraphExecGetFlags", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(flags);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, FindExec(driver, handle));
    *flags = exec->flags;
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                                  CUgraphExecUpdateResult* result) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info = {};
  const CUresult updated = Update("cuGraphExecUpdate", exec, graph, &info);
  if (error_node != nullptr) *error_node = info.errorNode;
  *result = info.result;
  return updated;
}
CU_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                     CUgraphExecUpdateResultInfo* info) {
  return Update("cuGraphExecUpdate_v2", exec, graph, info);
}

CU_API CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned enabled) {
  return WithDriver("cuGraphNodeSetEnabled", [&](Driver& driver) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, FindExec(driver, handle));
    return exec->SetEnabled(node, enabled != 0);
  });
}

CU_API CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned* enabled) {
  return WithDriver("cuGraphNodeGetEnabled", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(enabled);
    ASSIGN_OR_RETURN(const std::shared_ptr<GraphExec> exec, FindExec(driver, handle));
    ASSIGN_OR_RETURN(const bool is_enabled, exec->IsEnabled(node));
    *enabled = is_enabled ? 1 : 0;
    return absl::OkStatus();
  });
}

CU_API CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* out, CUgraph graph_handle,
                                               CUcontext context_handle, unsigned default_value,
                                               unsigned flags) {
  return WithDriver("cuGraphConditionalHandleCreate", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    if ((flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) != 0) {
      return InvalidValue(absl::StrCat("flags ", flags));
    }
    ASSIGN_OR_RETURN(
        const std::shared_ptr<Context> context,
        driver.FindContext(context_handle == nullptr ? CurrentContextHandle() : context_handle));
    MutexLock lock(&driver.graph_mutex);
    ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, FindGraph(driver, graph_handle));
    // The value lies in device memory, where kernels set it; it goes with the context.
    ASSIGN_OR_RETURN(const uint64_t address,
                     driver.memory.Allocate(AllocationKind::kDevice, context->device, context->id,
                                            sizeof(uint32_t)));
    __atomic_store_n(reinterpret_cast<uint32_t*>(address), default_value, __ATOMIC_RELEASE);
    graph->conditions.push_back({.handle = address,
                                 .context = context->handle,
                                 .default_value = default_value,
                                 .assign_default = (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0,
                                 .used = false});
    *out = address;
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                             void* value) {
  return WithDriver("cuDeviceGetGraphMemAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(value);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    const DeviceMemory::GraphUse use = driver.memory.GetGraphUse(device);
    // Bytes go back to the device as soon as they are freed: what is reserved is what is used.
    switch (attribute) {
      case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *static_cast<cuuint64_t*>(value) = use.current;
        return absl::OkStatus();
      case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *static_cast<cuuint64_t*>(value) = use.high;
        return absl::OkStatus();
    }
    return InvalidValue(absl::StrCat("attribute ", static_cast<int>(attribute)));
  });
}

CU_API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                             void* value) {
  return WithDriver("cuDeviceSetGraphMemAttribute", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(value);
    RETURN_IF_ERROR(driver.CheckDevice(device));
    const bool is_mark = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ||
                         attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (!is_mark || *static_cast<const cuuint64_t*>(value) != 0) {
      return InvalidValue("only high-water marks can be set, to 0");
    }
    driver.memory.ResetGraphHigh(device);
    return absl::OkStatus();
  });
}

CU_API CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return WithDriver("cuDeviceGraphMemTrim",
                    [&](Driver& driver) { return driver.CheckDevice(device); });
}
