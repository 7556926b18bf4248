// A program that calls cudaDeviceReset and starts anew, twice: memory, variables and streams of the
// time before are gone, and device variables have their initial values again.
#include <vector>

#include "check.h"

__device__ int accumulator = 5;

__global__ void Accumulate(const int* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(&accumulator, values[i]);
}

int main() {
  constexpr int kCount = 1000;
  for (int round = 1; round <= 3; ++round) {
    std::vector<int> values(kCount);
    int expected = 5;
    for (int i = 0; i < kCount; ++i) {
      values[i] = i * round;
      expected += values[i];
    }
    cudaStream_t stream;
    CHECK_CUDA(cudaStreamCreate(&stream));
    int* device_values = nullptr;
    CHECK_CUDA(cudaMalloc(&device_values, kCount * sizeof(int)));
    CHECK_CUDA(cudaMemcpyAsync(device_values, values.data(), kCount * sizeof(int),
                               cudaMemcpyHostToDevice, stream));
    Accumulate<<<(kCount + 127) / 128, 128, 0, stream>>>(device_values, kCount);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaStreamSynchronize(stream));
    int result = 0;
    CHECK_CUDA(cudaMemcpyFromSymbol(&result, accumulator, sizeof(result)));
    std::printf("round %d: %d\n", round, result);
    EXPECT(result == expected);
    // Neither the stream nor the memory is given back: the reset does that.
    CHECK_CUDA(cudaDeviceReset());
  }
  return 0;
}
