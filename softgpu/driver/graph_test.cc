#include <cstring>
#include <fstream>
#include <sstream>

#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

class GraphTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_SUCCESS(cuGraphCreate(&graph_, 0));
    info_ = FakeKernelInfo("notes", {4});
    notes_ = Load(info_, [this](const LaunchConfig& config) {
      MutexLock lock(&mutex_);
      order_.push_back(FakeParam<int>(info_, config, 0));
      return absl::OkStatus();
    });
  }

  // A kernel node that notes `number`.
  CUDA_KERNEL_NODE_PARAMS Params(int* number) {
    void** const pointers = new void* [1] { number };
    params_.emplace_back(pointers);
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = notes_;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = pointers;
    return params;
  }
  CUgraphNode Note(int number, std::vector<CUgraphNode> after = {}, CUgraph graph = nullptr) {
    const CUDA_KERNEL_NODE_PARAMS params = Params(&number);
    CUgraphNode node = nullptr;
    EXPECT_SUCCESS(cuGraphAddKernelNode(&node, graph == nullptr ? graph_ : graph, after.data(),
                                        after.size(), &params));
    return node;
  }
  CUgraphExec Instantiate(unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_SUCCESS(cuGraphInstantiate(&exec, graph_, flags));
    return exec;
  }
  std::vector<int> Run(CUgraphExec exec) {
    {
      MutexLock lock(&mutex_);
      order_.clear();
    }
    EXPECT_SUCCESS(cuGraphLaunch(exec, nullptr));
    EXPECT_SUCCESS(cuCtxSynchronize());
    MutexLock lock(&mutex_);
    return order_;
  }

  CUgraph graph_ = nullptr;
  CUfunction notes_ = nullptr;
  KernelInfo info_;
  std::vector<std::unique_ptr<void*[]>> params_;
  Mutex mutex_;
  std::vector<int> order_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(GraphTest, RunsInTheOrderOfItsEdges) {
  const CUgraphNode last = Note(3);
  const CUgraphNode first = Note(1);
  const CUgraphNode middle = Note(2, {first});
  EXPECT_SUCCESS(cuGraphAddDependencies(graph_, &middle, &last, nullptr, 1));
  const CUgraphExec exec = Instantiate();
  EXPECT_EQ(Run(exec), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(Run(exec), (std::vector<int>{1, 2, 3}));
  // The executable graph lives on by itself.
  EXPECT_SUCCESS(cuGraphDestroy(graph_));
  EXPECT_EQ(Run(exec), (std::vector<int>{1, 2, 3}));
  EXPECT_SUCCESS(cuGraphExecDestroy(exec));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy(exec));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph_));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(nullptr));
}

TEST_F(GraphTest, CirclesAreRefused) {
  const CUgraphNode first = Note(1);
  const CUgraphNode second = Note(2, {first});
  EXPECT_SUCCESS(cuGraphAddDependencies(graph_, &second, &first, nullptr, 1));
  CUgraphExec exec = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph_, 0));
  CUDA_GRAPH_INSTANTIATE_PARAMS params = {};
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, graph_, &params));
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
  EXPECT_SUCCESS(cuGraphRemoveDependencies(graph_, &second, &first, nullptr, 1));
  EXPECT_SUCCESS(cuGraphInstantiate(&exec, graph_, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph_, 0x100));
}

