// Sums and extremes of an array: shuffles within a warp, shared memory between warps, atomics
// between blocks, for several types.
#include <algorithm>
#include <climits>
#include <vector>

#include "check.h"

constexpr int kBlock = 256;
constexpr int kWarps = kBlock / 32;

template <typename T>
__device__ T WarpSum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  return value;
}

template <typename T>
__global__ void Sum(const T* values, int count, T* result) {
  __shared__ T partial[kWarps];
  T sum = 0;
  for (int i = blockIdx.x * kBlock + threadIdx.x; i < count; i += gridDim.x * kBlock) {
    sum += values[i];
  }
  sum = WarpSum(sum);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = WarpSum(lane < kWarps ? partial[lane] : T(0));
    if (lane == 0) atomicAdd(result, sum);
  }
}

// A butterfly gives every lane the result; the first lane of each warp passes it on.
__global__ void Extremes(const int* values, int count, int* lowest, int* highest) {
  int low = INT_MAX;
  int high = INT_MIN;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    low = min(low, values[i]);
    high = max(high, values[i]);
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    low = min(low, __shfl_xor_sync(0xffffffffu, low, mask));
    high = max(high, __shfl_xor_sync(0xffffffffu, high, mask));
  }
  if (threadIdx.x % 32 == 0) {
    atomicMin(lowest, low);
    atomicMax(highest, high);
  }
}

// Values are such that every partial sum is exact, so that the order of atomics does not matter.
template <typename T>
T ValueAt(int i) {
  return static_cast<T>((i * 1103515245u + 12345u) % 1009u);
}

template <typename T>
void RunSum(const char* name, int count) {
  std::vector<T> values(count);
  T expected = 0;
  for (int i = 0; i < count; ++i) {
    values[i] = ValueAt<T>(i);
    expected += values[i];
  }
  T *device_values = nullptr, *device_result = nullptr;
  CHECK_CUDA(cudaMalloc(&device_values, count * sizeof(T)));
  CHECK_CUDA(cudaMalloc(&device_result, sizeof(T)));
  CHECK_CUDA(cudaMemcpy(device_values, values.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemset(device_result, 0, sizeof(T)));
  Sum<<<20, kBlock>>>(device_values, count, device_result);
  CHECK_CUDA(cudaGetLastError());
  T result = 0;
  CHECK_CUDA(cudaMemcpy(&result, device_result, sizeof(T), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device_values));
  CHECK_CUDA(cudaFree(device_result));
  ExpectEqual(name, &result, &expected, 1);
}

void RunExtremes(int count) {
  std::vector<int> values(count);
  for (int i = 0; i < count; ++i) {
    values[i] = static_cast<int>((i * 2654435761u) ^ 0x5bd1e995u);
  }
  const int expected[2] = {*std::min_element(values.begin(), values.end()),
                           *std::max_element(values.begin(), values.end())};
  const int start[2] = {INT_MAX, INT_MIN};
  int *device_values = nullptr, *device_results = nullptr;
  CHECK_CUDA(cudaMalloc(&device_values, count * sizeof(int)));
  CHECK_CUDA(cudaMalloc(&device_results, sizeof(start)));
  CHECK_CUDA(cudaMemcpy(device_values, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(device_results, start, sizeof(start), cudaMemcpyHostToDevice));
  Extremes<<<16, 128>>>(device_values, count, device_results, device_results + 1);
  CHECK_CUDA(cudaGetLastError());
  int results[2] = {};
  CHECK_CUDA(cudaMemcpy(results, device_results, sizeof(results), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device_values));
  CHECK_CUDA(cudaFree(device_results));
  ExpectEqual("lowest and highest int", results, expected, 2);
}

int main() {
  RunSum<int>("sum of int", 50000);
  RunSum<unsigned long long>("sum of unsigned long long", 50000);
  RunSum<float>("sum of float", 10000);
  RunSum<double>("sum of double", 50000);
  RunExtremes(30000);
  return 0;
}
