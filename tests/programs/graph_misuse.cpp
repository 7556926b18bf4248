// What the driver says of mistakes with graphs and captures: one line for each call, with the name
// of the result. The same lines come from every driver. Linked with -lcuda alone.
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <thread>
#include <vector>

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .entry store(.param .u64 address, .param .u32 value)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [address];
  ld.param.u32 %r1, [value];
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

const char* NameOf(CUresult result) {
  const char* name = "unknown";
  cuGetErrorName(result, &name);
  return name;
}

void Must(CUresult result, const char* call, int line) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "line %d: %s: %s\n", line, call, NameOf(result));
  std::exit(1);
}
#define MUST(call) Must((call), #call, __LINE__)

void Tell(const char* what, CUresult result) { std::printf("%-60s %s\n", what, NameOf(result)); }
#define TELL(call) Tell(#call, (call))

void CUDA_CB Nothing(void*) {}

CUfunction function = nullptr;
CUdeviceptr memory = 0;
CUstream stream = nullptr;
CUstream other = nullptr;
CUevent event = nullptr;

CUDA_KERNEL_NODE_PARAMS KernelParams(void** arguments) {
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = arguments;
  return params;
}

CUDA_MEMSET_NODE_PARAMS FillParams() {
  CUDA_MEMSET_NODE_PARAMS params = {};
  params.dst = memory;
  params.elementSize = 4;
  params.width = 4;
  params.height = 1;
  return params;
}

// The capture goes, whatever has become of it.
void EndAnyhow(CUstream captured) {
  CUgraph graph = nullptr;
  if (cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS) MUST(cuGraphDestroy(graph));
}

CUstreamCaptureStatus StatusOf(CUstream captured) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  MUST(cuStreamIsCapturing(captured, &status));
  return status;
}

// A call that a capture forbids, in each mode of capture and thread; it spoils the capture or not.
void Forbidden() {
  const char* const modes[] = {"global", "thread-local", "relaxed"};
  for (int mode = 0; mode < 3; ++mode) {
    for (int thread = 0; thread < 3; ++thread) {
      CUstreamCaptureMode exchanged = static_cast<CUstreamCaptureMode>(thread);
      MUST(cuStreamBeginCapture_v2(stream, static_cast<CUstreamCaptureMode>(mode)));
      MUST(cuThreadExchangeStreamCaptureMode(&exchanged));
      CUdeviceptr allocated = 0;
      const CUresult result = cuMemAlloc(&allocated, 64);
      const CUstreamCaptureStatus status = StatusOf(stream);
      MUST(cuThreadExchangeStreamCaptureMode(&exchanged));
      std::printf("cuMemAlloc in a %s capture, thread %s: %s, capture %s\n", modes[mode],
                  modes[thread], NameOf(result),
                  status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? "good" : "spoiled");
      EndAnyhow(stream);
      if (result == CUDA_SUCCESS) MUST(cuMemFree(allocated));
    }
  }
  for (int mode = 0; mode < 3; ++mode) {
    MUST(cuStreamBeginCapture_v2(stream, static_cast<CUstreamCaptureMode>(mode)));
    CUresult result = CUDA_SUCCESS;
    CUcontext context = nullptr;
    MUST(cuCtxGetCurrent(&context));
    std::thread elsewhere([&] {
      MUST(cuCtxSetCurrent(context));
      CUdeviceptr allocated = 0;
      result = cuMemAlloc(&allocated, 64);
      if (result == CUDA_SUCCESS) MUST(cuMemFree(allocated));
    });
    elsewhere.join();
    std::printf("cuMemAlloc in another thread during a %s capture: %s\n", modes[mode],
                NameOf(result));
    EndAnyhow(stream);
  }
}

