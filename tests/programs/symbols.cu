// Constant and device variables: initialised ones, copies to and from symbols, a symbol's address
// and size, and a kernel that changes one.
#include <vector>

#include "check.h"

__constant__ int coefficients[4] = {1, 2, 3, 4};
__constant__ float scale;
__device__ int counter = 40;
__device__ int table[64];
__device__ const int* table_end = table + 64;  // an initialiser that is an address

__global__ void Evaluate(const int* xs, float* ys, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int y = 0;
  for (int k = 3; k >= 0; --k) y = y * xs[i] + coefficients[k];
  ys[i] = static_cast<float>(y) * scale;
  atomicAdd(&counter, 1);
}

__global__ void FillTable() {
  table[threadIdx.x] = static_cast<int>(threadIdx.x * threadIdx.x);
  if (threadIdx.x == 0) counter += static_cast<int>(table_end - table);
}

void RunEvaluate(const char* name, const int (&c)[4], float factor) {
  constexpr int kCount = 500;
  std::vector<int> xs(kCount);
  std::vector<float> ys(kCount), expected(kCount);
  for (int i = 0; i < kCount; ++i) {
    xs[i] = i % 50 - 25;
    expected[i] =
        static_cast<float>(((c[3] * xs[i] + c[2]) * xs[i] + c[1]) * xs[i] + c[0]) * factor;
  }
  int* device_xs = nullptr;
  float* device_ys = nullptr;
  CHECK_CUDA(cudaMalloc(&device_xs, kCount * sizeof(int)));
  CHECK_CUDA(cudaMalloc(&device_ys, kCount * sizeof(float)));
  CHECK_CUDA(cudaMemcpy(device_xs, xs.data(), kCount * sizeof(int), cudaMemcpyHostToDevice));
  Evaluate<<<4, 128>>>(device_xs, device_ys, kCount);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemcpy(ys.data(), device_ys, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device_xs));
  CHECK_CUDA(cudaFree(device_ys));
  ExpectEqual(name, ys.data(), expected.data(), kCount);
}

int main() {
  const float half = 0.5f;
  CHECK_CUDA(cudaMemcpyToSymbol(scale, &half, sizeof(half)));
  RunEvaluate("initialised constants", {1, 2, 3, 4}, half);

  const int changed[2] = {-7, 9};  // the two in the middle
  CHECK_CUDA(cudaMemcpyToSymbol(coefficients, changed, sizeof(changed), sizeof(int)));
  RunEvaluate("changed constants", {1, -7, 9, 4}, half);

  FillTable<<<1, 64>>>();
  CHECK_CUDA(cudaGetLastError());
  int squares[64], expected_squares[64];
  for (int i = 0; i < 64; ++i) expected_squares[i] = i * i;
  CHECK_CUDA(cudaMemcpyFromSymbol(squares, table, sizeof(squares)));
  ExpectEqual("device table", squares, expected_squares, 64);

  // The same bytes through the symbol's address.
  void* address = nullptr;
  size_t size = 0;
  CHECK_CUDA(cudaGetSymbolAddress(&address, table));
  CHECK_CUDA(cudaGetSymbolSize(&size, table));
  EXPECT(size == sizeof(squares));
  int again[64] = {};
  CHECK_CUDA(cudaMemcpy(again, address, size, cudaMemcpyDeviceToHost));
  ExpectEqual("device table by address", again, expected_squares, 64);

  int count = 0;
  CHECK_CUDA(cudaMemcpyFromSymbol(&count, counter, sizeof(count)));
  std::printf("counter: %d\n", count);
  EXPECT(count == 40 + 2 * 500 + 64);
  return 0;
}