TEST_F(GraphTest, TellsItsNodesAndEdges) {
  const CUgraphNode first = Note(1);
  const CUgraphNode second = Note(2, {first});
  const CUgraphNode third = Note(3, {first, second});
  size_t count = 0;
  EXPECT_SUCCESS(cuGraphGetNodes(graph_, nullptr, &count));
  EXPECT_EQ(count, 3u);
  CUgraphNode nodes[4] = {};
  count = 4;
  EXPECT_SUCCESS(cuGraphGetNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(nodes[2], third);
  EXPECT_EQ(nodes[3], nullptr);
  count = 4;
  EXPECT_SUCCESS(cuGraphGetRootNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], first);
  CUgraphNode from[3] = {}, to[3] = {};
  count = 3;
  EXPECT_SUCCESS(cuGraphGetEdges(graph_, from, to, nullptr, &count));
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(to[2], third);
  count = 0;
  EXPECT_SUCCESS(cuGraphNodeGetDependentNodes(first, nullptr, nullptr, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_SUCCESS(cuGraphNodeGetDependencies(third, nullptr, nullptr, &count));
  EXPECT_EQ(count, 2u);
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  EXPECT_SUCCESS(cuGraphNodeGetType(first, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph_, &first, &third, nullptr, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuGraphRemoveDependencies(graph_, &third, &first, nullptr, 1));
  EXPECT_SUCCESS(cuGraphDestroyNode(second));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(second));
  EXPECT_SUCCESS(cuGraphNodeGetDependencies(third, nullptr, nullptr, &count));
  EXPECT_EQ(count, 1u);
  CUgraph other = nullptr;
  EXPECT_SUCCESS(cuGraphCreate(&other, 0));
  CUgraphNode node = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, other, &first, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, nullptr, nullptr, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&other, 1));
}

TEST_F(GraphTest, CopiesFillsAndCallsTheHost) {
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAlloc(&memory, 64));
  CUDA_MEMSET_NODE_PARAMS fill = {
      .dst = memory, .pitch = 0, .value = 0x01020304, .elementSize = 4, .width = 4, .height = 1};
  CUgraphNode filled = nullptr, copied = nullptr, called = nullptr;
  EXPECT_SUCCESS(cuGraphAddMemsetNode(&filled, graph_, nullptr, 0, &fill, context_));
  uint32_t result[4] = {};
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = result;
  copy.WidthInBytes = 16;
  copy.Height = copy.Depth = 1;
  EXPECT_SUCCESS(cuGraphAddMemcpyNode(&copied, graph_, &filled, 1, &copy, context_));
  int calls = 0;
  CUDA_HOST_NODE_PARAMS host = {.fn = [](void* data) { ++*static_cast<int*>(data); },
                                .userData = &calls};
  EXPECT_SUCCESS(cuGraphAddHostNode(&called, graph_, &copied, 1, &host));
  const CUgraphExec exec = Instantiate();
  EXPECT_SUCCESS(cuGraphLaunch(exec, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(result[3], 0x01020304u);
  EXPECT_EQ(calls, 1);
  // New parameters, in the graph and in what was made of it.
  fill.value = 9;
  EXPECT_SUCCESS(cuGraphExecMemsetNodeSetParams(exec, filled, &fill, context_));
  EXPECT_SUCCESS(cuGraphLaunch(exec, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(result[0], 9u);
  CUDA_MEMSET_NODE_PARAMS seen = {};
  EXPECT_SUCCESS(cuGraphMemsetNodeGetParams(filled, &seen));
  EXPECT_EQ(seen.value, 0x01020304u);
  CUDA_MEMCPY3D seen_copy = {};
  EXPECT_SUCCESS(cuGraphMemcpyNodeGetParams(copied, &seen_copy));
  EXPECT_EQ(seen_copy.dstHost, result);
  CUDA_HOST_NODE_PARAMS seen_host = {};
  EXPECT_SUCCESS(cuGraphHostNodeGetParams(called, &seen_host));
  EXPECT_EQ(seen_host.userData, &calls);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphMemcpyNodeGetParams(filled, &seen_copy));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphExecHostNodeSetParams(exec, copied, &host));
  // Disabled nodes are passed over.
  EXPECT_SUCCESS(cuGraphNodeSetEnabled(exec, filled, 0));
  unsigned enabled = 1;
  EXPECT_SUCCESS(cuGraphNodeGetEnabled(exec, filled, &enabled));
  EXPECT_EQ(enabled, 0u);
  EXPECT_SUCCESS(cuMemsetD8(memory, 0, 64));
  EXPECT_SUCCESS(cuGraphLaunch(exec, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(result[0], 0u);
  EXPECT_EQ(calls, 3);
  fill.dst = 16;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuGraphAddMemsetNode(&filled, graph_, nullptr, 0, &fill, context_));
  fill.dst = memory;
  fill.elementSize = 3;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuGraphAddMemsetNode(&filled, graph_, nullptr, 0, &fill, context_));
  host.fn = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphAddHostNode(&called, graph_, nullptr, 0, &host));
}

