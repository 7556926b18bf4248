#include <thread>

#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

class CaptureTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_SUCCESS(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    ASSERT_SUCCESS(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    ASSERT_SUCCESS(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuEventCreate(&joined_, CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuMemAlloc(&memory_, 64));
    counts_ = Load("counts_captured", [this](const LaunchConfig&) {
      ++count_;
      return absl::OkStatus();
    });
  }
  CUresult Begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return cuStreamBeginCapture(stream_, mode);
  }
  CUgraph End() {
    CUgraph graph = nullptr;
    EXPECT_SUCCESS(cuStreamEndCapture(stream_, &graph));
    return graph;
  }
  static size_t Nodes(CUgraph graph) {
    size_t count = 0;
    EXPECT_SUCCESS(cuGraphGetNodes(graph, nullptr, &count));
    return count;
  }
  void Run(CUgraph graph) {
    CUgraphExec exec = nullptr;
    ASSERT_SUCCESS(cuGraphInstantiate(&exec, graph, 0));
    ASSERT_SUCCESS(cuGraphLaunch(exec, other_));
    ASSERT_SUCCESS(cuStreamSynchronize(other_));
  }

  CUstream stream_ = nullptr, other_ = nullptr;
  CUevent event_ = nullptr, joined_ = nullptr;
  CUdeviceptr memory_ = 0;
  CUfunction counts_ = nullptr;
  std::atomic<int> count_{0};
};

TEST_F(CaptureTest, RecordsInsteadOfRunning) {
  ASSERT_SUCCESS(Begin());
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_SUCCESS(cuStreamIsCapturing(stream_, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_SUCCESS(Launch(counts_, stream_));
  EXPECT_SUCCESS(cuMemsetD32Async(memory_, 7, 4, stream_));
  uint32_t result = 0;
  EXPECT_SUCCESS(cuMemcpyDtoHAsync(&result, memory_ + 12, 4, stream_));
  int calls = 0;
  EXPECT_SUCCESS(cuLaunchHostFunc(
      stream_, [](void* data) { ++*static_cast<int*>(data); }, &calls));
  EXPECT_SUCCESS(cuStreamWriteValue32(stream_, memory_, 1, 0));
  const CUgraph graph = End();
  EXPECT_EQ(Nodes(graph), 5u);
  EXPECT_EQ(count_, 0);
  size_t edges = 0;
  EXPECT_SUCCESS(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 4u);
  Run(graph);
  EXPECT_EQ(count_, 1);
  EXPECT_EQ(result, 7u);
  EXPECT_EQ(calls, 1);
  // The stream is an ordinary one again.
  EXPECT_SUCCESS(Launch(counts_, stream_));
  EXPECT_SUCCESS(cuStreamSynchronize(stream_));
  EXPECT_EQ(count_, 2);
}

TEST_F(CaptureTest, ForksAndJoins) {
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(Launch(counts_, stream_));
  EXPECT_SUCCESS(cuEventRecord(event_, stream_));
  EXPECT_SUCCESS(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_SUCCESS(Launch(counts_, other_));
  EXPECT_SUCCESS(Launch(counts_, stream_));
  EXPECT_SUCCESS(cuEventRecord(joined_, other_));
  EXPECT_SUCCESS(cuStreamWaitEvent(stream_, joined_, 0));
  EXPECT_SUCCESS(Launch(counts_, stream_));
  CUgraph graph = nullptr;
  EXPECT_CU(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event_));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
  // Once more, without asking what has no answer.
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(Launch(counts_, stream_));
  EXPECT_SUCCESS(cuEventRecord(event_, stream_));
  EXPECT_SUCCESS(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_SUCCESS(Launch(counts_, other_));
  EXPECT_SUCCESS(Launch(counts_, stream_));
  EXPECT_SUCCESS(cuEventRecord(joined_, other_));
  EXPECT_SUCCESS(cuStreamWaitEvent(stream_, joined_, 0));
  EXPECT_SUCCESS(Launch(counts_, stream_));
  graph = End();
  EXPECT_EQ(Nodes(graph), 4u);
  size_t edges = 0;
  EXPECT_SUCCESS(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 4u);
  Run(graph);
  EXPECT_EQ(count_, 4);
}

TEST_F(CaptureTest, SaysWhatIsWrong) {
  CUgraph graph = nullptr;
  EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream_, &graph));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, Begin(static_cast<CUstreamCaptureMode>(9)));
  // A branch that is not joined.
  ASSERT_SUCCESS(Begin());
  EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, Begin());
  EXPECT_SUCCESS(cuEventRecord(event_, stream_));
  EXPECT_SUCCESS(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_SUCCESS(Launch(counts_, other_));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(graph, nullptr);
  // The end on a stream that did not begin it.
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(cuEventRecord(event_, stream_));
  EXPECT_SUCCESS(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other_, &graph));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, Launch(counts_, stream_));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
  // Waiting for what was recorded outside.
  EXPECT_SUCCESS(cuEventRecord(joined_, other_));
  ASSERT_SUCCESS(Begin());
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(stream_, joined_, 0));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
  // Synchronisation.
  ASSERT_SUCCESS(Begin());
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream_));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
  // Another thread.
  ASSERT_SUCCESS(Begin());
  std::thread([&] {
    cuCtxSetCurrent(context_);
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(stream_, &graph));
  }).join();
  EXPECT_SUCCESS(cuStreamEndCapture(stream_, &graph));
  // Two captures do not become one.
  ASSERT_SUCCESS(Begin());
  ASSERT_SUCCESS(cuStreamBeginCapture(other_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_SUCCESS(cuEventRecord(event_, stream_));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(other_, event_, 0));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other_, &graph));
  EXPECT_EQ(count_, 0);
}

