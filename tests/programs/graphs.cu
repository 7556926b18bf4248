// CUDA graphs: a captured step of 500 nodes replayed with updates, copies with the program's
// memory, functions of the program, and nodes of all other kinds, each compared with what the same
// work gives without a graph.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace {

constexpr int kCount = 64;
constexpr int kLayers = 124;
constexpr size_t kBytes = kCount * sizeof(unsigned);

__global__ void Forward(const unsigned* weights, const unsigned* in, unsigned* out) {
  const int i = threadIdx.x;
  out[i] = in[i] * 3 + weights[i] + in[(i + 1) % kCount];
}

__global__ void Backward(const unsigned* activation, unsigned* gradient) {
  const int i = threadIdx.x;
  gradient[i] = (gradient[i] ^ activation[i]) * 5 + 1;
}

__global__ void Update(unsigned* weights, const unsigned* gradient, unsigned rate) {
  const int i = threadIdx.x;
  weights[i] += gradient[i] / 7 * rate;
}

__global__ void Add(unsigned* values, unsigned amount) { values[threadIdx.x] += amount; }

// Everything that a step works on.
struct Model {
  unsigned* weights = nullptr;      // kLayers rows
  unsigned* activations = nullptr;  // kLayers + 1 rows
  unsigned* gradient = nullptr;
  unsigned* history = nullptr;  // kLayers rows
};