TEST_F(GraphTest, KernelNodesTakeNewParameters) {
  const CUgraphNode node = Note(5);
  CUDA_KERNEL_NODE_PARAMS seen = {};
  EXPECT_SUCCESS(cuGraphKernelNodeGetParams(node, &seen));
  EXPECT_EQ(seen.func, notes_);
  EXPECT_EQ(*static_cast<int*>(seen.kernelParams[0]), 5);
  const CUgraphExec exec = Instantiate();
  int number = 6;
  CUDA_KERNEL_NODE_PARAMS params = Params(&number);
  EXPECT_SUCCESS(cuGraphExecKernelNodeSetParams(exec, node, &params));
  EXPECT_EQ(Run(exec), std::vector<int>{6});
  number = 7;
  EXPECT_SUCCESS(cuGraphKernelNodeSetParams(node, &params));
  EXPECT_EQ(Run(exec), std::vector<int>{6});
  CUgraphExecUpdateResultInfo info = {};
  EXPECT_SUCCESS(cuGraphExecUpdate(exec, graph_, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  EXPECT_EQ(Run(exec), std::vector<int>{7});
  params.blockDimX = 5000;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetParams(node, &params));
  params = Params(&number);
  params.func = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuGraphKernelNodeSetParams(node, &params));
  CUkernelNodeAttrValue value = {};
  value.priority = -2;
  EXPECT_SUCCESS(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  value.priority = 0;
  EXPECT_SUCCESS(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  EXPECT_EQ(value.priority, -2);
}

TEST_F(GraphTest, UpdatesNeedTheSameShape) {
  Note(1);
  const CUgraphExec exec = Instantiate();
  CUgraph other = nullptr;
  ASSERT_SUCCESS(cuGraphCreate(&other, 0));
  CUgraphNode empty = nullptr;
  ASSERT_SUCCESS(cuGraphAddEmptyNode(&empty, other, nullptr, 0));
  CUgraphExecUpdateResultInfo info = {};
  EXPECT_CU(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(info.errorNode, empty);
  ASSERT_SUCCESS(cuGraphAddEmptyNode(&empty, other, nullptr, 0));
  EXPECT_CU(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(Run(exec), std::vector<int>{1});
}

TEST_F(GraphTest, ChildrenAndClones) {
  CUgraph child = nullptr;
  ASSERT_SUCCESS(cuGraphCreate(&child, 0));
  const CUgraphNode inner = Note(2, {}, child);
  const CUgraphNode first = Note(1);
  CUgraphNode node = nullptr;
  ASSERT_SUCCESS(cuGraphAddChildGraphNode(&node, graph_, &first, 1, child));
  Note(3, {node});
  CUgraph embedded = nullptr;
  EXPECT_SUCCESS(cuGraphChildGraphNodeGetGraph(node, &embedded));
  EXPECT_NE(embedded, child);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(embedded));
  EXPECT_SUCCESS(cuGraphDestroy(child));
  CUgraph clone = nullptr;
  ASSERT_SUCCESS(cuGraphClone(&clone, graph_));
  CUgraphNode copy = nullptr;
  EXPECT_SUCCESS(cuGraphNodeFindInClone(&copy, first, clone));
  EXPECT_NE(copy, first);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&copy, inner, clone));
  EXPECT_SUCCESS(cuGraphDestroy(graph_));
  graph_ = clone;
  EXPECT_EQ(Run(Instantiate()), (std::vector<int>{1, 2, 3}));
}

TEST_F(GraphTest, EventsInsideAndOutside) {
  CUevent event = nullptr, other = nullptr;
  ASSERT_SUCCESS(cuEventCreate(&event, 0));
  ASSERT_SUCCESS(cuEventCreate(&other, 0));
  CUgraphNode record = nullptr, wait = nullptr;
  ASSERT_SUCCESS(cuGraphAddEventRecordNode(&record, graph_, nullptr, 0, event));
  ASSERT_SUCCESS(cuGraphAddEventWaitNode(&wait, graph_, &record, 1, event));
  Note(1, {wait});
  const CUgraphExec exec = Instantiate();
  EXPECT_EQ(Run(exec), std::vector<int>{1});
  EXPECT_SUCCESS(cuEventQuery(event));
  EXPECT_SUCCESS(cuGraphExecEventRecordNodeSetEvent(exec, record, other));
  EXPECT_EQ(Run(exec), std::vector<int>{1});
  EXPECT_SUCCESS(cuEventQuery(other));
  float elapsed = -1;
  EXPECT_SUCCESS(cuEventElapsedTime(&elapsed, event, other));
  EXPECT_GE(elapsed, 0);
  CUevent seen = nullptr;
  EXPECT_SUCCESS(cuGraphEventRecordNodeGetEvent(record, &seen));
  EXPECT_EQ(seen, event);
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuGraphAddEventRecordNode(&record, graph_, nullptr, 0, nullptr));
}

