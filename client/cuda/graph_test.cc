// Graphs and captures: what travels, and what does not.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "client/cuda/client_test.h"

namespace fargpu::client {
namespace {

bool WaitFor(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

// A node that the worker was sent.
struct SentNode {
  uint32_t type = 0;
  std::vector<uint32_t> dependencies;
  std::string body;
};

class GraphTest : public ClientTest {
 protected:
  void BeginWithKernel() {
    worker->On<wire::GraphPartRequest>(
        [this](const wire::GraphPartRequest& request, auto*, FakeWorker::Call*) {
          for (const wire::GraphNode& node : request.nodes) {
            sent.push_back({node.type, node.dependencies, {node.body.begin(), node.body.end()}});
          }
          return CUDA_SUCCESS;
        });
    worker->On<wire::GraphUpdateRequest>(
        [this](const wire::GraphUpdateRequest& request, auto*, FakeWorker::Call*) {
          updates.insert(updates.end(), request.positions.begin(), request.positions.end());
          return CUDA_SUCCESS;
        });
    Begin();
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&kernel, module, "vector_add"), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    memory = Allocate(4096);
  }

  void Launch(int last) {
    CUdeviceptr address = memory;
    void* params[] = {&address, &address, &address, &last};
    ASSERT_EQ(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr), CUDA_SUCCESS);
  }

  // `count` kernels, of which the one at `odd` has another parameter.
  CUgraph CaptureKernels(int count, int odd) {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < count; ++i) Launch(i == odd ? 77 : 1);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    return graph;
  }

  // Bodies of nodes that the worker was sent, decoded.
  template <typename Message>
  Message Sent(size_t position) {
    Message message;
    const std::string& body = sent.at(position).body;
    EXPECT_OK(wire::DecodeMessage(absl::MakeConstSpan(body.data(), body.size()), &message));
    return message;
  }

  CUfunction kernel = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  // Written by the link's handler before the reply to what follows.
  std::vector<SentNode> sent;
  std::vector<uint32_t> updates;
};

TEST_F(GraphTest, ACaptureSendsNothingAndAReplayOneMessage) {
  BeginWithKernel();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  const size_t before = worker->received().size();
  const uint64_t trips = RoundTrips();
  CUgraph graph = CaptureKernels(500, -1);
  EXPECT_EQ(worker->received().size(), before);
  EXPECT_EQ(RoundTrips(), trips);

  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(RoundTrips(), trips + 1);
  ASSERT_EQ(sent.size(), 500u);
  EXPECT_EQ(sent[499].type, CU_GRAPH_NODE_TYPE_KERNEL);
  EXPECT_THAT(sent[499].dependencies, testing::ElementsAre(498));
  const size_t instantiated = worker->received().size();

  for (int i = 0; i < 1000; ++i) ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(RoundTrips(), trips + 1);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuGraphLaunch"), 1000u);
  EXPECT_EQ(worker->received().size(), instantiated + 1000 + 1);
}