void Captures() {
  CUgraph graph = nullptr;
  CUstreamCaptureMode mode = static_cast<CUstreamCaptureMode>(7);
  TELL(cuThreadExchangeStreamCaptureMode(nullptr));
  TELL(cuThreadExchangeStreamCaptureMode(&mode));
  TELL(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  TELL(cuStreamBeginCapture_v2(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL));
  TELL(cuStreamBeginCapture_v2(stream, mode));
  TELL(cuStreamEndCapture(stream, &graph));
  TELL(cuStreamIsCapturing(stream, nullptr));
  TELL(cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0,
                                         CU_STREAM_SET_CAPTURE_DEPENDENCIES));

  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  TELL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  TELL(cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 1,
                                         CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  TELL(cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, 17));
  TELL(cuStreamQuery(stream));
  TELL(cuMemsetD32Async(memory, 1, 4, stream));
  TELL(cuStreamEndCapture(stream, &graph));
  TELL(cuStreamEndCapture(stream, &graph));

  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  TELL(cuStreamSynchronize(stream));
  TELL(cuStreamEndCapture(stream, &graph));

  // The legacy stream would wait for the one that is captured.
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  TELL(cuMemsetD32Async(memory, 1, 4, nullptr));
  TELL(cuStreamEndCapture(stream, &graph));

  // Events.
  MUST(cuEventRecord(event, other));
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  TELL(cuStreamWaitEvent(stream, event, 0));
  TELL(cuStreamEndCapture(stream, &graph));
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemsetD32Async(memory, 1, 4, stream));
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamWaitEvent(other, event, 0));
  TELL(cuStreamEndCapture(other, &graph));
  EndAnyhow(stream);
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemsetD32Async(memory, 1, 4, stream));
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamWaitEvent(other, event, 0));
  MUST(cuMemsetD32Async(memory, 1, 4, other));
  TELL(cuStreamEndCapture(stream, &graph));  // what `other` did is not waited for
  TELL(cuStreamEndCapture(other, &graph));
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuEventRecord(event, stream));
  TELL(cuEventQuery(event));
  TELL(cuStreamEndCapture(stream, &graph));
  TELL(cuEventSynchronize(event));
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuEventRecord(event, stream));
  TELL(cuStreamWaitEvent(other, event, 0));
  TELL(cuStreamEndCapture(stream, &graph));
  TELL(cuStreamEndCapture(other, &graph));

  // Another thread may end relaxed captures only.
  for (int relaxed = 0; relaxed < 2; ++relaxed) {
    MUST(cuStreamBeginCapture_v2(stream, relaxed != 0 ? CU_STREAM_CAPTURE_MODE_RELAXED
                                                      : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CUcontext context = nullptr;
    MUST(cuCtxGetCurrent(&context));
    CUresult result = CUDA_SUCCESS;
    std::thread elsewhere([&] {
      MUST(cuCtxSetCurrent(context));
      result = cuStreamEndCapture(stream, &graph);
    });
    elsewhere.join();
    Tell(relaxed != 0 ? "another thread ends a relaxed capture"
                      : "another thread ends a thread-local capture",
         result);
    if (result != CUDA_SUCCESS) EndAnyhow(stream);
  }

  // Synchronous copies.
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  unsigned value = 0;
  TELL(cuMemcpyDtoH(&value, memory, sizeof(value)));
  TELL(cuStreamEndCapture(stream, &graph));
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  TELL(cuCtxSynchronize());
  TELL(cuLaunchHostFunc(stream, Nothing, nullptr));
  TELL(cuStreamEndCapture(stream, &graph));
}

void Nodes() {
  CUgraph graph = nullptr, elsewhere = nullptr, gone = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphCreate(&elsewhere, 0));
  MUST(cuGraphCreate(&gone, 0));
  MUST(cuGraphDestroy(gone));
  TELL(cuGraphCreate(nullptr, 0));
  TELL(cuGraphCreate(&gone, 1));
  TELL(cuGraphDestroy(gone));
  TELL(cuGraphDestroy(nullptr));
  CUdeviceptr address = memory;
  unsigned value = 1;
  void* arguments[] = {&address, &value};
  CUDA_KERNEL_NODE_PARAMS kernel = KernelParams(arguments);
  CUDA_MEMSET_NODE_PARAMS fill = FillParams();
  CUgraphNode a = nullptr, b = nullptr, c = nullptr, far = nullptr, none = nullptr;
  MUST(cuGraphAddEmptyNode(&a, graph, nullptr, 0));
  MUST(cuGraphAddKernelNode(&b, graph, &a, 1, &kernel));
  MUST(cuGraphAddMemsetNode(&c, graph, &b, 1, &fill, nullptr));
  MUST(cuGraphAddEmptyNode(&far, elsewhere, nullptr, 0));
  TELL(cuGraphAddEmptyNode(nullptr, graph, nullptr, 0));
  TELL(cuGraphAddEmptyNode(&none, gone, nullptr, 0));
  TELL(cuGraphAddEmptyNode(&none, graph, nullptr, 1));
  TELL(cuGraphAddEmptyNode(&none, graph, &far, 1));
  TELL(cuGraphAddKernelNode(&none, graph, nullptr, 0, nullptr));
  kernel.gridDimX = 0;
  TELL(cuGraphAddKernelNode(&none, graph, nullptr, 0, &kernel));
  kernel.gridDimX = 1;
  kernel.blockDimX = 5000;
  TELL(cuGraphAddKernelNode(&none, graph, nullptr, 0, &kernel));
  kernel.blockDimX = 1;
  kernel.kernelParams = nullptr;
  TELL(cuGraphAddKernelNode(&none, graph, nullptr, 0, &kernel));
  kernel.kernelParams = arguments;
  kernel.func = reinterpret_cast<CUfunction>(&kernel);
  TELL(cuGraphAddKernelNode(&none, graph, nullptr, 0, &kernel));
  kernel.func = function;
  TELL(cuGraphAddMemsetNode(&none, graph, nullptr, 0, nullptr, nullptr));
  fill.elementSize = 3;
  TELL(cuGraphAddMemsetNode(&none, graph, nullptr, 0, &fill, nullptr));
  fill.elementSize = 4;
  fill.dst = memory + 2;
  TELL(cuGraphAddMemsetNode(&none, graph, nullptr, 0, &fill, nullptr));
  fill.dst = 0;
  TELL(cuGraphAddMemsetNode(&none, graph, nullptr, 0, &fill, nullptr));
  fill.dst = memory;
  TELL(cuGraphAddMemcpyNode(&none, graph, nullptr, 0, nullptr, nullptr));
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.WidthInBytes = copy.Height = copy.Depth = 1;
  TELL(cuGraphAddMemcpyNode(&none, graph, nullptr, 0, &copy, nullptr));
  TELL(cuGraphAddHostNode(&none, graph, nullptr, 0, nullptr));
  CUDA_HOST_NODE_PARAMS host = {};
  TELL(cuGraphAddHostNode(&none, graph, nullptr, 0, &host));
  TELL(cuGraphAddChildGraphNode(&none, graph, nullptr, 0, gone));
  TELL(cuGraphAddEventRecordNode(&none, graph, nullptr, 0, nullptr));
  TELL(cuGraphAddEventWaitNode(&none, graph, nullptr, 0, nullptr));
  TELL(cuGraphAddMemFreeNode(&none, graph, nullptr, 0, memory));
  TELL(cuGraphAddMemAllocNode(&none, graph, nullptr, 0, nullptr));
  CUDA_MEM_ALLOC_NODE_PARAMS alloc = {};
  TELL(cuGraphAddMemAllocNode(&none, graph, nullptr, 0, &alloc));
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {};
  batch.count = 1;
  TELL(cuGraphAddBatchMemOpNode(&none, graph, nullptr, 0, &batch));
  CUgraphNodeParams any = {};
  any.type = static_cast<CUgraphNodeType>(99);
  TELL(cuGraphAddNode(&none, graph, nullptr, nullptr, 0, &any));
  TELL(cuGraphAddNode(&none, graph, nullptr, nullptr, 0, nullptr));
  any.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  TELL(cuGraphAddNode(&none, graph, nullptr, nullptr, 0, &any));

  // Getters and setters of other kinds of nodes.
  TELL(cuGraphKernelNodeGetParams(a, &kernel));
  TELL(cuGraphKernelNodeGetParams(b, nullptr));
  TELL(cuGraphMemsetNodeGetParams(b, &fill));
  TELL(cuGraphMemcpyNodeGetParams(c, &copy));
  TELL(cuGraphHostNodeGetParams(c, &host));
  TELL(cuGraphMemsetNodeSetParams(c, nullptr));
  TELL(cuGraphKernelNodeSetParams(c, &kernel));
  CUevent got = nullptr;
  TELL(cuGraphEventRecordNodeGetEvent(a, &got));
  CUgraph child = nullptr;
  TELL(cuGraphChildGraphNodeGetGraph(a, &child));
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  TELL(cuGraphNodeGetType(a, nullptr));
  TELL(cuGraphNodeGetType(nullptr, &type));
  CUkernelNodeAttrValue attribute = {};
  TELL(cuGraphKernelNodeGetAttribute(b, static_cast<CUkernelNodeAttrID>(1000), &attribute));
  TELL(cuGraphKernelNodeGetAttribute(a, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &attribute));
  TELL(cuGraphKernelNodeCopyAttributes(b, c));

  // Edges.
  size_t count = 0;
  TELL(cuGraphGetNodes(graph, nullptr, nullptr));
  TELL(cuGraphGetEdges(graph, &none, nullptr, nullptr, &count));
  TELL(cuGraphAddDependencies(graph, &a, &b, nullptr, 1));
  TELL(cuGraphAddDependencies(graph, &a, &a, nullptr, 1));
  TELL(cuGraphAddDependencies(graph, &a, &far, nullptr, 1));
  TELL(cuGraphRemoveDependencies(graph, &a, &c, nullptr, 1));
  TELL(cuGraphAddDependencies(graph, nullptr, &c, nullptr, 1));
  CUgraphNode found = nullptr;
  TELL(cuGraphNodeFindInClone(&found, a, elsewhere));
  TELL(cuGraphClone(nullptr, graph));
  TELL(cuGraphDebugDotPrint(graph, nullptr, 0));
  TELL(cuGraphDebugDotPrint(graph, "/nowhere/at/all/graph.dot", 0));

  // Executable graphs.
  CUgraphExec exec = nullptr, no_exec = nullptr;
  TELL(cuGraphInstantiateWithFlags(nullptr, graph, 0));
  TELL(cuGraphInstantiateWithFlags(&exec, gone, 0));
  TELL(cuGraphInstantiateWithFlags(&exec, graph, 0x4000));
  TELL(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
  TELL(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
  TELL(cuGraphInstantiateWithParams(&exec, graph, nullptr));
  MUST(cuGraphAddDependencies(graph, &c, &a, nullptr, 1));
  TELL(cuGraphInstantiateWithFlags(&exec, graph, 0));  // a circle
  CUDA_GRAPH_INSTANTIATE_PARAMS params = {};
  TELL(cuGraphInstantiateWithParams(&exec, graph, &params));
  std::printf("result of the circle: %d\n", static_cast<int>(params.result_out));
  MUST(cuGraphRemoveDependencies(graph, &c, &a, nullptr, 1));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  TELL(cuGraphLaunch(no_exec, stream));
  TELL(cuGraphLaunch(exec, reinterpret_cast<CUstream>(&count)));
  TELL(cuGraphUpload(no_exec, stream));
  TELL(cuGraphExecDestroy(no_exec));
  cuuint64_t flags = 0;
  TELL(cuGraphExecGetFlags(exec, nullptr));
  TELL(cuGraphExecGetFlags(no_exec, &flags));
  TELL(cuGraphExecKernelNodeSetParams(exec, a, &kernel));
  TELL(cuGraphExecKernelNodeSetParams(exec, far, &kernel));
  TELL(cuGraphExecKernelNodeSetParams(exec, b, nullptr));
  TELL(cuGraphExecMemsetNodeSetParams(exec, b, &fill, nullptr));
  TELL(cuGraphNodeSetEnabled(exec, a, 0));
  TELL(cuGraphNodeSetEnabled(exec, far, 0));
  TELL(cuGraphNodeGetEnabled(exec, b, nullptr));
  TELL(cuGraphExecChildGraphNodeSetParams(exec, a, elsewhere));
  CUgraphExecUpdateResultInfo info = {};
  TELL(cuGraphExecUpdate(exec, elsewhere, nullptr));
  TELL(cuGraphExecUpdate(exec, gone, &info));
  TELL(cuGraphExecUpdate(exec, elsewhere, &info));
  std::printf("result of the update: %d, error node %s\n", static_cast<int>(info.result),
              info.errorNode == nullptr ? "none" : "one");
  CUgraph three = nullptr;
  MUST(cuGraphClone(&three, graph));
  MUST(cuGraphAddEmptyNode(&none, three, nullptr, 0));
  TELL(cuGraphExecUpdate(exec, three, &info));
  std::printf("result of the update: %d, error node %s\n", static_cast<int>(info.result),
              info.errorNode == nullptr ? "none" : "one");
  MUST(cuGraphDestroy(three));
  MUST(cuGraphExecDestroy(exec));
  TELL(cuGraphExecDestroy(exec));
  TELL(cuGraphLaunch(exec, stream));
  MUST(cuGraphDestroyNode(c));
  TELL(cuGraphDestroyNode(c));
  TELL(cuGraphMemsetNodeGetParams(c, &fill));

  // User objects.
  CUuserObject object = nullptr;
  TELL(cuUserObjectCreate(nullptr, nullptr, Nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  TELL(cuUserObjectCreate(&object, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  TELL(cuUserObjectCreate(&object, nullptr, Nothing, 1, 0));
  TELL(cuUserObjectCreate(&object, nullptr, Nothing, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  MUST(cuUserObjectCreate(&object, nullptr, Nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  TELL(cuGraphRetainUserObject(gone, object, 1, 0));
  TELL(cuGraphRetainUserObject(graph, object, 2, CU_GRAPH_USER_OBJECT_MOVE));
  TELL(cuGraphReleaseUserObject(graph, object, 1));
  TELL(cuUserObjectRelease(object, 2));
  TELL(cuUserObjectRelease(object, 1));
  TELL(cuUserObjectRetain(object, 1));

  // Handles of conditions and memory of graphs.
  CUgraphConditionalHandle handle = 0;
  TELL(cuGraphConditionalHandleCreate(nullptr, graph, nullptr, 0, 0));
  TELL(cuGraphConditionalHandleCreate(&handle, gone, nullptr, 0, 0));
  TELL(cuGraphConditionalHandleCreate(&handle, graph, nullptr, 0, 2));
  TELL(cuGraphConditionalHandleCreate(&handle, graph, nullptr, 0, 0));
  TELL(cuGraphInstantiateWithFlags(&exec, graph, 0));  // nothing uses the handle
  cuuint64_t bytes = 1;
  TELL(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, nullptr));
  TELL(cuDeviceGetGraphMemAttribute(99, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes));
  TELL(cuDeviceGetGraphMemAttribute(0, static_cast<CUgraphMem_attribute>(9), &bytes));
  bytes = 1;
  TELL(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &bytes));
  TELL(cuDeviceGraphMemTrim(99));
  MUST(cuGraphDestroy(elsewhere));
  TELL(cuGraphDestroy(graph));
}

void StreamValues() {
  TELL(cuStreamWriteValue32(stream, memory, 5, 0));
  TELL(cuStreamWaitValue32(stream, memory, 5, CU_STREAM_WAIT_VALUE_EQ));
  TELL(cuStreamWriteValue64(stream, memory + 8, 1ull << 40, 0));
  TELL(cuStreamWaitValue64(stream, memory + 8, 1ull << 39, CU_STREAM_WAIT_VALUE_GEQ));
  TELL(cuStreamSynchronize(stream));
  unsigned long long values[2] = {};
  MUST(cuMemcpyDtoH(values, memory, sizeof(values)));
  std::printf("values: %llu %llu\n", values[0] & 0xffffffff, values[1]);
  TELL(cuStreamWaitValue32(stream, memory + 1, 5, 0));
  TELL(cuStreamWaitValue32(stream, memory, 5, 0x100));
  TELL(cuStreamWriteValue32(stream, 0, 5, 0));
  TELL(cuStreamWriteValue32(stream, memory, 5, 0x10));
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = memory;
  operations[0].writeValue.value = 8;
  operations[1].operation = static_cast<CUstreamBatchMemOpType>(77);
  TELL(cuStreamBatchMemOp(stream, 1, operations, 0));
  TELL(cuStreamBatchMemOp(stream, 2, operations, 0));
  TELL(cuStreamBatchMemOp(stream, 257, operations, 0));
  TELL(cuStreamBatchMemOp(stream, 1, nullptr, 0));
  TELL(cuStreamBatchMemOp(stream, 1, operations, 1));

  CUstreamAttrValue value = {};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  TELL(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  TELL(cuStreamCopyAttributes(other, stream));
  value.syncPolicy = CU_SYNC_POLICY_AUTO;
  TELL(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  std::printf("policy: %d\n", static_cast<int>(value.syncPolicy));
  TELL(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, nullptr));
  TELL(cuStreamSetAttribute(other, static_cast<CUstreamAttrID>(99), &value));
}

void Batches() {
  std::vector<unsigned> host(8, 3), back(8, 0);
  CUdeviceptr to[] = {memory, memory + 32, reinterpret_cast<CUdeviceptr>(back.data())};
  CUdeviceptr from[] = {reinterpret_cast<CUdeviceptr>(host.data()), memory, memory + 32};
  size_t sizes[] = {32, 32, 32};
  CUmemcpyAttributes attributes[1] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first[1] = {0};
  TELL(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 1, stream));
  MUST(cuStreamSynchronize(stream));
  std::printf("batch: %u %u\n", back[0], back[7]);
  TELL(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 1, nullptr));
  TELL(cuMemcpyBatchAsync(to, from, sizes, 0, attributes, first, 1, stream));
  TELL(cuMemcpyBatchAsync(nullptr, from, sizes, 3, attributes, first, 1, stream));
  TELL(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 0, stream));
  first[0] = 1;
  TELL(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 1, stream));
  first[0] = 0;
  attributes[0].srcAccessOrder = static_cast<CUmemcpySrcAccessOrder>(0);
  TELL(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 1, stream));
  CUDA_MEMCPY3D_BATCH_OP box = {};
  box.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  box.src.op.ptr.ptr = memory;
  box.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  box.dst.op.ptr.ptr = memory + 64;
  box.extent = {.width = 16, .height = 2, .depth = 1};
  box.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  TELL(cuMemcpy3DBatchAsync(1, &box, 0, stream));
  TELL(cuMemcpy3DBatchAsync(1, &box, 1, stream));
  TELL(cuMemcpy3DBatchAsync(0, &box, 0, stream));
  box.src.op.ptr.rowLength = 8;
  TELL(cuMemcpy3DBatchAsync(1, &box, 0, stream));
  box.src.op.ptr.rowLength = 0;
  box.extent.width = 0;
  TELL(cuMemcpy3DBatchAsync(1, &box, 0, stream));
  TELL(cuStreamSynchronize(stream));
}

}  // namespace

int main() {
  CUgraph before = nullptr;
  TELL(cuGraphCreate(&before, 0));  // before cuInit
  MUST(cuInit(0));
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, kPtx));
  MUST(cuModuleGetFunction(&function, module, "store"));
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, CU_EVENT_DEFAULT));
  Forbidden();
  Captures();
  Nodes();
  StreamValues();
  Batches();
  TELL(cuCtxSynchronize());
  MUST(cuDevicePrimaryCtxRelease(device));
  return 0;
}