TEST_F(GraphTest, MemoryComesAndGoes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytesize = 3 * kMiB;
  CUgraphNode alloc = nullptr, fill_node = nullptr, free = nullptr;
  ASSERT_SUCCESS(cuGraphAddMemAllocNode(&alloc, graph_, nullptr, 0, &params));
  const CUdeviceptr memory = params.dptr;
  ASSERT_NE(memory, 0u);
  // Nothing is there yet, but nodes may name it.
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(memory, 1, 16));
  CUDA_MEMSET_NODE_PARAMS fill = {
      .dst = memory, .pitch = 0, .value = 5, .elementSize = 1, .width = 3 * kMiB, .height = 1};
  ASSERT_SUCCESS(cuGraphAddMemsetNode(&fill_node, graph_, &alloc, 1, &fill, context_));
  size_t before = 0, total = 0, after = 0;
  EXPECT_SUCCESS(cuMemGetInfo(&before, &total));
  const CUgraphExec exec = Instantiate(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  CUgraphExec second = nullptr;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuGraphInstantiate(&second, graph_, 0));
  CUgraph clone = nullptr;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&clone, graph_));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuGraphDestroyNode(fill_node));
  Run(exec);
  Run(exec);  // frees what the first left
  char value = 0;
  EXPECT_SUCCESS(cuMemcpyDtoH(&value, memory + 3 * kMiB - 1, 1));
  EXPECT_EQ(value, 5);
  EXPECT_SUCCESS(cuMemGetInfo(&after, &total));
  EXPECT_EQ(before - after, 4 * kMiB);
  cuuint64_t used = 0;
  EXPECT_SUCCESS(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 4 * kMiB);
  EXPECT_SUCCESS(cuMemFreeAsync(memory, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_SUCCESS(cuMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
  EXPECT_SUCCESS(cuGraphExecDestroy(exec));
  ASSERT_SUCCESS(cuGraphAddMemFreeNode(&free, graph_, &fill_node, 1, memory));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&free, graph_, nullptr, 0, 4096));
  const CUgraphExec whole = Instantiate();
  Run(whole);
  EXPECT_SUCCESS(cuMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
  EXPECT_SUCCESS(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  EXPECT_EQ(used, 4 * kMiB);
  used = 0;
  EXPECT_SUCCESS(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  EXPECT_SUCCESS(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  EXPECT_EQ(used, 0u);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGraphMemTrim(9));
  EXPECT_SUCCESS(cuGraphExecDestroy(whole));
  EXPECT_SUCCESS(cuGraphDestroy(graph_));
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(nullptr, nullptr, memory));
}

TEST_F(GraphTest, ConditionsDecide) {
  CUgraphConditionalHandle handle = 0;
  ASSERT_SUCCESS(
      cuGraphConditionalHandleCreate(&handle, graph_, context_, 3, CU_GRAPH_COND_ASSIGN_DEFAULT));
  CUgraphExec exec = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS instantiate = {};
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, graph_, &instantiate));
  EXPECT_EQ(instantiate.result_out, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED);
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
  params.conditional.size = 2;
  CUgraphNode node = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph_, nullptr, nullptr, 0, &params));
  params.conditional.size = 1;
  ASSERT_SUCCESS(cuGraphAddNode(&node, graph_, nullptr, nullptr, 0, &params));
  // What kernels do with cudaGraphSetConditional: the handle is the address of the value.
  const KernelInfo info = FakeKernelInfo("counts_down", {8});
  const CUfunction counts_down = Load(info, [&, info](const LaunchConfig& config) {
    --*reinterpret_cast<uint32_t*>(FakeParam<uint64_t>(info, config, 0));
    MutexLock lock(&mutex_);
    order_.push_back(0);
    return absl::OkStatus();
  });
  void* pointers[] = {&handle};
  CUDA_KERNEL_NODE_PARAMS kernel = {};
  kernel.func = counts_down;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = pointers;
  CUgraphNode inner = nullptr;
  ASSERT_SUCCESS(
      cuGraphAddKernelNode(&inner, params.conditional.phGraph_out[0], nullptr, 0, &kernel));
  exec = Instantiate();
  EXPECT_EQ(Run(exec), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(Run(exec), (std::vector<int>{0, 0, 0}));
}