TEST_F(CaptureTest, TheLegacyStreamIsInTheWay) {
  CUstream blocking = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  ASSERT_SUCCESS(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, Launch(counts_, nullptr));
  CUgraph graph = nullptr;
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
  // A non-blocking stream does not mind.
  ASSERT_SUCCESS(Begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_SUCCESS(Launch(counts_, nullptr));
  End();
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(count_, 1);
}

TEST_F(CaptureTest, ModesForbidUnsafeCalls) {
  CUdeviceptr memory = 0;
  CUgraph graph = nullptr;
  ASSERT_SUCCESS(Begin());
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&memory, 16));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
  ASSERT_SUCCESS(Begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_SUCCESS(cuMemAlloc(&memory, 16));
  End();
  ASSERT_SUCCESS(Begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  std::thread([&] {
    cuCtxSetCurrent(context_);
    EXPECT_SUCCESS(cuMemAlloc(&memory, 16));
  }).join();
  End();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_SUCCESS(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(cuMemAlloc(&memory, 16));
  End();
  EXPECT_SUCCESS(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
}

TEST_F(CaptureTest, TellsAndTakesDependencies) {
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(Launch(counts_, stream_));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  size_t count = 0;
  EXPECT_SUCCESS(cuStreamGetCaptureInfo(stream_, &status, &id, &graph, &nodes, nullptr, &count));
  EXPECT_NE(id, 0u);
  ASSERT_EQ(count, 1u);
  CUgraphNode node = nullptr;
  EXPECT_SUCCESS(cuGraphAddEmptyNode(&node, graph, nodes, 1));
  EXPECT_SUCCESS(cuStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1,
                                                   CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  EXPECT_SUCCESS(Launch(counts_, stream_));
  CUgraphNode stranger = reinterpret_cast<CUgraphNode>(0x10);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuStreamUpdateCaptureDependencies(stream_, &stranger, nullptr, 1, 0));
  EXPECT_EQ(End(), graph);
  size_t edges = 0;
  EXPECT_SUCCESS(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 2u);
  // Into a graph that is there.
  ASSERT_SUCCESS(cuStreamBeginCaptureToGraph(stream_, graph, &node, nullptr, 1,
                                             CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_SUCCESS(Launch(counts_, stream_));
  EXPECT_EQ(End(), graph);
  EXPECT_EQ(Nodes(graph), 4u);
  // Whoever gave the graph needs no handle for it.
  ASSERT_SUCCESS(cuStreamBeginCaptureToGraph(stream_, graph, &node, nullptr, 1,
                                             CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_SUCCESS(cuStreamEndCapture(stream_, nullptr));
  EXPECT_EQ(Nodes(graph), 4u);
  Run(graph);
  EXPECT_EQ(count_, 3);
}

TEST_F(CaptureTest, MemoryAndGraphsBecomeNodes) {
  ASSERT_SUCCESS(Begin());
  CUdeviceptr memory = 0;
  EXPECT_SUCCESS(cuMemAllocAsync(&memory, 100, stream_));
  EXPECT_SUCCESS(cuMemsetD8Async(memory, 3, 100, stream_));
  EXPECT_SUCCESS(cuMemcpyDtoDAsync(memory_, memory, 64, stream_));
  EXPECT_SUCCESS(cuMemFreeAsync(memory, stream_));
  Run(End());
  char value = 0;
  EXPECT_SUCCESS(cuMemcpyDtoH(&value, memory_ + 63, 1));
  EXPECT_EQ(value, 3);
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(Launch(counts_, stream_));
  CUgraphExec exec = nullptr;
  ASSERT_SUCCESS(cuGraphInstantiate(&exec, End(), 0));
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(cuGraphLaunch(exec, stream_));
  EXPECT_SUCCESS(cuGraphLaunch(exec, stream_));
  Run(End());
  EXPECT_EQ(count_, 2);
}

TEST_F(CaptureTest, DestroyedStreams) {
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(cuEventRecord(event_, stream_));
  EXPECT_SUCCESS(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_SUCCESS(Launch(counts_, other_));
  EXPECT_SUCCESS(cuEventRecord(joined_, other_));
  EXPECT_SUCCESS(cuStreamDestroy(other_));
  EXPECT_SUCCESS(cuStreamWaitEvent(stream_, joined_, 0));
  EXPECT_EQ(Nodes(End()), 1u);
  ASSERT_SUCCESS(Begin());
  EXPECT_SUCCESS(cuStreamDestroy(stream_));
  // Nothing is being captured any more.
  CUdeviceptr memory = 0;
  EXPECT_SUCCESS(cuMemAlloc(&memory, 16));
}

}  // namespace
}  // namespace fargpu::softgpu
