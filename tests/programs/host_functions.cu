// Functions of the program that streams call: in order with copies and kernels, with what copies
// brought and for what copies take, beside a main thread that goes on.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

namespace {

constexpr int kRounds = 40;
constexpr int kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void Double(int* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= 2;
}

struct Buffer {
  int* host = nullptr;
  int calls = 0;
};

// Reads what the copy before it brought, changes what the copy after it takes.
void AddOne(void* data) {
  auto* const buffer = static_cast<Buffer*>(data);
  for (int i = 0; i < kCount; ++i) buffer->host[i] = (buffer->host[i] + 1) % 1000003;
  ++buffer->calls;
}

void ChangeBuffers() {
  cudaStream_t streams[2];
  Buffer buffers[2];
  int* device[2] = {};
  std::vector<int> expected(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = i;
  for (int s = 0; s < 2; ++s) {
    CHECK_CUDA(cudaStreamCreate(&streams[s]));
    CHECK_CUDA(cudaMallocHost(&buffers[s].host, kBytes));
    CHECK_CUDA(cudaMalloc(&device[s], kBytes));
    for (int i = 0; i < kCount; ++i) buffers[s].host[i] = i;
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int s = 0; s < 2; ++s) {
      CHECK_CUDA(cudaMemcpyAsync(device[s], buffers[s].host, kBytes, cudaMemcpyHostToDevice,
                                 streams[s]));
      Double<<<(kCount + 127) / 128, 128, 0, streams[s]>>>(device[s], kCount);
      CHECK_CUDA(cudaMemcpyAsync(buffers[s].host, device[s], kBytes, cudaMemcpyDeviceToHost,
                                 streams[s]));
      CHECK_CUDA(cudaLaunchHostFunc(streams[s], AddOne, &buffers[s]));
    }
    for (int& value : expected) value = (value * 2 + 1) % 1000003;
  }
  for (int s = 0; s < 2; ++s) {
    CHECK_CUDA(cudaStreamSynchronize(streams[s]));
    EXPECT(buffers[s].calls == kRounds);
    ExpectEqual(s == 0 ? "first stream" : "second stream", buffers[s].host, expected.data(),
                kCount);
    CHECK_CUDA(cudaFreeHost(buffers[s].host));
    CHECK_CUDA(cudaFree(device[s]));
    CHECK_CUDA(cudaStreamDestroy(streams[s]));
  }
}

struct Told {
  cudaStream_t stream = nullptr;
  cudaError_t status = cudaErrorUnknown;
  cudaError_t inside = cudaSuccess;
  bool elsewhere = false;
  std::thread::id caller;
};

void Tell(cudaStream_t stream, cudaError_t status, void* data) {
  auto* const told = static_cast<Told*>(data);
  told->stream = stream;
  told->status = status;
  told->elsewhere = std::this_thread::get_id() != told->caller;
  void* memory = nullptr;
  told->inside = cudaMalloc(&memory, 16);
}

void CallBack() {
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Told told;
  told.caller = std::this_thread::get_id();
  CHECK_CUDA(cudaStreamAddCallback(stream, Tell, &told, 0));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT(told.stream == stream);
  EXPECT(told.elsewhere);
  std::printf("callback: status %s, cudaMalloc in it %s\n", cudaGetErrorName(told.status),
              cudaGetErrorName(told.inside));
  EXPECT_CUDA_ERROR(cudaStreamAddCallback(stream, Tell, &told, 1), cudaErrorInvalidValue);
  EXPECT_CUDA_ERROR(cudaLaunchHostFunc(stream, nullptr, nullptr), cudaErrorInvalidValue);
  CHECK_CUDA(cudaStreamDestroy(stream));
}

void WaitForFlag(void* data) {
  while (!static_cast<std::atomic<bool>*>(data)->load()) std::this_thread::yield();
}

// A function that waits for the main thread holds up its own stream only.
void HoldUp() {
  cudaStream_t held = nullptr, other = nullptr;
  CHECK_CUDA(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
  CHECK_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  std::vector<int> values(kCount, 21), result(kCount);
  int* device = nullptr;
  CHECK_CUDA(cudaMalloc(&device, kBytes));
  std::atomic<bool> go{false};
  CHECK_CUDA(cudaLaunchHostFunc(held, WaitForFlag, &go));
  EXPECT(cudaStreamQuery(held) == cudaErrorNotReady);
  CHECK_CUDA(cudaMemcpyAsync(device, values.data(), kBytes, cudaMemcpyHostToDevice, other));
  Double<<<(kCount + 127) / 128, 128, 0, other>>>(device, kCount);
  CHECK_CUDA(cudaMemcpyAsync(result.data(), device, kBytes, cudaMemcpyDeviceToHost, other));
  CHECK_CUDA(cudaStreamSynchronize(other));
  for (int& value : values) value *= 2;
  ExpectEqual("beside a stream that waits", result.data(), values.data(), kCount);
  EXPECT(cudaStreamQuery(held) == cudaErrorNotReady);
  go.store(true);
  CHECK_CUDA(cudaStreamSynchronize(held));
  CHECK_CUDA(cudaFree(device));
  CHECK_CUDA(cudaStreamDestroy(held));
  CHECK_CUDA(cudaStreamDestroy(other));
}

}  // namespace

int main() {
  ChangeBuffers();
  CallBack();
  HoldUp();
  return 0;
}