TEST_F(GraphTest, UserObjectsLiveAsLongAsGraphs) {
  static int destroyed;
  destroyed = 0;
  CUuserObject object = nullptr;
  const auto destroy = [](void* data) { destroyed += *static_cast<int*>(data); };
  int number = 1;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, &number, destroy, 1, 0));
  ASSERT_SUCCESS(
      cuUserObjectCreate(&object, &number, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  EXPECT_SUCCESS(cuGraphRetainUserObject(graph_, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  Note(1);
  const CUgraphExec exec = Instantiate();
  EXPECT_SUCCESS(cuGraphDestroy(graph_));
  EXPECT_EQ(destroyed, 0);
  EXPECT_SUCCESS(cuGraphExecDestroy(exec));
  EXPECT_EQ(destroyed, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(object, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 1));
}

TEST_F(GraphTest, PrintsItself) {
  const CUgraphNode first = Note(1);
  Note(2, {first});
  const std::string path = ::testing::TempDir() + "/graph.dot";
  EXPECT_SUCCESS(cuGraphDebugDotPrint(graph_, path.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), ::testing::HasSubstr("digraph dot"));
  EXPECT_THAT(text.str(), ::testing::HasSubstr("notes\\n<<<1x1x1,1x1x1,0>>>"));
  EXPECT_THAT(text.str(), ::testing::HasSubstr("node_0\" -> "));
  EXPECT_CU(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(graph_, "/no/such/folder/x", 0));
}

TEST_F(GraphTest, AFailingNodeFailsTheContext) {
  const CUfunction fails =
      Load("fails_in_graph", [](const LaunchConfig&) { return absl::InternalError("broken"); });
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.func = fails;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  CUgraphNode node = nullptr;
  ASSERT_SUCCESS(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &params));
  Note(1, {node});
  const CUgraphExec exec = Instantiate();
  EXPECT_SUCCESS(cuGraphLaunch(exec, nullptr));
  EXPECT_NE(cuCtxSynchronize(), CUDA_SUCCESS);
  MutexLock lock(&mutex_);
  EXPECT_TRUE(order_.empty());
}

}  // namespace
}  // namespace fargpu::softgpu