Model NewModel() {
  Model model;
  CHECK_CUDA(cudaMalloc(&model.weights, kLayers * kBytes));
  CHECK_CUDA(cudaMalloc(&model.activations, (kLayers + 1) * kBytes));
  CHECK_CUDA(cudaMalloc(&model.gradient, kBytes));
  CHECK_CUDA(cudaMalloc(&model.history, kLayers * kBytes));
  std::vector<unsigned> values((kLayers + 1) * kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<unsigned>(i * 2654435761u);
  CHECK_CUDA(cudaMemcpy(model.weights, values.data(), kLayers * kBytes, cudaMemcpyHostToDevice));
  CHECK_CUDA(
      cudaMemcpy(model.activations, values.data(), (kLayers + 1) * kBytes, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemset(model.history, 0, kLayers * kBytes));
  return model;
}

void FreeModel(const Model& model) {
  CHECK_CUDA(cudaFree(model.weights));
  CHECK_CUDA(cudaFree(model.activations));
  CHECK_CUDA(cudaFree(model.gradient));
  CHECK_CUDA(cudaFree(model.history));
}

// One step: forward, backward and update for each layer, with copies of the gradients on a second
// stream.
void Step(const Model& model, unsigned rate, cudaStream_t stream, cudaStream_t side,
          cudaEvent_t event) {
  CHECK_CUDA(cudaMemsetAsync(model.gradient, 1, kBytes, stream));
  for (int layer = 0; layer < kLayers; ++layer) {
    Forward<<<1, kCount, 0, stream>>>(model.weights + layer * kCount,
                                      model.activations + layer * kCount,
                                      model.activations + (layer + 1) * kCount);
  }
  for (int layer = kLayers - 1; layer >= 0; --layer) {
    Backward<<<1, kCount, 0, stream>>>(model.activations + layer * kCount, model.gradient);
    CHECK_CUDA(cudaEventRecord(event, stream));
    CHECK_CUDA(cudaStreamWaitEvent(side, event, 0));
    CHECK_CUDA(cudaMemcpyAsync(model.history + layer * kCount, model.gradient, kBytes,
                               cudaMemcpyDeviceToDevice, side));
    CHECK_CUDA(cudaEventRecord(event, side));
    CHECK_CUDA(cudaStreamWaitEvent(stream, event, 0));
    Update<<<1, kCount, 0, stream>>>(model.weights + layer * kCount, model.history + layer * kCount,
                                     rate);
  }
  // What the next step begins with.
  CHECK_CUDA(cudaMemcpyAsync(model.activations, model.activations + kLayers * kCount, kBytes,
                             cudaMemcpyDeviceToDevice, stream));
  Add<<<1, kCount, 0, stream>>>(model.activations, rate);
  Add<<<1, kCount, 0, stream>>>(model.gradient, rate);
}

cudaGraph_t CaptureStep(const Model& model, unsigned rate, cudaStream_t stream, cudaStream_t side,
                        cudaEvent_t event) {
  cudaGraph_t graph = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  Step(model, rate, stream, side, event);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  return graph;
}

// The rate changes with every step. Rates are given by a parameter of one node, or, every so often,
// by capturing the step anew and updating the executable graph with it.
void Train(int steps, bool print) {
  cudaStream_t stream = nullptr, side = nullptr;
  cudaEvent_t event = nullptr;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const Model model = NewModel();

  cudaGraph_t graph = CaptureStep(model, 1, stream, side, event);
  size_t nodes = 0, edges = 0;
  CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK_CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  if (print) std::printf("a step of %zu nodes and %zu edges\n", nodes, edges);
  cudaGraphExec_t exec = nullptr;
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));

  // The last two kernels, whose rate is set by itself.
  std::vector<cudaGraphNode_t> all(nodes);
  CHECK_CUDA(cudaGraphGetNodes(graph, all.data(), &nodes));
  const cudaGraphNode_t last = all[nodes - 1];
  cudaKernelNodeParams params = {};
  CHECK_CUDA(cudaGraphKernelNodeGetParams(last, &params));
  EXPECT(params.blockDim.x == kCount && params.gridDim.x == 1);
  for (int step = 0; step < steps; ++step) {
    if (step % 50 == 49) {
      cudaGraph_t newer =
          CaptureStep(model, static_cast<unsigned>(step / 50 + 2), stream, side, event);
      cudaGraphExecUpdateResultInfo info = {};
      CHECK_CUDA(cudaGraphExecUpdate(exec, newer, &info));
      EXPECT(info.result == cudaGraphExecUpdateSuccess);
      CHECK_CUDA(cudaGraphDestroy(newer));
    } else {
      unsigned amount = static_cast<unsigned>(step);
      unsigned* values = model.gradient;
      void* arguments[] = {&values, &amount};
      cudaKernelNodeParams changed = params;
      changed.kernelParams = arguments;
      CHECK_CUDA(cudaGraphExecKernelNodeSetParams(exec, last, &changed));
    }
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
  }
  std::vector<unsigned> with_graph(kLayers * kCount), gradient(kCount);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  CHECK_CUDA(
      cudaMemcpy(with_graph.data(), model.weights, kLayers * kBytes, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(gradient.data(), model.gradient, kBytes, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaGraphDestroy(graph));
  FreeModel(model);
  CHECK_CUDA(cudaStreamDestroy(stream));
  CHECK_CUDA(cudaStreamDestroy(side));
  CHECK_CUDA(cudaEventDestroy(event));
  if (!print) return;
  std::printf("after %d steps: weights %016llx, gradient %016llx\n", steps,
              static_cast<unsigned long long>(Checksum(with_graph.data(), with_graph.size())),
              static_cast<unsigned long long>(Checksum(gradient.data(), gradient.size())));
}

// A few steps of it must give what the calls give that were captured.
void CompareWithoutGraph() {
  constexpr int kSteps = 3;
  cudaStream_t stream = nullptr, side = nullptr;
  cudaEvent_t event = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaStreamCreate(&side));
  CHECK_CUDA(cudaEventCreate(&event));
  std::vector<unsigned> results[2];
  for (std::vector<unsigned>& result : results) {
    const Model model = NewModel();
    if (&result == &results[0]) {
      for (int step = 0; step < kSteps; ++step) Step(model, 5, stream, side, event);
    } else {
      cudaGraph_t graph = CaptureStep(model, 5, stream, side, event);
      cudaGraphExec_t exec = nullptr;
      CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
      CHECK_CUDA(cudaGraphDestroy(graph));
      for (int step = 0; step < kSteps; ++step) CHECK_CUDA(cudaGraphLaunch(exec, stream));
      CHECK_CUDA(cudaGraphExecDestroy(exec));  // while it runs
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    result.resize(kLayers * kCount);
    CHECK_CUDA(cudaMemcpy(result.data(), model.weights, kLayers * kBytes, cudaMemcpyDeviceToHost));
    FreeModel(model);
  }
  ExpectEqual("with and without a graph", results[1].data(), results[0].data(), results[0].size());
  CHECK_CUDA(cudaStreamDestroy(stream));
  CHECK_CUDA(cudaStreamDestroy(side));
  CHECK_CUDA(cudaEventDestroy(event));
}

struct Seen {
  const unsigned* memory = nullptr;
  unsigned sum = 0;
  int calls = 0;
};

void AddUp(void* data) {
  auto* const seen = static_cast<Seen*>(data);
  for (int i = 0; i < kCount; ++i) seen->sum = seen->sum * 31 + seen->memory[i];
  ++seen->calls;
}

// Copies read and write the program's memory when the graph comes to them, and a function between
// them sees what they brought.
void CopyAndCall() {
  constexpr int kRuns = 20;
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  unsigned *in = nullptr, *out = nullptr, *device = nullptr, *again = nullptr;
  CHECK_CUDA(cudaMallocHost(&in, kBytes));
  CHECK_CUDA(cudaMallocHost(&out, kBytes));
  CHECK_CUDA(cudaMallocHost(&again, kBytes));
  CHECK_CUDA(cudaMalloc(&device, kBytes));
  Seen seen;
  seen.memory = out;
  cudaGraph_t graph = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK_CUDA(cudaMemcpyAsync(device, in, kBytes, cudaMemcpyHostToDevice, stream));
  Add<<<1, kCount, 0, stream>>>(device, 7);
  CHECK_CUDA(cudaMemcpyAsync(out, device, kBytes, cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaLaunchHostFunc(stream, AddUp, &seen));
  CHECK_CUDA(cudaMemcpyAsync(again, out, kBytes, cudaMemcpyHostToHost, stream));
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  unsigned expected = 0;
  for (int run = 0; run < kRuns; ++run) {
    for (int i = 0; i < kCount; ++i) in[i] = static_cast<unsigned>(run * 1000 + i);
    for (int i = 0; i < kCount; ++i) expected = expected * 31 + in[i] + 7;
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    EXPECT(seen.calls == run + 1 && seen.sum == expected);
    EXPECT(std::memcmp(again, out, kBytes) == 0);
  }
  std::printf("%d runs with copies and a function: %08x\n", kRuns, seen.sum);

  // Another source and a copy left out, and two runs that nobody waits for in between.
  size_t count = 0;
  CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  EXPECT(count == 5);
  std::vector<cudaGraphNode_t> nodes(count);
  CHECK_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::vector<unsigned> other(kCount, 100);
  CHECK_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec, nodes[0], device, other.data(), kBytes,
                                                cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaGraphNodeSetEnabled(exec, nodes[4], 0));
  std::memset(again, 0, kBytes);
  CHECK_CUDA(cudaGraphLaunch(exec, stream));
  CHECK_CUDA(cudaGraphLaunch(exec, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT(out[0] == 107 && out[kCount - 1] == 107 && again[0] == 0);
  CHECK_CUDA(cudaGraphNodeSetEnabled(exec, nodes[4], 1));
  CHECK_CUDA(cudaGraphLaunch(exec, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT(again[0] == 107);
  std::printf("another source, a copy left out and back: %u calls\n",
              static_cast<unsigned>(seen.calls));
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaFree(device));
  CHECK_CUDA(cudaFreeHost(in));
  CHECK_CUDA(cudaFreeHost(out));
  CHECK_CUDA(cudaFreeHost(again));
  CHECK_CUDA(cudaStreamDestroy(stream));
}

void CountEnd(void* data) { ++*static_cast<int*>(data); }

const char* TypeName(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "memcpy";
    case cudaGraphNodeTypeMemset:
      return "memset";
    case cudaGraphNodeTypeHost:
      return "host";
    case cudaGraphNodeTypeGraph:
      return "graph";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeWaitEvent:
      return "wait";
    case cudaGraphNodeTypeEventRecord:
      return "record";
    case cudaGraphNodeTypeMemAlloc:
      return "alloc";
    case cudaGraphNodeTypeMemFree:
      return "free";
    default:
      return "other";
  }
}

// A graph made by hand: rows, events, a child, a user object, a clone.
void BuildByHand() {
  constexpr size_t kRows = 3;
  constexpr size_t kPitch = 512;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaEventCreate(&event));
  unsigned* device = nullptr;
  CHECK_CUDA(cudaMalloc(&device, kRows * kPitch));
  std::vector<unsigned> host(kRows * kCount);

  cudaGraph_t child = nullptr;
  CHECK_CUDA(cudaGraphCreate(&child, 0));
  cudaGraphNode_t add[2] = {};
  unsigned amount = 3;
  for (int i = 0; i < 2; ++i) {
    unsigned* values = device + i * kPitch / sizeof(unsigned);
    void* arguments[] = {&values, &amount};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void*>(Add);
    params.gridDim = dim3(1);
    params.blockDim = dim3(kCount);
    params.kernelParams = arguments;
    CHECK_CUDA(cudaGraphAddKernelNode(&add[i], child, i == 0 ? nullptr : &add[0], i == 0 ? 0 : 1,
                                      &params));
  }

  cudaGraph_t graph = nullptr;
  CHECK_CUDA(cudaGraphCreate(&graph, 0));
  int ended = 0;
  cudaUserObject_t object = nullptr;
  CHECK_CUDA(cudaUserObjectCreate(&object, &ended, CountEnd, 1, cudaUserObjectNoDestructorSync));
  CHECK_CUDA(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  cudaGraphNode_t fill = nullptr, record = nullptr, inner = nullptr, wait = nullptr, copy = nullptr,
                  empty = nullptr;
  cudaMemsetParams set = {};
  set.dst = device;
  set.pitch = kPitch;
  set.value = 9;
  set.elementSize = sizeof(unsigned);
  set.width = kCount;
  set.height = kRows;
  CHECK_CUDA(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &set));
  CHECK_CUDA(cudaGraphAddEventRecordNode(&record, graph, &fill, 1, event));
  CHECK_CUDA(cudaGraphAddChildGraphNode(&inner, graph, &record, 1, child));
  CHECK_CUDA(cudaGraphAddEventWaitNode(&wait, graph, &inner, 1, event));
  cudaMemcpy3DParms rows = {};
  rows.srcPtr = make_cudaPitchedPtr(device, kPitch, kCount, kRows);
  rows.dstPtr = make_cudaPitchedPtr(host.data(), kBytes, kCount, kRows);
  rows.extent = make_cudaExtent(kBytes, kRows, 1);
  rows.kind = cudaMemcpyDeviceToHost;
  CHECK_CUDA(cudaGraphAddMemcpyNode(&copy, graph, &wait, 1, &rows));
  CHECK_CUDA(cudaGraphAddEmptyNode(&empty, graph, &copy, 1));
  CHECK_CUDA(cudaGraphRemoveDependencies(graph, &copy, &empty, nullptr, 1));
  CHECK_CUDA(cudaGraphAddDependencies(graph, &fill, &empty, nullptr, 1));
  CHECK_CUDA(cudaGraphDestroy(child));

  cudaGraph_t clone = nullptr;
  CHECK_CUDA(cudaGraphClone(&clone, graph));
  cudaGraphNode_t found = nullptr;
  CHECK_CUDA(cudaGraphNodeFindInClone(&found, copy, clone));
  cudaGraphNodeType type = {};
  CHECK_CUDA(cudaGraphNodeGetType(found, &type));
  EXPECT(type == cudaGraphNodeTypeMemcpy);
  size_t count = 0;
  CHECK_CUDA(cudaGraphGetNodes(clone, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  CHECK_CUDA(cudaGraphGetNodes(clone, nodes.data(), &count));
  std::string kinds;
  for (cudaGraphNode_t node : nodes) {
    CHECK_CUDA(cudaGraphNodeGetType(node, &type));
    kinds += std::string(" ") + TypeName(type);
  }
  std::printf("by hand:%s\n", kinds.c_str());

  cudaGraphExec_t exec = nullptr;
  CHECK_CUDA(cudaGraphInstantiate(&exec, clone, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
  EXPECT(ended == 0);
  for (int run = 0; run < 2; ++run) {
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaEventQuery(event));
    for (size_t i = 0; i < host.size(); ++i) EXPECT(host[i] == (i < 2 * kCount ? 12u : 9u));
  }
  // A child with another amount.
  amount = 30;
  CHECK_CUDA(cudaGraphCreate(&child, 0));
  for (int i = 0; i < 2; ++i) {
    unsigned* values = device + i * kPitch / sizeof(unsigned);
    void* arguments[] = {&values, &amount};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void*>(Add);
    params.gridDim = dim3(1);
    params.blockDim = dim3(kCount);
    params.kernelParams = arguments;
    CHECK_CUDA(cudaGraphAddKernelNode(&add[i], child, i == 0 ? nullptr : &add[0], i == 0 ? 0 : 1,
                                      &params));
  }
  CHECK_CUDA(cudaGraphNodeFindInClone(&found, inner == nullptr ? nullptr : nodes[2], clone) ==
                     cudaSuccess
                 ? cudaErrorUnknown
                 : cudaSuccess);
  CHECK_CUDA(cudaGraphExecChildGraphNodeSetParams(exec, nodes[2], child));
  CHECK_CUDA(cudaGraphLaunch(exec, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT(host[0] == 39 && host[2 * kCount] == 9);
  std::printf("a child with other parameters: %u %u\n", host[0], host[2 * kCount]);
  CHECK_CUDA(cudaGraphDestroy(child));
  CHECK_CUDA(cudaGraphDestroy(clone));
  EXPECT(ended == 0);
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  EXPECT(ended == 1);
  CHECK_CUDA(cudaFree(device));
  CHECK_CUDA(cudaEventDestroy(event));
  CHECK_CUDA(cudaStreamDestroy(stream));
}

// Memory that a graph allocates and frees, and memory that it leaves to the program.
void AllocateInGraph() {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  unsigned* kept = nullptr;
  unsigned* inside = nullptr;
  cudaGraph_t graph = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CHECK_CUDA(cudaMallocAsync(&kept, kBytes, stream));
  CHECK_CUDA(cudaMallocAsync(&inside, kBytes, stream));
  CHECK_CUDA(cudaMemsetAsync(inside, 1, kBytes, stream));
  Add<<<1, kCount, 0, stream>>>(inside, 5);
  CHECK_CUDA(cudaMemcpyAsync(kept, inside, kBytes, cudaMemcpyDeviceToDevice, stream));
  CHECK_CUDA(cudaFreeAsync(inside, stream));
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaGraphExec_t second = nullptr;
  EXPECT_CUDA_ERROR(cudaGraphInstantiate(&second, graph, 0), cudaErrorNotSupported);
  for (int run = 0; run < 2; ++run) {
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    unsigned value = 0;
    CHECK_CUDA(cudaMemcpyAsync(&value, kept, sizeof(value), cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    EXPECT(value == 0x01010106);
    unsigned long long used = 0;
    CHECK_CUDA(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    EXPECT(used >= kBytes);
    CHECK_CUDA(cudaFreeAsync(kept, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    EXPECT(used == 0);
  }
  CHECK_CUDA(cudaDeviceGraphMemTrim(0));
  std::printf("memory of a graph: allocated and freed twice\n");
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaStreamDestroy(stream));
}

__global__ void CountDown(unsigned* counter, unsigned* runs, cudaGraphConditionalHandle handle) {
  *runs += 1;
  *counter -= 1;
  cudaGraphSetConditional(handle, *counter > 0 ? 1 : 0);
}

// A loop that a kernel ends.
void LoopInGraph() {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  unsigned* values = nullptr;
  CHECK_CUDA(cudaMalloc(&values, 2 * sizeof(unsigned)));
  cudaGraph_t graph = nullptr;
  CHECK_CUDA(cudaGraphCreate(&graph, 0));
  cudaGraphConditionalHandle handle = {};
  CHECK_CUDA(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  cudaGraphNode_t loop = nullptr;
  CHECK_CUDA(cudaGraphAddNode(&loop, graph, nullptr, nullptr, 0, &params));
  cudaGraph_t body = params.conditional.phGraph_out[0];
  CHECK_CUDA(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0,
                                           cudaStreamCaptureModeRelaxed));
  CountDown<<<1, 1, 0, stream>>>(values, values + 1, handle);
  CHECK_CUDA(cudaStreamEndCapture(stream, nullptr));
  cudaGraphExec_t exec = nullptr;
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (unsigned run = 1; run <= 3; ++run) {
    unsigned counts[2] = {run * 4, 0};
    CHECK_CUDA(cudaMemcpy(values, counts, sizeof(counts), cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaMemcpy(counts, values, sizeof(counts), cudaMemcpyDeviceToHost));
    std::printf("a loop that ran %u times\n", counts[1]);
    EXPECT(counts[0] == 0 && counts[1] == run * 4);
  }
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaFree(values));
  CHECK_CUDA(cudaStreamDestroy(stream));
}

}  // namespace

// Without an argument all of it; with a number only so many steps of training, for tests that count
// what they cost.
int main(int argc, char** argv) {
  if (argc > 1) {
    Train(std::atoi(argv[1]), false);
    return 0;
  }
  Train(1000, true);
  CompareWithoutGraph();
  CopyAndCall();
  BuildByHand();
  AllocateInGraph();
  LoopInGraph();
  return 0;
}
