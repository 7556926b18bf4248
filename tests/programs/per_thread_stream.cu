// Built with --default-stream per-thread: two host threads work at the same time, each on its own
// default stream, with launches, asynchronous copies and synchronisation of that stream only.
#include <thread>
#include <vector>

#include "check.h"

constexpr int kCount = 5000;
constexpr int kRounds = 20;

__global__ void Step(unsigned int* values, int count, int addend) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] * 3u + addend;
}

void Work(int number, std::vector<unsigned int>* result) {
  std::vector<unsigned int> values(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = i + number;
  unsigned int* device_values = nullptr;
  CHECK_CUDA(cudaMalloc(&device_values, kCount * sizeof(unsigned int)));
  for (int round = 0; round < kRounds; ++round) {
    CHECK_CUDA(cudaMemcpyAsync(device_values, values.data(), kCount * sizeof(unsigned int),
                               cudaMemcpyHostToDevice, cudaStreamPerThread));
    Step<<<(kCount + 127) / 128, 128>>>(device_values, kCount, round + number);
    CHECK_CUDA(cudaGetLastError());
    // Stream 0 is this thread's own here, the same as cudaStreamPerThread.
    CHECK_CUDA(cudaMemcpyAsync(values.data(), device_values, kCount * sizeof(unsigned int),
                               cudaMemcpyDeviceToHost, 0));
    CHECK_CUDA(cudaStreamSynchronize(0));
  }
  CHECK_CUDA(cudaFree(device_values));
  *result = values;
}

int main() {
  std::vector<unsigned int> results[2];
  std::thread first(Work, 1, &results[0]);
  std::thread second(Work, 2, &results[1]);
  first.join();
  second.join();
  for (int number = 1; number <= 2; ++number) {
    std::vector<unsigned int> expected(kCount);
    for (int i = 0; i < kCount; ++i) {
      unsigned int value = i + number;
      for (int round = 0; round < kRounds; ++round) value = value * 3u + round + number;
      expected[i] = value;
    }
    ExpectEqual(number == 1 ? "first thread" : "second thread", results[number - 1].data(),
                expected.data(), kCount);
  }
  return 0;
}
