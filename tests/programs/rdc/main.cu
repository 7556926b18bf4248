// A program of two files whose kernels call a device function and use variables of the other file,
// so that device code is linked (-rdc=true).
#include "../check.h"
#include "series.h"

static __device__ __noinline__ int Next(int a, int b) { return a * 2 + b; }

__global__ void Compute(int* results) {
  const int i = static_cast<int>(threadIdx.x);
  results[i] = Next(Fibonacci(i), modulus);
}

void Run(const char* name, int modulus_now, int* device_results) {
  constexpr int kCount = 96;
  int results[kCount], expected[kCount];
  int a = 0;
  int b = 1;
  for (int i = 0; i < kCount; ++i) {
    expected[i] = a * 2 + modulus_now;
    const int next = (a + b) % modulus_now;
    a = b;
    b = next;
  }
  Compute<<<1, kCount>>>(device_results);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemcpy(results, device_results, sizeof(results), cudaMemcpyDeviceToHost));
  ExpectEqual(name, results, expected, kCount);
}

int main() {
  int* device_results = nullptr;
  CHECK_CUDA(cudaMalloc(&device_results, 96 * sizeof(int)));
  Run("fibonacci", 1000007, device_results);

  const int smaller = 10;
  CHECK_CUDA(cudaMemcpyToSymbol(modulus, &smaller, sizeof(smaller)));
  Run("fibonacci modulo 10", 10, device_results);

  int call_count = 0;
  CHECK_CUDA(cudaMemcpyFromSymbol(&call_count, calls, sizeof(call_count)));
  std::printf("calls: %d\n", call_count);
  EXPECT(call_count == 2 * 96);
  CHECK_CUDA(cudaFree(device_results));
  return 0;
}