TEST_F(GraphTest, AnUpdateSendsWhatHasChanged) {
  BeginWithKernel();
  CUgraph graph = CaptureKernels(200, 5);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  const uint64_t trips = RoundTrips();
  CUgraphExecUpdateResultInfo info = {};
  ASSERT_EQ(cuGraphExecUpdate_v2(exec, graph, &info), CUDA_SUCCESS);
  CUgraph newer = CaptureKernels(200, 7);
  ASSERT_EQ(cuGraphExecUpdate_v2(exec, newer, &info), CUDA_SUCCESS);
  EXPECT_EQ(RoundTrips(), trips);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("GraphUpdate"), 1u) << "nothing had changed the first time";
  EXPECT_THAT(updates, testing::ElementsAre(5, 7));
  CUgraph longer = CaptureKernels(201, 7);
  EXPECT_EQ(cuGraphExecUpdate_v2(exec, longer, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

TEST_F(GraphTest, TheWorkersRefusalIsTheCallsResult) {
  BeginWithKernel();
  worker->Fail<wire::GraphInstantiateRequest>(CUDA_ERROR_OUT_OF_MEMORY);
  CUgraph graph = CaptureKernels(1, -1);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(exec, nullptr);
}

TEST_F(GraphTest, CopiesReadAndWriteTheProgramsMemoryAtEachRun) {
  // The worker delivers from where it handles calls, as it does everything.
  std::atomic<uint64_t> deliver_to{0};
  std::vector<char> brought(64);
  worker->On<wire::CtxSynchronizeRequest>(
      [&](const wire::CtxSynchronizeRequest&, auto*, FakeWorker::Call*) {
        if (const uint64_t token = deliver_to.exchange(0)) worker->Deliver(token, 0, brought);
        return CUDA_SUCCESS;
      });
  BeginWithKernel();
  std::vector<char> in(64, 'a'), out(64, '-');
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(memory, in.data(), 64, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(out.data(), memory, 64, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(sent.size(), 2u);
  const auto source = Sent<wire::GraphCopy>(0);
  const auto destination = Sent<wire::GraphCopy>(1);
  EXPECT_EQ(source.host, wire::GraphCopy::kSource);
  EXPECT_EQ(destination.host, wire::GraphCopy::kDestination);
  const auto pull = static_cast<uint32_t>(wire::HostRunKind::kPull);
  for (uint64_t run = 1; run <= 2; ++run) {
    std::fill(in.begin(), in.end(), static_cast<char>('a' + run));
    ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    worker->SendHostFunction({.run = run, .token = source.token, .result = 0, .kind = pull});
    ASSERT_TRUE(WaitFor([&] { return worker->ended_runs().size() == run; }));
    EXPECT_EQ(worker->pulled().substr((run - 1) * 64), std::string(in.begin(), in.end()));
    brought.assign(64, static_cast<char>('x' + run));
    deliver_to = destination.token;
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(out, brought);
  }
  // When the worker has let go of them, the tokens mean nothing.
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  const auto gone = static_cast<uint32_t>(wire::HostRunKind::kGone);
  worker->SendHostFunction({.run = 0, .token = destination.token, .result = 0, .kind = gone});
  worker->SendHostFunction({.run = 0, .token = source.token, .result = 0, .kind = gone});
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  deliver_to = destination.token;
  EXPECT_TRUE(WaitFor([] { return cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE; }));
}

void Count(void* data) { ++*static_cast<std::atomic<int>*>(data); }

TEST_F(GraphTest, HostNodesAreCalledAtEachRun) {
  BeginWithKernel();
  std::atomic<int> calls{0};
  CUgraph graph = nullptr;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  const CUDA_HOST_NODE_PARAMS params = {.fn = Count, .userData = &calls};
  ASSERT_EQ(cuGraphAddHostNode(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  const uint64_t token = Sent<wire::GraphHost>(0).token;
  for (int run = 1; run <= 3; ++run) {
    ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    EXPECT_TRUE(SessionOrNull()->calls().host_functions().any_pending());
    worker->SendHostFunction({.run = static_cast<uint64_t>(run), .token = token});
    ASSERT_TRUE(WaitFor([&] { return calls.load() == run; }));
  }
  EXPECT_TRUE(WaitFor([] { return !SessionOrNull()->calls().host_functions().any_pending(); }));
}

// Pinned memory that a function of the program may still change is read when the stream comes to
// the copy, without waiting for the function.
TEST_F(GraphTest, ACopyBehindAFunctionIsPulled) {
  BeginWithKernel();
  void* pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost_v2(&pinned, 64), CUDA_SUCCESS);
  std::atomic<uint64_t> token{0};
  worker->On<wire::CopyBoxPullRequest>(
      [&](const wire::CopyBoxPullRequest& request, auto*, FakeWorker::Call*) {
        EXPECT_EQ(request.shape.width, 64u);
        token = request.token;
        return CUDA_SUCCESS;
      });
  std::atomic<int> calls{0};
  ASSERT_EQ(cuLaunchHostFunc(stream, Count, &calls), CUDA_SUCCESS);
  std::memset(pinned, 'a', 64);
  const uint64_t trips = RoundTrips();
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(memory, pinned, 64, stream), CUDA_SUCCESS);
  EXPECT_EQ(RoundTrips(), trips);
  std::memset(pinned, 'b', 64);
  ASSERT_TRUE(WaitFor([&] { return token.load() != 0; }));
  EXPECT_EQ(worker->Count("cuStreamSynchronize"), 0u);
  const auto pull = static_cast<uint32_t>(wire::HostRunKind::kPull);
  worker->SendHostFunction({.run = 9, .token = token.load(), .result = 0, .kind = pull});
  ASSERT_TRUE(WaitFor([&] { return worker->pulled().size() == 64; }));
  EXPECT_EQ(worker->pulled(), std::string(64, 'b'));
}

TEST_F(GraphTest, WhatACaptureForbidsDoesNotTravel) {
  BeginWithKernel();
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  const size_t before = worker->Count("cuMemAlloc_v2");
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(worker->Count("cuMemAlloc_v2"), before);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuMemAlloc_v2(&address, 16), CUDA_SUCCESS) << "no capture is left";
}

TEST_F(GraphTest, MemoryOfAGraphIsGivenBackWithIt) {
  BeginWithKernel();
  CUgraph graph = nullptr;
  CUdeviceptr address = 0;
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&address, 4096, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE) << "it was not freed";
  EXPECT_EQ(cuMemFreeAsync(address, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuMemFree_v2"), 0u);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuMemFree_v2"), 1u);
}

}  // namespace
}  // namespace fargpu::client
